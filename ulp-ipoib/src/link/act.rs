//! Work that runs under no lock: requests, and sequences of several.

use futures::channel::oneshot;
use futures::future::{Either, select};
use verbs_cm::sa::{Join, PathQuery};
use verbs_cm::wire::ServiceId;
use verbs_cm::{ConnParam, ConnectRequest, Connection, Route};
use verbs_core::mad::TimeCode;
use verbs_core::mad::sa::McMemberRecord;
use verbs_core::sync::Arc;
use verbs_core::wr::Datagram;
use verbs_core::{Access, Av, Gid, GlobalRoute, Mtu, QKey, QpAttr, QpInit, Qpn, Send, task};

use super::Core;
use super::Kick;
use super::buffers::Work;
use super::entry::group::{Joined, Phase};
use super::entry::passive::Passive;
use super::state::{Action, Terms};
use crate::admin::Membership;
use crate::config::{CONNECTION_DEPTH, CONNECTIONS_MAX};
use crate::error::Error;
use crate::wire::{CONNECTED_MTU, ConnectedData, ConnectedDataView, HEADER_LEN, HardwareAddress};

impl Core {
    pub(super) fn act(self: &Arc<Self>, action: Action) {
        match action {
            Action::FindPath(gid) => task::detach(Arc::clone(self).find_path(gid)),
            Action::Join(mgid) => task::detach(Arc::clone(self).join(mgid)),
            Action::Leave(group) => {
                if let Phase::Joined(joined) = group.phase {
                    task::detach(leave(joined));
                }
            }
            Action::Connect(at, route) => task::detach(Arc::clone(self).connect(at, route)),
            Action::Hang(connection) => {
                // The other end is notified; its answer is not awaited.
                let _step = connection.close().issue(|_| ());
            }
            Action::Disconnect(qpn) => {
                let ending = {
                    let state = self.state.lock();
                    let passive = state.passive.get(&qpn);
                    let connection = passive.and_then(|passive| passive.connection.as_ref());
                    connection.map(Connection::disconnect)
                };
                if let Some(ending) = ending {
                    // The future that waits for the connection sees its end.
                    let _step = ending.issue(|_| ());
                }
            }
            Action::Restart => self.kick.set(Kick::RESTART),
            Action::Wake(waker) => task::wake(waker),
        }
    }

    async fn find_path(self: Arc<Self>, gid: Gid) {
        let found = self.look_up(gid).await;
        if let Err(error) = &found {
            tracing::debug!(%gid, %error, "there is no path");
        }
        let old = self.with(|state, now| state.path_found(gid, found.ok(), now));
        drop(old);
    }

    async fn look_up(&self, gid: Gid) -> Result<(verbs_core::Ah, Route), Error> {
        let (own, partition) = {
            let state = self.state.lock();
            (state.own.gid, state.partition)
        };
        let query = PathQuery::to_gid(gid).from_gid(own).pkey(partition.0);
        let record = self.admin.path(query).await?;
        let is_subnet_local = record.hop_limit <= 1;
        let global = GlobalRoute {
            dgid: record.dgid,
            sgid_index: 0,
            flow_label: record.flow_label.value(),
            hop_limit: record.hop_limit,
            traffic_class: record.traffic_class,
        };
        let mtu = Mtu::from_code(record.mtu.value());
        let route = Route {
            av: Av {
                global: (!is_subnet_local).then_some(global),
                dlid: record.dlid,
                sl: record.sl.byte(),
                src_path_bits: 0,
                port: self.config.port,
            },
            local_gid: own,
            remote_gid: gid,
            pkey: partition,
            mtu: mtu.unwrap_or(Mtu::B2048),
            packet_lifetime: TimeCode::new(record.packet_lifetime.byte()),
            rate: record.rate,
            is_subnet_local,
        };
        let ah = self.pd.create_ah(route.av).await?;
        Ok((ah, route))
    }

