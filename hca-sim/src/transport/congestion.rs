//! How a sender reacts to congestion: the reaction point of DCQCN (Zhu et al., SIGCOMM 2015, section 3.1).
//!
//! A switch marks packets, their receiver answers with congestion notifications (IBTA annex A17.9.3), at most one in 50
//! us, and the sender derives two values from them: a rate, and when the next packet may be sent. A queue pair that was
//! never notified has neither, and is not slowed down.
//!
//! Sans-IO, and without timers of its own: what time has changed is worked out when a packet is about to be sent or a
//! notification arrives. So nothing runs for a queue pair that sends nothing, and its rate recovers nevertheless.

use std::time::Duration;

use verbs_core::mem::Unmapped;

use crate::clock::Instant;
use crate::transport::{Acks, Fill, Outlet};
use crate::wire::{Head, Icrc};

/// The parameters of DCQCN, by default those of the paper, with its rates for 40 Gbit/s scaled down to the line's.
/// Rates are bytes per second.
///
/// ```
/// use hca_sim::{Dcqcn, Hca};
///
/// // What a gigabit network calls for.
/// let dcqcn = Dcqcn { line_rate: 125_000_000, ai_rate: 125_000, ..Dcqcn::default() };
/// let hca = Hca::loopback().congestion(Some(dcqcn)).build();
/// # drop(hca);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dcqcn {
    /// The rate of a queue pair when it is first notified, and the rate at which it is no longer limited. 1.25 GB/s by
    /// default, which is 10 Gbit/s and about what one socket carries; a link does not report its rate.
    pub line_rate: u64,
    /// The lowest rate of a queue pair; 125 kB/s (1 Mbit/s) by default.
    pub min_rate: u64,
    /// The growth of the target in each additive increase; 1.25 MB/s (10 Mbit/s) by default, a thousandth of the
    /// line's rate like the 40 Mbit/s of the paper.
    pub ai_rate: u64,
    /// The growth of the target in the first hyper increase; each later one grows it by that much more than the one
    /// before. Ten times the additive increase by default, as in ConnectX.
    pub hai_rate: u64,
    /// Increases of a kind before fast recovery ends, F; 5 by default.
    pub threshold: u32,
    /// The time between two increases, T; 55 us by default. Zero is taken for 1 us.
    pub time_reset: Duration,
    /// The bytes between two increases, B; 10 MB by default.
    pub byte_reset: u64,
    /// The time without a notification after which alpha shrinks, K; 55 us by default. Zero is taken for 1 us.
    pub alpha_period: Duration,
    /// Alpha moves by 1/2^n of its distance, g; 8 by default, which is 1/256. At most 20.
    pub g_shift: u32,
    /// The least time between two cuts; 50 us by default, the interval of the receiver.
    pub cut_period: Duration,
}

impl Default for Dcqcn {
    fn default() -> Self {
        Self {
            line_rate: 1_250_000_000,
            min_rate: 125_000,
            ai_rate: 1_250_000,
            hai_rate: 12_500_000,
            threshold: 5,
            time_reset: Duration::from_micros(55),
            byte_reset: 10_000_000,
            alpha_period: Duration::from_micros(55),
            g_shift: 8,
            cut_period: Duration::from_micros(50),
        }
    }
}

/// Alpha when every packet is marked.
const ONE: u64 = 1 << 20;
/// Bytes that may be sent at once after a pause, if that is more than [`BURST`] allows: two of the largest packets.
const BURST_BYTES: u64 = 2 * 4096;
/// For how long credit is saved up while nothing is sent, so that a late timer costs nothing.
const BURST: Duration = Duration::from_micros(50);
/// The most increases that are worked out at once: after such a pause the rate is the line's.
const STEPS_MAX: u32 = 10_000;

/// The state of a sender that was notified.
#[derive(Debug)]
pub(crate) struct Reaction {
    config: Dcqcn,
    /// The current rate, and the target that it recovers to.
    rate: u64,
    target: u64,
    alpha: u64,
    alpha_due: Instant,
    increase_due: Instant,
    cut: Instant,
    /// Bytes since the last increase by bytes.
    bytes: u64,
    time_stage: u32,
    byte_stage: u32,
    /// When the next packet may be sent, apart from the packets that may be sent at once.
    next: Instant,
}

impl Reaction {
    /// The state of a queue pair that was never notified, just before it is.
    fn new(config: Dcqcn, now: Instant) -> Self {
        Self {
            config,
            rate: config.line_rate,
            target: config.line_rate,
            alpha: ONE,
            alpha_due: now,
            increase_due: now,
            cut: now,
            bytes: 0,
            time_stage: 0,
            byte_stage: 0,
            next: now,
        }
    }

    /// A notification has arrived for a queue pair in that state, if it has one. Returns whether the rate was cut.
    pub(crate) fn notified(state: &mut Option<Self>, config: &Dcqcn, now: Instant) -> bool {
        if let Some(known) = state
            && !known.follow(now)
        {
            *state = None;
        }
        let is_first = state.is_none();
        let state = state.get_or_insert_with(|| Self::new(*config, now));
        if !is_first && now < state.cut + state.config.cut_period {
            return false;
        }
        state.cut(now);
        true
    }

