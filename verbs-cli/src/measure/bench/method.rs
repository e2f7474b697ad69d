//! How things are measured on a machine that others use too.
//!
//! Many short repetitions; those in which the scheduler took a thread of ours off its processor are
//! dropped, and so is the next one, which starts with cold caches. What is compared takes turns in
//! one run, so that both see the same machine. The median of the rest is the figure.

use std::time::{Duration, Instant};

use super::error::BenchError;
use super::machine::preemptions;

/// Figures from fewer repetitions than this are marked.
pub(crate) const KEPT_MIN: usize = 5;
/// Rounds at most; more make no figure better.
const ROUNDS_MAX: usize = 201;
/// Attempts at one step of the calibration before an interrupted one is believed.
const ATTEMPTS: u32 = 20;
/// Times that one repetition does a thing at most.
const TIMES_MAX: u64 = 1 << 24;

/// One repetition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repetition {
    pub(crate) elapsed: Duration,
    /// No thread of ours was taken off its processor.
    pub(crate) quiet: bool,
}

/// Something that can be done so many times in a row.
pub(crate) type Repeat<'a> = Box<dyn FnMut(u64) -> Result<Repetition, BenchError> + 'a>;

/// What is measured.
pub(crate) struct Subject<'a> {
    /// Messages, or verbs, that doing it once counts as.
    units: u64,
    repeat: Repeat<'a>,
}

impl<'a> Subject<'a> {
    pub(crate) fn new(units: u64, repeat: Repeat<'a>) -> Self {
        Self { units, repeat }
    }

    /// What one thread does; `run` does it so many times.
    pub(crate) fn alone(
        units: u64,
        mut run: impl FnMut(u64) -> Result<(), BenchError> + 'a,
    ) -> Self {
        let repeat = move |times| {
            let before = preemptions();
            let started = Instant::now();
            run(times)?;
            let elapsed = started.elapsed();
            let quiet = preemptions() == before;
            Ok(Repetition { elapsed, quiet })
        };
        Self::new(units, Box::new(repeat))
    }
}

/// What was measured, in nanoseconds for one message or verb.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figures {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) p90: f64,
    /// Repetitions that were quiet. If none was, the figures are those of all.
    pub(crate) kept: usize,
    pub(crate) taken: usize,
}

impl Figures {
    /// The figures of those samples, of which there is one.
    pub(crate) fn of(samples: &[Sample]) -> Self {
        let pick = |all: bool| -> Vec<f64> {
            let picked = samples.iter().filter(|sample| all || sample.quiet);
            picked.map(|sample| sample.ns).collect()
        };
        let quiet = pick(false);
        let kept = quiet.len();
        let mut ns = if kept == 0 { pick(true) } else { quiet };
        ns.sort_by(f64::total_cmp);
        // The element that so many hundredths of the others are not above.
        let rank = |percent: usize| ns[(ns.len() * percent).div_ceil(100).max(1) - 1];
        Self {
            median: rank(50),
            min: ns[0],
            p90: rank(90),
            kept,
            taken: samples.len(),
        }
    }
}

/// The outcome of one repetition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) ns: f64,
    /// No thread of ours was taken off its processor.
    pub(crate) quiet: bool,
}

/// How long things are measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Method {
    repetition: Duration,
    /// For all subjects of one call together.
    slice: Duration,
}

impl Method {
    /// Repetitions of that length, for that long.
    pub(crate) fn new(repetition: Duration, slice: Duration) -> Self {
        Self { repetition, slice }
    }

    /// The same for one of so many parts.
    pub(crate) fn part_of(self, parts: usize) -> Self {
        let parts = u32::try_from(parts).unwrap_or(u32::MAX).max(1);
        Self {
            slice: self.slice / parts,
            ..self
        }
    }

    /// Whether a benchmark that counts its repetitions itself has had its time.
    pub(crate) fn is_past(self, elapsed: Duration) -> bool {
        elapsed >= self.slice
    }

