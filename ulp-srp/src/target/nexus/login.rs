//! Logging in: which logins are accepted, with which limits, and what happens to existing channels.

use futures::future::Abortable;
use verbs_cm::{ConnectRequest, Connection};
use verbs_core::sync::Arc;
use verbs_core::{Access, Error, Memory, QpInit, Recv};

use crate::iu::{Delta, IuError, LoginRej, LoginRejectReason, LoginReq, LoginRsp, MultiChannel};
use crate::target::House;
use crate::target::channel::{Channel, Rooms};
use crate::target::event::TargetEvent;
use crate::target::nexus::NoRoom;
use crate::target::task::formats;

/// Bytes of the longest unit that a target sends: RSP with sense data has 54.
const TARGET_IU_BYTES: u32 = 128;

/// Units that an initiator may send without credit: an answer, and a logout.
const UNCREDITED: u16 = 4;

/// Answers one connection request, and drives the channel to its end if the request becomes one.
///
/// An initiator's existing channels are left alone until its new connection is confirmed: any host can send a
/// request under any name and from any address, but only the host that receives the answer can confirm it.
pub(crate) async fn login(house: Arc<House>, request: ConnectRequest) {
    let peer = request.peer_addr();
    let (req, channels) = match admit(&house, &request) {
        Ok(admitted) => admitted,
        Err((req, reason)) => return refuse(&house, request, req, reason),
    };
    let single = req.channels == MultiChannel::SINGLE;
    let config = &house.config;
    let (each, max) = (config.half_open_per_source_max, config.half_open_max);
    let Ok((place, registration)) = house.hall.arrive(peer.ip(), each, max) else {
        return refuse(&house, request, req, LoginRejectReason::NO_RESOURCES);
    };
    let connecting = connect(&house, request, req, channels);
    let connected = Abortable::new(connecting, registration).await;
    drop(place);
    // It was not confirmed, or newer logins replaced it.
    let Ok(Some((connection, rooms))) = connected else {
        return;
    };
    let units = house.units();
    let who = (req.initiator, peer);
    let entered = house
        .hall
        .enter(who, single, config.channels_max, units.numbers());
    let Ok(shared) = entered else {
        // Other logins were faster; the end of the connection tells the initiator.
        let reason = LoginRejectReason::CHANNEL_LIMIT;
        let initiator = Some(req.initiator);
        return house.tell(&TargetEvent::Refused {
            initiator,
            peer,
            reason,
        });
    };
    let info = shared.info();
    house.tell(&TargetEvent::LoggedIn { channel: &info });
    let immediate = config.immediate && req.immediate;
    let offset = immediate.then_some(req.immediate_offset);
    let channel = Channel::new(
        Arc::clone(&house),
        Arc::clone(&shared),
        connection,
        rooms,
        offset,
    );
    let why = channel.run().await;
    house.hall.leave(&shared);
    let info = shared.info();
    house.tell(&TargetEvent::Ended {
        channel: &info,
        why,
    });
}

/// Checks whether a request is a login that may be accepted; returns it and what happens to the initiator's other
/// channels.
fn admit(
    house: &House,
    request: &ConnectRequest,
) -> Result<(LoginReq, MultiChannel), (Option<LoginReq>, LoginRejectReason)> {
    // If it is not a login, there is no tag to answer with.
    let parsed = parse(request.private_data());
    let req = parsed.map_err(|_| (None, LoginRejectReason::CANNOT_ESTABLISH))?;
    let refused = |reason| (Some(req), reason);
    check(house, &req).map_err(refused)?;
    let single = req.channels == MultiChannel::SINGLE;
    let max = house.config.channels_max;
    let has_others = match house.hall.look(req.initiator, single, max) {
        Ok(has_others) => has_others,
        Err(NoRoom::Full) => return Err(refused(LoginRejectReason::CHANNEL_LIMIT)),
        Err(NoRoom::Closing) => return Err(refused(LoginRejectReason::NO_RESOURCES)),
    };
    let channels = match (has_others, single) {
        (false, _) => MultiChannel::SINGLE,
        (true, true) => MultiChannel::INDEPENDENT,
        (true, false) => MultiChannel::MAINTAINED,
    };
    Ok((req, channels))
}