    /// Joins a group, as full or send-only member, depending on its subscribers.
    async fn join(self: Arc<Self>, mgid: Gid) {
        let (link, receives) = {
            let state = self.state.lock();
            let group = state.groups.get(&mgid);
            (state.link, group.is_some_and(|group| group.subscribers > 0))
        };
        let Some(terms) = link else {
            // It is joined when the link comes up.
            self.with(|state, now| state.group_joined(mgid, None, now));
            return;
        };
        let join = match receives {
            true => Join::full(mgid).like(&terms.record),
            false => Join::send_only(mgid).pkey(terms.record.pkey),
        };
        let joined = self.join_as(join, receives, &terms).await;
        if let Err(error) = &joined {
            tracing::debug!(%mgid, %error, "the group cannot be joined");
        }
        let unwanted = self.with(|state, now| {
            let joined = joined.ok();
            match state.link {
                Some(_) => state.group_joined(mgid, joined, now),
                None => joined,
            }
        });
        if let Some(unwanted) = unwanted {
            leave(unwanted).await;
        }
    }

    /// Joins, attaches the queue pair, and creates the address handle for sending.
    async fn join_as(
        self: &Arc<Self>,
        join: Join,
        receives: bool,
        terms: &Terms,
    ) -> Result<Joined, Error> {
        let mut membership = self.admin.join(join).await?;
        self.follow(&mut *membership);
        self.use_group(membership, receives, terms.qkey).await
    }

    /// Applies the administrator's changes of a group.
    pub(super) fn follow(self: &Arc<Self>, membership: &mut dyn Membership) {
        let (mgid, weak) = (membership.record().mgid, Arc::downgrade(self));
        membership.on_change(Box::new(move |change| {
            if let Some(core) = weak.upgrade()
                && *change == verbs_cm::sa::Change::Renewed
            {
                task::detach(core.renewed(mgid));
            }
        }));
    }

    pub(super) async fn use_group(
        &self,
        membership: Box<dyn Membership>,
        receives: bool,
        qkey: QKey,
    ) -> Result<Joined, Error> {
        let record = membership.record();
        let ah = self.pd.create_ah(self.group_av(&record)).await?;
        let attached = match receives {
            true => Some(self.qp.attach_mcast(record.mgid, record.mlid).await?),
            false => None,
        };
        Ok(Joined {
            to: self.group_datagram(&ah, qkey),
            attached,
            ah,
            record,
            membership,
        })
    }

    fn group_datagram(&self, ah: &verbs_core::Ah, qkey: QKey) -> Datagram {
        Datagram {
            pkey_index: self.state.lock().partition.1,
            ..Datagram::new(ah.av(), Qpn::MULTICAST, qkey)
        }
    }

    fn group_av(&self, record: &McMemberRecord) -> Av {
        Av {
            global: Some(GlobalRoute {
                dgid: record.mgid,
                sgid_index: 0,
                flow_label: record.flow_label.value(),
                hop_limit: record.hop_limit,
                traffic_class: record.traffic_class,
            }),
            dlid: record.mlid,
            sl: record.sl.byte(),
            src_path_bits: 0,
            port: self.config.port,
        }
    }

    /// The group was registered again with the administrator, and may have changed.
    async fn renewed(self: Arc<Self>, mgid: Gid) {
        let (now_is, was, receives, qkey) = {
            let state = self.state.lock();
            let Some(group) = state.groups.get(&mgid) else {
                return;
            };
            let (Phase::Joined(joined), Some(terms)) = (&group.phase, state.link) else {
                return;
            };
            let receives = joined.attached.is_some();
            (
                joined.membership.record(),
                joined.record,
                receives,
                terms.qkey,
            )
        };
        if now_is == was {
            return;
        }
        let is_broadcast = {
            let state = self.state.lock();
            state.link.is_some_and(|terms| terms.record.mgid == mgid)
        };
        if is_broadcast && (now_is.qkey, now_is.mtu) != (was.qkey, was.mtu) {
            self.kick.set(Kick::RESTART);
            return;
        }
        let Ok(ah) = self.pd.create_ah(self.group_av(&now_is)).await else {
            return;
        };
        let attached = match receives {
            true => self.qp.attach_mcast(mgid, now_is.mlid).await.ok(),
            false => None,
        };
        let to = self.group_datagram(&ah, qkey);
        let old = self.with(|state, _| {
            let Some(group) = state.groups.get_mut(&mgid) else {
                return (Some(ah), attached);
            };
            let Phase::Joined(joined) = &mut group.phase else {
                return (Some(ah), attached);
            };
            joined.to = to;
            joined.record = now_is;
            let old = std::mem::replace(&mut joined.attached, attached);
            (Some(std::mem::replace(&mut joined.ah, ah)), old)
        });
        drop(old);
    }

