//! On whose behalf a request is made.

use std::num::NonZeroU32;

/// On whose behalf a request is made (K16). It travels with the request and with every request made
/// for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Origin {
    /// This process itself: nothing is checked twice.
    #[default]
    Trusted,
    /// A client of a daemon, by number: it acts on its own objects only, which every request is checked for. Its
    /// buffers were checked before. No client has number 0, so that none can be mistaken for the process itself.
    Client(NonZeroU32),
}

impl Origin {
    /// The client with that number; [`Origin::Trusted`] is not to be had this way.
    ///
    /// ```
    /// use verbs_core::Origin;
    /// assert!(Origin::client(7).is_some());
    /// assert!(Origin::client(0).is_none());
    /// ```
    pub fn client(number: u32) -> Option<Self> {
        NonZeroU32::new(number).map(Self::Client)
    }

    pub(crate) fn word(self) -> u32 {
        match self {
            Self::Trusted => 0,
            Self::Client(n) => n.get(),
        }
    }

    pub(crate) fn from_word(word: u32) -> Self {
        Self::client(word).unwrap_or(Self::Trusted)
    }
}
