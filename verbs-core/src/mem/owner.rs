//! What verbs know of a key, beside what messages look at.

use super::bind::WindowOwner;
use super::fast::Fast;
use super::region::Region;
use super::touch::Touched;
use crate::object::Target;
use crate::sync::Weak;

/// What a verb looks at.
#[derive(Default)]
pub(super) struct Owner {
    pub(super) state: State,
    pub(super) key_byte: u8,
    pub(super) what: What,
    pub(super) pd: u32,
    pub(super) region: Option<Region>,
    /// Windows that are bound to it.
    pub(super) windows: u32,
    /// Who may be looking at what the key, or a window's, stood for before; and how often that changed.
    pub(super) drain: Touched,
    pub(super) epoch: u32,
    /// Whom windows keep from being destroyed.
    pub(super) target: Option<Weak<dyn Target>>,
}

/// What a key is for.
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
