//! Which connection a message is for, and what is answered where there is none.

use verbs_core::addr::{Gid, Guid, Lid, Mtu};
use verbs_core::mad::{Address, Bits, Blob, MadBytes, TransactionId};
use verbs_core::time::Instant;
use verbs_core::{AltPath, Av, GlobalRoute, LinkLayer};

use super::resolve;
use crate::event::ListenId;
use crate::machine::passive::Request;
use crate::machine::{Offer, State};
use crate::machine::{active, closing, passive, paths, question};
use crate::table::index::source_of;
use crate::table::{Cm, ctx};
use crate::wire::{
    Apr, AprStatus, CommId, Drep, Dreq, IpHeader, Lap, Message, MtuCode, Rej, RejectReason,
    Rejected, Rep, Req, ReqPath, Transport,
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
    offer: Offer,
}

impl From<RejectReason> for Refusal {
    fn from(reason: RejectReason) -> Self {
        Self { reason, info: None }
    }
}

pub(super) fn dispatch(cm: &mut Cm, now: Instant, from: Address, mad: &MadBytes) {
    let Ok((tid, message)) = Message::parse(mad) else {
        cm.out.counters.malformed += 1;
        return;
    };
    let sender = from.av.global.map(|global| global.dgid);
    let asked = sender.and_then(|gid| cm.watched.heard(gid));
    if asked.is_some_and(|slot| handle_answer(cm, now, slot, &message)) {
        return;
    }
    let was_used = match message {
        Message::Req(req) => handle_req(cm, now, from, tid, &req),
        Message::Rep(rep) => handle_rep(cm, now, from, tid, &rep),
        Message::Rej(rej) => match find_rejected(cm, &rej) {
            Some(slot) => cm.update(now, slot, |conn, ctx| closing::handle_rej(conn, ctx, &rej)),
            None => unknown(cm),
        },
        Message::Mra(mra) => match find(cm, mra.remote_id, mra.local_id) {
            Some(slot) => cm.update(now, slot, |conn, ctx| conn.handle_mra(ctx, &mra)),
            None => unknown(cm),
        },
        Message::Rtu(rtu) => match find(cm, rtu.remote_id, rtu.local_id) {
            Some(slot) => cm.update(now, slot, |conn, ctx| {
                passive::handle_rtu(conn, ctx, rtu.private_data)
            }),
            None => unknown(cm),
        },
        Message::Dreq(dreq) => handle_dreq(cm, now, from, tid, &dreq),
        Message::Drep(drep) => match find(cm, drep.remote_id, drep.local_id) {
            Some(slot) => cm.update(now, slot, closing::handle_drep),
            None => unknown(cm),
        },
        Message::SidrReq(req) => resolve::handle_sidr_req(cm, now, from, tid, &req),
        Message::SidrRep(rep) => cm.resolutions.handle_rep(&from, &rep, &mut cm.out),
        Message::Lap(lap) => handle_lap(cm, now, from, tid, &lap),
        Message::Apr(apr) => match find(cm, apr.remote_id, apr.local_id) {
            Some(slot) => cm.update(now, slot, |conn, ctx| {
                paths::handle_apr(conn, ctx, tid, &apr)
            }),
            None => unknown(cm),
        },
    };
    cm.out.counters.unexpected += u64::from(!was_used);
}

/// The connection with these ids. The peer's is not known before its first answer.
fn find(cm: &Cm, ours: CommId, theirs: CommId) -> Option<usize> {
    let slot = cm.index.local(ours)?;
    let known = cm.conns.get(slot)?.remote_id();
    known.is_none_or(|known| known == theirs).then_some(slot)
}

