//! The smallest provider that passes the conformance suite: the verbs that every provider has, answered in place, for a
//! device without a wire. The guide for real ones, which keep commands until hardware answers, is
//! `verbs::provider`.
//!
//! `cargo run --features testing --example provider_min`

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use verbs::control::qp::{CreateQp, ModifyQp, QpCore};
use verbs::control::*;
use verbs::provider::testing::Subject;
use verbs::provider::testing::conformance::{self, CHECKS, CORE};
use verbs::provider::{Provider, RawCq, RawRecvQueue, RawSendQueue};
use verbs::wc::Wc;
use verbs::wr::{SendWr, Sge};

/// Entries of a queue.
const DEPTH: u32 = 64;

/// The device. What it knows of objects is their numbers.
#[derive(Default)]
struct Minimal(AtomicU32);

/// What it keeps with a queue pair.
#[derive(Default)]
struct Kept(Mutex<(QpState, QpAttr)>);

/// Queues that take and give nothing.
#[derive(Debug)]
struct Quiet;

impl Provider for Minimal {
    fn issue(&self, command: AnyCommand<'_>) {
        use AnyCommand::*;
        match command {
            OpenDevice(command) => {
                let (args, reply) = command.split();
                reply.complete(Ok(args.build()));
            }
            QueryDevice(command) => command.complete(Ok(Arc::new(DeviceAttr {
                name: "minimal".into(),
                phys_port_cnt: 1,
                max_cqe: DEPTH,
                max_qp_wr: DEPTH,
                ..Default::default()
            }))),
            QueryPort(command) => {
                let answer = at_most(Attr::Port, command.port.into(), 1);
                command.complete(answer.map(|()| port()));
            }
            // The code that raises events completes it.
            NextEvent(command) => command.park(),
            AllocPd(command) => {
                let (args, reply) = command.split();
                reply.complete(Ok(args.build(self.number(), Box::new(()))));
            }
            CreateCq(command) => match at_most(Attr::Cqe, command.cqe, DEPTH) {
                Err(error) => command.refuse(error),
                Ok(()) => {
                    let (args, reply) = command.split();
                    let cqe = args.cqe;
                    let cq = args.build(self.number(), cqe, Box::new(()), Box::new(Quiet));
                    reply.complete(Ok(cq));
                }
            },
            RegMr(command) => match command.access.check() {
                Err(error) => command.refuse(error),
                Ok(()) => {
                    let (args, reply) = command.split();
                    // The low byte is the consumer's.
                    let key = self.number() << 8;
                    let mr = args.build(LKey::new(key), RKey::new(key), Box::new(()));
                    reply.complete(Ok(mr));
                }
            },
            CreateQp(command) => self.create_qp(command),
            ModifyQp(command) => {
                let answer = modify(&command);
                command.complete(answer);
            }
            QueryQp(command) => {
                let info = query(command.target());
                command.complete(Ok(Box::new(info)));
            }
            // Nothing is held for an object, so nothing is to be given back.
            CloseDevice(command) => command.complete(Ok(())),
            DeallocPd(command) => command.complete(Ok(())),
            DestroyCq(command) => command.complete(Ok(())),
            DestroyQp(command) => command.complete(Ok(())),
            DeregMr(command) => command.complete(Ok(())),
            CallExtension(command) => command.refuse(Error::Unsupported(Attr::Extension)),
            other => other.refuse(Error::Unsupported(Attr::Verb)),
        }
    }
}

impl Minimal {
    /// A number that no object has.
    fn number(&self) -> u32 {
        self.0.fetch_add(1, Relaxed) + 1
    }

    fn create_qp(&self, command: Command<'_, CreateQp>) {
        let cap = command.cap;
        let refused = match command.qp_type {
            QpType::Rc => at_most(Attr::MaxSendWr, cap.max_send_wr, DEPTH).and(at_most(
                Attr::MaxRecvWr,
                cap.max_recv_wr,
                DEPTH,
            )),
            _ => Err(Error::Unsupported(Attr::QpType)),
        };
        if let Err(error) = refused {
            return command.refuse(error);
        }
        let (args, reply) = command.split();
        let (qpn, kept) = (Qpn::new(self.number()), Box::new(Kept::default()));
        reply.complete(Ok(args.build(
            qpn,
            cap,
            kept,
            Box::new(Quiet),
            Box::new(Quiet),
        )));
    }
}

/// Its port, which has no cable.
fn port() -> PortAttr {
    PortAttr {
        gid: Gid::from_parts(Gid::LINK_LOCAL_PREFIX, Guid(1)),
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
        link_layer: LinkLayer::Ethernet,
    }
}

/// What a queue pair is.
fn query(qp: &QpCore) -> QpInfo {
    let kept = qp.private::<Kept>().expect("create_qp put it there");
    let (state, attr) = *kept.0.lock().expect("nothing panics under it");
    QpInfo {
        state,
        attr,
        cap: qp.cap(),
        sq_sig_all: false,
        sq_draining: false,
    }
}

/// A transition, if the table of states has it.
fn modify(command: &Command<'_, ModifyQp>) -> Result<(), Error> {
    let qp = command.target();
    let kept = qp.private::<Kept>().expect("create_qp put it there");
    let mut kept = kept.0.lock().expect("nothing panics under it");
    let to = command.attr.state.unwrap_or(kept.0);
    qp_state::check(kept.0, to, qp.qp_type(), command.attr.mask()).map_err(Error::Transition)?;
    kept.0 = to;
    kept.1.apply(&command.attr);
    Ok(())
}

fn at_most(attr: Attr, got: u32, max: u32) -> Result<(), Error> {
    // Sizes of a queue pair's queues may be 0, those of others and ports begin with 1.
    let min = u32::from(matches!(attr, Attr::Port | Attr::Cqe));
    match (min..=max).contains(&got) {
        true => Ok(()),
        false => Err(Error::Invalid { attr, got, max }),
    }
}

impl RawSendQueue for Quiet {
    fn post(&mut self, _: &SendWr<'_>) -> Result<(), PostError> {
        Err(PostError::State(QpState::Reset))
    }
}

impl RawRecvQueue for Quiet {
    fn post(&mut self, _: u64, _: &[Sge]) -> Result<(), PostError> {
        Err(PostError::State(QpState::Reset))
    }
}

impl RawCq for Quiet {
    fn poll(&mut self, _: &mut [Wc]) -> usize {
        0
    }

    fn arm(&mut self, _: Arm) -> Armed {
        Armed::Empty
    }
}

fn main() {
    // Whatever is not in CORE may be missing; the suite wants to know what is.
    let without: Vec<Kind> = Kind::ALL
        .iter()
        .copied()
        .filter(|kind| !CORE.contains(kind) && *kind != Kind::CallExtension)
        .collect();
    conformance::run(move || Subject::new(Arc::new(Minimal::default())).without(&without));
    println!("{} verbs, {} checks passed", CORE.len(), CHECKS.len());
}
