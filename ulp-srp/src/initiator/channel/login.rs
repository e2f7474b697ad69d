//! Opening a channel: its queues, its handles, the connection with the login in its private data.

use verbs_cm::{ConnParam, Connection};
use verbs_core::mad::TimeCode;
use verbs_core::sync::Arc;
use verbs_core::{Access, Cq, FmrPoolAttr, Memory, Mr, Qp, QpCap, QpInit, Recv};

use super::post::RECV_LEN;
use super::prepare::TABLE_AT;
use super::{Channel, Phase, Wires, wr_id};
use crate::initiator::address::TargetWay;
use crate::initiator::config::{Mechanism, Options};
use crate::initiator::error::{Error, Violation};
use crate::initiator::shared::Shared;
use crate::iu::{
    BufferFormats, Cdb, Cmd, LoginAnswer, LoginReq, LoginRsp, MemoryDescriptor, MultiChannel, Tag,
    Unit,
};

/// Entries of the longest table that a command may have; a unit carries 255 at most.
const TABLE_MAX: usize = 255;
/// Receives beyond one per request: the target may have one request of its own outstanding.
const RECVS_MORE: u32 = 2;
/// The time after which a message of the connection manager is repeated: 1.07 s, so a lost message does not use
/// up most of the time that a login may take.
const RESPONSE_TIMEOUT: TimeCode = TimeCode::new(18);
/// A command with one descriptor, which every target takes.
const IU_LEN_MIN: u32 = 64;

/// Creates the device objects of a channel, then connects.
pub(super) async fn open(shared: &Arc<Shared>, number: u8) -> Result<Arc<Channel>, Error> {
    let options = shared.options();
    let channel = Arc::new(Channel::new(number, shared, options));
    let (cq, qp) = queues(&channel, shared).await?;
    let stride = stride(options);
    let slots = usize::from(options.queue_depth) + 1;
    let send = register(shared, slots * stride, Access::REMOTE_READ).await?;
    let recvs = u32::from(options.queue_depth) + 1 + RECVS_MORE;
    let room = recvs as usize * RECV_LEN;
    let recv = register(shared, room, Access::LOCAL_WRITE).await?;
    handles(&channel, shared).await?;

    let mut qp = qp;
    qp.init(
        1,
        Access::REMOTE_READ | Access::REMOTE_WRITE | Access::LOCAL_WRITE,
    )
    .await?;
    for index in 0..recvs as usize {
        let at = index * RECV_LEN;
        let place = recv.slice(at..at + RECV_LEN);
        qp.post_recv(Recv::new(wr_id::RECV | index as u64).into(place))?;
    }
    let login = request(shared, number, stride);
    let (connection, answer) = connect(shared, qp, &login).await?;
    let wires = Wires {
        connection: Some(connection),
        cq,
        send,
        recv,
        stride,
    };
    begin_with(&channel, wires, &answer)?;
    // Completions that arrived before this have fired nothing: the queue was not armed.
    channel.turn();
    Ok(channel)
}

async fn queues(channel: &Arc<Channel>, shared: &Arc<Shared>) -> Result<(Cq, Qp), Error> {
    let options = &channel.options;
    let attr = shared.device().query().await?;
    let depth = u32::from(options.queue_depth);
    let recvs = depth + 1 + RECVS_MORE;
    // For each command: its registrations, itself, its invalidates. Then task management and two answers.
    let each = 2 * u32::from(options.runs_max) + 1;
    let sends = (depth * each + 4).min(attr.max_qp_wr);
    let handler = Arc::downgrade(channel);
    let cq = shared
        .device()
        .create_cq((sends + recvs).min(attr.max_cqe))
        .handler(move || {
            if let Some(channel) = handler.upgrade() {
                channel.turn();
            }
        })
        .await?;
    let cap = QpCap {
        max_send_wr: sends,
        max_recv_wr: recvs,
        max_inline_data: 16,
        ..QpCap::default()
    };
    let qp = shared.pd().create_qp(QpInit::rc(&cq, &cq).cap(cap)).await?;
    Ok((cq, qp))
}

/// Creates the channel's pool of handles.
async fn handles(channel: &Channel, shared: &Arc<Shared>) -> Result<(), Error> {
    let options = &channel.options;
    match options.mechanism {
        Mechanism::FastReg => {
            let mut fast = Vec::with_capacity(options.pool() as usize);
            for _ in 0..options.pool() {
                fast.push(shared.pd().alloc_mr(options.pages_max).await?);
            }
            channel.core.lock().hands.fast = fast;
        }
        Mechanism::Fmr if options.pool() > 0 => {
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
            let attr = FmrPoolAttr::new(options.pool(), options.pages_max, access);
            let pool = shared.pd().create_fmr_pool(attr).await?;
            channel.core.lock().hands.fmr = Some(pool);
        }
        Mechanism::Fmr | Mechanism::Request | Mechanism::Published => {}
    }
    Ok(())
}

