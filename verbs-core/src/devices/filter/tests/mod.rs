//! Goal: filters stack, see every result once and innermost first, and harm what they are told to
//! harm and nothing else. Method: a provider that logs what reaches it, under stacks of filters.

mod stacked;
mod trace;

use std::fmt::Write as _;

use tracing::field::{Field, Visit};
use tracing::span;

use super::*;
use crate::error::Attr;
use crate::object::Target;
use crate::sync::Arc;
use crate::sync::plain::{AtomicU64, Mutex, Ordering::SeqCst};
use crate::{
    AnyCommand, Device, Done, Error, Frame, Hook, Issued, Kind, Origin, Pd, PendingCommand,
    Provider, RequestId,
};

type Lines = Arc<Mutex<Vec<String>>>;

/// Protection domains and ports; says what it was asked.
#[derive(Default)]
struct Tiny {
    log: Lines,
    live: AtomicU64,
    /// Holds queries back when set.
    slow: Mutex<Option<Vec<PendingCommand>>>,
}

impl Provider for Tiny {
    fn issue(&self, command: AnyCommand<'_>) {
        self.log
            .lock()
            .push(format!("{} for {:?}", command.kind(), command.origin()));
        let mut slow = self.slow.lock();
        if let (Kind::QueryPort, Some(held)) = (command.kind(), &mut *slow) {
            return held.extend(command.pend());
        }
        drop(slow);
        match command {
            AnyCommand::OpenDevice(command) => {
                let (args, reply) = command.split();
                reply.complete(Ok(args.build()));
            }
            AnyCommand::QueryPort(command) => {
                let error = no_port(command.port);
                command.complete(Err(error));
            }
            AnyCommand::AllocPd(command) => {
                let number = self.live.fetch_add(1, SeqCst) as u32;
                let (args, reply) = command.split();
                reply.complete(Ok(args.build(number, Box::new(()))));
            }
            AnyCommand::DeallocPd(command) => {
                self.live.fetch_sub(1, SeqCst);
                command.complete(Ok(()));
            }
            AnyCommand::CloseDevice(command) => command.complete(Ok(())),
            other => other.refuse(Error::Unsupported(Attr::Verb)),
        }
    }

    fn cancel(&self, _id: RequestId) {
        self.log.lock().push("cancel".into());
    }
}

/// How a query of that port ends that was carried out.
fn no_port(port: u8) -> Error {
    Error::Invalid {
        attr: Attr::Port,
        got: u32::from(port),
        max: 0,
    }
}

/// A device behind a fault filter.
struct Bench {
    tiny: Arc<Tiny>,
    fault: Arc<Fault>,
    device: Device,
    /// What queries ended with, in order.
    ends: Arc<Mutex<Vec<(u8, Error)>>>,
}

impl Bench {
    fn new() -> Self {
        let tiny = Arc::new(Tiny::default());
        let fault = Arc::new(Fault::new(tiny.clone()));
        let device = Device::open(fault.clone()).wait().expect("it opens");
        Self {
            tiny,
            fault,
            device,
            ends: Arc::default(),
        }
    }

    fn query(&self, port: u8) -> Issued {
        let ends = self.ends.clone();
        let done = move |result: Result<_, _>| {
            ends.lock()
                .push((port, result.expect_err("it has no ports")));
        };
        self.device.query_port(port).issue(done)
    }

    fn ends(&self) -> Vec<(u8, Error)> {
        std::mem::take(&mut *self.ends.lock())
    }

    /// Everything must be back where it was, but for the domains that a fault left behind.
    fn close(self) {
        assert_eq!((self.fault.held(), self.fault.outstanding()), (0, 0));
        assert_eq!(self.device.in_flight().len(), 0);
        assert_eq!(self.tiny.live.load(SeqCst), 0);
        self.device.close().wait().expect("nothing is left");
    }
}

#[test]
fn the_nth_verb_of_a_kind_fails_and_no_other() {
    let bench = Bench::new();
    bench
        .fault
        .inject(Kind::QueryPort, 2, FaultAction::Fail(Error::DeviceFailed));
    bench
        .fault
        .inject(Kind::QueryPort, 0, FaultAction::Fail(Error::NoMemory));
    for port in 1..4 {
        let _ = bench.query(port);
        // Other kinds do not count.
        drop(bench.device.alloc_pd().wait().expect("not harmed"));
    }
    assert_eq!(
        bench.ends(),
        [(1, no_port(1)), (2, Error::DeviceFailed), (3, no_port(3))]
    );
    let asked = bench
        .tiny
        .log
        .lock()
        .iter()
        .filter(|line| line.starts_with("QueryPort"))
        .count();
    assert_eq!(asked, 2, "the device did not see the one that failed");
    bench.close();
}

