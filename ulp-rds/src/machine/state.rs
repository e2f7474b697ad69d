//! States of a connection.

use std::fmt;

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum State {
    /// There is no queue pair; one is made when something is to be sent, or the peer asks.
    #[default]
    Down,
    /// One end has asked the other.
    Connecting,
    /// Messages travel.
    Up,
    /// Something went wrong; the queue pair is to be taken down.
    Error,
    /// Work that was posted is coming back.
    Disconnecting,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Down,
        Self::Connecting,
        Self::Up,
        Self::Error,
        Self::Disconnecting,
    ];

    /// Whether the step from here to `next` is legal.
    pub const fn may_become(self, next: Self) -> bool {
        use State::{Connecting, Disconnecting, Down, Error, Up};
        matches!(
            (self, next),
            (_, Error)
                | (Up | Error, Disconnecting)
                | (Disconnecting, Down)
                | (Down, Connecting)
                | (Connecting, Up)
        )
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Down => "down",
            Self::Connecting => "connecting",
            Self::Up => "up",
            Self::Error => "error",
            Self::Disconnecting => "disconnecting",
        })
    }
}