    /// Connects to a neighbour, and manages the connection until it is over.
    async fn connect(self: Arc<Self>, at: HardwareAddress, route: Route) {
        let key = (at.qpn, at.gid);
        let made = self.call(at, route).await;
        if let Err(error) = &made {
            tracing::debug!(%at, %error, "no connection; datagrams are sent");
        }
        let closed = made
            .as_ref()
            .ok()
            .map(|(connection, _)| connection.closed());
        let unwanted = self.with(|state, now| state.connected(key, made.ok(), now));
        if let Some(unwanted) = unwanted {
            self.act(Action::Hang(unwanted));
            return;
        }
        if let Some(closed) = closed {
            let weak = Arc::downgrade(&self);
            drop(self);
            // The connection is over, however it ended.
            let _ended = closed.await;
            if let Some(core) = weak.upgrade() {
                core.with(|state, _| state.connection_over(key));
            }
        }
    }

    async fn call(&self, at: HardwareAddress, route: Route) -> Result<(Connection, usize), Error> {
        let asked = {
            let cq = self.cq.lock();
            let init = QpInit::rc(&*cq, &*cq).depth(CONNECTION_DEPTH, 1);
            self.pd.create_qp(init)
        };
        let qp = asked.await?;
        qp.modify(self.to_init()).await?;
        let service = ServiceId(self.config.service_prefix | u64::from(at.qpn.value()));
        let calling = self.manager.connect_service(service, route, qp);
        let calling = calling.param(param(false)).private_data(&self.own_data());
        let connection = calling
            .await
            .map_err(|refused| Error::Manager(refused.error))?;
        let mtu = mtu_of(connection.private_data());
        Ok((connection, mtu))
    }

    fn to_init(&self) -> QpAttr {
        QpAttr {
            pkey_index: Some(self.state.lock().partition.1),
            ..QpAttr::init(self.config.port, Access::empty())
        }
    }

    fn own_data(&self) -> [u8; ConnectedData::LEN] {
        let mut bytes = [0; ConnectedData::LEN];
        let data = ConnectedData {
            qpn: self.qp.qpn(),
            receive_mtu: (CONNECTED_MTU + HEADER_LEN) as u32,
        };
        data.emit(&mut bytes);
        bytes
    }

    /// Accepts a neighbour's connection, and takes its queue pair down when it is over.
    pub(super) async fn serve(self: Arc<Self>, request: ConnectRequest) {
        if let Err(error) = self.serve_one(request).await {
            tracing::debug!(%error, "a neighbour's connection was not taken");
        }
    }

