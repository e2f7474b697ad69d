//! Entries for paths to other ports.

use verbs_cm::Route;
use verbs_core::time::Instant;
use verbs_core::{Ah, Av};

/// What is known of the path to a port.
pub(in crate::link) enum Path {
    /// The administrator has been asked.
    Asked,
    /// There is one; its address handle lives as long as the entry.
    Ready {
        ah: Ah,
        route: Route,
        /// The subnet may have changed: the path is used until the administrator has answered again.
        is_stale: bool,
    },
    /// There is none; the request is not repeated before then.
    Refused(Instant),
}

impl Path {
    pub(in crate::link) fn av(&self) -> Option<Av> {
        match self {
            Self::Ready { ah, .. } => Some(ah.av()),
            Self::Asked | Self::Refused(_) => None,
        }
    }

    pub(in crate::link) fn route(&self) -> Option<Route> {
        match self {
            Self::Ready { route, .. } => Some(*route),
            Self::Asked | Self::Refused(_) => None,
        }
    }
}
