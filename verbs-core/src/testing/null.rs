//! A provider without hardware: control verbs answer at once, nothing can be sent.

use crate::addr::{Gid, LKey, Lid, Mtu, PKey, Qpn, RKey};
use crate::caps::{DeviceAttr, LinkLayer, PortAttr, PortState};
use crate::cm::CmReply;
use crate::command::AnyCommand;
use crate::cq::CqInfo;
use crate::device::local_guid;
use crate::error::{Attr, Error};
use crate::fast_reg::RawFastMr;
use crate::fmr::RawFmrPool;
use crate::mem::{Access, PageList};
use crate::mw::MwInfo;
use crate::object::Target;
use crate::provider::Provider;
use crate::provider_attr::{CmLimits, PortCaps, ProviderAttr};
use crate::qp_attr::{QpAttr, QpCap, QpInfo};
use crate::qp_state::{QpState, check};
use crate::queue::{Arm, Armed, PostError, RawCq, RawRecvQueue, RawSendQueue};
use crate::srq::SrqAttr;
use crate::sync::atomic::{AtomicI64, AtomicU32, Ordering::Relaxed};
use crate::sync::{Arc, Mutex};
use crate::wc::Wc;
use crate::wr::{SendWr, Sge};

/// Answers every control verb inline, and counts the objects that are alive. Its queues accept
/// nothing, as those of a queue pair in RESET do.
#[derive(Debug, Default)]
pub struct Null {
    number: AtomicU32,
    live: AtomicI64,
}

/// A completion queue without entries.
const NO_ENTRIES: Error = Error::Invalid {
    attr: Attr::Cqe,
    got: 0,
    max: u32::MAX,
};

/// What it keeps with a queue pair.
#[derive(Default)]
struct Qp(Mutex<(QpState, QpAttr)>);

impl Null {
    /// Objects that were created and not destroyed, devices not counted.
    pub fn live(&self) -> i64 {
        self.live.load(Relaxed)
    }

    fn create(&self) -> u32 {
        self.live.fetch_add(1, Relaxed);
        self.number.fetch_add(1, Relaxed) + 1
    }

    fn destroy(&self) {
        self.live.fetch_sub(1, Relaxed);
    }
}

impl Provider for Null {
    fn issue(&self, command: AnyCommand<'_>) {
        match command {
            AnyCommand::OpenDevice(command) => {
                let (args, reply) = command.split();
                reply.complete(Ok(args.build()));
            }
            AnyCommand::CloseDevice(command) => command.complete(Ok(())),
            AnyCommand::QueryDevice(command) => command.complete(Ok(device_attr())),
            AnyCommand::QueryPort(command) => {
                let answer = port_attr(command.port);
                command.complete(answer);
            }
            AnyCommand::QueryPkey(command) => {
                let answer = entry(command.port, command.index, Attr::PkeyIndex);
                command.complete(answer.map(|()| PKey::DEFAULT));
            }
            AnyCommand::QueryGid(command) => {
                let answer = entry(command.port, command.index, Attr::GidIndex);
                command.complete(answer.and_then(|()| port_attr(1)).map(|port| port.gid));
            }
            AnyCommand::ModifyDevice(command) => command.complete(Ok(())),
            AnyCommand::ModifyPort(command) => {
                let answer = port_attr(command.port).map(drop);
                command.complete(answer);
            }
            AnyCommand::NextEvent(command) => command.park(),
            AnyCommand::AllocPd(command) => {
                let (args, reply) = command.split();
                reply.complete(Ok(args.build(self.create(), Box::new(()))));
            }
            AnyCommand::DeallocPd(command) => {
                self.destroy();
                command.complete(Ok(()));
            }
            other => self.queues(other),
        }
    }

    /// It has the verbs of connections, and the limits of MPA.
    fn query_provider(&self, _port: u8) -> ProviderAttr {
        ProviderAttr {
            caps: PortCaps::IW_CM,
            cm: CmLimits {
                private_data: 512,
                max_ird: 16,
                max_ord: 16,
            },
            ..ProviderAttr::default()
        }
    }
}

