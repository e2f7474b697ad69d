//! What a run is made of: what its seed draws, what is put in on purpose, what is counted.

use oorandom::Rand64;

/// Something wrong that is put in on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    /// The wire changes the first packet number in a REP.
    WrongPsn,
    /// The wire gives the passive side's queue pair another number.
    WrongQpn,
    /// A user does not get to see an event.
    LostEvent,
    /// A user sees an event twice.
    DoubleEvent,
    /// A modify is lost: it never ends.
    LostModify,
}

impl Defect {
    pub(crate) const ALL: [Self; 5] = [
        Self::WrongPsn,
        Self::WrongQpn,
        Self::LostEvent,
        Self::DoubleEvent,
        Self::LostModify,
    ];
}

/// What has happened in a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) established: u64,
    pub(crate) rejected: u64,
    pub(crate) unreachable: u64,
    pub(crate) failed: u64,
    pub(crate) disconnected: u64,
    /// Both ends were asked to disconnect at the same time.
    pub(crate) crossing: u64,
    pub(crate) destroyed: u64,
    /// Data told of a lost or late RTU.
    pub(crate) rtu_by_data: u64,
    /// One end only was established when nothing moved any longer; the transport ended it.
    pub(crate) half_open: u64,
    /// A host lost all that it knew.
    pub(crate) crashed: u64,
    pub(crate) resolved: u64,
    pub(crate) unresolved: u64,
    pub(crate) messages: u64,
    pub(crate) digest: u64,
}

impl Outcome {
    pub(crate) fn add(&mut self, other: &Self) {
        let mine = [
            (&mut self.established, other.established),
            (&mut self.rejected, other.rejected),
            (&mut self.unreachable, other.unreachable),
            (&mut self.failed, other.failed),
            (&mut self.disconnected, other.disconnected),
            (&mut self.crossing, other.crossing),
            (&mut self.destroyed, other.destroyed),
            (&mut self.rtu_by_data, other.rtu_by_data),
            (&mut self.half_open, other.half_open),
            (&mut self.crashed, other.crashed),
            (&mut self.resolved, other.resolved),
            (&mut self.unresolved, other.unresolved),
            (&mut self.messages, other.messages),
        ];
        for (sum, count) in mine {
            *sum += count;
        }
    }
}

/// What one seed draws for the whole run. Chances are of 100.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) loss: u64,
    pub(crate) double: u64,
    pub(crate) delay_ms_max: u64,
    pub(crate) qp_failure: u64,
    pub(crate) qp_delay_ms_max: u64,
    pub(crate) answer_ms_max: u64,
    pub(crate) max_cm_retries: u32,
    pub(crate) response_timeout: u8,
    pub(crate) crash: u64,
    pub(crate) connections: u64,
    pub(crate) backlog: u32,
    pub(crate) timewait_max: usize,
}

impl Options {
    pub(crate) fn draw(dice: &mut Rand64) -> Self {
        let mut draw = |range: std::ops::Range<u64>| dice.rand_range(range);
        Self {
            loss: [0, 10, 30, 50][usize::try_from(draw(0..4)).unwrap()],
            double: draw(0..30),
            delay_ms_max: [1, 100, 3_000][usize::try_from(draw(0..3)).unwrap()],
            qp_failure: [0, 0, 10][usize::try_from(draw(0..3)).unwrap()],
            qp_delay_ms_max: [1, 500][usize::try_from(draw(0..2)).unwrap()],
            answer_ms_max: [1, 200, 10_000][usize::try_from(draw(0..3)).unwrap()],
            max_cm_retries: u32::try_from(draw(1..16)).unwrap(),
            response_timeout: u8::try_from(draw(16..21)).unwrap(),
            crash: [0, 0, 0, 30][usize::try_from(draw(0..4)).unwrap()],
            connections: draw(1..12),
            backlog: u32::try_from(draw(1..8)).unwrap(),
            timewait_max: usize::try_from(draw(1..20)).unwrap(),
        }
    }
}
