//! Which connection a message is for, and what is answered where there is none.

use verbs_core::addr::{Guid, Mtu};
use verbs_core::mad::{Address, Bits, Blob, MadBytes, Time, TransactionId};
use verbs_core::{Av, GlobalRoute, LinkLayer};

use crate::event::ListenId;
use crate::machine::passive::Request;
use crate::machine::{Connection, State};
use crate::table::index::source_of;
use crate::table::{Cm, ctx};
use crate::wire::{
    Apr, AprStatus, CommId, Drep, Dreq, IpHeader, Lap, Message, MtuCode, Rej, RejectReason,
    Rejected, Rep, Req, Transport,
};

/// Why a REQ is not for the user.
struct Refusal {
    reason: RejectReason,
    /// What belongs to the reason: nothing, or one byte.
    info: Option<u8>,
}

/// What was found out about a REQ that is for a user.
struct Checked {
    listener: ListenId,
    av: Av,
    mtu: Mtu,
}

impl From<RejectReason> for Refusal {
    fn from(reason: RejectReason) -> Self {
        Self { reason, info: None }
    }
}

impl Cm {
    pub(super) fn dispatch(&mut self, now: Time, from: Address, mad: &MadBytes) {
        let Ok((tid, message)) = Message::parse(mad) else {
            self.out.counters.malformed += 1;
            return;
        };
        let was_used = match message {
            Message::Req(req) => self.handle_req(now, from, tid, &req),
            Message::Rep(rep) => self.handle_rep(now, from, tid, &rep),
            Message::Rej(rej) => match self.find_rejected(&rej) {
                Some(slot) => self.update(now, slot, |conn, ctx| conn.handle_rej(ctx, &rej)),
                None => self.unknown(),
            },
            Message::Mra(mra) => match self.find(mra.remote_id, mra.local_id) {
                Some(slot) => self.update(now, slot, |conn, ctx| conn.handle_mra(ctx, &mra)),
                None => self.unknown(),
            },
            Message::Rtu(rtu) => match self.find(rtu.remote_id, rtu.local_id) {
                Some(slot) => self.update(now, slot, |conn, ctx| {
                    conn.handle_rtu(ctx, rtu.private_data)
                }),
                None => self.unknown(),
            },
            Message::Dreq(dreq) => self.handle_dreq(now, from, tid, &dreq),
            Message::Drep(drep) => match self.find(drep.remote_id, drep.local_id) {
                Some(slot) => self.update(now, slot, |conn, ctx| conn.handle_drep(ctx)),
                None => self.unknown(),
            },
            Message::SidrReq(req) => self.handle_sidr_req(now, from, tid, &req),
            Message::SidrRep(rep) => self.resolutions.handle_rep(&from, &rep, &mut self.out),
            Message::Lap(lap) => self.refuse_lap(from, tid, &lap),
            // There is no LAP of ours that it could answer.
            Message::Apr(_) => false,
        };
        self.out.counters.unexpected += u64::from(!was_used);
    }

    /// The connection with these ids. The peer's is not known before its first answer.
    fn find(&self, ours: CommId, theirs: CommId) -> Option<usize> {
        let slot = self.index.local(ours)?;
        let known = self.conns.get(slot)?.remote_id();
        known.is_none_or(|known| known == theirs).then_some(slot)
    }

    /// The connection that a REJ is about. Its sender may not have an id of its own, and may not know
    /// ours: then its GUID is in the information (IBTA vol. 1, 12.6.7.2, reason 4).
    fn find_rejected(&self, rej: &Rej) -> Option<usize> {
        if rej.remote_id != CommId(0) {
            let slot = self.index.local(rej.remote_id)?;
            let known = self.conns.get(slot)?.remote_id();
            let fits = rej.local_id == CommId(0) || known.is_none_or(|known| known == rej.local_id);
            return fits.then_some(slot);
        }
        let guid = rej
            .info
            .0
            .first_chunk()
            .filter(|_| rej.info_len.value() >= 8)?;
        self.index
            .remote(Guid(u64::from_be_bytes(*guid)), rej.local_id)
    }

