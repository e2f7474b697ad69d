//! `verbs rds stress`: tasks send requests, each from a socket of its own, and check what comes back: every answer once,
//! and in order.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use futures::future::{Either, select, try_join_all, try_join3};
use ulp_rds::{Datagram, RdsSocket};
use verbs_core::timer::Sleep;

use super::args::StressArgs;
use super::message::{Message, Wrong};
use super::report::{Exchanged, show_json, write};
use super::{Host, RdsError, info};
use crate::ending::{Ending, GOODBYE, within};

/// How often it is looked whether a task waits for too long.
const WATCH: Duration = Duration::from_millis(200);

/// Sockets whose order the answering end checks; with more, that of the lowest address is forgotten.
const ASKERS_MAX: usize = 4096;

pub(super) fn run(args: &StressArgs, out: &mut (dyn Write + Send)) -> Result<(), RdsError> {
    let host = match (args.send_address, args.receive_address) {
        (Some(peer), named) => Host::towards(&args.net, named, peer)?,
        (None, Some(local)) => Host::at(&args.net, local)?,
        // The arguments need one of them.
        (None, None) => return Ok(()),
    };
    let ending = Ending::begin().map_err(RdsError::system("be told of INT and TERM"))?;
    let _shown = info::publish(&host.node);
    let done = match args.send_address {
        Some(peer) => ask(args, &host, SocketAddr::new(peer, args.port), &ending, out),
        None => block_on(ending.unless_told(answer_all(args, &host, out))).unwrap_or(Ok(())),
    };
    // Peers are told.
    let goodbye = verbs_cm::Manager::of(&host.device).disconnect_all();
    let _unanswered = within(Instant::now() + GOODBYE, goodbye);
    host.wire.finish_capture()?;
    done
}

/// The end that answers, until it is dropped.
async fn answer_all(
    args: &StressArgs,
    host: &Host,
    out: &mut (dyn Write + Send),
) -> Result<(), RdsError> {
    let socket = RdsSocket::bind(&host.node, SocketAddr::new(host.local, args.port))?;
    if !args.json {
        write(
            out,
            &format_args!("requests to {} are answered", socket.local_addr()),
        )?;
    }
    let mut due: BTreeMap<SocketAddr, u64> = BTreeMap::new();
    let mut bytes = Vec::new();
    loop {
        let Datagram { from, payload, .. } = socket.recv().await;
        // What others send is none of this program's business.
        let Ok(request) = Message::parse(&payload) else {
            continue;
        };
        if request.is_answer {
            continue;
        }
        if due.len() >= ASKERS_MAX {
            due.pop_first();
        }
        // A program that begins anew begins at 0.
        let expected = due
            .get(&from)
            .copied()
            .filter(|_| request.number != 0)
            .unwrap_or(0);
        let checked = in_order(request.number, expected).and_then(|()| {
            if args.verify {
                request.check(&payload)
            } else {
                Ok(())
            }
        });
        checked.map_err(|wrong| RdsError::Wrong { from, wrong })?;
        due.insert(from, expected + 1);
        bytes.resize(
            (request.ack_bytes as usize).clamp(super::message::HEADER, 1 << 20),
            0,
        );
        let answer = Message {
            is_answer: true,
            ..request
        };
        answer.put(&mut bytes);
        socket.send_to(&bytes, from).await?;
    }
}

fn in_order(got: u64, expected: u64) -> Result<(), Wrong> {
    match got == expected {
        true => Ok(()),
        false => Err(Wrong::Order { got, expected }),
    }
}

/// What the tasks share.
struct Run<'a> {
    args: &'a StressArgs,
    host: &'a Host,
    peer: SocketAddr,
    begun: Instant,
    sums: RefCell<Exchanged>,
    /// For each task, since when its oldest request waits.
    since: RefCell<Vec<Option<Instant>>>,
}

/// The end that asks.
fn ask(
    args: &StressArgs,
    host: &Host,
    peer: SocketAddr,
    ending: &Ending,
    out: &mut (dyn Write + Send),
) -> Result<(), RdsError> {
    let run = Run {
        args,
        host,
        peer,
        begun: Instant::now(),
        sums: RefCell::new(Exchanged {
            tasks: args.tasks,
            ..Exchanged::default()
        }),
        since: RefCell::new(vec![None; args.tasks.into()]),
    };
    let asked = block_on(ending.unless_told(run.all(out)));
    let sums = run.now().since(Exchanged::default());
    match args.json {
        true => show_json(out, &sums)?,
        false => write(
            out,
            &format_args!("---------------------------------------------\n{sums}  (average)"),
        )?,
    }
    match asked {
        Ok(done) => done,
        Err(signal) if args.count.is_some() || args.time.is_some() => signal.obey(),
        // It was to go on until then.
        Err(_) => Ok(()),
    }
}

