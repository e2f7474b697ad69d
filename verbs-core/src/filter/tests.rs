//! Goal: filters stack, see every result once and innermost first, and harm what they are told to
//! harm and nothing else. Method: a provider that logs what reaches it, under stacks of filters.

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
        wedged[0].location.file().ends_with("tests.rs"),
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

/// Says its name when a result comes by; fails the results that it is told to.
struct Named {
    name: &'static str,
    fail: Option<Error>,
    log: Lines,
}

impl Hook for Named {
    fn completed(&self, token: u64, done: &mut dyn Done) {
        let error = done.error();
        self.log
            .lock()
            .push(format!("{} {token}: {} {error:?}", self.name, done.kind()));
        if let Some(error) = self.fail {
            done.fail(error);
        }
    }
}

struct Layer {
    hook: Arc<dyn Hook>,
    token: u64,
    inner: Arc<dyn Provider>,
}

impl Provider for Layer {
    fn issue(&self, command: AnyCommand<'_>) {
        let Self { hook, token, inner } = self;
        let frame = Frame {
            hook,
            token: *token,
            next: command.frames(),
        };
        inner.issue(command.through(&frame));
    }
}

fn layer(
    name: &'static str,
    token: u64,
    fail: Option<Error>,
    log: &Lines,
    inner: Arc<dyn Provider>,
) -> Arc<Layer> {
    let hook = Arc::new(Named {
        name,
        fail,
        log: log.clone(),
    });
    Arc::new(Layer { hook, token, inner })
}

#[test]
fn a5_results_unwind_innermost_first() {
    let log = Lines::default();
    let fault = Arc::new(Fault::new(Arc::new(Tiny::default())));
    // The fault filter pends between two layers, so the chain is partly on the stack and partly
    // copied; the order is one all the same.
    let inner = layer("inner", 1, None, &log, fault.clone());
    let middle = layer("middle", 2, None, &log, inner);
    let delay = Arc::new(Fault::new(middle));
    let outer = layer("outer", 3, None, &log, delay.clone());
    let device = Device::open(outer).wait().expect("it opens");
    let names = |log: &Lines| {
        let lines = std::mem::take(&mut *log.lock());
        lines
            .iter()
            .filter_map(|line| line.split(':').next().map(String::from))
            .collect::<Vec<_>>()
    };
    let all = ["inner 1", "middle 2", "outer 3"];
    assert_eq!(names(&log), all);

    assert!(device.query_port(1).wait().is_err());
    assert_eq!(names(&log), all, "inline");

    delay.inject(Kind::QueryPort, 1, FaultAction::Delay(Until::Released));
    let _ = device.query_port(1).issue(|_| {});
    assert_eq!(names(&log), [""; 0]);
    delay.release();
    assert_eq!(names(&log), all, "pended above, inline below");

    delay.inject(Kind::QueryPort, 1, FaultAction::Delay(Until::Released));
    fault.inject(Kind::QueryPort, 1, FaultAction::Delay(Until::Released));
    let _ = device.query_port(1).issue(|_| {});
    delay.release();
    assert_eq!(names(&log), [""; 0]);
    fault.release();
    assert_eq!(names(&log), all, "pended twice");
    device.close().wait().expect("nothing is left");
}

#[test]
fn a_filter_that_fails_a_create_destroys_what_was_made() {
    let (log, tiny) = (Lines::default(), Arc::new(Tiny::default()));
    let inner = layer("inner", 1, None, &log, tiny.clone());
    let middle = layer("middle", 2, None, &log, inner);
    let spoil = layer("spoil", 3, Some(Error::NoMemory), &log, middle);
    let outer = layer("outer", 4, None, &log, spoil.clone());
    // Opening through the spoiler would fail; the device lives above a path of its own.
    struct Fork {
        spoilt: Arc<dyn Provider>,
        plain: Arc<dyn Provider>,
    }
    impl Provider for Fork {
        fn issue(&self, command: AnyCommand<'_>) {
            match command.kind() {
                Kind::AllocPd => self.spoilt.issue(command),
                _ => self.plain.issue(command),
            }
        }
    }
    let fork = Arc::new(Fork {
        spoilt: outer,
        plain: tiny.clone(),
    });
    let device = Device::open(fork).wait().expect("it opens");
    assert_eq!(
        device.alloc_pd().wait().expect_err("spoilt"),
        Error::NoMemory
    );
    let expected = [
        "inner 1: AllocPd None",
        "middle 2: AllocPd None",
        "spoil 3: AllocPd None",
        "outer 4: AllocPd Some(NoMemory)",
    ];
    assert_eq!(*log.lock(), expected);
    assert_eq!(
        tiny.live.load(SeqCst),
        0,
        "the domain was made and destroyed"
    );
    device.close().wait().expect("nothing is left");
}

/// Answers queries of a port only after it has asked the device below two things itself.
struct Careful {
    below: Arc<Device>,
    log: Lines,
}

