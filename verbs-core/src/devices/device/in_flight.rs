//! The list of what is pending on a device (K15).

use std::fmt;
use std::panic::Location;
use std::time::Duration;

use crate::command::{Kind, Origin, RequestId};
use crate::object::ObjectId;
use crate::watch;

/// One request that has not completed, for people to read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InFlight {
    /// The verb.
    pub verb: Kind,
    /// What it acts on.
    pub target: ObjectId,
    /// Its name; `None` while a thread is still inside the provider's `issue` with it.
    pub id: Option<RequestId>,
    /// How long it has been pending; `None` while it has not pended.
    pub age: Option<Duration>,
    /// On whose behalf.
    pub origin: Origin,
    /// Where it was issued.
    pub location: &'static Location<'static>,
    /// Whether it was asked to end early.
    pub cancel_requested: bool,
}

impl InFlight {
    pub(super) fn new(
        current: &watch::Current,
        pended: Option<(RequestId, Duration, bool)>,
    ) -> Option<Self> {
        Some(Self {
            verb: *Kind::ALL.get(current.verb as usize)?,
            target: ObjectId::from_word(current.target),
            id: pended.map(|(id, ..)| id),
            age: pended.map(|(_, age, _)| age),
            origin: Origin::from_word(current.origin),
            location: current.location,
            cancel_requested: pended.is_some_and(|(.., cancel)| cancel),
        })
    }
}

impl fmt::Display for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.verb, self.target)?;
        match self.age {
            Some(age) => write!(f, ", pending for {age:.1?}")?,
            None => write!(f, ", inside the provider")?,
        }
        if let Origin::Client(n) = self.origin {
            write!(f, ", for client {n}")?;
        }
        if self.cancel_requested {
            write!(f, ", cancel requested")?;
        }
        write!(f, ", issued at {}", self.location)
    }
}
