//! What must hold in every run, checked by code that shares nothing with what it checks.

mod delivery;
mod keys;
mod memory;
mod queue;

use std::cell::RefCell;
use std::fmt;

use verbs_link::time::Instant;

pub(crate) use delivery::{Arrived, Deliveries, Laws, Tag};
pub(crate) use keys::{KeyModel, Leads, Reach, Verdict};
pub(crate) use memory::{MemoryModel, Read};
pub(crate) use queue::{SendModel, Sent};

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// When it was noticed.
    pub at: Instant,
    /// What was seen, and what should have been.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}: {}", self.rule, self.at, self.what)
    }
}

/// The rules that runs are held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// Every byte has a permitted value.
    Memory,
    /// One completion for each work request, and none for nothing.
    Completion,
    /// Completions of a queue arrive in the order of its work requests.
    Order,
    /// A failure has a cause that explains its status.
    Status,
    /// What a completion says is true: length, immediate data, queue pair, bytes.
    Result,
    /// A message is reported only to a receiver that it was for, once, and in order where the service guarantees order.
    Delivery,
    /// A post is accepted or refused according to the queue's state.
    Post,
    /// A verb ends as it may (the rules K1 to K17 of the contract).
    Verb,
    /// A destroy is Busy exactly when the object is in use (K10).
    Busy,
    /// At the end nothing is left.
    Counts,
    /// Work that can continue does, and ends.
    Liveness,
    /// Nothing panics.
    Panic,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::Completion => "completion",
            Self::Order => "order",
            Self::Status => "status",
            Self::Result => "result",
            Self::Delivery => "delivery",
            Self::Post => "post",
            Self::Verb => "verb",
            Self::Busy => "busy",
            Self::Counts => "counts",
            Self::Liveness => "liveness",
            Self::Panic => "panic",
        })
    }
}

/// Keeps the first violation of a run; later ones may be its consequences.
#[derive(Debug, Default)]
pub(crate) struct FirstViolation {
    first: RefCell<Option<Violation>>,
}

impl FirstViolation {
    pub(crate) fn record(&self, rule: Rule, at: Instant, what: impl Into<String>) {
        let mut first = self.first.borrow_mut();
        if first.is_none() {
            let what = what.into();
            *first = Some(Violation { rule, at, what });
        }
    }

    pub(crate) fn is_some(&self) -> bool {
        self.first.borrow().is_some()
    }

    pub(crate) fn get(&self) -> Option<Violation> {
        self.first.borrow().clone()
    }
}