/// Connects, and reads the target's answer to the login.
async fn connect(
    shared: &Arc<Shared>,
    qp: Qp,
    login: &LoginReq,
) -> Result<(Connection, LoginRsp), Error> {
    let param = ConnParam {
        response_timeout: RESPONSE_TIMEOUT,
        ..ConnParam::default()
    };
    let limit = shared.options.login_timeout;
    let connected = match &shared.target().way {
        TargetWay::Address(addr) => {
            let asked = shared.manager().connect(*addr, qp).param(param);
            let asked = asked.timeout(limit);
            asked.private_data(&login.emit_cm()).await
        }
        TargetWay::Service {
            service,
            route,
            is_revision_10,
        } => {
            let mut login = *login;
            if *is_revision_10 {
                login.initiator = login.initiator.revision_10();
                login.target = login.target.revision_10();
            }
            let rights = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::LOCAL_WRITE;
            let asked = shared.manager().connect_service(*service, *route, qp);
            let asked = asked.param(param).access(rights).timeout(limit);
            asked.private_data(&login.unit()).await
        }
    };
    let connection = match connected {
        Ok(connection) => connection,
        Err(refused) => return Err(rejected(refused.error)),
    };
    match LoginAnswer::parse(connection.private_data()) {
        Ok(LoginAnswer::Rsp(rsp)) if rsp.max_initiator_iu_len >= IU_LEN_MIN => {
            Ok((connection, rsp))
        }
        other => {
            let violation = match other {
                Ok(LoginAnswer::Rsp(rsp)) => Violation::Limits(rsp.max_initiator_iu_len),
                _ => Violation::NoLogin(Unit::LoginRsp),
            };
            // The end of the connection notifies the peer.
            let _ = connection.close().await;
            Err(Error::Protocol(violation))
        }
    }
}

fn begin_with(channel: &Channel, wires: Wires, answer: &LoginRsp) -> Result<(), Error> {
    let mut core = channel.core.lock();
    // The table under construction, and the unit.
    core.scratch = vec![0; 2 * wires.stride];
    core.iu_len_max = usize::try_from(answer.max_initiator_iu_len).unwrap_or(usize::MAX);
    core.immediate = answer.immediate && channel.options.immediate_max > 0;
    core.table.open(answer.delta.0);
    core.wires = Some(wires);
    core.phase = Phase::Open;
    Ok(())
}

/// Bytes of one slot's space: the longest unit, whether it carries a table or immediate data.
fn stride(options: &Options) -> usize {
    let table = TABLE_AT + TABLE_MAX * MemoryDescriptor::LEN + Cdb::ADDITIONAL_MAX;
    let immediate = usize::from(Cmd::IMMEDIATE_OFFSET) + options.immediate_max as usize;
    table.max(immediate)
}

async fn register(shared: &Arc<Shared>, len: usize, access: Access) -> Result<Mr, Error> {
    let memory = Memory::alloc(len)?;
    Ok(shared.pd().register(memory, access).await?)
}

fn request(shared: &Arc<Shared>, number: u8, stride: usize) -> LoginReq {
    let options = shared.options();
    LoginReq {
        tag: Tag(u64::from(number)),
        max_iu_len: u32::try_from(stride).unwrap_or(u32::MAX),
        formats: BufferFormats::DIRECT | BufferFormats::INDIRECT,
        immediate: options.immediate_max > 0,
        channels: channel_code(number),
        immediate_offset: Cmd::IMMEDIATE_OFFSET,
        initiator: shared.initiator(),
        target: shared.target().port,
    }
}

/// The meaning of a refused connection: the target's own reason, if it sent one.
fn rejected(error: verbs_cm::Error) -> Error {
    if let verbs_cm::Error::Rejected(rejection) = &error
        && let Ok(LoginAnswer::Rej(rej)) = LoginAnswer::parse(&rejection.private_data)
    {
        return Error::Rejected(rej.reason);
    }
    Error::Connect(error)
}

/// The first channel makes the target close the channels left from an earlier session; the others keep them.
const fn channel_code(number: u8) -> MultiChannel {
    match number {
        0 => MultiChannel::SINGLE,
        _ => MultiChannel::INDEPENDENT,
    }
}