    /// Bytes per second.
    pub(crate) fn rate(&self) -> u64 {
        self.rate
    }

    /// When a packet that the rate holds back may be sent.
    pub(crate) fn next_departure(&self) -> Instant {
        self.next
    }

    fn cut(&mut self, now: Instant) {
        let Dcqcn {
            min_rate, g_shift, ..
        } = self.config;
        self.target = self.rate;
        let cut = u128::from(self.rate) * u128::from(self.alpha) / u128::from(2 * ONE);
        self.rate = (self.rate - u64::try_from(cut).unwrap_or(0)).max(min_rate.max(1));
        self.alpha += (ONE - self.alpha) >> g_shift.min(20);
        self.cut = now;
        self.alpha_due = now + period(self.config.alpha_period);
        self.increase_due = now + period(self.config.time_reset);
        (self.bytes, self.time_stage, self.byte_stage) = (0, 0, 0);
    }

    /// Works out what the time since has changed. `false`: the rate is the line's, and the state can be forgotten.
    fn follow(&mut self, now: Instant) -> bool {
        let Dcqcn {
            g_shift,
            alpha_period,
            time_reset,
            ..
        } = self.config;
        let mut steps = 0;
        while self.alpha_due <= now && steps != STEPS_MAX {
            self.alpha -= self.alpha >> g_shift.min(20);
            self.alpha_due += period(alpha_period);
            steps += 1;
        }
        steps = 0;
        while self.increase_due <= now && self.rate < self.config.line_rate {
            self.time_stage += 1;
            self.increase();
            self.increase_due += period(time_reset);
            steps += 1;
            if steps == STEPS_MAX {
                return false;
            }
        }
        self.rate < self.config.line_rate
    }

    fn increase(&mut self) {
        let Dcqcn {
            ai_rate,
            hai_rate,
            threshold,
            line_rate,
            ..
        } = self.config;
        let (least, most) = match (self.time_stage, self.byte_stage) {
            (time, bytes) if time < bytes => (time, bytes),
            (time, bytes) => (bytes, time),
        };
        let more = if most < threshold {
            0
        } else if least > threshold {
            hai_rate.saturating_mul(u64::from(least - threshold))
        } else {
            ai_rate
        };
        self.target = self.target.saturating_add(more).min(line_rate);
        // Rounded up, so that the target is reached.
        self.rate = self.rate.midpoint(self.target) + (self.rate ^ self.target) % 2;
    }

    /// Whether a packet may be sent.
    fn is_ready(&self, now: Instant) -> bool {
        self.next <= now
    }

    /// A packet of `bytes` bytes is sent.
    fn sent(&mut self, now: Instant, bytes: u64) {
        self.bytes += bytes;
        while self.bytes >= self.config.byte_reset.max(1) && self.byte_stage < STEPS_MAX {
            self.bytes -= self.config.byte_reset.max(1);
            self.byte_stage += 1;
            self.increase();
        }
        let saved = BURST.max(self.time_of(BURST_BYTES));
        // Time in which nothing was sent may be made up for.
        let earliest = Instant::from_nanos(now.as_nanos().saturating_sub(nanos(saved)));
        self.next = self.next.max(earliest) + self.time_of(bytes);
    }

