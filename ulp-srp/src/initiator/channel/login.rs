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
/// Receives beyond one for each request: the target may have one request of its own outstanding.
const RECVS_MORE: u32 = 2;
/// After which a message of the connection manager is sent again: 1.07 s, so that one that gets lost does not cost
/// most of the time that a login may take.
const RESPONSE_TIMEOUT: TimeCode = TimeCode::new(18);
/// A command with one descriptor, which every target takes.
const IU_LEN_MIN: u32 = 64;

impl Channel {
    /// Makes a channel: what it needs of the device, then the connection.
    pub(crate) async fn open(shared: &Arc<Shared>, number: u8) -> Result<Arc<Self>, Error> {
        let options = shared.options();
        let channel = Arc::new(Self::new(number, shared, options));
        let (cq, qp) = channel.queues(shared).await?;
        let stride = stride(options);
        let slots = usize::from(options.queue_depth) + 1;
        let send = register(shared, slots * stride, Access::REMOTE_READ).await?;
        let recvs = u32::from(options.queue_depth) + 1 + RECVS_MORE;
        let room = recvs as usize * RECV_LEN;
        let recv = register(shared, room, Access::LOCAL_WRITE).await?;
        channel.handles(shared).await?;

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
        let (connection, answer) = channel.connect(shared, qp, &login).await?;
        let wires = Wires {
            connection: Some(connection),
            cq,
            send,
            recv,
            stride,
        };
        channel.begin_with(wires, &answer)?;
        // What has arrived meanwhile has fired nothing: the queue was not armed.
        channel.turn();
        Ok(channel)
    }

    async fn queues(self: &Arc<Self>, shared: &Arc<Shared>) -> Result<(Cq, Qp), Error> {
        let options = &self.options;
        let attr = shared.device().query().await?;
        let depth = u32::from(options.queue_depth);
        let recvs = depth + 1 + RECVS_MORE;
        // Each command: its registrations, itself, its invalidates. Task management, and two answers.
        let each = 2 * u32::from(options.runs_max) + 1;
        let sends = (depth * each + 4).min(attr.max_qp_wr);
        let handler = Arc::downgrade(self);
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

    /// Makes the channel's pool of handles.
    async fn handles(&self, shared: &Arc<Shared>) -> Result<(), Error> {
        let options = &self.options;
        match options.mechanism {
            Mechanism::FastReg => {
                let mut fast = Vec::with_capacity(options.pool() as usize);
                for _ in 0..options.pool() {
                    fast.push(shared.pd().alloc_mr(options.pages_max).await?);
                }
                self.core.lock().hands.fast = fast;
            }
            Mechanism::Fmr if options.pool() > 0 => {
                let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
                let attr = FmrPoolAttr::new(options.pool(), options.pages_max, access);
                let pool = shared.pd().create_fmr_pool(attr).await?;
                self.core.lock().hands.fmr = Some(pool);
            }
            Mechanism::Fmr | Mechanism::Request | Mechanism::Published => {}
        }
        Ok(())
    }

    /// Connects, and reads what the target says to the login.
    async fn connect(
        &self,
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
                // The peer is told by the end of the connection.
                let _ = connection.close().await;
                Err(Error::Protocol(violation))
            }
        }
    }

    fn begin_with(&self, wires: Wires, answer: &LoginRsp) -> Result<(), Error> {
        let mut core = self.core.lock();
        // The table that is being made, and the unit.
        core.scratch = vec![0; 2 * wires.stride];
        core.iu_len_max = usize::try_from(answer.max_initiator_iu_len).unwrap_or(usize::MAX);
        core.immediate = answer.immediate && self.options.immediate_max > 0;
        core.table.open(answer.delta.0);
        core.wires = Some(wires);
        core.phase = Phase::Open;
        Ok(())
    }
}

/// Bytes of one slot's place: the longest unit, be it that of a table or of immediate data.
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

/// What a refusal of the connection means: the target's own words, if there are any.
fn rejected(error: verbs_cm::Error) -> Error {
    if let verbs_cm::Error::Rejected(rejection) = &error
        && let Ok(LoginAnswer::Rej(rej)) = LoginAnswer::parse(&rejection.private_data)
    {
        return Error::Rejected(rej.reason);
    }
    Error::Connect(error)
}

/// The first channel has the target close what is left of an earlier session; the others keep it.
const fn channel_code(number: u8) -> MultiChannel {
    match number {
        0 => MultiChannel::SINGLE,
        _ => MultiChannel::INDEPENDENT,
    }
}
