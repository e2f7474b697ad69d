//! The conformance suite on the providers for tests, and on providers with defects that it must see.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Weak};

use verbs_core::device::DeviceCore;
use verbs_core::extension::{ExtensionInfo, ExtensionKind};
use verbs_core::testing::conformance::{self, CHECKS};
use verbs_core::testing::{Hold, Null, Subject};
use verbs_core::{
    AnyCommand, DeviceCap, Error, Kind, PendingCommand, Provider, ProviderAttr, RequestId,
};

/// Remembers the devices that are open, so that they can be removed.
struct Removable {
    inner: Arc<dyn Provider>,
    opened: Mutex<Vec<Weak<DeviceCore>>>,
}

impl Removable {
    fn over(inner: Arc<dyn Provider>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            opened: Mutex::default(),
        })
    }

    fn remove(&self) {
        let opened = std::mem::take(&mut *self.opened.lock().unwrap());
        for device in opened.iter().filter_map(Weak::upgrade) {
            device.remove();
        }
    }
}

impl Provider for Removable {
    fn issue(&self, command: AnyCommand<'_>) {
        if let AnyCommand::OpenDevice(open) = &command {
            let device = Arc::downgrade(open.target());
            self.opened.lock().unwrap().push(device);
        }
        self.inner.issue(command);
    }

    fn cancel(&self, id: RequestId) {
        self.inner.cancel(id);
    }

    fn query_provider(&self, port: u8) -> ProviderAttr {
        self.inner.query_provider(port)
    }
}

fn null() -> Subject {
    let null = Arc::new(Null::default());
    let removable = Removable::over(null.clone());
    let removes = Arc::clone(&removable);
    Subject::new(removable)
        .live(move || null.live().unsigned_abs())
        .remove(move || removes.remove())
}

fn held(step: impl Fn(&Hold) + Send + Sync + 'static) -> Subject {
    let null = Arc::new(Null::default());
    let hold = Hold::over(null.clone());
    let removable = Removable::over(hold.clone());
    let removes = Arc::clone(&removable);
    Subject::new(removable)
        .live(move || null.live().unsigned_abs())
        .remove(move || removes.remove())
        .step(move || step(&hold))
}

#[test]
fn the_null_provider_conforms() {
    conformance::run(null);
}

#[test]
fn so_it_does_when_its_commands_are_held_back() {
    conformance::run(|| {
        held(|hold| {
            hold.step();
        })
    });
}

#[test]
fn and_when_they_complete_in_the_wrong_order() {
    conformance::run(|| {
        held(|hold| {
            hold.step_nth(hold.len().saturating_sub(1));
        })
    });
}

/// The checks that a subject fails.
fn failed(make: impl Fn() -> Subject) -> Vec<&'static str> {
    let fails = |check: &&conformance::Check| {
        catch_unwind(AssertUnwindSafe(|| (check.run)(&make))).is_err()
    };
    CHECKS
        .iter()
        .filter(fails)
        .map(|check| check.name)
        .collect()
}

/// A provider with one defect, in front of the Null provider.
struct Defect(Null, fn(&Null, AnyCommand<'_>));

impl Provider for Defect {
    fn issue(&self, command: AnyCommand<'_>) {
        (self.1)(&self.0, command);
    }

    fn query_provider(&self, port: u8) -> ProviderAttr {
        self.0.query_provider(port)
    }
}

fn with(defect: fn(&Null, AnyCommand<'_>)) -> impl Fn() -> Subject {
    move || {
        let provider = Arc::new(Defect(Null::default(), defect));
        let live = Arc::clone(&provider);
        Subject::new(provider).live(move || live.0.live().unsigned_abs())
    }
}

#[test]
fn a_dropped_command_is_seen() {
    let failed = failed(with(|null, command| match command.kind() {
        Kind::QueryQp => drop(command),
        _ => null.issue(command),
    }));
    assert!(
        failed.contains(&"k1_every_verb_completes_once"),
        "{failed:?}"
    );
}

#[test]
fn a_destroy_that_is_not_carried_out_is_seen() {
    let failed = failed(with(|null, command| match command {
        AnyCommand::DestroyCq(command) => command.complete(Ok(())),
        other => null.issue(other),
    }));
    let sees = [
        "k12_dropped_handles_leave_nothing",
        "k10_busy_changes_nothing",
    ];
    assert!(sees.iter().all(|name| failed.contains(name)), "{failed:?}");
}

/// A provider that lists an extension without what it needs, in front of the Null provider.
struct Boasts(Null);

impl Provider for Boasts {
    fn issue(&self, command: AnyCommand<'_>) {
        self.0.issue(command);
    }

    fn query_provider(&self, port: u8) -> ProviderAttr {
        self.0.query_provider(port)
    }

    fn extensions(&self) -> &[ExtensionInfo] {
        const {
            &[ExtensionInfo {
                name: "example.lasts",
                version: 1,
                kind: ExtensionKind::Call,
                needs: DeviceCap::FLUSH_PERSISTENT,
            }]
        }
    }
}

#[test]
fn an_extension_without_what_it_needs_is_seen() {
    let failed = failed(|| Subject::new(Arc::new(Boasts(Null::default()))));
    assert!(
        failed.contains(&"extensions_are_listed_with_what_they_need"),
        "{failed:?}"
    );
}

#[test]
fn a_destroy_that_fails_is_seen() {
    let failed = failed(with(|null, command| match command.kind() {
        Kind::DeallocPd => command.refuse(Error::DeviceFailed),
        _ => null.issue(command),
    }));
    assert!(
        failed.contains(&"k12_dropped_handles_leave_nothing"),
        "{failed:?}"
    );
}

#[test]
fn a_verb_that_is_missing_and_not_declared_is_seen_and_so_is_the_opposite() {
    fn lacks(null: &Null, command: AnyCommand<'_>) {
        match command.kind() {
            Kind::ResizeCq => {
                command.refuse(Error::Unsupported(verbs_core::Attr::Verb));
            }
            _ => null.issue(command),
        }
    }
    assert!(!failed(with(lacks)).is_empty());
    let declared = with(lacks);
    assert_eq!(
        failed(move || declared().without(&[Kind::ResizeCq])),
        [""; 0]
    );
    let wrong = with(lacks);
    assert!(!failed(move || wrong().without(&[Kind::ResizeCq, Kind::ModifyCq])).is_empty());
}

/// Completes with what it holds, but only when asked to cancel: destroys among them.
#[derive(Default)]
struct CancelsAll(Null, Mutex<Vec<PendingCommand>>);

impl CancelsAll {
    fn step(&self) {
        let next = self.1.lock().unwrap().pop();
        if let Some(command) = next {
            command.forward(&self.0);
        }
    }
}

impl Provider for CancelsAll {
    fn issue(&self, command: AnyCommand<'_>) {
        let pending = command.pend();
        self.1.lock().unwrap().extend(pending);
    }

    fn cancel(&self, id: RequestId) {
        let found = {
            let mut held = self.1.lock().unwrap();
            let place = held.iter().position(|command| command.id() == id);
            place.map(|n| held.remove(n))
        };
        if let Some(command) = found {
            command.refuse(Error::Cancelled);
        }
    }

    fn query_provider(&self, port: u8) -> ProviderAttr {
        self.0.query_provider(port)
    }
}

#[test]
fn k8_a_cancelled_destroy_is_seen() {
    let failed = failed(|| {
        let provider = Arc::new(CancelsAll::default());
        let steps = Arc::clone(&provider);
        Subject::new(provider).step(move || steps.step())
    });
    assert_eq!(failed, ["k8_cancel_leaves_nothing"]);
}
