//! The code that the benches of the control path measure: verbs over a provider that answers at once, through each of
//! the front ends.
//!
//! Every measured function repeats its operation, so that a count divided by the repetitions contains no part of what
//! happens once.

use std::future::{Future, IntoFuture};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use verbs_core::testing::Null;
use verbs_core::{
    Access, AnyCommand, Av, Cq, Device, Lid, Mtu, Path, Pd, PendingCommand, PortAttr, Provider,
    Psn, Qp, QpAttr, QpInit, QpState, Qpn,
};

/// Answers the two measured verbs with values that it holds, and pends neither; the [`Null`] provider does the rest.
///
/// A provider's own work is not a cost of the request mechanism, so there is none.
pub struct Inline {
    port: PortAttr,
    rest: Null,
}

impl Inline {
    /// With the attributes of the null provider's port.
    pub fn new() -> Self {
        let null = Device::open(Arc::new(Null::default())).wait();
        let port = null.and_then(|device| device.query_port(1).wait());
        Self {
            port: port.expect("the null provider has a port"),
            rest: Null::default(),
        }
    }
}

impl Default for Inline {
    fn default() -> Self {
        Self::new()
    }
}

impl Provider for Inline {
    fn issue(&self, command: AnyCommand<'_>) {
        match command {
            AnyCommand::QueryPort(command) => command.complete(Ok(self.port)),
            AnyCommand::ModifyQp(command) => command.complete(Ok(())),
            other => self.rest.issue(other),
        }
    }
}

/// Pends every query of a port and answers it at once; the rest is [`Inline`]'s.
#[derive(Default)]
pub struct Pends(Inline);

impl Provider for Pends {
    fn issue(&self, command: AnyCommand<'_>) {
        match command {
            AnyCommand::QueryPort(command) => {
                if let Some((_, pending)) = command.pend() {
                    pending.complete(Ok(self.0.port));
                }
            }
            other => self.0.issue(other),
        }
    }
}

/// A command interface with delays: every command pends, and a thread that stands for the hardware carries it out on
/// [`Inline`] when it is due.
pub struct Delayed(Mutex<mpsc::Sender<(Instant, PendingCommand)>>, Duration);

impl Delayed {
    /// Every command takes `time`, however many there are.
    pub fn by(time: Duration) -> Arc<Self> {
        let (sender, receiver) = mpsc::channel::<(Instant, PendingCommand)>();
        std::thread::spawn(move || {
            let inline = Inline::new();
            // Ends with the provider, whose sender it was.
            for (due, command) in receiver {
                while Instant::now() < due {
                    std::thread::yield_now();
                }
                command.forward(&inline);
            }
        });
        Arc::new(Self(Mutex::new(sender), time))
    }
}

impl Provider for Delayed {
    fn issue(&self, command: AnyCommand<'_>) {
        if let Some(pending) = command.pend() {
            let due = Instant::now() + self.1;
            let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // A thread that has ended drops the command, which then fails.
            let _ = sender.send((due, pending));
        }
    }
}

/// A device with one of everything the operations need.
pub struct Subject {
    /// Field order is drop order: children first.
    qp: Qp,
    cq: Cq,
    pd: Pd,
    device: Arc<Device>,
}

/// Where routines store what they saw, so that nothing is optimised away.
static SEEN: AtomicU64 = AtomicU64::new(0);

#[inline]
fn see(word: u64) {
    SEEN.store(word, Relaxed);
}

impl Subject {
    /// Over [`Inline`].
    pub fn inline() -> Self {
        Self::over(Arc::new(Inline::new()))
    }

    /// Over [`Pends`].
    pub fn pending() -> Self {
        Self::over(Arc::new(Pends::default()))
    }

