//! Entries of paths to other ports.

use verbs_cm::Route;
use verbs_core::mad::Time;
use verbs_core::{Ah, Av};

/// What is known of the way to a port.
pub(in crate::link) enum Path {
    /// The administrator has been asked.
    Asked,
    /// There is one; its address handle lives as long.
    Ready {
        ah: Ah,
        route: Route,
        /// The subnet may have changed: it is used until the administrator has said how it is now.
        is_stale: bool,
    },
    /// There is none, and nobody is asked again before then.
    Refused(Time),
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
