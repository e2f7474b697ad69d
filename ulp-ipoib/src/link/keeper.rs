//! Keeps the link up: one future that lives as long as the interface, and issues one request after the other.

use std::future::poll_fn;
use std::net::{IpAddr, Ipv4Addr};
use std::task::Poll;
use std::time::Duration;

use futures::channel::oneshot;
use futures::future::{Either, join_all, select};
use verbs_cm::sa::Join;
use verbs_core::mad::Bits;
use verbs_core::mad::sa::McMemberRecord;
use verbs_core::sync::Arc;
use verbs_core::{Mtu, PKey, Psn, QKey, QpAttr, QpState, task};

use super::act::{detach, leave};
use super::receive::LOT;
use super::state::Terms;
use super::{Core, Kick};
use crate::admin::Membership;
use crate::config::{JOIN_PAUSE, Mode};
use crate::error::Error;
use crate::wire::{HEADER_LEN, all_nodes, broadcast, group_of, link_local, solicited_node};
use verbs_core::timer::Sleep;

/// The Q_Key of the queue pair until the group sets another; subnet managers use this one by default.
const PROVISIONAL_QKEY: QKey = QKey(0x0000_0b1b);

/// Why the link does not come up now.
enum Held {
    /// The interface is closed.
    Closed,
    /// The port is not up, or not in the partition: an event will report the change.
    Waits,
    /// Something failed; it is retried after a pause.
    Failed(Error),
}

impl From<Error> for Held {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<verbs_core::Error> for Held {
    fn from(error: verbs_core::Error) -> Self {
        Self::Failed(error.into())
    }
}

impl From<verbs_cm::Error> for Held {
    fn from(error: verbs_cm::Error) -> Self {
        Self::Failed(error.into())
    }
}

impl Core {
    pub(super) async fn keep(self: Arc<Self>) {
        let (shortest, longest) = JOIN_PAUSE;
        let mut pause = shortest;
        loop {
            match self.bring_up().await {
                Ok(()) => {
                    pause = shortest;
                    if self.stay_up().await {
                        break;
                    }
                }
                Err(Held::Closed) => break,
                Err(Held::Waits) => {
                    if self.kicked(None).await & Kick::CLOSE != 0 {
                        break;
                    }
                }
                Err(Held::Failed(error)) => {
                    tracing::debug!(%error, "the link does not come up");
                    if self.kicked(Some(pause)).await & Kick::CLOSE != 0 {
                        break;
                    }
                    pause = (pause * 2).min(longest);
                }
            }
            // The administrator's answers are not awaited: it may not be there.
            drop(self.take_down().await);
        }
        let left = self.take_down().await;
        self.dismantle().await;
        for answer in join_all(left.into_iter().map(Membership::leave)).await {
            if let Err(error) = answer {
                tracing::debug!(%error, "a group is not left");
            }
        }
        self.over.end();
    }

    /// Waits until something has happened, or for at most that long.
    async fn kicked(&self, longest: Option<Duration>) -> u32 {
        let kicked = poll_fn(|cx| self.kick.poll(cx));
        let Some(longest) = longest else {
            return kicked.await;
        };
        let slept = Sleep::new(&self.timer, longest);
        match select(kicked, slept).await {
            Either::Left((flags, _)) => flags,
            Either::Right(_) => 0,
        }
    }

    /// Runs while the link is up. Returns whether the interface is closed.
    async fn stay_up(self: &Arc<Self>) -> bool {
        let (stop, stopped) = oneshot::channel();
        if self.config.mode == Mode::Connected {
            task::detach(Arc::clone(self).listen(stopped));
        }
        loop {
            let flags = self.kicked(None).await;
            if flags & (Kick::CLOSE | Kick::RESTART) != 0 {
                drop(stop);
                return flags & Kick::CLOSE != 0;
            }
            if flags & Kick::REFRESH != 0 {
                self.with(|state, _| {
                    state.counters.refreshes += 1;
                    state.paths_stale();
                });
            }
        }
    }

    /// RFC 4391, section 7: from the port to the broadcast group.
    async fn bring_up(self: &Arc<Self>) -> Result<(), Held> {
        // The queries that follow reflect everything that has happened so far.
        self.kick.forget(Kick::RESTART | Kick::REFRESH);
        let port = self.device.query_port(self.config.port).await?;
        if port.state != verbs_core::PortState::Active {
            return Err(Held::Waits);
        }
        let partition = self.partition(port.pkey_tbl_len).await?;
        let gid = self.device.query_gid(self.config.port, 0).await?;
        self.with(|state, _| {
            state.own.gid = gid;
            state.partition = partition;
        });
        self.start(partition.1).await?;
        let terms = self.join_broadcast(partition.0, port.active_mtu).await?;
        if self.kick.is_set(Kick::CLOSE) {
            return Err(Held::Closed);
        }
        let info = self.with(|state, _| {
            state.link = Some(terms);
            state.counters.link_ups += 1;
            state.info()
        });
        tracing::info!(%info, "the link is up");
        self.face.link(&info);
        self.subscribe_own();
        Ok(())
    }

    /// The entry of the port's table that makes it a member of the partition; a full member if there is a choice.
    async fn partition(&self, entries: u16) -> Result<(PKey, u16), Held> {
        let mut found = None;
        for index in 0..entries {
            let pkey = self.device.query_pkey(self.config.port, index).await?;
            let is_ours = pkey.0 & 0x7fff == self.config.pkey.0 & 0x7fff && pkey.0 & 0x7fff != 0;
            let is_full = pkey.0 & 0x8000 != 0;
            if is_ours && (is_full || found.is_none()) {
                found = Some((pkey, index));
                if is_full {
                    break;
                }
            }
        }
        if found.is_none() {
            let error = Error::Partition(self.config.pkey);
            tracing::debug!(%error, "waiting for the partition");
        }
        found.ok_or(Held::Waits)
    }

