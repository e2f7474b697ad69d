//! Logging in: who may, with what, and what becomes of the channels that there are.

use std::future::poll_fn;
use std::task::Poll;

use verbs_cm::ConnectRequest;
use verbs_core::sync::Arc;
use verbs_core::{Access, Error, Memory, QpInit, Recv};

use super::House;
use super::channel::{Channel, Rooms};
use super::nexus::{NoRoom, Shared};
use super::task::formats;
use crate::iu::{
    Delta, IuError, LoginRej, LoginRejectReason, LoginReq, LoginRsp, LogoutReason, MultiChannel,
};

/// Bytes of the longest unit that a target sends: RSP with sense data has 54.
const TARGET_IU_BYTES: u32 = 128;

/// Units that an initiator may send without credit: an answer, and a logout.
const UNCREDITED: u16 = 4;

/// Answers one request for a connection, and drives the channel to its end if it becomes one.
pub(super) async fn login(house: Arc<House>, request: ConnectRequest) {
    let req = match parse(request.private_data()) {
        Ok(req) => req,
        // It is no login: there is no tag to answer with.
        Err(_) => {
            return refuse(
                request,
                LoginReq::default(),
                LoginRejectReason::CANNOT_ESTABLISH,
            );
        }
    };
    if let Err(reason) = check(&house, &req) {
        return refuse(request, req, reason);
    }
    let single = req.channels == MultiChannel::SINGLE;
    let same = |shared: &Shared| shared.initiator == req.initiator;
    let channels = match single {
        true => {
            let before = house.hall.end(same, LogoutReason::MULTICHANNEL);
            // Nothing of the old channels may reach a unit after what the new one sends.
            poll_fn(|cx| match house.hall.is_clear(same, cx.waker()) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            })
            .await;
            match before {
                0 => MultiChannel::SINGLE,
                _ => MultiChannel::INDEPENDENT,
            }
        }
        false => match house.hall.channels().iter().any(|shared| same(shared)) {
            true => MultiChannel::MAINTAINED,
            false => MultiChannel::SINGLE,
        },
    };
    let units = house.units();
    let max = house.config.channels_max;
    let peer = request.peer_addr();
    let entered = house.hall.enter(req.initiator, peer, max, units.numbers());
    let shared = match entered {
        Ok(shared) => shared,
        Err(NoRoom::Full) => return refuse(request, req, LoginRejectReason::CHANNEL_LIMIT),
        Err(NoRoom::Closing) => return refuse(request, req, LoginRejectReason::NO_RESOURCES),
    };
    serve(&house, &shared, request, req, channels).await;
    house.hall.leave(&shared);
}

/// The login in either form: 56 bytes are what the RDMA connection manager leaves room for.
fn parse(private_data: &[u8]) -> Result<LoginReq, IuError> {
    match private_data.len() {
        ..LoginReq::LEN => LoginReq::parse_cm(private_data),
        _ => LoginReq::parse_unit(private_data),
    }
}

fn check(house: &House, req: &LoginReq) -> Result<(), LoginRejectReason> {
    let config = &house.config;
    let iu_bytes = super::TargetConfig::IU_BYTES_MIN..=config.iu_bytes;
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

fn refuse(request: ConnectRequest, req: LoginReq, reason: LoginRejectReason) {
    let rej = LoginRej {
        reason,
        tag: req.tag,
        formats: formats(),
    };
    // The peer may have given up.
    let _gone = request.reject(&rej.unit());
}

/// Makes the channel, and drives it until it ends.
async fn serve(
    house: &Arc<House>,
    shared: &Arc<Shared>,
    request: ConnectRequest,
    req: LoginReq,
    channels: MultiChannel,
) {
    let immediate = house.config.immediate && req.immediate;
    let made = make(house).await;
    let (qp, rooms) = match made {
        Ok(made) => made,
        Err(_) => return refuse(request, req, LoginRejectReason::NO_RESOURCES),
    };
    let rsp = LoginRsp {
        delta: Delta(house.config.initial_limit.into()),
        tag: req.tag,
        max_initiator_iu_len: house.config.iu_bytes,
        max_target_iu_len: TARGET_IU_BYTES,
        formats: formats(),
        immediate,
        channels,
    };
    // Initiators reach nothing here: it is the target that moves data.
    let accepting = request
        .accept(qp)
        .access(Access::empty())
        .private_data(&rsp.unit());
    if let Ok(connection) = accepting.await {
        let offset = immediate.then_some(req.immediate_offset);
        let channel = Channel::new(
            Arc::clone(house),
            Arc::clone(shared),
            connection,
            rooms,
            offset,
        );
        channel.run().await;
    }
}

/// A queue pair with all receives posted, and what belongs to it.
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
        // It is as deep as that.
        posted.map_err(|_| Error::DeviceFailed)?;
    }
    Ok((qp, rooms))
}
