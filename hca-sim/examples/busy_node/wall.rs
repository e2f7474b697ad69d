//! The same with threads and this machine's clock.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use hca_sim::port::sma::Sma;
use hca_sim::port::{Arrival, Processed};
use verbs_core::mad::sm::PERMISSIVE_LID;
use verbs_core::time;

use super::model::{Model, Outcome, TIMEOUT, TRIES, TURN, agent, question};

/// From one datagram of the manager to the next.
const EVERY: Duration = Duration::from_millis(10);
/// A handler of another client, and the pause after it: it takes nine tenths of the time.
const HANDLER: Duration = Duration::from_micros(4_500);
const PAUSE: Duration = Duration::from_micros(500);
/// How long the worker waits for the device, for each datagram that arrives: for the commands of a connection, and for
/// the command that answers.
const CONNECTION: Duration = Duration::from_micros(9_600);
const MAD_COMMAND: Duration = Duration::from_micros(500);

/// The work of the worker.
enum Work {
    Mad(u64, Instant),
    Connection,
    /// A callback of a client that sleeps.
    Callback,
}

/// Asks 100 times a second for that long, and answers by one of the two models.
pub(crate) fn run(model: Model, span: Duration) -> Outcome {
    let (to_handlers, handlers) = channel();
    let (to_worker, worker) = channel();
    let (answers, answered) = channel();
    thread::scope(|scope| {
        let to_workers = to_worker.clone();
        let handed = scope.spawn({
            let answers = answers.clone();
            move || handle(model, &handlers, &to_workers, &answers)
        });
        scope.spawn(move || work(&worker, &answers));
        let asked = ask(model, span, &to_handlers, &to_worker);
        drop((to_handlers, to_worker));
        let mut outcome = Outcome {
            asked,
            ..Outcome::default()
        };
        for latency in answered {
            // A manager that asks three times takes the first answer.
            if latency <= TIMEOUT * TRIES {
                outcome.answered += 1;
            } else {
                outcome.given_up += 1;
            }
            outcome.latencies.push(latency);
        }
        outcome.handoffs = handed.join().unwrap_or(0);
        outcome.latencies.sort();
        outcome
    })
}

/// The manager; and, where a worker carries out commands, the connections that it makes.
fn ask(
    model: Model,
    span: Duration,
    to_handlers: &Sender<(u64, Instant)>,
    to_worker: &Sender<Work>,
) -> usize {
    let start = Instant::now();
    let mut asked = 0;
    while start.elapsed() < span {
        let mut sent = to_handlers.send((u64::from(asked), Instant::now())).is_ok();
        if model == Model::Worker {
            sent &= to_worker.send(Work::Connection).is_ok();
            if asked == 100 {
                sent &= to_worker.send(Work::Callback).is_ok();
            }
        }
        if !sent {
            break;
        }
        asked += 1;
        thread::sleep((EVERY * asked).saturating_sub(start.elapsed()));
    }
    asked as usize
}

/// The one place where handlers run: other clients' handlers, and between them datagrams. Returns how many datagrams it
/// has handed on.
fn handle(
    model: Model,
    from: &Receiver<(u64, Instant)>,
    to_worker: &Sender<Work>,
    answers: &Sender<Duration>,
) -> usize {
    let (mut sma, mut handed) = (agent(), 0);
    loop {
        let busy = Instant::now() + HANDLER;
        while Instant::now() < busy {
            std::hint::spin_loop();
        }
        let pause = Instant::now() + PAUSE;
        for _ in 0..TURN {
            let left = pause.saturating_duration_since(Instant::now());
            let (number, asked) = match from.recv_timeout(left) {
                Ok(mad) => mad,
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => break,
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return handed,
            };
            match model {
                Model::Inline => answer(&mut sma, number, asked, answers),
                Model::Worker => {
                    handed += usize::from(to_worker.send(Work::Mad(number, asked)).is_ok());
                }
            }
        }
    }
}

fn work(from: &Receiver<Work>, answers: &Sender<Duration>) {
    let mut sma = agent();
    for work in from {
        match work {
            Work::Mad(number, asked) => {
                thread::sleep(MAD_COMMAND);
                answer(&mut sma, number, asked, answers);
            }
            Work::Connection => thread::sleep(CONNECTION),
            Work::Callback => thread::sleep(Duration::from_secs(1)),
        }
    }
}

fn answer(sma: &mut Sma, number: u64, asked: Instant, answers: &Sender<Duration>) {
    let arrival = Arrival {
        port: 1,
        slid: PERMISSIVE_LID,
        now: time::Instant::ZERO,
    };
    let Processed::Reply(_) = sma.process(arrival, &question(number)) else {
        panic!("the agent answers every question");
    };
    // The table is printed when all answers have arrived.
    let _told = answers.send(asked.elapsed());
}
