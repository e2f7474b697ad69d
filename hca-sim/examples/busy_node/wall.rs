//! The same with threads and this machine's clock.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use hca_sim::port::sma::Sma;
use hca_sim::port::{Arrival, Processed};
use verbs_core::mad::Time;
use verbs_core::mad::sm::PERMISSIVE_LID;

use super::model::{Model, Outcome, TIMEOUT, TRIES, agent, question};

/// What the thread of handlers, or the worker, gets.
enum Work {
    Mad(u64, Instant),
    /// A handler that computes, or a command that the worker waits for.
    Busy(Duration),
}

/// Asks 100 times a second for that long, and answers in one of two ways.
pub(crate) fn run(model: Model, span: Duration) -> Outcome {
    let (to_handlers, handlers) = channel();
    let (to_worker, worker) = channel();
    let (answers, answered) = channel();
    let start = Instant::now();
    let outcome = thread::scope(|scope| {
        let handed = scope.spawn({
            let answers = answers.clone();
            move || handle(model, &handlers, &to_worker, &answers)
        });
        scope.spawn(move || work(&worker, &answers));
        let asked = ask(model, start, span, &to_handlers);
        drop(to_handlers);
        let mut outcome = Outcome {
            asked,
            ..Outcome::default()
        };
        for latency in answered {
            if latency <= TIMEOUT * TRIES {
                outcome.answered += 1;
            } else {
                outcome.given_up += 1;
            }
            outcome.latencies.push(latency);
        }
        outcome.handoffs = handed.join().unwrap_or(0);
        outcome
    });
    let mut outcome = outcome;
    outcome.latencies.sort();
    outcome
}

/// The manager, and the work of others: 9 of 10 ms of handlers, and commands of connections.
fn ask(model: Model, start: Instant, span: Duration, to: &Sender<Work>) -> usize {
    let every = Duration::from_millis(10);
    let mut asked = 0;
    while start.elapsed() < span {
        let number = asked as u64;
        let all = [
            Work::Busy(Duration::from_micros(4_500)),
            Work::Mad(number, Instant::now()),
            Work::Busy(Duration::from_micros(4_500)),
        ];
        for work in all {
            if to.send(work).is_err() {
                return asked;
            }
        }
        asked += 1;
        // The storm goes past the handlers in both models: as commands that pend, or to the worker.
        if model == Model::Worker && to.send(Work::Busy(Duration::ZERO)).is_err() {
            return asked;
        }
        let next = every * u32::try_from(asked).unwrap_or(u32::MAX);
        thread::sleep(next.saturating_sub(start.elapsed()));
    }
    asked
}

/// The one place where handlers run. Returns how many datagrams it has handed on.
fn handle(
    model: Model,
    from: &Receiver<Work>,
    to_worker: &Sender<Work>,
    answers: &Sender<Duration>,
) -> usize {
    let (mut sma, mut handed) = (agent(), 0);
    for work in from {
        match (work, model) {
            (Work::Mad(number, asked), Model::Inline) => {
                answer(&mut sma, number, asked, answers);
            }
            (mad @ Work::Mad(..), Model::Worker) => {
                handed += usize::from(to_worker.send(mad).is_ok());
            }
            // A connection's commands: 9.6 ms of each 10 that the worker waits for the device.
            (Work::Busy(Duration::ZERO), _) => {
                let _queued = to_worker.send(Work::Busy(Duration::from_micros(9_600)));
            }
            (Work::Busy(takes), _) => {
                let until = Instant::now() + takes;
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
            }
        }
    }
    handed
}

fn work(from: &Receiver<Work>, answers: &Sender<Duration>) {
    let mut sma = agent();
    let mut count = 0;
    for work in from {
        match work {
            Work::Mad(number, asked) => {
                thread::sleep(Duration::from_micros(500));
                answer(&mut sma, number, asked, answers);
            }
            Work::Busy(takes) => thread::sleep(takes),
        }
        count += 1;
        // One callback of a client sleeps.
        if count == 100 {
            thread::sleep(Duration::from_secs(1));
        }
    }
}

fn answer(sma: &mut Sma, number: u64, asked: Instant, answers: &Sender<Duration>) {
    let arrival = Arrival {
        port: 1,
        slid: PERMISSIVE_LID,
        now: Time::ZERO,
    };
    let Processed::Reply(_) = sma.process(arrival, &question(number)) else {
        panic!("the agent answers every question");
    };
    let _told = answers.send(asked.elapsed());
}