    async fn serve_one(self: Arc<Self>, request: ConnectRequest) -> Result<(), Error> {
        if self.state.lock().passive.len() >= CONNECTIONS_MAX {
            return Ok(request.reject(&[])?);
        }
        let asked = {
            let (cq, state) = (self.cq.lock(), self.state.lock());
            let srq = state.srq.as_ref().ok_or(Error::Closed)?;
            let init = QpInit::rc(&*cq, &*cq).depth(1, 0).srq(srq);
            self.pd.create_qp(init)
        };
        let qp = asked.await?;
        qp.modify(self.to_init()).await?;
        let qpn = qp.qpn();
        let (last, last_receive) = oneshot::channel();
        let (drained, marker) = oneshot::channel();
        self.with(|state, now| {
            let passive = Passive::new(now, last, drained);
            state.passive.insert(qpn.value(), passive);
        });
        let accepting = request.accept(qp).param(param(true));
        let connection = match accepting.private_data(&self.own_data()).await {
            Ok(connection) => connection,
            Err(refused) => {
                self.with(|state, _| state.passive.remove(&qpn.value()));
                return Err(Error::Manager(refused.error));
            }
        };
        let closed = connection.closed();
        self.with(|state, _| {
            state.counters.connections_accepted += 1;
            if let Some(passive) = state.passive.get_mut(&qpn.value()) {
                passive.connection = Some(connection);
            }
        });
        let weak = Arc::downgrade(&self);
        drop(self);
        // The first step: the connection manager has moved the queue pair to ERR.
        let _ended = closed.await;
        // The second: the device reports that the queue pair will take no more receives.
        if last_receive.await.is_err() {
            return Ok(());
        }
        // The third: a marker behind all receives that the queue pair had taken.
        let posted = weak.upgrade().is_some_and(|core| core.post_marker(qpn));
        // The fourth, when the marker has completed: nothing refers to the queue pair any longer.
        if posted && marker.await.is_err() {
            return Ok(());
        }
        let Some(core) = weak.upgrade() else {
            return Ok(());
        };
        let gone = core.with(|state, _| state.passive.remove(&qpn.value()));
        let qp = gone.and_then(|passive| passive.connection?.into_qp());
        if let Some(qp) = qp {
            qp.destroy().await.map_err(|refused| refused.error)?;
        }
        Ok(())
    }

    fn post_marker(self: &Arc<Self>, qpn: Qpn) -> bool {
        self.with(|state, _| {
            let passive = state.passive.get_mut(&qpn.value());
            let connection = passive.and_then(|passive| passive.connection.as_mut());
            let marker = Send::new(Work::Drain.id()).signaled();
            connection.is_some_and(|connection| connection.post_send(marker).is_ok())
        })
    }

    /// Accepts neighbours' connections, until the interface is closed or moves to another partition.
    pub(super) async fn listen(self: Arc<Self>, mut stop: oneshot::Receiver<()>) {
        let number = u64::from(self.qp.qpn().value());
        let service = ServiceId(self.config.service_prefix | number);
        let backlog = CONNECTIONS_MAX as u32;
        let mut listener = match self.manager.listen_service(service, backlog).await {
            Ok(listener) => listener,
            Err(error) => {
                tracing::warn!(%error, "nobody can connect");
                return;
            }
        };
        loop {
            let accepting = std::pin::pin!(listener.accept());
            match select(accepting, &mut stop).await {
                Either::Left((request, _)) => task::detach(Arc::clone(&self).serve(request)),
                Either::Right(_) => return,
            }
        }
    }
}

/// Leaves a group: first its packets stop arriving, then the administrator is notified. Its answer is not awaited.
pub(super) async fn leave(joined: Joined) {
    drop(detach(joined).await);
}

/// Has the packets of a group stop arriving.
pub(super) async fn detach(joined: Joined) -> Box<dyn Membership> {
    let Joined {
        attached,
        ah,
        membership,
        ..
    } = joined;
    if let Some(attached) = attached {
        // It fails only if the device was removed.
        let _gone = attached.detach().await;
    }
    drop(ah);
    membership
}

/// Neither end reads or writes the other's memory.
fn param(srq: bool) -> ConnParam {
    ConnParam {
        responder_resources: 1,
        initiator_depth: 1,
        srq,
        ..ConnParam::default()
    }
}

/// Bytes of the longest packet that a neighbour accepts, from its private data.
fn mtu_of(private_data: &[u8]) -> usize {
    let view = ConnectedDataView::new(private_data);
    let theirs = view.map_or(0, |view| view.receive_mtu() as usize);
    theirs.saturating_sub(HEADER_LEN).min(CONNECTED_MTU)
}