#[test]
fn k7_a_lost_verb_ends_as_dropped() {
    let bench = Bench::new();
    bench.fault.inject(Kind::AllocPd, 1, FaultAction::Lose);
    assert_eq!(
        bench.device.alloc_pd().wait().expect_err("lost"),
        Error::Dropped
    );
    assert_eq!(bench.device.objects(), 0, "the create counts no more");
    drop(
        bench
            .device
            .alloc_pd()
            .wait()
            .expect("the next one is not harmed"),
    );
    bench.close();
}

#[test]
fn a_destroy_that_fails_or_is_lost_is_carried_out_all_the_same() {
    let cases = [
        (FaultAction::Fail(Error::DeviceFailed), Error::DeviceFailed),
        (FaultAction::Lose, Error::Dropped),
    ];
    for (action, expected) in cases {
        let bench = Bench::new();
        let pd = bench.device.alloc_pd().wait().expect("not harmed");
        bench.fault.inject(Kind::DeallocPd, 1, action);
        let refused = pd.dealloc().wait().expect_err("the answer is spoilt");
        assert_eq!(refused.error, expected);
        assert!(
            refused.handle.is_none(),
            "an accepted destroy does not give the handle back"
        );
        bench.close();
    }
}

#[test]
fn a_delayed_verb_goes_on_when_released() {
    let bench = Bench::new();
    bench
        .fault
        .inject(Kind::QueryPort, 1, FaultAction::Delay(Until::Released));
    assert!(matches!(bench.query(1), Issued::Pending(_)));
    assert!(matches!(bench.query(2), Issued::Completed));
    assert_eq!(bench.fault.held(), 1);
    let wedged = bench.device.in_flight();
    assert_eq!((wedged.len(), wedged[0].verb), (1, Kind::QueryPort));
    assert!(
        wedged[0].location.file().ends_with("filter/tests/mod.rs"),
        "K15: it says who issued it"
    );
    assert_eq!(bench.fault.release(), 1);
    assert_eq!(bench.ends(), [(2, no_port(2)), (1, no_port(1))]);
    bench.close();
}

#[test]
fn a_delayed_verb_goes_on_when_overtaken() {
    let bench = Bench::new();
    bench
        .fault
        .inject(Kind::QueryPort, 1, FaultAction::Delay(Until::Overtaken(2)));
    bench
        .fault
        .inject(Kind::QueryPort, 2, FaultAction::Delay(Until::Overtaken(1)));
    bench
        .fault
        .inject(Kind::QueryPort, 3, FaultAction::Delay(Until::Overtaken(0)));
    let order = |bench: &Bench| {
        bench
            .ends()
            .into_iter()
            .map(|(port, _)| port)
            .collect::<Vec<_>>()
    };
    for port in 1..3 {
        let _ = bench.query(port);
    }
    assert_eq!(order(&bench), [0; 0]);
    let _ = bench.query(3);
    assert_eq!(
        order(&bench),
        [3, 2],
        "one that is delayed too overtakes nobody"
    );
    let _ = bench.query(4);
    assert_eq!(order(&bench), [4, 1]);
    bench.close();
}

#[test]
fn a_delayed_destroy_is_accepted_and_takes_long() {
    let bench = Bench::new();
    let pd: Pd = bench.device.alloc_pd().wait().expect("not harmed");
    bench
        .fault
        .inject(Kind::DeallocPd, 1, FaultAction::Delay(Until::Released));
    let done = Arc::new(Mutex::new(None));
    let place = done.clone();
    let issued = pd
        .dealloc()
        .issue(move |result| *place.lock() = Some(result.is_ok()));
    let Issued::Pending(handle) = issued else {
        panic!("it is held back")
    };
    handle.cancel();
    assert_eq!(
        (*done.lock(), bench.fault.held()),
        (None, 1),
        "a destroy takes no notice (K8)"
    );
    assert_eq!(bench.fault.release(), 1);
    assert_eq!(*done.lock(), Some(true));
    bench.close();
}

#[test]
fn k8_a_delayed_verb_can_be_cancelled_and_other_cancels_go_down() {
    let bench = Bench::new();
    *bench.tiny.slow.lock() = Some(Vec::new());
    let Issued::Pending(below) = bench.query(1) else {
        panic!("it waits below")
    };
    bench
        .fault
        .inject(Kind::QueryPort, 1, FaultAction::Delay(Until::Released));
    let Issued::Pending(held) = bench.query(2) else {
        panic!("it is held back")
    };
    assert!(held.cancel() && !held.cancel());
    assert_eq!(bench.ends(), [(2, Error::Cancelled)]);
    assert!(below.cancel());
    assert_eq!(
        bench.tiny.log.lock().last().map(String::as_str),
        Some("cancel")
    );
    let waiting = bench.tiny.slow.lock().take();
    drop(waiting);
    assert_eq!(bench.ends(), [(1, Error::Dropped)]);
    bench.close();
}