/// The connection that a REJ is about. Its sender may not have an id of its own, and may not know
/// ours: then its GUID is in the information (IBTA vol. 1, 12.6.7.2, reason 4).
fn find_rejected(cm: &Cm, rej: &Rej) -> Option<usize> {
    if rej.remote_id != CommId(0) {
        let slot = cm.index.local(rej.remote_id)?;
        let known = cm.conns.get(slot)?.remote_id();
        let fits = rej.local_id == CommId(0) || known.is_none_or(|known| known == rej.local_id);
        return fits.then_some(slot);
    }
    let guid = rej
        .info
        .0
        .first_chunk()
        .filter(|_| rej.info_len.value() >= 8)?;
    cm.index
        .remote(Guid(u64::from_be_bytes(*guid)), rej.local_id)
}

/// Counts a message that no connection is there for, which is all that is to be done with it.
fn unknown(cm: &mut Cm) -> bool {
    cm.out.counters.unknown_conn += 1;
    true
}

fn handle_req(cm: &mut Cm, now: Instant, from: Address, tid: TransactionId, req: &Req) -> bool {
    if let Some(slot) = cm.index.remote(req.ca_guid, req.local_id) {
        let is_same = cm
            .conns
            .get(slot)
            .is_some_and(|conn| conn.qpns()[1] == req.qpn);
        if is_same {
            return cm.update(now, slot, passive::handle_req_again);
        }
        return refuse(
            cm,
            from,
            tid,
            req,
            RejectReason::DuplicateLocalCommId.into(),
        );
    }
    if let Some(slot) = cm.index.qpn(req.ca_guid, req.qpn) {
        go_stale(cm, now, slot, &from);
        return refuse(cm, from, tid, req, RejectReason::StaleConnection.into());
    }
    let checked = match check_req(cm, &from, req) {
        Ok(checked) => checked,
        Err(refusal) => return refuse(cm, from, tid, req, refusal),
    };
    let has_room = cm.listeners.has_room(checked.listener) && make_way(cm, now, &from);
    if !has_room || cm.check_room().is_err() {
        cm.out.counters.refused += 1;
        return refuse(cm, from, tid, req, RejectReason::NoResources.into());
    }
    let local_id = cm.fresh_comm_id();
    let request = Request {
        id: cm.next_id(),
        listener: checked.listener,
        local_id,
        own_tid: TransactionId::new(cm.client, local_id.0),
        peer_tid: tid,
        from,
        req: *req,
        av: checked.av,
        mtu: checked.mtu,
        offer: checked.offer,
    };
    cm.reserve();
    let mut ctx = ctx(now, &cm.port, &cm.config, &mut cm.out);
    let conn = passive::requested(&mut ctx, request);
    cm.insert(now, conn);
    true
}

/// Whether one more connection may be half-open; if need be, the oldest whose peer has only to confirm it
/// gives way, first of the same source.
fn make_way(cm: &mut Cm, now: Instant, from: &Address) -> bool {
    let source = source_of(from);
    let [all, of_source] = cm.index.half_open(source);
    let oldest = if of_source >= cm.config.half_open_per_source_max {
        cm.index.oldest_half_open_of(source)
    } else if all >= cm.config.half_open_max {
        cm.index.oldest_half_open()
    } else {
        return true;
    };
    oldest.is_some_and(|slot| {
        cm.update(now, slot, |conn, ctx| {
            passive::give_way(conn, ctx);
            true
        })
    })
}

/// Whether a REQ can be put before a user.
fn check_req(cm: &Cm, from: &Address, req: &Req) -> Result<Checked, Refusal> {
    let ip = IpHeader::parse(&req.private_data.0).ok();
    let addr = ip.map(|ip| ip.addresses.destination());
    let listener = cm.listeners.find(req.service_id, addr);
    let listener = listener.ok_or(RejectReason::InvalidServiceId)?;
    let is_xrc = req.transport == Transport::Extended && req.extended_transport == Req::XRC;
    let is_known = match req.transport {
        Transport::Rc | Transport::Uc => true,
        _ => is_xrc && cm.listeners.is_extended(listener),
    };
    if !is_known {
        return Err(RejectReason::InvalidTransportType.into());
    }
    let mtu = req.path_mtu.mtu().filter(|mtu| *mtu <= cm.port.mtu);
    let mtu = mtu.ok_or(Refusal {
        reason: RejectReason::InvalidMtu,
        info: Some(MtuCode::from(cm.port.mtu).code()),
    })?;
    let av = way_back(cm, from, &req.primary).ok_or(RejectReason::PrimaryGid)?;
    let offer = match req.alternate.local_lid {
        Lid(0) => Offer::None,
        _ => match alternate(cm, from, &req.alternate) {
            Ok(path) if path.av() == av => Offer::found(Err(AprStatus::Duplicate)),
            path => Offer::found(path),
        },
    };
    Ok(Checked {
        listener,
        av,
        mtu,
        offer,
    })
}

