//! The state of a key for verbs, which messages do not read.

use crate::mem::access::{Who, WindowType};
use crate::mem::pages::{Layout, PageList};
use crate::mem::region::{Fault, Region};
use crate::mem::touch::Touched;
use crate::object::{Hold, Target};
use crate::sync::Weak;

/// The state that a verb reads.
#[derive(Default)]
pub(super) struct Owner {
    pub(super) state: State,
    pub(super) key_byte: u8,
    pub(super) what: What,
    pub(super) pd: u32,
    pub(super) region: Option<Region>,
    /// Windows that are bound to it.
    pub(super) windows: u32,
    /// The threads that may be reading the earlier memory of the key, or of a window; and how often that has
    /// changed.
    pub(super) drain: Touched,
    pub(super) epoch: u32,
    /// The target whose destroy windows prevent.
    pub(super) target: Option<Weak<dyn Target>>,
}

/// The purpose of a key.
#[derive(Debug, Default)]
pub(super) enum What {
    /// A region that a verb registers.
    #[default]
    Plain,
    /// A region that is registered on the data path.
    Fast(Box<Fast>),
    /// A memory window.
    Window(Box<WindowOwner>),
}

/// The lists of a key for fast registration.
#[derive(Debug)]
pub(super) struct Fast {
    pub(super) layout: Layout,
    /// The list for the next registration.
    pub(super) staged: PageList,
    /// The registered list, or the last one.
    pub(super) active: PageList,
    /// Mappings so far.
    pub(super) mapping: u32,
    /// `staged` has not been registered yet.
    pub(super) fresh: bool,
}

impl Fast {
    /// Admitted threads may be reading the active list.
    pub(super) fn drain(&mut self, drain: Touched) {
        self.active.drain = self.active.drain.and(drain);
    }
}

/// A window's own part of its slot.
#[derive(Debug)]
pub(super) struct WindowOwner {
    pub(super) kind: WindowType,
    pub(super) bound: Option<Bound>,
    /// Its previous binding, to be released outside pins.
    pub(super) gone: Option<Bound>,
}

/// The state of a bound window.
#[derive(Debug)]
pub(super) struct Bound {
    /// Index of the region.
    pub(super) region: u32,
    pub(super) qpn: u32,
    /// The region, and the queue pair of a window of type 2.
    pub(super) holds: [Option<Hold>; 2],
}

impl WindowOwner {
    /// Whether that queue pair may invalidate the key.
    pub(super) fn may_invalidate(&self, pd: u32, who: Who) -> Result<(), Fault> {
        match self.kind {
            WindowType::One => return Err(Fault::State),
            WindowType::TwoB if pd != who.pd => return Err(Fault::Pd),
            WindowType::TwoA | WindowType::TwoB => {}
        }
        match &self.bound {
            Some(bound) if bound.qpn != who.qpn => Err(Fault::Qp),
            _ => Ok(()),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    #[default]
    Free,
    Invalid,
    Live,
    Closing,
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owner")
            .field("state", &self.state)
            .field("what", &self.what)
            .field("windows", &self.windows)
            .finish_non_exhaustive()
    }
}