    /// Over any provider, after the thread's first verb.
    pub fn over(provider: Arc<dyn Provider>) -> Self {
        let device = Device::open(black_box(provider)).wait().expect("a device");
        let pd = device.alloc_pd().wait().expect("a PD");
        let cq = device.create_cq(4).wait().expect("a CQ");
        let qp = pd.create_qp(QpInit::rc(&cq, &cq)).wait().expect("a QP");
        Self {
            qp,
            cq,
            pd,
            device: Arc::new(device),
        }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Query, finished by a routine.
    #[inline(never)]
    pub fn query_routine(&self, times: u64) {
        for _ in 0..times {
            let _ = self.device.query_port(1).issue(|port| {
                see(port.map_or(0, |port| u64::from(port.max_msg_sz)));
            });
        }
    }

    /// Modify, finished by a routine.
    #[inline(never)]
    pub fn modify_routine(&self, times: u64) {
        for _ in 0..times {
            let _ = self
                .qp
                .modify(QpAttr::to(QpState::Err))
                .issue(|result| see(u64::from(result.is_ok())));
        }
    }

    /// Query, awaited in a `Send` future under `block_on`.
    #[inline(never)]
    pub fn query_future(&self, times: u64) {
        for _ in 0..times {
            let device = &self.device;
            let future = send(async { device.query_port(1).await });
            see(block_on(future).map_or(0, |port| u64::from(port.max_msg_sz)));
        }
    }

    /// Query, a future that is polled once without an executor.
    #[inline(never)]
    pub fn query_poll(&self, times: u64) {
        for _ in 0..times {
            let future = std::pin::pin!(send(self.device.query_port(1).into_future()));
            match future.poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(port) => see(port.map_or(0, |port| u64::from(port.max_msg_sz))),
                Poll::Pending => unreachable!("the provider answers at once"),
            }
        }
    }

    /// Modify, awaited in a `Send` future under `block_on`.
    #[inline(never)]
    pub fn modify_future(&self, times: u64) {
        for _ in 0..times {
            // A handle with its queues stays on one thread; its requests need not.
            let request = self.qp.modify(QpAttr::to(QpState::Err));
            let future = send(async { request.await });
            see(u64::from(block_on(future).is_ok()));
        }
    }

    /// Query, waited for.
    #[inline(never)]
    pub fn query_wait(&self, times: u64) {
        for _ in 0..times {
            let port = self.device.query_port(1).wait();
            see(port.map_or(0, |port| u64::from(port.max_msg_sz)));
        }
    }

    /// Query, issued from the routine of another query: two verbs, one through the trampoline.
    #[inline(never)]
    pub fn query_nested(&self, times: u64) {
        for _ in 0..times {
            let inner = Arc::clone(&self.device);
            let _ = self.device.query_port(1).issue(move |_| {
                let _ = inner.query_port(1).issue(|port| {
                    see(port.map_or(0, |port| u64::from(port.max_msg_sz)));
                });
            });
        }
    }

    /// A queue pair created, brought to RTS and destroyed: five verbs.
    #[inline(never)]
    pub fn qp_to_rts(&self, times: u64) {
        for _ in 0..times {
            let qp = self.pd.create_qp(QpInit::rc(&self.cq, &self.cq)).wait();
            let qp = qp.expect("a QP");
            let steps = [
                qp.init(1, Access::REMOTE_WRITE).wait(),
                qp.ready_to_receive(&path()).wait(),
                qp.ready_to_send(Psn::new(4)).wait(),
            ];
            see(steps.iter().filter(|step| step.is_ok()).count() as u64);
            qp.destroy().wait().expect("nothing is attached to it");
        }
    }

    /// A queue pair created and destroyed: two verbs.
    #[inline(never)]
    pub fn qp_pair(&self, times: u64) {
        for _ in 0..times {
            let qp = self.pd.create_qp(QpInit::rc(&self.cq, &self.cq)).wait();
            qp.expect("a QP")
                .destroy()
                .wait()
                .expect("nothing is attached to it");
        }
    }
}

/// Only a future that may cross threads is worth measuring.
#[inline(always)]
fn send<F: Future + Send>(future: F) -> F {
    future
}

fn path() -> Path {
    Path {
        av: Av::to_lid(1, Lid(1)),
        dest_qpn: Qpn::new(2),
        rq_psn: Psn::new(3),
        mtu: Mtu::B1024,
    }
}