    /// Counts a message that no connection is there for, which is all that is to be done with it.
    fn unknown(&mut self) -> bool {
        self.out.counters.unknown_conn += 1;
        true
    }

    fn handle_req(&mut self, now: Time, from: Address, tid: TransactionId, req: &Req) -> bool {
        if let Some(slot) = self.index.remote(req.ca_guid, req.local_id) {
            let is_same = self
                .conns
                .get(slot)
                .is_some_and(|conn| conn.remote_qpn() == req.qpn);
            if is_same {
                return self.update(now, slot, |conn, ctx| conn.handle_req_again(ctx));
            }
            return self.refuse(from, tid, req, RejectReason::DuplicateLocalCommId.into());
        }
        if let Some(slot) = self.index.qpn(req.ca_guid, req.qpn) {
            self.go_stale(now, slot, &from);
            return self.refuse(from, tid, req, RejectReason::StaleConnection.into());
        }
        let checked = match self.check_req(&from, req) {
            Ok(checked) => checked,
            Err(refusal) => return self.refuse(from, tid, req, refusal),
        };
        let has_room = self.listeners.has_room(checked.listener) && self.make_way(now, &from);
        if !has_room || self.check_room().is_err() {
            self.out.counters.refused += 1;
            return self.refuse(from, tid, req, RejectReason::NoResources.into());
        }
        let local_id = self.fresh_comm_id();
        let request = Request {
            id: self.next_id(),
            listener: checked.listener,
            local_id,
            own_tid: TransactionId::new(self.client, local_id.0),
            peer_tid: tid,
            from,
            req: *req,
            av: checked.av,
            mtu: checked.mtu,
        };
        let mut ctx = ctx(now, &self.port, &self.config, &mut self.out);
        let conn = Connection::requested(&mut ctx, request);
        self.insert(conn);
        true
    }

    /// Whether one more connection may be half-open; if need be, the oldest whose peer has only to confirm it
    /// gives way, first of the same source.
    fn make_way(&mut self, now: Time, from: &Address) -> bool {
        let source = source_of(from);
        let [all, of_source] = self.index.half_open(source);
        let oldest = if of_source >= self.config.half_open_per_source_max {
            self.index.oldest_half_open_of(source)
        } else if all >= self.config.half_open_max {
            self.index.oldest_half_open()
        } else {
            return true;
        };
        oldest.is_some_and(|slot| {
            self.update(now, slot, |conn, ctx| {
                conn.give_way(ctx);
                true
            })
        })
    }

    /// Whether a REQ can be put before a user.
    fn check_req(&self, from: &Address, req: &Req) -> Result<Checked, Refusal> {
        let ip = IpHeader::parse(&req.private_data.0).ok();
        let addr = ip.map(|ip| ip.addresses.destination());
        let listener = self.listeners.find(req.service_id, addr);
        let listener = listener.ok_or(RejectReason::InvalidServiceId)?;
        if !matches!(req.transport, Transport::Rc | Transport::Uc) {
            return Err(RejectReason::InvalidTransportType.into());
        }
        let mtu = req.path_mtu.mtu().filter(|mtu| *mtu <= self.port.mtu);
        let mtu = mtu.ok_or(Refusal {
            reason: RejectReason::InvalidMtu,
            info: Some(MtuCode::from(self.port.mtu).code()),
        })?;
        let av = self.way_back(from, req).ok_or(RejectReason::PrimaryGid)?;
        Ok(Checked { listener, av, mtu })
    }

    /// The way to the peer for the queue pair: the REQ's path, seen from here. `None` when the path
    /// does not end at this port; or, where addresses are all that tells hosts apart, when it does not
    /// begin where the REQ came from: data would go to a third party that has asked for nothing.
    fn way_back(&self, from: &Address, req: &Req) -> Option<Av> {
        let path = &req.primary;
        let has_lids = self.port.link_layer == LinkLayer::InfiniBand;
        let is_local = has_lids && path.subnet_local;
        let sender = from.av.global.filter(|_| !has_lids);
        if sender.is_some_and(|sender| sender.dgid != path.local_gid) {
            return None;
        }
        let global = if is_local {
            None
        } else {
            Some(GlobalRoute {
                dgid: path.local_gid,
                sgid_index: self.port.gid_index(path.remote_gid)?,
                flow_label: path.flow_label.value(),
                hop_limit: path.hop_limit,
                traffic_class: path.traffic_class,
            })
        };
        Some(Av {
            global,
            dlid: if has_lids {
                path.local_lid
            } else {
                from.av.dlid
            },
            sl: path.sl.byte(),
            // The peer expects packets from the LID that its own go to.
            src_path_bits: match has_lids {
                true => self.port.path_bits(path.remote_lid),
                false => from.av.src_path_bits,
            },
            port: self.port.number,
        })
    }

