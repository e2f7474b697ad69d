//! The provider: what implements the verbs for a device.
//!
//! # Writing one
//!
//! A provider has one entry, [`Provider::issue`], which receives every command as a variant of
//! [`AnyCommand`] with its arguments. Of three things it does one:
//!
//! * *Answer in place*, when it knows the answer: [`complete`](crate::Command::complete). This costs
//!   little more than a function call, and is right for whatever needs no hardware.
//! * *Refuse*: [`refuse`](crate::Command::refuse), with [`Error::Unsupported`] for verbs that the
//!   device does not have, [`Error::NoCapability`] if the reason is a capability bit, and [`Error::Invalid`] for arguments that it cannot take. What the
//!   arguments own, a handle that was to be destroyed for instance, goes back to the caller.
//! * *Keep it*: [`pend`](crate::Command::pend) makes an owned value of it, to hold until the
//!   hardware answers, on whatever thread that happens. `None` says that too many requests are
//!   pending, and that the caller has been told.
//!
//! Creates are answered with the object, which their arguments `build` from what only the provider
//! knows: its number, sizes as granted, the [raw queues](crate::queue) that post, poll and arm go to
//! directly, and a box of whatever the provider wants to find again with
//! [`private`](crate::Target::private) when the next command names the object.
//!
//! What holds while a command is in its hands:
//!
//! * The objects that the command names exist, also while it is pending: a create holds its parents,
//!   and everything but a destroy delays the destroy of its target (K10, K11).
//! * A destroy that arrives has been accepted: nothing uses the object, and nothing will (K11). It must
//!   succeed, whatever the state of the hardware, and cannot be cancelled (K8, K12).
//! * The provider counts no references and looks for no children. Busy is not its business.
//!
//! What it has to keep:
//!
//! * `issue` and `cancel` may be called by any thread, and by several at once. They must not wait
//!   (K2). They may take a lock whose holders run bounded code.
//! * Completing a pending request runs its routine, which is foreign code and may call `issue`: hold
//!   no lock then (K4). A loop that completes many under a lock can be wrapped in
//!   [`collect`](crate::collect), which puts the routines off until its end.
//! * After completing, neither the command nor the object is touched (K6).
//! * Numbers and keys differ among living objects; keys are not used again at once (K13).
//! * When the hardware goes, [`DeviceCore::remove`](crate::device::DeviceCore::remove) ends what is
//!   pending (K15). Afterwards only destroys arrive, and they must still succeed.
//! * Registered memory is touched for work requests that are posted and have not completed, and for peers that name a key.
//!   A provider that gives its word for that ([`Provider::vouch`]), which takes unsafe code, can have its memory lent as
//!   slices; without it nothing else is missing.
//!
//! A provider need not have every verb: it refuses the others with [`Error::Unsupported`], and names them to
//! the conformance suite (`Subject::without`). The verbs that it cannot
//! do without are `testing::conformance::CORE`: those that open, ask and close a device, `NextEvent`, and
//! those that make, change, ask and destroy protection domains, completion queues, memory regions and queue
//! pairs.
//!
//! The example is a card with a mailbox: commands go in, and the card answers by an interrupt, which
//! the program has to call. It passes the conformance suite.
//!
//! ```
//! use std::collections::VecDeque;
//! use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
//! use std::sync::{Arc, Mutex};
//!
//! use verbs_core::qp_state::check;
//! use verbs_core::testing::{Subject, conformance};
//! use verbs_core::*;
//!
//! /// Entries of one completion queue, and work requests on one queue.
//! const DEPTH: u32 = 1024;
//!
//! #[derive(Default)]
//! struct Card {
//!     /// What the card has been told to do. Locked for a push or a pop, nothing more.
//!     mailbox: Mutex<VecDeque<PendingCommand>>,
//!     /// The last number that an object was given.
//!     numbers: AtomicU32,
//! }
//!
//! /// What the provider keeps with a queue pair.
//! #[derive(Default)]
//! struct QueuePair(Mutex<(QpState, QpAttr)>);
//!
//! impl Provider for Card {
//!     fn issue(&self, command: AnyCommand<'_>) {
//!         use AnyCommand::*;
//!         match command {
//!             // Answered in place: the driver knows.
//!             OpenDevice(command) => {
//!                 let (args, reply) = command.split();
//!                 reply.complete(Ok(args.build()));
//!             }
//!             QueryDevice(command) => command.complete(Ok(device_attr())),
//!             QueryPort(command) => {
//!                 let answer = in_range(Attr::Port, command.port.into(), 1, 1);
//!                 command.complete(answer.map(|()| port_attr()));
//!             }
//!             // Requests for events wait in the device, which is told of events by `raise`.
//!             NextEvent(command) => command.park(),
//!             other => match self.acceptable(&other) {
//!                 Err(error) => other.refuse(error),
//!                 Ok(()) => {
//!                     if let Some(pending) = other.pend() {
//!                         self.mailbox.lock().unwrap().push_back(pending);
//!                     }
//!                 }
//!             },
//!         }
//!     }
//!
//!     fn cancel(&self, id: RequestId) {
//!         let taken = {
//!             let mut mailbox = self.mailbox.lock().unwrap();
//!             let found = mailbox.iter().position(|c| c.id() == id && !c.kind().destroys());
//!             found.and_then(|n| mailbox.remove(n))
//!         };
//!         // The lock is free: completing runs the routine.
//!         if let Some(command) = taken {
//!             command.refuse(Error::Cancelled);
//!         }
//!     }
//! }
//!
//! impl Card {
//!     /// Whether the card could carry the command out: refused early is refused cheaply.
//!     fn acceptable(&self, command: &AnyCommand<'_>) -> Result<(), Error> {
//!         use AnyCommand::*;
//!         match command {
//!             CreateCq(args) => in_range(Attr::Cqe, args.cqe, 1, DEPTH),
//!             CreateQp(args) if args.qp_type != QpType::Rc => {
//!                 Err(Error::Unsupported(Attr::QpType))
//!             }
//!             CreateQp(args) => in_range(Attr::MaxSendWr, args.cap.max_send_wr, 0, DEPTH)
//!                 .and(in_range(Attr::MaxRecvWr, args.cap.max_recv_wr, 0, DEPTH)),
//!             RegMr(args) => args.access.check(),
//!             AllocPd(_) | ModifyQp(_) | QueryQp(_) | CloseDevice(_) | DeallocPd(_)
//!             | DestroyCq(_) | DestroyQp(_) | DeregMr(_) => Ok(()),
//!             CallExtension(_) => Err(Error::Unsupported(Attr::Extension)),
//!             _ => Err(Error::Unsupported(Attr::Verb)),
//!         }
//!     }
//!
//!     /// The card has carried out a command; called by the thread that hears its interrupts.
//!     fn interrupt(&self) {
//!         use PendingCommand::*;
//!         let Some(command) = self.mailbox.lock().unwrap().pop_front() else { return };
//!         let number = self.numbers.fetch_add(1, Relaxed) + 1;
//!         match command {
//!             AllocPd(args, pending) => pending.complete(Ok(args.build(number, Box::new(())))),
//!             CreateCq(args, pending) => {
//!                 let cqe = args.cqe;
//!                 let cq = args.build(number, cqe, Box::new(()), Box::new(Quiet));
//!                 pending.complete(Ok(cq));
//!             }
//!             CreateQp(args, pending) => {
//!                 let (qpn, cap) = (Qpn::new(number), args.cap);
//!                 let private = Box::new(QueuePair::default());
//!                 let qp = args.build(qpn, cap, private, Box::new(Quiet), Box::new(Quiet));
//!                 pending.complete(Ok(qp));
//!             }
//!             ModifyQp(args, pending) => {
//!                 let qp = pending.target();
//!                 let mut kept = qp.private::<QueuePair>().unwrap().0.lock().unwrap();
//!                 let to = args.attr.state.unwrap_or(kept.0);
//!                 let legal = check(kept.0, to, qp.qp_type(), args.attr.mask());
//!                 if legal.is_ok() {
//!                     kept.0 = to;
//!                     kept.1.apply(&args.attr);
//!                 }
//!                 drop(kept);
//!                 pending.complete(legal.map_err(Error::Transition));
//!             }
//!             QueryQp(args, pending) => {
//!                 let qp = pending.target();
//!                 let (state, attr) = *qp.private::<QueuePair>().unwrap().0.lock().unwrap();
//!                 let cap = qp.cap();
//!                 let (sq_sig_all, sq_draining) = (false, false);
//!                 let info = QpInfo { state, attr, cap, sq_sig_all, sq_draining };
//!                 pending.complete(Ok(args.answer(info)));
//!             }
//!             RegMr(args, pending) => {
//!                 // The low byte is the consumer's; a real card is told the addresses here.
//!                 let (lkey, rkey) = (LKey::new(number << 8), RKey::new(number << 8));
//!                 pending.complete(Ok(args.build(lkey, rkey, Box::new(()))));
//!             }
//!             CloseDevice(_, pending) => pending.complete(Ok(())),
//!             DeallocPd(_, pending) => pending.complete(Ok(())),
//!             DestroyCq(_, pending) => pending.complete(Ok(())),
//!             DestroyQp(_, pending) => pending.complete(Ok(())),
//!             DeregMr(_, pending) => pending.complete(Ok(())),
//!             other => other.refuse(Error::Unsupported(Attr::Verb)),
//!         }
//!     }
//! }
//!
//! /// Queues of a card without a wire: nothing can be posted, and nothing arrives.
//! #[derive(Debug)]
//! struct Quiet;
//!
//! impl RawSendQueue for Quiet {
//!     fn post(&mut self, _: &SendWr<'_>) -> Result<(), PostError> {
//!         Err(PostError::State(QpState::Reset))
//!     }
//! }
//! impl RawRecvQueue for Quiet {
//!     fn post(&mut self, _: u64, _: &[Sge]) -> Result<(), PostError> {
//!         Err(PostError::State(QpState::Reset))
//!     }
//! }
//! impl RawCq for Quiet {
//!     fn poll(&mut self, _: &mut [Wc]) -> usize {
//!         0
//!     }
//!     fn arm(&mut self, _: Arm) -> Armed {
//!         Armed::Empty
//!     }
//! }
//!
//! fn in_range(attr: Attr, got: u32, min: u32, max: u32) -> Result<(), Error> {
//!     match got {
//!         got if (min..=max).contains(&got) => Ok(()),
//!         got => Err(Error::Invalid { attr, got, max }),
//!     }
//! }
//!
//! fn device_attr() -> Arc<DeviceAttr> {
//!     let name = String::from("card0");
//!     let (max_cqe, max_qp_wr) = (DEPTH, DEPTH);
//!     Arc::new(DeviceAttr { name, phys_port_cnt: 1, max_cqe, max_qp_wr, ..Default::default() })
//! }
//! #
//! # fn port_attr() -> PortAttr {
//! #     PortAttr {
//! #         gid: Gid::from_parts(Gid::LINK_LOCAL_PREFIX, Guid(1)),
//! #         max_msg_sz: 0,
//! #         bad_pkey_cntr: 0,
//! #         qkey_viol_cntr: 0,
//! #         lid: Lid(0),
//! #         sm_lid: Lid(0),
//! #         gid_tbl_len: 1,
//! #         pkey_tbl_len: 1,
//! #         state: PortState::Down,
//! #         max_mtu: Mtu::B4096,
//! #         active_mtu: Mtu::B4096,
//! #         sm_sl: 0,
//! #         lmc: 0,
//! #         active_width: 1,
//! #         active_speed: 1,
//! #         link_layer: LinkLayer::InfiniBand,
//! #     }
//! # }
//!
//! // The suite is told how to call the card's interrupt, and what the card cannot do.
//! conformance::run(|| {
//!     use Kind::*;
//!     let card = Arc::new(Card::default());
//!     let interrupts = Arc::clone(&card);
//!     Subject::new(card).step(move || interrupts.interrupt()).without(&[
//!         QueryPkey, QueryGid, ModifyDevice, ModifyPort, QueryCq, ResizeCq, ModifyCq, CreateSrq,
//!         ResizeQp, AttachMcast, DetachMcast, CreateAh, RegSharedMr, QueryMr, ReregMr, AllocXrcd,
//!         BindCm, AllocMr, RegPages, AllocMw, CreateFmrPool,
//!     ])
//! });
//! ```

