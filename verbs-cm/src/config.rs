//! Limits of a table of connections.

use verbs_core::mad::TimeCode;

/// Limits, each with the reason for its default. All are per port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Connections that are being made, are there, or are being closed. 4096 by default: each takes
    /// about 3.5 KiB, half of which is reserved for its events.
    pub connections_max: usize,
    /// Connections in timewait, and rejected ones whose REJ may have to be repeated. Beyond it some
    /// leave early: the oldest rejected one, or else the oldest. 4096 by default.
    pub timewait_max: usize,
    /// Listeners. 1024 by default.
    pub listeners_max: usize,
    /// Resolutions of service ids under way, in each direction. Answers that are kept for being
    /// repeated make room for new questions. 1024 by default.
    pub resolutions_max: usize,
    /// Messages that wait to be fetched; more are dropped, as a network would. 4096 by default.
    pub transmits_max: usize,
    /// Longest time that a peer may ask for to answer; longer ones are cut. 23 (34 s) by default:
    /// eight times what Linux asks for.
    pub response_timeout_max: TimeCode,
    /// Longest time that a peer may ask for in an MRA; longer ones are cut. 25 (137 s) by default.
    pub service_timeout_max: TimeCode,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            connections_max: 4096,
            timewait_max: 4096,
            listeners_max: 1024,
            resolutions_max: 1024,
            transmits_max: 4096,
            response_timeout_max: TimeCode::new(23),
            service_timeout_max: TimeCode::new(25),
        }
    }
}