impl Provider for Careful {
    fn issue(&self, command: AnyCommand<'_>) {
        let origin = command.origin();
        match command {
            AnyCommand::QueryPort(command) => {
                let port = command.port;
                let Some((_, pending)) = command.pend() else {
                    return;
                };
                let (below, log) = (self.below.clone(), self.log.clone());
                let _ = self
                    .below
                    .query_port(port)
                    .on_behalf_of(origin)
                    .issue(move |first| {
                        log.lock().push("first routine".into());
                        let follow_up = below.query().on_behalf_of(origin);
                        let _ = follow_up.issue(move |second| {
                            log.lock()
                                .push(format!("second routine: {:?}", second.err()));
                            pending.complete(first);
                        });
                    });
                self.log.lock().push("issue returns".into());
            }
            AnyCommand::OpenDevice(command) => {
                let (args, reply) = command.split();
                reply.complete(Ok(args.build()));
            }
            AnyCommand::CloseDevice(command) => command.complete(Ok(())),
            other => other.refuse(Error::Unsupported(Attr::Verb)),
        }
    }
}

#[test]
fn k16_a_filter_makes_follow_up_requests_before_it_passes_the_result_up() {
    let log = Lines::default();
    let tiny = Arc::new(Tiny {
        log: log.clone(),
        ..Tiny::default()
    });
    let below = Arc::new(Device::open(tiny).wait().expect("it opens"));
    let careful = Arc::new(Careful {
        below: below.clone(),
        log: log.clone(),
    });
    let device = Device::open(careful).wait().expect("it opens");
    log.lock().clear();
    let (result, lines) = (Arc::new(Mutex::new(None)), log.clone());
    let place = result.clone();
    let query = device
        .query_port(9)
        .on_behalf_of(Origin::client(7).unwrap());
    let _ = query.issue(move |answer| {
        lines.lock().push("caller's routine".into());
        *place.lock() = answer.err();
    });
    assert_eq!(
        *result.lock(),
        Some(no_port(9)),
        "the first answer, after the second question"
    );
    let expected = [
        "QueryPort for Client(7)",
        "issue returns",
        "first routine",
        "QueryDevice for Client(7)",
        "second routine: Some(Unsupported(Verb))",
        "caller's routine",
    ];
    assert_eq!(
        *log.lock(),
        expected,
        "no routine in the filter's frame (K1)"
    );
    device.close().wait().expect("nothing is left");
}

/// A subscriber that writes down spans and events.
#[derive(Default)]
struct Scribe {
    lines: Lines,
    spans: AtomicU64,
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, " {field}={value:?}");
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = write!(self.0, " {field}={value}");
    }
}

impl tracing::Subscriber for Scribe {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "verbs"
    }

    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        let id = self.spans.fetch_add(1, SeqCst) + 1;
        let mut text = Text(format!("{id} opens:"));
        attributes.record(&mut text);
        self.lines.lock().push(text.0);
        span::Id::from_u64(id)
    }

    fn record(&self, id: &span::Id, values: &span::Record<'_>) {
        let mut text = Text(format!("{} records:", id.into_u64()));
        values.record(&mut text);
        self.lines.lock().push(text.0);
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text(format!(
            "{:?} event:",
            event.parent().map(span::Id::into_u64)
        ));
        event.record(&mut text);
        self.lines.lock().push(text.0);
    }

    fn try_close(&self, _id: span::Id) -> bool {
        true
    }

    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}
    fn enter(&self, _span: &span::Id) {}
    fn exit(&self, _span: &span::Id) {}
}

#[test]
fn trace_opens_a_span_for_each_verb_and_records_its_result() {
    let (tiny, scribe) = (Arc::new(Tiny::default()), Scribe::default());
    let lines = scribe.lines.clone();
    let fault = Arc::new(Fault::new(tiny));
    let device = Device::open(Arc::new(Trace::new(fault.clone())))
        .wait()
        .expect("it opens");
    let take = || std::mem::take(&mut *lines.lock());
    tracing::subscriber::with_default(scribe, || {
        let name = device.core().base().id();
        let query = device
            .query_port(3)
            .on_behalf_of(Origin::client(5).unwrap());
        assert_eq!(query.wait().expect_err("no ports"), no_port(3));
        let expected = [
            format!("1 opens: kind=QueryPort target={name} origin=Client(5)"),
            format!("1 records: result={}", no_port(3)),
            format!("Some(1) event: message=failed error={}", no_port(3)),
        ];
        assert_eq!(take(), expected);

        fault.inject(Kind::AllocPd, 1, FaultAction::Delay(Until::Released));
        let _ = device.alloc_pd().issue(drop);
        assert_eq!(
            take(),
            [format!(
                "2 opens: kind=AllocPd target={name} origin=Trusted"
            )]
        );
        fault.release();
        assert_eq!(
            take(),
            [
                "2 records: result=ok",
                "Some(2) event: message=completed",
                "3 opens: kind=DeallocPd target=PD 0x0 origin=Trusted",
                "3 records: result=ok",
                "Some(3) event: message=completed",
            ]
        );
    });
}