    fn handle_rep(&mut self, now: Time, from: Address, tid: TransactionId, rep: &Rep) -> bool {
        let Some(slot) = self.find(rep.remote_id, rep.local_id) else {
            self.out.counters.unknown_conn += 1;
            let reason = RejectReason::InvalidCommId;
            return self.refuse_with(from, tid, rep.local_id, Rejected::Rep, reason.into());
        };
        // Only the first reply says something new; later ones must not touch other connections.
        let is_first = self
            .conns
            .get(slot)
            .is_some_and(|conn| conn.remote_id().is_none());
        let by_qpn = self.index.qpn(rep.ca_guid, rep.qpn);
        let by_id = self.index.remote(rep.ca_guid, rep.local_id);
        if let Some(other) = by_qpn.or(by_id).filter(|_| is_first) {
            // The peer's queue pair cannot be part of two connections.
            self.go_stale(now, other, &from);
            let reason = RejectReason::StaleConnection;
            self.refuse_with(from, tid, rep.local_id, Rejected::Rep, reason.into());
            return self.update(now, slot, |conn, ctx| {
                conn.refuse_rep(ctx);
                true
            });
        }
        self.update(now, slot, |conn, ctx| conn.handle_rep(ctx, tid, rep))
    }

    /// A connection that the peer seems to have forgotten, when it is the same peer.
    fn go_stale(&mut self, now: Time, slot: usize, from: &Address) {
        self.update(now, slot, |conn, ctx| {
            if conn.peer().is_same_port(from) && conn.state() != State::Timewait {
                conn.go_stale(ctx);
            }
            true
        });
    }

    /// A DREQ for nothing is answered, so that the peer need not wait until it gives up.
    fn handle_dreq(&mut self, now: Time, from: Address, tid: TransactionId, dreq: &Dreq) -> bool {
        if let Some(slot) = self.find(dreq.remote_id, dreq.local_id) {
            return self.update(now, slot, |conn, ctx| conn.handle_dreq(ctx, tid, dreq));
        }
        let drep = Message::Drep(Drep {
            local_id: dreq.remote_id,
            remote_id: dreq.local_id,
            private_data: Blob::default(),
        });
        self.out.send(from, drep.emit(tid));
        self.unknown()
    }

    fn refuse_lap(&mut self, from: Address, tid: TransactionId, lap: &Lap) -> bool {
        let status = match self.find(lap.remote_id, lap.local_id) {
            Some(_) => AprStatus::Unsupported,
            None => AprStatus::InvalidCommId,
        };
        let apr = Message::Apr(Apr {
            local_id: lap.remote_id,
            remote_id: lap.local_id,
            status,
            ..Apr::default()
        });
        self.out.send(from, apr.emit(tid));
        true
    }

    /// Rejects a REQ without keeping anything of it.
    fn refuse(&mut self, from: Address, tid: TransactionId, req: &Req, refusal: Refusal) -> bool {
        self.refuse_with(from, tid, req.local_id, Rejected::Req, refusal)
    }

    fn refuse_with(
        &mut self,
        from: Address,
        tid: TransactionId,
        remote_id: CommId,
        message: Rejected,
        refusal: Refusal,
    ) -> bool {
        let mut info = Blob::default();
        info.0[0] = refusal.info.unwrap_or(0);
        let rej = Message::Rej(Rej {
            local_id: CommId(0),
            remote_id,
            message,
            info_len: Bits::truncated(u32::from(refusal.info.is_some())),
            reason: refusal.reason,
            info,
            private_data: Blob::default(),
        });
        self.out.send(from, rej.emit(tid));
        true
    }
}