use std::any::Any;

#[expect(
    unsafe_code,
    reason = "a provider's word, which safe code relies on: argued at its head"
)]
mod vouch;

pub use vouch::Vouch;

use crate::command::{AnyCommand, Kind, RequestId};
use crate::error::Error;
use crate::extension::ExtensionInfo;
use crate::host::HostPorts;
use crate::mad::{MadArrival, MadBytes, MadVerdict};
use crate::provider_attr::ProviderAttr;
use crate::sync::Arc;
use crate::timer::Timer;

/// Implements a device, or stands in front of one and looks at what goes by.
///
/// The provider sees one entry. A command that can be answered at once is completed in place; one
/// that cannot is [pended](crate::Command::pend), which yields an owned value to keep until the
/// hardware answers. Post, poll and arm do not come through here: they are the
/// [raw queues](crate::RawSendQueue) that a provider hands out with the objects it creates.
pub trait Provider: Any + Send + Sync {
    /// Takes a command.
    ///
    /// Runs under NoBlock on the issuer's thread: it may take a lock whose holders run bounded code
    /// and never foreign code, and it may not wait (K2, K3). Dropping the command completes it with
    /// [`Error::Dropped`] (K7).
    fn issue(&self, command: AnyCommand<'_>);

    /// A hint that the pending request `id` should end early if it still can (K8).
    ///
    /// The thread that takes the request from the provider's queue completes it, here with
    /// [`Error::Cancelled`]; a request whose command the hardware has already is left alone. Never
    /// waits.
    fn cancel(&self, _id: RequestId) {}

    /// Answers a management datagram that is for the device itself: subnet management, performance
    /// counters, whatever else the device is asked about in datagrams. A direct call.
    ///
    /// The port's service for management datagrams calls it for each one that arrives, from the
    /// handler of its completion queue, under NoBlock: bounded work, no waiting, no lock whose holders
    /// run foreign code (K2, K3). What it leaves goes to the service's clients.
    ///
    /// A device whose answer takes a command [takes the reply](crate::mad::Later::take) over and sends it from the
    /// completion of that command: no thread waits for it.
    fn process_mad(&self, _incoming: &MadArrival<'_>, _reply: &mut MadBytes) -> MadVerdict {
        MadVerdict::NotMine
    }

    /// What the device and that port are, and how connections are made there. A direct call that
    /// answers from what the provider knows; the default has nothing to offer.
    fn query_provider(&self, _port: u8) -> ProviderAttr {
        ProviderAttr::default()
    }

    /// The extensions that the device has, for clients to look up. A direct call; the default has none.
    fn extensions(&self) -> &[ExtensionInfo] {
        &[]
    }

    /// The device's timer, if it has one. Services that have to repeat what got lost need it.
    fn timer(&self) -> Option<Arc<dyn Timer>> {
        None
    }

    /// The number that the device's own numbers are drawn from, if it is one: a simulated device's, whose runs repeat.
    /// Services above, the connection manager for one, draw theirs from it then; `None`, the default, has them take the
    /// system's entropy. A filter passes it on.
    fn seed(&self) -> Option<u64> {
        None
    }

    /// Its word that it keeps the rules of registered memory, for those who lend that as slices: [`Vouch`]. The default gives
    /// none. A filter that passes on what the provider behind it says has given none either.
    fn vouch(&self) -> Option<Vouch> {
        None
    }

    /// The port numbers that are shared with other processes, if they are; the connection manager listens there, too.
    fn host_ports(&self) -> Option<Arc<dyn HostPorts>> {
        None
    }
}

/// Sees the results of the commands that a filter let through.
pub trait Hook: Send + Sync + 'static {
    /// The request with this token has completed. Runs once, before its routine, innermost filter
    /// first, under NoBlock.
    fn completed(&self, token: u64, done: &mut dyn Done);
}

/// A result on its way to the consumer.
pub trait Done {
    /// The verb.
    fn kind(&self) -> Kind;

    /// Why it failed, if it did.
    fn error(&self) -> Option<Error>;

    /// Makes it a failure. An object that it carried is destroyed; there is no way to make a
    /// success of a failure.
    fn fail(&mut self, error: Error);
}

/// A filter's entry in the chain that a result unwinds. It lives on the filter's stack while the
/// inner provider is called, and is copied only when the request pends.
#[derive(Clone, Copy)]
pub struct Frame<'a> {
    /// The filter that wants to see the result.
    pub hook: &'a Arc<dyn Hook>,
    /// Comes back to the hook.
    pub token: u64,
    /// The next filter outwards: [`AnyCommand::frames`] of the command that came in.
    pub next: Option<&'a Frame<'a>>,
}