    fn time_of(&self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// The reaction point of one sender alone: what a queue pair of an HCA does about notifications, for simulations in which
/// there are more senders than HCAs could be.
///
/// ```
/// use std::time::Duration;
///
/// use hca_sim::clock::Instant;
/// use hca_sim::{Dcqcn, ReactionPoint};
///
/// let (dcqcn, now) = (Dcqcn::default(), Instant::ZERO);
/// let mut sender = ReactionPoint::new(dcqcn);
/// sender.notified(now);
/// assert_eq!(sender.rate(), Some(dcqcn.line_rate / 2), "the first notification halves the rate");
/// while sender.departure(now) == now {
///     sender.sent(now, 4096);
/// }
/// assert!(sender.departure(now) > now + Duration::from_micros(1));
/// ```
#[derive(Debug)]
pub struct ReactionPoint {
    config: Dcqcn,
    state: Option<Reaction>,
}

impl ReactionPoint {
    /// Of a sender that was never notified.
    pub const fn new(config: Dcqcn) -> Self {
        Self {
            config,
            state: None,
        }
    }

    /// A notification has arrived.
    pub fn notified(&mut self, now: Instant) {
        Reaction::notified(&mut self.state, &self.config, now);
    }

    /// When the next packet may be sent: now, or later.
    pub fn departure(&mut self, now: Instant) -> Instant {
        if self.state.as_mut().is_some_and(|known| !known.follow(now)) {
            self.state = None;
        }
        let next = self.state.as_ref().map(Reaction::next_departure);
        next.map_or(now, |next| next.max(now))
    }

    /// A packet of that many bytes is sent.
    pub fn sent(&mut self, now: Instant, bytes: u64) {
        if let Some(state) = &mut self.state {
            state.sent(now, bytes);
        }
    }

    /// The rate in bytes per second to which it is limited; `None` while nothing limits it.
    pub fn rate(&self) -> Option<u64> {
        self.state.as_ref().map(Reaction::rate)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn period(period: Duration) -> Duration {
    period.max(Duration::from_micros(1))
}

/// An outlet that lets packets out at the rate of a sender.
pub(crate) struct Paced<'a> {
    outlet: &'a mut dyn Outlet,
    state: &'a mut Option<Reaction>,
    now: Instant,
    /// A packet was held back by the rate.
    pub(crate) held: bool,
}

impl<'a> Paced<'a> {
    pub(crate) fn new(
        outlet: &'a mut dyn Outlet,
        state: &'a mut Option<Reaction>,
        now: Instant,
    ) -> Self {
        if state.as_mut().is_some_and(|known| !known.follow(now)) {
            *state = None;
        }
        Self {
            outlet,
            state,
            now,
            held: false,
        }
    }
}

impl Outlet for Paced<'_> {
    fn is_ready(&mut self) -> bool {
        let waits = self
            .state
            .as_ref()
            .is_some_and(|state| !state.is_ready(self.now));
        self.held |= waits;
        !waits && self.outlet.is_ready()
    }

    fn is_ready_to_answer(&mut self) -> bool {
        self.outlet.is_ready()
    }

    fn acks(&self) -> Acks {
        self.outlet.acks()
    }

    fn put(
        &mut self,
        head: &Head,
        len: usize,
        again: bool,
        fill: Fill<'_>,
    ) -> Result<(), Unmapped> {
        self.outlet.put(head, len, again, fill)?;
        if let Some(state) = self.state {
            let bytes = head.wire_len() + len.next_multiple_of(4) + Icrc::LEN;
            state.sent(self.now, bytes as u64);
        }
        Ok(())
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;

    #[expect(clippy::unwrap_used, reason = "a test may panic")]
    fn known(state: &mut Option<Reaction>) -> &mut Reaction {
        state.as_mut().unwrap()
    }

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    /// Rates in percent of the line's.
    fn config() -> Dcqcn {
        Dcqcn {
            line_rate: 1_000_000,
            min_rate: 1,
            ..Dcqcn::default()
        }
    }

    /// Goal: the numbers of the paper. Method: one notification, five recoveries, and a second notification at half of
    /// alpha.
    #[test]
    fn rates_are_those_of_the_paper() {
        let mut state = None;
        assert!(Reaction::notified(&mut state, &config(), at(0)));
        let state = known(&mut state);
        assert_eq!(
            (state.rate, state.target, state.alpha),
            (500_000, 1_000_000, ONE)
        );
        for (n, rate) in (1..).zip([750_000, 875_000, 937_500, 968_750]) {
            assert!(state.follow(at(55 * n)));
            assert_eq!(state.rate, rate);
        }
        (state.rate, state.target, state.alpha) = (984_375, 1_000_000, ONE / 2);
        state.cut(at(400));
        assert_eq!((state.rate, state.target), (738_282, 984_375));
        // A half-life of 177 periods, as the paper's g has it.
        let before = state.alpha;
        assert!(state.follow(at(400)));
        for n in 1..=177 {
            state.alpha_due = at(n);
            state.increase_due = at(1_000_000);
            state.follow(at(n));
        }
        assert!(state.alpha.abs_diff(before / 2) < before / 100);
    }

    /// Goal: stages of increase in their order; a state whose rate is the line's is forgotten; notifications in
    /// between two cuts change nothing.
    #[test]
    fn increases_come_in_stages() {
        let config = Dcqcn {
            ai_rate: 1000,
            hai_rate: 10_000,
            byte_reset: 100,
            ..config()
        };
        let mut state = None;
        Reaction::notified(&mut state, &config, at(0));
        assert!(!Reaction::notified(&mut state, &config, at(49)));
        assert!(Reaction::notified(&mut state, &config, at(50)));
        let reaction = known(&mut state);
        assert_eq!((reaction.rate, reaction.target), (250_000, 500_000));
        for _ in 0..4 {
            reaction.time_stage += 1;
            reaction.increase();
        }
        assert_eq!(reaction.target, 500_000, "fast recovery");
        reaction.time_stage += 1;
        reaction.increase();
        assert_eq!(reaction.target, 501_000, "additive");
        for _ in 0..7 {
            reaction.sent(at(50), 100);
        }
        reaction.time_stage = 7;
        reaction.increase();
        assert_eq!(reaction.byte_stage, 7);
        assert!(
            reaction.target >= 521_000 + 1000,
            "hyper: {}",
            reaction.target
        );
        assert!(Reaction::notified(&mut state, &config, at(10_000_000)));
        let reaction = known(&mut state);
        assert_eq!(reaction.target, 1_000_000, "it had been forgotten");
    }
}
