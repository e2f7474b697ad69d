//! The states of a queue pair.

use std::fmt;

/// State of a queue pair (IBTA vol. 1, 10.3.1); numbers as `ibv_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum QpState {
    /// Created, or reset: nothing can be posted.
    #[default]
    Reset = 0,
    /// Initialised: receives can be posted, none is processed.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drained: no new send is started.
    Sqd = 4,
    /// Send queue error: a send of an unreliable queue pair failed.
    Sqe = 5,
    /// Error: everything posted is flushed.
    Err = 6,
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Err => "ERR",
        })
    }
}

/// A change of state that is not allowed: from, to, what was missing, what was forbidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The state the queue pair is in.
    pub from: QpState,
    /// The state that was asked for.
    pub to: QpState,
}

impl fmt::Display for Transition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a queue pair cannot go from {} to {}",
            self.from, self.to
        )
    }
}
