//! The conformance suite: what a provider has to keep of the contract, checked from outside.
//!
//! ```
//! use std::sync::Arc;
//! use verbs_core::testing::{Null, Subject, conformance};
//!
//! conformance::run(|| {
//!     let null = Arc::new(Null::default());
//!     let live = Arc::clone(&null);
//!     Subject::new(null).live(move || live.live().unsigned_abs())
//! });
//! ```
//!
//! As separate tests, each with the name of its check, with [`conformance_tests!`](crate::conformance_tests); or one
//! [`Level`] after the other with [`run_level`], while a provider is being written.
//!
//! A [`Subject`] says what is tested and, where that is needed, how its time passes, how it is
//! removed, and which verbs it does not have. Every check gets a fresh one. [`CHECKS`] lists them;
//! each can be called alone. [`CORE`] lists the verbs that every provider needs.
//!
//! What of K1 to K17 is not here, and why: that routines do not nest (K1, K5), that `wait` refuses
//! under NoBlock (K3), that dropped commands fail (K7), that Busy is decided in one step
//! (K10), and that handlers do not overlap (K14) is kept by this crate, whatever a provider does.
//! That a provider holds no lock while it completes (K4) shows here only as a check that never
//! returns, which the suite reports after [`LIMIT`]. The data path has its own tests.

mod arguments;
mod completion;
mod connections;
mod leaving;
mod list;
mod objects;
mod removal;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::command::{Kind, Origin};
use crate::error::{Attr, Error};
use crate::sync::{Arc, Mutex, thread};
use crate::testing::{Answer, NotOffered, Stage, Subject};

pub use arguments::*;
pub use completion::*;
pub use connections::*;
pub use leaving::*;
pub use objects::*;
pub use removal::*;

/// How long a check may take before the suite says that it blocks.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Makes what is under test, fresh.
pub type Make<'m> = &'m dyn Fn() -> Subject;

type SharedMake = Arc<dyn Fn() -> Subject + Send + Sync>;

/// The verbs that every provider has: without them no check can set its stage. The others may be named in
/// [`Subject::without`].
pub const CORE: &[Kind] = &[
    Kind::OpenDevice,
    Kind::CloseDevice,
    Kind::QueryDevice,
    Kind::QueryPort,
    Kind::NextEvent,
    Kind::AllocPd,
    Kind::DeallocPd,
    Kind::CreateCq,
    Kind::DestroyCq,
    Kind::RegMr,
    Kind::DeregMr,
    Kind::CreateQp,
    Kind::ModifyQp,
    Kind::QueryQp,
    Kind::DestroyQp,
];

/// What a check is about. A provider that is being written passes one level after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Every verb: it completes once, from any context, with what was asked for, or is refused by name.
    Verbs,
    /// Objects: Busy, numbers, handles that are dropped, the states of queue pairs.
    Objects,
    /// Requests that are cancelled, futures that are dropped, events, and the removal of the device.
    Endings,
    /// The provider's own verbs of connections, for those that have them.
    Connections,
}