    /// Measures the subjects in turns; one figure for each, in their order. Where others leave no
    /// peace it takes up to twice its time.
    ///
    /// # Errors
    /// The first that a subject reports.
    pub(crate) fn measure(self, subjects: &mut [Subject<'_>]) -> Result<Vec<Figures>, BenchError> {
        let mut times = Vec::with_capacity(subjects.len());
        for subject in &mut *subjects {
            times.push(self.calibrate(subject)?);
        }
        let started = Instant::now();
        let mut samples = vec![Vec::new(); subjects.len()];
        let mut was_quiet = true;
        for round in 0..ROUNDS_MAX {
            if round >= KEPT_MIN && self.is_over(started.elapsed(), &samples) {
                break;
            }
            for ((subject, &times), samples) in subjects.iter_mut().zip(&times).zip(&mut samples) {
                let Repetition { elapsed, quiet } = (subject.repeat)(times)?;
                let ns = elapsed.as_nanos() as f64 / (times * subject.units) as f64;
                let quiet_too = quiet && was_quiet;
                was_quiet = quiet;
                samples.push(Sample {
                    ns,
                    quiet: quiet_too,
                });
            }
        }
        Ok(samples.iter().map(|samples| Figures::of(samples)).collect())
    }

    fn is_over(self, elapsed: Duration, samples: &[Vec<Sample>]) -> bool {
        let kept = |samples: &Vec<Sample>| samples.iter().filter(|sample| sample.quiet).count();
        let all_kept = samples.iter().all(|samples| kept(samples) >= KEPT_MIN);
        elapsed >= self.slice && (all_kept || elapsed >= 2 * self.slice)
    }

    /// How many times fill a repetition. Warms up as well.
    fn calibrate(self, subject: &mut Subject<'_>) -> Result<u64, BenchError> {
        let mut times = 1;
        let mut attempts = 0;
        loop {
            let Repetition { elapsed, quiet } = (subject.repeat)(times)?;
            attempts += 1;
            if !quiet && attempts < ATTEMPTS {
                continue;
            }
            attempts = 0;
            if elapsed >= self.repetition / 4 || times >= TIMES_MAX {
                let fill = self.repetition.as_secs_f64() / elapsed.as_secs_f64().max(1e-9);
                let times = (times as f64 * fill).round() as u64;
                return Ok(times.clamp(1, TIMES_MAX));
            }
            times *= 4;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn sample(ns: f64, quiet: bool) -> Sample {
        Sample { ns, quiet }
    }

    #[test]
    fn interrupted_repetitions_are_dropped() {
        let mut samples: Vec<_> = (1..=10).map(|n| sample(f64::from(n), true)).collect();
        samples.push(sample(1000.0, false));
        samples.push(sample(0.5, false));
        let right = Figures {
            median: 5.0,
            min: 1.0,
            p90: 9.0,
            kept: 10,
            taken: 12,
        };
        assert_eq!(Figures::of(&samples), right);
        samples.retain(|sample| !sample.quiet);
        let figures = Figures::of(&samples);
        assert_eq!((figures.kept, figures.taken), (0, 2));
        assert_eq!((figures.median, figures.p90), (0.5, 1000.0));
    }

    /// Goal: subjects take turns, figures are for one unit, and a repetition after an interrupted
    /// one is dropped with it. Method: subjects that say what they took instead of taking it.
    #[test]
    fn subjects_take_turns() {
        let turns = Cell::new(0_usize);
        let subject = |units, ns: u64| {
            let turns = &turns;
            let repeat = move |times: u64| {
                turns.set(turns.get() + 1);
                Ok(Repetition {
                    elapsed: Duration::from_nanos(ns * times),
                    // After the ten of the calibration, the second of the second round.
                    quiet: turns.get() != 14,
                })
            };
            Subject::new(units, Box::new(repeat))
        };
        let mut subjects = [subject(1, 100), subject(10, 100)];
        let method = Method::new(Duration::from_micros(100), Duration::ZERO);
        let figures = method.measure(&mut subjects).expect("nothing fails");
        let figures: [Figures; 2] = figures.try_into().expect("one for each");
        assert!((figures[0].median - 100.0).abs() < 1e-9);
        assert!((figures[1].median - 10.0).abs() < 1e-9);
        assert_eq!(figures[0].taken, figures[1].taken);
        let dropped = |figures: &Figures| figures.taken - figures.kept;
        assert_eq!(figures.each_ref().map(dropped), [1, 1]);
    }
}