impl Run<'_> {
    /// All tasks; with them the table grows and connections are dropped.
    async fn all(&self, out: &mut (dyn Write + Send)) -> Result<(), RdsError> {
        let tasks = try_join_all((0..self.args.tasks.into()).map(|index| self.task(index)));
        let watch = async { Err::<(), _>(self.watch().await) };
        // None of these ends but for an error.
        let beside = try_join3(self.table(out), self.kill(), watch);
        match select(pin!(tasks), pin!(beside)).await {
            Either::Left((done, _)) => done.map(drop),
            Either::Right((ended, _)) => ended.map(drop),
        }
    }

    /// What was exchanged so far.
    fn now(&self) -> Exchanged {
        let connections = self.host.node.connections();
        Exchanged {
            seconds: self.begun.elapsed().as_secs_f64(),
            losses: connections.iter().map(|of| of.counts.losses).sum(),
            ..*self.sums.borrow()
        }
    }

    fn is_over(&self, sent: u64) -> bool {
        self.args.count.is_some_and(|count| sent >= count)
            || self
                .args
                .time
                .is_some_and(|time| self.begun.elapsed() >= time)
    }

    /// One task: a socket, and `depth` requests on their way.
    async fn task(&self, index: usize) -> Result<(), RdsError> {
        let args = self.args;
        let socket = RdsSocket::bind(&self.host.node, SocketAddr::new(self.host.local, 0))?;
        socket.set_tos(args.tos)?;
        let mut bytes = vec![0; args.request_bytes as usize];
        let mut waiting: VecDeque<Instant> = VecDeque::with_capacity(args.depth as usize);
        let (mut sent, mut answered) = (0, 0);
        loop {
            while waiting.len() < args.depth as usize && !self.is_over(sent) {
                let request = Message {
                    is_answer: false,
                    ack_bytes: args.ack_bytes,
                    number: sent,
                };
                request.put(&mut bytes);
                waiting.push_back(Instant::now());
                self.wait_since(index, waiting.front());
                socket.send_to(&bytes, self.peer).await?;
                sent += 1;
                let mut sums = self.sums.borrow_mut();
                sums.requests += 1;
                sums.bytes_sent += bytes.len() as u64;
            }
            let Some(begun) = waiting.pop_front() else {
                return Ok(());
            };
            self.wait_since(index, Some(&begun));
            let answer = socket.recv().await;
            self.wait_since(index, None);
            self.check(&answer, answered)
                .map_err(|wrong| RdsError::Wrong {
                    from: answer.from,
                    wrong,
                })?;
            answered += 1;
            let mut sums = self.sums.borrow_mut();
            sums.answers += 1;
            sums.bytes_received += answer.payload.len() as u64;
            sums.waited += begun.elapsed();
        }
    }

    /// Since when the oldest request of a task waits for its answer.
    fn wait_since(&self, index: usize, since: Option<&Instant>) {
        if let Some(place) = self.since.borrow_mut().get_mut(index) {
            *place = since.copied();
        }
    }

    fn check(&self, answer: &Datagram, expected: u64) -> Result<(), Wrong> {
        let payload = &answer.payload;
        let said = Message::parse(payload)?;
        if !said.is_answer {
            return Err(Wrong::Foreign(payload.len()));
        }
        in_order(said.number, expected)?;
        let (number, got) = (said.number, payload.len());
        let expected = self.args.ack_bytes as usize;
        if got != expected {
            return Err(Wrong::Length {
                number,
                got,
                expected,
            });
        }
        if self.args.verify {
            said.check(payload)?;
        }
        Ok(())
    }

    /// Ends when a task has waited for too long.
    async fn watch(&self) -> RdsError {
        let timeout = self.args.timeout;
        loop {
            Sleep::new(self.host.node.timer(), WATCH.min(timeout)).await;
            let since = self.since.borrow();
            if since
                .iter()
                .flatten()
                .any(|since| since.elapsed() >= timeout)
            {
                return RdsError::Silent {
                    peer: self.peer,
                    timeout,
                    done: self.sums.borrow().answers,
                };
            }
        }
    }

    /// A line each second.
    async fn table(&self, out: &mut (dyn Write + Send)) -> Result<(), RdsError> {
        if self.args.json {
            std::future::pending::<()>().await;
        }
        write(out, &Exchanged::COLUMNS)?;
        let mut before = self.now();
        loop {
            Sleep::new(self.host.node.timer(), Duration::from_secs(1)).await;
            let now = self.now();
            write(out, &now.since(before))?;
            before = now;
        }
    }

    /// Drops the connection again and again, if that was asked for.
    async fn kill(&self) -> Result<(), RdsError> {
        let Some(pause) = self.args.kill else {
            return std::future::pending().await;
        };
        loop {
            Sleep::new(self.host.node.timer(), pause).await;
            self.host
                .node
                .drop_connection(self.host.local, self.peer.ip());
        }
    }
}
