//! Filters above filters, and filters that make requests themselves.

use super::*;

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