/// One check: its name, which begins with the contract's rule if it stands for one, and itself.
#[derive(Clone, Copy)]
pub struct Check {
    /// Name.
    pub name: &'static str,
    /// What it is about.
    pub level: Level,
    /// Panics if the provider does not conform.
    pub run: fn(Make<'_>),
}

macro_rules! checks {
    ($($level:ident { $($name:ident)* })*) => {
        /// Every check.
        pub const CHECKS: &[Check] = &[$($(
            Check { name: stringify!($name), level: Level::$level, run: $name },
        )*)*];
    };
}

crate::__conformance_checks! { checks }

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Runs the checks of a level, as [`run`] runs all.
///
/// # Panics
/// As there.
pub fn run_level(level: Level, make: impl Fn() -> Subject + Send + Sync + 'static) {
    run_those(|check| check.level == level, make);
}

/// Runs the check of that name, as [`run`] runs all: what [`conformance_tests!`](crate::conformance_tests) calls.
///
/// # Panics
/// As there; and if there is no check of that name.
pub fn run_one(name: &str, make: impl Fn() -> Subject + Send + Sync + 'static) {
    assert!(
        CHECKS.iter().any(|check| check.name == name),
        "there is no check {name}"
    );
    run_those(|check| check.name == name, make);
}

/// Runs every check, each on a thread of its name, so that what a check prints when it panics says which
/// one it is.
///
/// # Panics
/// With the names of the checks that the provider fails, and why; at once, and with their names, if it
/// lacks verbs of [`CORE`].
pub fn run(make: impl Fn() -> Subject + Send + Sync + 'static) {
    run_those(|_| true, make);
}

fn run_those(wanted: impl Fn(&Check) -> bool, make: impl Fn() -> Subject + Send + Sync + 'static) {
    let make: SharedMake = Arc::new(make);
    let subject = make();
    let missing: Vec<&Kind> = CORE.iter().filter(|&&kind| !subject.has(kind)).collect();
    assert!(
        missing.is_empty(),
        "the suite needs verbs that the provider is without: {missing:?}; `conformance::CORE` lists what \
         every provider has"
    );
    drop(subject);
    let checks = || CHECKS.iter().filter(|check| wanted(check));
    let failed: Vec<String> = checks()
        .filter_map(|check| {
            let why = watched(*check, Arc::clone(&make), LIMIT).err()?;
            Some(format!("{}: {why}", check.name))
        })
        .collect();
    assert!(
        failed.is_empty(),
        "the provider fails {} of {} checks\n{}",
        failed.len(),
        checks().count(),
        failed.join("\n")
    );
}

/// Runs a check on a thread of its own, so that one that blocks can be told from one that works.
fn watched(check: Check, make: SharedMake, limit: Duration) -> Result<(), String> {
    let outcome = Arc::new(Mutex::new(None));
    let (theirs, waits) = (Arc::clone(&outcome), thread::current());
    let begun = thread::Builder::new()
        .name(check.name.into())
        .spawn(move || {
            let result = catch_unwind(AssertUnwindSafe(|| (check.run)(&*make)));
            *theirs.lock() = Some(result.map_err(|panic| message(&*panic)));
            waits.unpark();
        });
    if let Err(error) = begun {
        return Err(format!("the system gives no thread: {error}"));
    }
    let start = Instant::now();
    loop {
        if let Some(result) = outcome.lock().take() {
            return result;
        }
        let Some(left) = limit.checked_sub(start.elapsed()) else {
            return Err(format!("has not returned after {limit:?}: it blocks"));
        };
        thread::park_timeout(left);
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| String::from("panicked"))
}

/// Runs `check` for every verb, each with a fresh subject and its stage. A verb whose objects cannot
/// be made is looked at for that.
fn each_verb(make: Make<'_>, check: impl Fn(&Subject, Kind, Stage)) {
    each_verb_of(make, Origin::Trusted, check);
}

/// The same with objects that are a client's.
fn each_verb_of(make: Make<'_>, owner: Origin, check: impl Fn(&Subject, Kind, Stage)) {
    for &kind in Kind::ALL {
        let subject = make();
        match Stage::set_for(&subject, kind, owner, None) {
            Ok(stage) => check(&subject, kind, stage),
            Err(missing) => not_offered(&subject, kind, missing),
        }
    }
}

/// An object was not to be had: because its verb is not there, or a kind of queue pair.
fn not_offered(subject: &Subject, kind: Kind, missing: NotOffered) {
    let NotOffered { verb, error } = missing;
    let allowed = match error {
        Error::Unsupported(Attr::QpType)
        | Error::NoCapability {
            attr: Attr::QpType, ..
        } => verb == Kind::CreateQp && !subject.has(kind),
        error if error.is_unsupported() => !subject.has(verb),
        _ => false,
    };
    assert!(allowed, "{kind} needs {verb}, which failed: {error}");
}

/// Whether the answer is what a verb of this subject has to end with, if nothing interferes.
fn judge(subject: &Subject, kind: Kind, answer: &Answer) {
    let right = match answer.error() {
        // No device has that extension.
        Some(error) if error.is_unsupported() => kind == Kind::CallExtension || !subject.has(kind),
        // No request has brought the endpoint, which a provider may find out first.
        Some(Error::Mismatch {
            attr: Attr::Address,
            ..
        }) => matches!(kind, Kind::AcceptCm | Kind::RejectCm) && subject.has(kind),
        None => kind != Kind::CallExtension && subject.has(kind),
        // The stage's endpoint came with no request that there could be an answer to.
        Some(Error::Mismatch { .. }) => {
            matches!(kind, Kind::AcceptCm | Kind::RejectCm) && subject.has(kind)
        }
        Some(_) => false,
    };
    assert!(right, "{kind} ended with {answer:?}");
}

/// Where routines leave answers.
#[derive(Clone, Default)]
struct Answers(Arc<Mutex<Vec<Answer>>>);

impl Answers {
    fn routine(&self) -> Box<dyn FnOnce(Answer) + Send> {
        let answers = Arc::clone(&self.0);
        Box::new(move |answer| answers.lock().push(answer))
    }

    fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// Waits for one answer, and looks whether another follows.
    #[track_caller]
    fn one(&self, subject: &Subject, kind: Kind) -> Answer {
        subject.until(format_args!("{kind} completes (K1)"), || self.len() > 0);
        for _ in 0..4 {
            subject.advance();
        }
        let mut answers = std::mem::take(&mut *self.0.lock());
        assert_eq!(answers.len(), 1, "{kind} completes once (K1)");
        answers.remove(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Null;

    fn watch(run: fn(Make<'_>), limit: Duration) -> Result<(), String> {
        let name = "sample";
        let make = || Subject::new(Arc::new(Null::default()));
        let level = Level::Verbs;
        watched(Check { name, level, run }, Arc::new(make), limit)
    }

    #[test]
    fn a_check_that_blocks_is_told_from_one_that_fails_and_one_that_passes() {
        let short = Duration::from_millis(20);
        let blocked = watch(
            |_| loop {
                thread::park();
            },
            short,
        );
        assert_eq!(
            blocked,
            Err("has not returned after 20ms: it blocks".into())
        );
        let failed = watch(|_| panic!("on purpose"), LIMIT);
        assert_eq!(failed, Err("on purpose".into()));
        assert_eq!(watch(k1_many_at_once, LIMIT), Ok(()));
        let named = watch(
            |_| assert_eq!(thread::current().name(), Some("sample")),
            LIMIT,
        );
        assert_eq!(named, Ok(()), "who panics says which check it is");
    }

    /// Goal: each level has checks, and a level is run without the others.
    #[test]
    fn levels_are_run_alone() {
        use Level::*;
        for level in [Verbs, Objects, Endings, Connections] {
            assert!(CHECKS.iter().any(|check| check.level == level), "{level:?}");
        }
        run_level(Connections, || Subject::new(Arc::new(Null::default())));
        let missing = catch_unwind(|| {
            run_one("no_such_check", || Subject::new(Arc::new(Null::default())));
        });
        assert_eq!(
            message(&*missing.unwrap_err()),
            "there is no check no_such_check"
        );
    }

    mod each {
        use super::*;

        crate::conformance_tests!(|| Subject::new(Arc::new(Null::default())));
    }

    #[test]
    #[should_panic(expected = "the suite needs verbs that the provider is without: [CreateCq]")]
    fn verbs_that_every_provider_needs_are_named() {
        run(|| Subject::new(Arc::new(Null::default())).without(&[Kind::CreateCq, Kind::AllocMw]));
    }
}