/// An alternate path that a peer offers, seen from here.
fn alternate(cm: &Cm, from: &Address, path: &ReqPath) -> Result<AltPath, AprStatus> {
    if !cm.port.has_alternates() {
        return Err(AprStatus::Unsupported);
    }
    let is_unicast = path.local_lid != Lid(0) && !path.local_lid.is_multicast();
    if !is_unicast || cm.port.own_bits(path.remote_lid).is_none() {
        return Err(AprStatus::InvalidLid);
    }
    let av = way_back(cm, from, path).ok_or(AprStatus::InvalidGid)?;
    // The partition of the connection, in which queue pairs are brought to INIT.
    Ok(AltPath::new(av, 0, path.ack_timeout.code()))
}

/// The way to the peer for the queue pair: a path of the peer's, seen from here. `None` when the path
/// does not end at this port; or, where addresses are all that tells hosts apart, when it does not
/// begin where the REQ came from: data would go to a third party that has asked for nothing.
fn way_back(cm: &Cm, from: &Address, path: &ReqPath) -> Option<Av> {
    let has_lids = cm.port.link_layer == LinkLayer::InfiniBand;
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
            sgid_index: cm.port.gid_index(path.remote_gid)?,
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
            true => cm.port.path_bits(path.remote_lid),
            false => from.av.src_path_bits,
        },
        port: cm.port.number,
    })
}

fn handle_rep(cm: &mut Cm, now: Instant, from: Address, tid: TransactionId, rep: &Rep) -> bool {
    let Some(slot) = find(cm, rep.remote_id, rep.local_id) else {
        cm.out.counters.unknown_conn += 1;
        let reason = RejectReason::InvalidCommId;
        return refuse_with(cm, from, tid, rep.local_id, Rejected::Rep, reason.into());
    };
    let is_xrc = (cm.conns.get(slot)).is_some_and(|conn| conn.is_extended());
    let rep = &rep.read_as(is_xrc);
    // Only the first reply says something new; later ones must not touch other connections.
    let is_first = cm
        .conns
        .get(slot)
        .is_some_and(|conn| conn.remote_id().is_none());
    let by_qpn = cm.index.qpn(rep.ca_guid, rep.qpn);
    let by_id = cm.index.remote(rep.ca_guid, rep.local_id);
    if let Some(other) = by_qpn.or(by_id).filter(|_| is_first) {
        // The peer's queue pair cannot be part of two connections.
        go_stale(cm, now, other, &from);
        let reason = RejectReason::StaleConnection;
        refuse_with(cm, from, tid, rep.local_id, Rejected::Rep, reason.into());
        return cm.update(now, slot, |conn, ctx| {
            closing::refuse_rep(conn, ctx);
            true
        });
    }
    cm.update(now, slot, |conn, ctx| {
        active::handle_rep(conn, ctx, tid, rep)
    })
}

/// A connection that the peer seems to have forgotten, when it is the same peer.
fn go_stale(cm: &mut Cm, now: Instant, slot: usize, from: &Address) {
    cm.update(now, slot, |conn, ctx| {
        if conn.peer().is_same_port(from) && conn.state() != State::Timewait {
            closing::go_stale(conn, ctx);
        }
        true
    });
}