/// Reads a login in either form: the RDMA connection manager leaves room for 56 bytes.
fn parse(private_data: &[u8]) -> Result<LoginReq, IuError> {
    match private_data.len() {
        ..LoginReq::LEN => LoginReq::parse_cm(private_data),
        _ => LoginReq::parse_unit(private_data),
    }
}

fn check(house: &House, req: &LoginReq) -> Result<(), LoginRejectReason> {
    let config = &house.config;
    let iu_bytes = crate::target::TargetConfig::IU_BYTES_MIN..=config.iu_bytes;
    if !iu_bytes.contains(&req.max_iu_len) {
        return Err(LoginRejectReason::IU_TOO_LARGE);
    }
    if req.target != config.port_id || !config.admits(req.initiator) {
        return Err(LoginRejectReason::CANNOT_ASSOCIATE);
    }
    if !formats().contains(req.formats) || req.formats.is_empty() {
        return Err(LoginRejectReason::FORMAT);
    }
    match req.channels {
        MultiChannel::SINGLE | MultiChannel::INDEPENDENT => Ok(()),
        _ => Err(LoginRejectReason::NO_MULTICHANNEL),
    }
}

fn refuse(
    house: &House,
    request: ConnectRequest,
    req: impl Into<Option<LoginReq>>,
    reason: LoginRejectReason,
) {
    let req = req.into();
    let rej = LoginRej {
        reason,
        tag: req.map_or(LoginReq::default().tag, |req| req.tag),
        formats: formats(),
    };
    house.tell(&TargetEvent::Refused {
        initiator: req.map(|req| req.initiator),
        peer: request.peer_addr(),
        reason,
    });
    // The peer may have given up.
    let _gone = request.reject(&rej.unit());
}

/// Answers the login; returns the connection when the initiator has confirmed it.
async fn connect(
    house: &House,
    request: ConnectRequest,
    req: LoginReq,
    channels: MultiChannel,
) -> Option<(Connection, Rooms)> {
    let Ok((qp, rooms)) = make(house).await else {
        refuse(house, request, req, LoginRejectReason::NO_RESOURCES);
        return None;
    };
    let rsp = LoginRsp {
        delta: Delta(house.config.initial_limit.into()),
        tag: req.tag,
        max_initiator_iu_len: house.config.iu_bytes,
        max_target_iu_len: TARGET_IU_BYTES,
        formats: formats(),
        immediate: house.config.immediate && req.immediate,
        channels,
    };
    // Initiators access no memory here: the target moves the data.
    let accepting = request
        .accept(qp)
        .access(Access::empty())
        .private_data(&rsp.unit());
    let connection = accepting.await.ok()?;
    Some((connection, rooms))
}

/// Creates a queue pair with all receives posted, and its memory.
async fn make(house: &House) -> Result<(verbs_core::Qp, Rooms), Error> {
    let config = &house.config;
    let slots = config.request_limit + UNCREDITED;
    let send_depth = config.send_depth;
    let cq = house
        .device
        .create_cq(send_depth + u32::from(slots))
        .await?;
    let iu_stride = (config.iu_bytes as usize).next_multiple_of(64);
    let send_stride = TARGET_IU_BYTES as usize;
    let received = Memory::alloc(usize::from(slots) * iu_stride)?;
    let received = house.pd.register(received, Access::LOCAL_WRITE).await?;
    let sent = Memory::alloc(send_depth as usize * send_stride)?;
    let sent = house.pd.register(sent, Access::empty()).await?;
    let init = QpInit::rc(&cq, &cq).depth(send_depth, slots.into());
    let mut qp = house.pd.create_qp(init).await?;
    qp.init(config.port, Access::empty()).await?;
    let rooms = Rooms {
        cq,
        received,
        iu_stride,
        sent,
        send_stride,
        slots,
    };
    for slot in 0..slots {
        let posted = qp.post_recv(Recv::new(slot.into()).into(rooms.iu(slot)));
        // The queue has that depth.
        posted.map_err(|_| Error::DeviceFailed)?;
    }
    Ok((qp, rooms))
}