impl Null {
    /// The verbs of completion queues.
    fn queues(&self, command: AnyCommand<'_>) {
        match command {
            AnyCommand::CreateCq(command) => {
                if command.cqe == 0 {
                    return command.refuse(NO_ENTRIES);
                }
                let (args, reply) = command.split();
                let cqe = args.cqe;
                reply.complete(Ok(args.build(
                    self.create(),
                    cqe,
                    Box::new(()),
                    Box::new(Empty),
                )));
            }
            AnyCommand::ResizeCq(command) => {
                let cqe = command.cqe;
                if cqe == 0 {
                    return command.refuse(NO_ENTRIES);
                }
                command.target().resized(cqe);
                command.complete(Ok(cqe));
            }
            AnyCommand::QueryCq(command) => {
                let cqe = command.target().cqe();
                command.complete(Ok(CqInfo {
                    cqe,
                    ..CqInfo::default()
                }));
            }
            AnyCommand::ModifyCq(command) => command.complete(Ok(())),
            AnyCommand::DestroyCq(command) => {
                self.destroy();
                command.complete(Ok(()));
            }
            other => self.queue_pairs(other),
        }
    }

    /// The verbs of queue pairs.
    fn queue_pairs(&self, command: AnyCommand<'_>) {
        match command {
            AnyCommand::CreateQp(command) => {
                let (args, reply) = command.split();
                let (qpn, cap) = (Qpn::new(self.create()), args.cap);
                let private = Box::new(Qp::default());
                reply.complete(Ok(args.build(
                    qpn,
                    cap,
                    private,
                    Box::new(Empty),
                    Box::new(Empty),
                )));
            }
            AnyCommand::ModifyQp(command) => {
                let answer = modify(&command);
                command.complete(answer);
            }
            AnyCommand::ResizeQp(command) => {
                let target = command.target();
                let mut cap = target.cap();
                cap.max_send_wr = command.max_send_wr.unwrap_or(cap.max_send_wr);
                cap.max_recv_wr = command.max_recv_wr.unwrap_or(cap.max_recv_wr);
                target.resized(&cap);
                command.complete(Ok(cap));
            }
            AnyCommand::QueryQp(command) => {
                let target = command.target();
                let qp = target.private::<Qp>().map(|qp| *qp.0.lock());
                let cap = target.cap();
                let (args, reply) = command.split();
                let info = |(state, attr)| {
                    args.answer(QpInfo {
                        state,
                        attr,
                        cap,
                        sq_sig_all: false,
                        sq_draining: false,
                    })
                };
                reply.complete(qp.map(info).ok_or(Error::DeviceFailed));
            }
            AnyCommand::DestroyQp(command) => {
                self.destroy();
                command.complete(Ok(()));
            }
            other => self.extended(other),
        }
    }

    /// The verbs of extended reliable connections.
    fn extended(&self, command: AnyCommand<'_>) {
        match command {
            AnyCommand::AllocXrcd(command) => {
                let (args, reply) = command.split();
                reply.complete(Ok(args.build(self.create(), Box::new(()))));
            }
            AnyCommand::DeallocXrcd(command) => {
                self.destroy();
                command.complete(Ok(()));
            }
            AnyCommand::CreateTargetQp(command) => {
                let (args, reply) = command.split();
                let qpn = Qpn::new(self.create());
                let private = Box::new(Qp::default());
                reply.complete(Ok(args.build(qpn, QpCap::default(), private)));
            }
            AnyCommand::OpenTargetQp(command) => {
                let (args, reply) = command.split();
                self.create();
                let private = Box::new(Qp::default());
                reply.complete(Ok(args.build(QpCap::default(), private)));
            }
            other => self.receivers(other),
        }
    }

    /// The verbs of shared receive queues, attachments and address handles.
    fn receivers(&self, command: AnyCommand<'_>) {
        match command {
            AnyCommand::CreateSrq(command) => {
                let (args, reply) = command.split();
                let private = Box::new(Mutex::new(args.attr));
                reply.complete(Ok(args.build(self.create(), private, Box::new(Empty))));
            }
            AnyCommand::ModifySrq(command) => {
                if let Some(attr) = command.target().private::<Mutex<SrqAttr>>() {
                    let mut attr = attr.lock();
                    attr.max_wr = command.max_wr.unwrap_or(attr.max_wr);
                    attr.srq_limit = command.srq_limit.unwrap_or(attr.srq_limit);
                }
                command.complete(Ok(()));
            }
            AnyCommand::QuerySrq(command) => {
                let attr = command
                    .target()
                    .private::<Mutex<SrqAttr>>()
                    .map(|attr| *attr.lock());
                command.complete(attr.ok_or(Error::DeviceFailed));
            }
            AnyCommand::DestroySrq(command) => {
                self.destroy();
                command.complete(Ok(()));
            }
            AnyCommand::AttachMcast(command) => {
                let (args, reply) = command.split();
                reply.complete(Ok(args.build(self.create(), Box::new(()))));
            }
            AnyCommand::DetachMcast(command) => {
                self.destroy();
                command.complete(Ok(()));
            }
            AnyCommand::CreateAh(command) => {
                let (args, reply) = command.split();
                reply.complete(Ok(args.build(self.create(), Box::new(()))));
            }
            AnyCommand::ModifyAh(command) => {
                command.target().replace(command.av);
                command.complete(Ok(()));
            }
            AnyCommand::QueryAh(command) => {
                let av = command.target().av();
                command.complete(Ok(av));
            }
            AnyCommand::DestroyAh(command) => {
                self.destroy();
                command.complete(Ok(()));
            }
            other => self.memory(other),
        }
    }