/// A DREQ for nothing is answered, so that the peer need not wait until it gives up.
fn handle_dreq(cm: &mut Cm, now: Instant, from: Address, tid: TransactionId, dreq: &Dreq) -> bool {
    if let Some(slot) = find(cm, dreq.remote_id, dreq.local_id) {
        return cm.update(now, slot, |conn, ctx| {
            closing::handle_dreq(conn, ctx, tid, dreq)
        });
    }
    let drep = Message::Drep(Drep {
        local_id: dreq.remote_id,
        remote_id: dreq.local_id,
        private_data: Blob::default(),
    });
    cm.out.send(from, drep.emit(tid));
    unknown(cm)
}

/// A LAP for nothing is answered, too.
fn handle_lap(cm: &mut Cm, now: Instant, from: Address, tid: TransactionId, lap: &Lap) -> bool {
    if let Some(slot) = find(cm, lap.remote_id, lap.local_id) {
        let path = alternate(cm, &from, &lap.path());
        return cm.update(now, slot, |conn, ctx| {
            paths::handle_lap(conn, ctx, tid, lap, path)
        });
    }
    let apr = Message::Apr(Apr {
        local_id: lap.remote_id,
        remote_id: lap.local_id,
        status: AprStatus::InvalidCommId,
        ..Apr::default()
    });
    cm.out.send(from, apr.emit(tid));
    true
}

/// Rejects a REQ without keeping anything of it.
fn refuse(cm: &mut Cm, from: Address, tid: TransactionId, req: &Req, refusal: Refusal) -> bool {
    refuse_with(cm, from, tid, req.local_id, Rejected::Req, refusal)
}

fn refuse_with(
    cm: &mut Cm,
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
    cm.out.send(from, rej.emit(tid));
    true
}

/// Whether a message is the answer about a connection that its sender was asked about; see `watch`. A peer that does not know
/// it has been started again: the others are asked about at once.
fn handle_answer(cm: &mut Cm, now: Instant, slot: usize, message: &Message) -> bool {
    let (about, is_known) = match message {
        Message::Rtu(rtu) => (find(cm, rtu.remote_id, rtu.local_id), true),
        Message::Apr(apr) => {
            let is_known = apr.status != AprStatus::InvalidCommId;
            (find(cm, apr.remote_id, apr.local_id), is_known)
        }
        Message::Rej(rej) if rej.reason == RejectReason::InvalidCommId => {
            (find_rejected(cm, rej), false)
        }
        _ => return false,
    };
    if about != Some(slot) {
        return false;
    }
    if is_known {
        cm.watched.answered(slot);
    } else if let Some(gid) = cm.watched.address(slot) {
        cm.out.counters.lost += 1;
        cm.watched.ask_at(gid, now);
        cm.update(now, slot, |conn, ctx| closing::lose(conn, ctx, false));
    }
    true
}

/// Asks the peers that are due to be asked, and ends the connections of those that were silent for too long.
pub(super) fn ask_peers(cm: &mut Cm, now: Instant) {
    let Some(watch) = cm.config.watch else { return };
    while let Some(gid) = cm.watched.due(now) {
        if cm.watched.is_silent(gid, now, &watch) {
            lose(cm, now, gid, true);
            continue;
        }
        cm.watched.ask_at(gid, now + watch.pause());
        let Some(slot) = cm.watched.next(gid) else {
            continue;
        };
        let Some(conn) = cm.conns.get(slot) else {
            continue;
        };
        if let Some((question, tid, mad)) = question::about(conn, &cm.port) {
            cm.out.send(*conn.peer(), mad);
            cm.watched.asked(gid, now, slot, question, tid);
        }
    }
}

/// The peer at that address is gone, and with it all connections. `tell`: it may be there after all, and is told.
pub(super) fn lose(cm: &mut Cm, now: Instant, gid: Gid, tell: bool) {
    for slot in cm.watched.conns(gid) {
        cm.out.counters.lost += 1;
        cm.update(now, slot, |conn, ctx| closing::lose(conn, ctx, tell));
    }
}
