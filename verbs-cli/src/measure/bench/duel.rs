//! Two threads on two cores that work against each other.

use std::sync::mpsc;
use std::time::Instant;

use verbs_core::sync::atomic::{AtomicBool, Ordering};
use verbs_core::sync::thread;

use super::error::BenchError;
use super::machine::{Machine, Patience, preemptions};
use super::method::{Figures, Method, Repetition, Subject};

/// A round trip counts as two messages one way.
pub(crate) const WAYS: u64 = 2;

/// What one of two threads does so many times.
pub(crate) type Party<'a> = Box<dyn FnMut(u64) -> Result<(), BenchError> + Send + 'a>;

/// What two threads do together.
pub(crate) struct Duel<'a> {
    /// Messages that doing it once counts as.
    pub(crate) units: u64,
    /// The part of the thread that holds the watch; it ends last.
    pub(crate) here: Party<'a>,
    /// The part of the other.
    pub(crate) there: Party<'a>,
}

/// What the other thread is to do.
struct Order {
    duel: usize,
    times: u64,
}

/// How that ended.
struct Answer {
    done: Result<(), BenchError>,
    quiet: bool,
}

/// Measures the duels in turns.
///
/// One other thread serves all repetitions, because the thread that posts first owns a completion queue. It
/// sleeps between them, and says so when it is awake: waking it is not part of the figure.
///
/// # Errors
/// The first that one of the threads reports.
pub(crate) fn measure<'a>(
    method: Method,
    machine: &Machine,
    duels: Vec<Duel<'a>>,
) -> Result<Vec<Figures>, BenchError> {
    let mut parties = Vec::new();
    let mut theirs = Vec::new();
    for duel in duels {
        parties.push((duel.units, duel.here));
        theirs.push(duel.there);
    }
    let ready = &AtomicBool::new(false);
    thread::scope(|scope| {
        let (orders, inbox) = mpsc::channel();
        let (outbox, answers) = mpsc::channel();
        scope.spawn(move || {
            machine.pin(1);
            serve(&mut theirs, ready, inbox, &outbox);
        });
        let (orders, answers) = (&orders, &answers);
        let subject = |(duel, (units, mut here)): (usize, (u64, Party<'a>))| {
            let repeat = move |times| {
                let order = Order { duel, times };
                orders.send(order).map_err(|_| BenchError::PeerGone)?;
                clash(&mut here, times, ready, answers)
            };
            Subject::new(units, Box::new(repeat))
        };
        let mut subjects: Vec<_> = parties.into_iter().enumerate().map(subject).collect();
        // The other thread ends when `orders` is dropped at the end of this closure.
        method.measure(&mut subjects)
    })
}

/// One repetition, seen from here.
fn clash(
    here: &mut Party<'_>,
    times: u64,
    ready: &AtomicBool,
    answers: &mpsc::Receiver<Answer>,
) -> Result<Repetition, BenchError> {
    let mut patience = Patience::new("the other thread");
    while !ready.load(Ordering::Acquire) {
        patience.lose()?;
    }
    ready.store(false, Ordering::Relaxed);
    let before = preemptions();
    let started = Instant::now();
    let done = here(times);
    let elapsed = started.elapsed();
    let quiet = preemptions() == before;
    let answer = answers.recv().map_err(|_| BenchError::PeerGone)?;
    // A thread that is left alone only stalls; the cause is on the other side then.
    match (done, answer.done) {
        (Err(BenchError::Stalled { .. }) | Ok(()), Err(theirs)) => Err(theirs),
        (Err(ours), _) => Err(ours),
        (Ok(()), Ok(())) => Ok(Repetition {
            elapsed,
            quiet: quiet && answer.quiet,
        }),
    }
}

/// The other thread: does what it is told until the last sender has gone.
fn serve(
    parties: &mut [Party<'_>],
    ready: &AtomicBool,
    inbox: mpsc::Receiver<Order>,
    outbox: &mpsc::Sender<Answer>,
) {
    for Order { duel, times } in inbox {
        let before = preemptions();
        ready.store(true, Ordering::Release);
        let done = parties[duel](times);
        let quiet = preemptions() == before;
        if outbox.send(Answer { done, quiet }).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use verbs_core::sync::atomic::AtomicU64;

    use super::*;

    const METHOD: (Duration, Duration) = (Duration::from_micros(50), Duration::ZERO);

    /// Goal: both threads do every repetition the same number of times. Method: they count.
    #[test]
    fn both_do_the_same() {
        let counts = [const { AtomicU64::new(0) }; 2];
        let party = |index: usize| -> Party<'_> {
            let counts = &counts;
            Box::new(move |times| {
                counts[index].fetch_add(times, Ordering::Relaxed);
                Ok(())
            })
        };
        let (here, there) = (party(0), party(1));
        let duel = Duel {
            units: 1,
            here,
            there,
        };
        let method = Method::new(METHOD.0, METHOD.1);
        let figures = measure(method, &Machine::new(), vec![duel]).expect("nothing fails");
        assert_eq!(figures.len(), 1);
        let [ours, theirs] = counts.map(AtomicU64::into_inner);
        assert!(ours > 0);
        assert_eq!(ours, theirs);
    }

    #[test]
    fn the_cause_is_reported_and_not_its_consequence() {
        let stalled = || {
            Err(BenchError::Stalled {
                what: "nothing",
                seconds: 10,
            })
        };
        let wrong = || {
            Err(BenchError::Payload {
                expected: 1,
                got: 2,
            })
        };
        let duel = Duel {
            units: 1,
            here: Box::new(move |_| stalled()),
            there: Box::new(move |_| wrong()),
        };
        let method = Method::new(METHOD.0, METHOD.1);
        let failed = measure(method, &Machine::new(), vec![duel]);
        assert!(
            matches!(failed, Err(BenchError::Payload { .. })),
            "{failed:?}"
        );
    }
}