    /// The verbs of memory regions; and what it does not have.
    fn memory(&self, command: AnyCommand<'_>) {
        match command {
            AnyCommand::RegMr(command) => {
                if let Err(error) = command.access.check() {
                    return command.refuse(error);
                }
                let (args, reply) = command.split();
                let key = self.create() << 8;
                reply.complete(Ok(args.build(LKey::new(key), RKey::new(key), Box::new(()))));
            }
            AnyCommand::RegSharedMr(command) => {
                if let Err(error) = command.access.check() {
                    return command.refuse(error);
                }
                let memory = Arc::clone(command.target().memory());
                let (args, reply) = command.split();
                let key = self.create() << 8;
                let (lkey, rkey) = (LKey::new(key), RKey::new(key));
                reply.complete(Ok(args.build(memory, lkey, rkey, Box::new(()))));
            }
            AnyCommand::QueryMr(command) => {
                let info = command.target().info();
                command.complete(Ok(info));
            }
            AnyCommand::ReregMr(command) => {
                if let Err(error) = command.access.map_or(Ok(()), Access::check) {
                    return command.refuse(error);
                }
                let key = command.target().info().lkey.next().value();
                let (args, reply) = command.split();
                let iova = args.memory.as_ref().map(|memory| memory.addr());
                let iova = iova.unwrap_or_else(|| args.iova());
                reply.complete(args.build(LKey::new(key), RKey::new(key), iova, Box::new(())));
            }
            AnyCommand::DeregMr(command) => {
                self.destroy();
                command.complete(Ok(()));
            }
            AnyCommand::CallExtension(command) => {
                command.refuse(Error::Unsupported(Attr::Extension));
            }
            other => self.keys(other),
        }
    }

    /// The verbs of keys that are made valid later: nothing is ever reached through one.
    fn keys(&self, command: AnyCommand<'_>) {
        let key = |number: u32| LKey::new(number << 8);
        match command {
            AnyCommand::AllocMr(command) => {
                let (args, reply) = command.split();
                let number = self.create();
                reply.complete(Ok(args.build(key(number), Box::new(Empty), Box::new(()))));
            }
            AnyCommand::RegPages(command) => {
                let (args, reply) = command.split();
                let (number, len) = (self.create(), args.len());
                let made = args.build(key(number), len, 0, Box::new(Empty), Box::new(()));
                reply.complete(made);
            }
            AnyCommand::AllocMw(command) => {
                let (args, reply) = command.split();
                let rkey = RKey::new(self.create() << 8);
                reply.complete(Ok(args.build(rkey, Box::new(()))));
            }
            AnyCommand::QueryMw(command) => {
                let core = command.target();
                let info = MwInfo {
                    rkey: RKey::new(core.base().id().number),
                    window_type: core.window_type(),
                    bound: None,
                };
                command.complete(Ok(info));
            }
            AnyCommand::CreateFmrPool(command) => {
                let (args, reply) = command.split();
                let number = self.create();
                let made = args.build([key(number)], Box::new(Empty), Box::new(()));
                if made.is_err() {
                    self.destroy();
                }
                reply.complete(made);
            }
            AnyCommand::FlushFmrPool(command) => command.complete(Ok(())),
            AnyCommand::FreeMr(command) => {
                self.destroy();
                command.complete(Ok(()));
            }
            AnyCommand::DeallocMw(command) => {
                self.destroy();
                command.complete(Ok(()));
            }
            AnyCommand::DestroyFmrPool(command) => {
                self.destroy();
                command.complete(Ok(()));
            }
            other => self.connections(other),
        }
    }

