//! Who asked for a request.

/// On whose behalf a request is made (K16). It travels with the request and with every request made
/// for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Origin {
    /// This process itself: nothing is checked twice.
    #[default]
    Trusted,
    /// A client of a daemon, by number: its handles and buffers were checked before.
    Client(u32),
}

impl Origin {
    pub(crate) fn word(self) -> u32 {
        match self {
            Self::Trusted => 0,
            Self::Client(n) => n.wrapping_add(1),
        }
    }

    pub(crate) fn from_word(word: u32) -> Self {
        word.checked_sub(1).map_or(Self::Trusted, Self::Client)
    }
}