    /// Moves the queue pair from RESET to RTS, with all its receives.
    async fn start(self: &Arc<Self>, pkey_index: u16) -> Result<(), Held> {
        self.qp.modify(QpAttr::to(QpState::Reset)).await?;
        let init = QpAttr {
            pkey_index: Some(pkey_index),
            ..QpAttr::init_datagram(self.config.port, PROVISIONAL_QKEY)
        };
        self.qp.modify(init).await?;
        let indices: Vec<_> = (0..self.config.receives).collect();
        self.with(|state, _| {
            state.reposts = true;
            for lot in indices.chunks(LOT) {
                self.post_datagrams(state, lot);
            }
        });
        self.qp.ready_to_receive_datagrams().await?;
        self.qp.ready_to_send(Psn::default()).await?;
        Ok(())
    }

    /// Joins the broadcast group, which determines the terms of the link; creates the group if it does not exist
    /// and the administrator lets members do so.
    async fn join_broadcast(self: &Arc<Self>, pkey: PKey, mtu: Mtu) -> Result<Terms, Held> {
        let mgid = broadcast(pkey, self.config.scope);
        let pkey = PKey(pkey.0 | 0x8000);
        let asked = self.admin.join(Join::full(mgid).pkey(pkey)).await;
        let mut membership = match asked {
            Err(verbs_cm::Error::Sa(verbs_cm::sa::SaError::Refused(_))) => {
                let record = McMemberRecord {
                    qkey: PROVISIONAL_QKEY,
                    pkey,
                    mtu: Bits::truncated(mtu as u32),
                    ..McMemberRecord::default()
                };
                let join = Join::full(mgid).create(record.qkey, pkey);
                let join = join.mtu(verbs_core::mad::sa::Selector::Exactly, mtu);
                self.admin.join(join).await?
            }
            asked => asked?,
        };
        self.follow(&mut *membership);
        let record = membership.record();
        if record.qkey != PROVISIONAL_QKEY {
            let qkey = QpAttr {
                qkey: Some(record.qkey),
                ..QpAttr::to(QpState::Rts)
            };
            self.qp.modify(qkey).await?;
        }
        let group = Mtu::from_code(record.mtu.value());
        let terms = Terms {
            qkey: record.qkey,
            mtu: group.unwrap_or(mtu).bytes() as usize - HEADER_LEN,
            record,
        };
        let joined = self.use_group(membership, true, record.qkey).await?;
        let unwanted = self.with(|state, now| {
            if state
                .groups
                .get(&mgid)
                .is_none_or(|group| group.subscribers == 0)
            {
                state.groups.remove(&mgid);
                state.subscribe(mgid, now);
            }
            state.group_joined(mgid, Some(joined), now)
        });
        if let Some(unwanted) = unwanted {
            leave(unwanted).await;
        }
        Ok(terms)
    }

    /// The groups that every node joins: all nodes, and the solicited-node groups of its addresses. Groups that
    /// are already subscribed are joined as well.
    fn subscribe_own(self: &Arc<Self>) {
        let link_local = link_local(self.state.lock().own.gid);
        let own = self
            .config
            .addresses
            .iter()
            .filter_map(|&(addr, _)| match addr {
                IpAddr::V6(addr) => Some(IpAddr::V6(solicited_node(addr))),
                IpAddr::V4(_) => None,
            });
        let all = [
            IpAddr::V4(Ipv4Addr::new(224, 0, 0, 1)),
            IpAddr::V6(all_nodes()),
            IpAddr::V6(solicited_node(link_local)),
        ];
        let wanted: Vec<IpAddr> = all.into_iter().chain(own).collect();
        self.with(|state, now| {
            for addr in wanted {
                let mgid = group_of(addr, state.partition.0, state.config.scope);
                if let Some(mgid) = mgid
                    && state
                        .groups
                        .get(&mgid)
                        .is_none_or(|group| group.subscribers == 0)
                {
                    state.subscribe(mgid, now);
                }
            }
            state.tick_groups(now);
        });
    }

    /// The link is down: forgets what was known of the subnet, and empties the queue pair. Returns its memberships, of groups whose
    /// packets no longer arrive.
    async fn take_down(self: &Arc<Self>) -> Vec<Box<dyn Membership>> {
        let (was_up, left, paths) = self.with(|state, now| {
            state.reposts = false;
            state.drop_connections();
            let paths = std::mem::take(&mut state.paths);
            (state.link.take(), state.leave_groups(now), paths)
        });
        if was_up.is_some() {
            let info = self.info();
            tracing::info!(%info, "the link is down");
            self.face.link(&info);
        }
        drop(paths);
        let mut memberships = Vec::new();
        for joined in left {
            memberships.push(detach(joined).await);
        }
        // In RESET nothing is posted, and nothing completes.
        if self.qp.to_error().await.is_err() {
            return memberships;
        }
        poll_fn(|cx| {
            self.drained.register(cx.waker());
            let state = self.state.lock();
            match (state.receiving, state.sending) {
                (0, 0) => Poll::Ready(()),
                _ => Poll::Pending,
            }
        })
        .await;
        memberships
    }

    /// The interface is closed, and its link is down: its last user drops the rest.
    async fn dismantle(self: &Arc<Self>) {
        let passive = self.with(|state, _| {
            state.is_closed = true;
            state.drop_neighbours();
            state.groups.clear();
            std::mem::take(&mut state.passive)
        });
        for connection in passive
            .into_values()
            .filter_map(|passive| passive.connection)
        {
            // The other end is notified; its answer is not awaited.
            let _step = connection.close().issue(|_| ());
        }
    }
}