    /// The verbs of connections: no peer is ever reached, and none asks.
    fn connections(&self, command: AnyCommand<'_>) {
        match command {
            AnyCommand::BindCm(command) => {
                let (args, reply) = command.split();
                let local = args.local;
                reply.complete(Ok(args.build(self.create(), local, Box::new(()))));
            }
            AnyCommand::UnbindCm(command) => {
                self.destroy();
                command.complete(Ok(()));
            }
            AnyCommand::ListenCm(command) => command.complete(Ok(())),
            AnyCommand::ConnectCm(command) => command.complete(Ok(CmReply::Unreachable)),
            AnyCommand::AcceptCm(command) => command.complete(Ok(())),
            AnyCommand::RejectCm(command) => command.complete(Ok(())),
            other => other.refuse(Error::Unsupported(Attr::Verb)),
        }
    }
}

fn entry(port: u8, index: u16, attr: Attr) -> Result<(), Error> {
    port_attr(port)?;
    match index {
        0 => Ok(()),
        _ => Err(Error::Invalid {
            attr,
            got: u32::from(index),
            max: 0,
        }),
    }
}

fn modify(command: &crate::command::Command<'_, crate::qp::ModifyQp>) -> Result<(), Error> {
    let core = command.target();
    let qp = core.private::<Qp>().ok_or(Error::DeviceFailed)?;
    let mut held = qp.0.lock();
    let (state, attr) = &mut *held;
    let to = command.attr.state.unwrap_or(*state);
    check(*state, to, core.qp_type(), command.attr.mask()).map_err(Error::Transition)?;
    attr.apply(&command.attr);
    *state = to;
    Ok(())
}

fn device_attr() -> Arc<DeviceAttr> {
    Arc::new(DeviceAttr {
        name: "null".into(),
        fw_ver: env!("CARGO_PKG_VERSION").into(),
        node_guid: local_guid(0),
        sys_image_guid: local_guid(0),
        phys_port_cnt: 1,
        max_qp_wr: u32::MAX,
        max_cqe: u32::MAX,
        ..DeviceAttr::default()
    })
}

fn port_attr(port: u8) -> Result<PortAttr, Error> {
    if port != 1 {
        return Err(Error::Invalid {
            attr: Attr::Port,
            got: u32::from(port),
            max: 1,
        });
    }
    Ok(PortAttr {
        gid: Gid::from_parts(Gid::LINK_LOCAL_PREFIX, local_guid(0)),
        max_msg_sz: 0,
        bad_pkey_cntr: 0,
        qkey_viol_cntr: 0,
        lid: Lid(0),
        sm_lid: Lid(0),
        gid_tbl_len: 1,
        pkey_tbl_len: 1,
        state: PortState::Down,
        max_mtu: Mtu::B4096,
        active_mtu: Mtu::B4096,
        sm_sl: 0,
        lmc: 0,
        active_width: 1,
        active_speed: 1,
        link_layer: LinkLayer::InfiniBand,
    })
}

/// Queues that take and give nothing.
#[derive(Debug)]
struct Empty;

impl RawFastMr for Empty {
    fn stage(&mut self, _: &mut PageList) -> Result<u32, Error> {
        Ok(0)
    }

    fn unstage(&mut self, _: &mut PageList) -> Result<bool, Error> {
        Ok(true)
    }
}

impl RawFmrPool for Empty {
    fn map(&mut self, _: LKey, _: &mut PageList, _: u64, _: Access) -> Result<(), Error> {
        Ok(())
    }
}

impl RawSendQueue for Empty {
    fn post(&mut self, _wr: &SendWr<'_>) -> Result<(), PostError> {
        Err(PostError::State(QpState::Reset))
    }
}

impl RawRecvQueue for Empty {
    fn post(&mut self, _wr_id: u64, _sges: &[Sge]) -> Result<(), PostError> {
        Err(PostError::State(QpState::Reset))
    }
}

impl RawCq for Empty {
    fn poll(&mut self, _out: &mut [Wc]) -> usize {
        0
    }

    fn arm(&mut self, _when: Arm) -> Armed {
        Armed::Empty
    }

    fn peek(&mut self, _most: u32) -> Option<u32> {
        Some(0)
    }
}
