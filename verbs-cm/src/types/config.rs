//! Limits of a table of connections.

use std::time::Duration;

use verbs_core::mad::TimeCode;

/// Limits, each with the reason for its default. All are per port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Connections that are being made, are there, or are being closed. 4096 by default: each takes
    /// about 4 KiB, half of which is reserved for its events.
    pub connections_max: usize,
    /// Half-open connections: a REQ has come, and its sender has not yet confirmed the answer. When so many
    /// are there, the oldest one that the user has accepted gives way to the next REQ. 1024 by default: a
    /// quarter of [`connections_max`](Self::connections_max), so that forged REQs never take the places of
    /// connections that are there; an honest peer keeps its own as long as fewer come in one round trip.
    pub half_open_max: usize,
    /// Half-open connections of one source (GID, or LID where there is none); the oldest that the user
    /// has accepted gives way. 256 by default: a node of many processes that connect at once; four such
    /// sources are needed to get to [`half_open_max`](Self::half_open_max).
    pub half_open_per_source_max: usize,
    /// How long the sender of a REQ may take to confirm the REP, whatever timeouts its REQ asks for. 30 s by
    /// default, as long as TCP gives a peer about; one that needs longer says so in an MRA.
    pub half_open_time_max: Duration,
    /// Messages to the sender of a REQ for each message from it, until it has shown that it hears us: it has
    /// named the communication id that it can only know from the REP, or its queue pair has sent data. 3 by
    /// default (RFC 9000, 8.1); messages of the connection manager all have the same size. The address of a
    /// REQ may be forged, and repetitions of the REP go to its owner.
    pub amplification_max: u32,
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
    /// Whether peers of established connections are asked now and then if they are still there. `None` by default: nothing
    /// is sent on a connection that is idle. For ports on Ethernet alone; a port's connections with itself are left out.
    pub watch: Option<Watch>,
}

/// How peers of established connections are watched: each address of a peer is asked about one connection at a time.
///
/// A peer is gone when its host refuses three questions in a row (ICMP port unreachable), over half a second, and nothing
/// comes from it in between; or when it says that it does not know the connection. Then the connection ends with
/// [`Ended::Failed`](crate::Ended::Failed).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// The pause between two questions. 1 s by default, which finds a process of the same host that has died in at most
    /// 1.6 s; a datagram and its answer a second for each address.
    pub every: Duration,
    /// A peer that does not answer for so long is gone, if it has answered before. `None` by default: the peer may be
    /// stopped, as in a debugger.
    pub silence: Option<Duration>,
}

impl Watch {
    /// The pause between two questions: at least eight in the time that a peer may be silent, so that a lossy network is no
    /// reason to end.
    pub(crate) fn pause(&self) -> Duration {
        let pause = self
            .silence
            .map_or(self.every, |silence| self.every.min(silence / 8));
        pause.max(Duration::from_millis(10))
    }
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(1),
            silence: None,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            connections_max: 4096,
            half_open_max: 1024,
            half_open_per_source_max: 256,
            half_open_time_max: Duration::from_secs(30),
            amplification_max: 3,
            timewait_max: 4096,
            listeners_max: 1024,
            resolutions_max: 1024,
            transmits_max: 4096,
            response_timeout_max: TimeCode::new(23),
            service_timeout_max: TimeCode::new(25),
            watch: None,
        }
    }
}
