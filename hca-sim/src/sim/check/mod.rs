//! What must hold in every run, by code that shares nothing with what it checks.

mod delivery;
mod keys;
mod memory;
mod queue;

use std::cell::RefCell;
use std::fmt;

use crate::clock::Instant;

pub(crate) use delivery::{Arrived, Deliveries, Laws, Tag};
pub(crate) use keys::{KeyModel, Leads, Reach, Verdict};
pub(crate) use memory::{MemoryModel, Read};
pub(crate) use queue::{SendModel, Sent};

/// What a run broke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which rule.
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
    /// Every byte is one that it may be.
    Memory,
    /// One completion for each work request, and none for nothing.
    Completion,
    /// Completions of a queue come in the order of its work requests.
    Order,
    /// A status for which there is a cause.
    Status,
    /// What a completion says is so: length, immediate data, queue pair, bytes.
    Result,
    /// Who is told of a message is one whom it was for, and once, and in order where the service has it.
    Delivery,
    /// A post is accepted or refused as the queue's state says.
    Post,
    /// A verb ends as it may (the rules K1 to K17 of the contract).
    Verb,
    /// A destroy is Busy exactly when somebody uses the object (K10).
    Busy,
    /// At the end nothing is left.
    Counts,
    /// What can go on goes on, and ends.
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

/// Keeps the first violation of a run; what comes after it may be its consequence.
#[derive(Debug, Default)]
pub(crate) struct Court {
    first: RefCell<Option<Violation>>,
}

impl Court {
    pub(crate) fn accuse(&self, rule: Rule, at: Instant, what: impl Into<String>) {
        let mut first = self.first.borrow_mut();
        if first.is_none() {
            let what = what.into();
            *first = Some(Violation { rule, at, what });
        }
    }

    pub(crate) fn has_verdict(&self) -> bool {
        self.first.borrow().is_some()
    }

    pub(crate) fn verdict(&self) -> Option<Violation> {
        self.first.borrow().clone()
    }
}
