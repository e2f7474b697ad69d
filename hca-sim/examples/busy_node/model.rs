//! A busy node and its subnet manager, in virtual time.
//!
//! The node has one place where completion handlers run, and is busy there. In the *inline* model a datagram of the
//! manager is answered in its completion's handler, and commands of connections pend without blocking a thread. In the
//! *worker* model, as in the old access layer, the handler only queues; one worker answers, carries out the commands of
//! connections, blocking, and calls clients. Both get the same datagrams, commands and callbacks, and both answer with
//! the same agent.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use hca_sim::port::sma::{NodeConfig, PortConfig, Sma, SwitchConfig};
use hca_sim::port::{Arrival, Processed};
use oorandom::Rand64;
use verbs_core::Guid;
use verbs_core::mad::header::emit_header;
use verbs_core::mad::sm::{self, NodeType, PERMISSIVE_LID, SmpHeader};
use verbs_core::mad::{AttributeId, Class, MadBytes, MadHeader, Method, TransactionId};
use verbs_core::time::Instant;

/// How a node answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    /// In the handler of the receive completion.
    Inline,
    /// On the one worker, which does everything else too.
    Worker,
}

/// The work of a node, and the requests of its manager. Times are those of the hardware of that era.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// The duration of the load.
    pub(crate) span: Duration,
    /// Datagrams of the manager in a second.
    pub(crate) mads_per_s: u64,
    /// Datagrams that arrive at once, at the very beginning.
    pub(crate) burst: u64,
    /// How much of the time handlers of other clients run, in percent.
    pub(crate) handlers_percent: u64,
    /// The longest of these handlers.
    pub(crate) handler_max: Duration,
    /// Connections that are made in a second.
    pub(crate) connections_per_s: u64,
    /// The device time of the commands of one connection.
    pub(crate) connection: Duration,
    /// The device time of the command that answers a datagram, where that is a command.
    pub(crate) mad_command: Duration,
    /// When a client's callback sleeps for a second.
    pub(crate) sleeps_at: Duration,
}

impl Load {
    pub(crate) const BUSY: Self = Self {
        span: Duration::from_secs(30),
        mads_per_s: 100,
        burst: 0,
        handlers_percent: 90,
        handler_max: Duration::from_millis(4),
        connections_per_s: 240,
        connection: Duration::from_millis(4),
        mad_command: Duration::from_micros(500),
        sleeps_at: Duration::from_secs(10),
    };
}

/// How long a subnet manager waits, and how often it asks.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(200);
pub(crate) const TRIES: u32 = 3;

/// Processor time of a datagram's answer, and of putting something into a queue.
const ANSWER: Duration = Duration::from_micros(2);
const QUEUE: Duration = Duration::from_micros(1);

/// Datagrams answered in one turn of a handler, before other handlers run.
pub(crate) const TURN: usize = 16;

/// The outcome.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) asked: usize,
    pub(crate) answered: usize,
    /// How often the manager waited without an answer and asked again.
    pub(crate) timeouts: usize,
    /// Requests that were never answered in time: each makes the node look dead.
    pub(crate) given_up: usize,
    /// Handoffs from one thread to another, for all answers together.
    pub(crate) handoffs: usize,
    /// From the first request to the first answer, sorted.
    pub(crate) latencies: Vec<Duration>,
    /// The most datagrams answered in a row while a handler of another client waited.
    pub(crate) most_in_a_row: usize,
}

impl Outcome {
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let last = self.latencies.len().saturating_sub(1);
        let at = last * percent / 100;
        self.latencies.get(at).copied().unwrap_or_default()
    }
}

/// The jobs that a place works off, in order.
#[derive(Clone, Copy, Debug)]
enum Job {
    /// A job that only takes time.
    Other(Duration),
    /// A datagram, by its number.
    Mad(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The manager asks, after that many earlier attempts.
    Ask(u64, u32),
    /// Another client's completion.
    Handler(Duration),
    Connection,
    Sleep,
    /// A place has finished its job.
    Done(Place),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Handlers,
    Worker,
}

/// A place where one thing is done at a time.
#[derive(Debug, Default)]
struct Server {
    queue: VecDeque<Job>,
    doing: Option<Job>,
}

pub(crate) struct Node {
    model: Model,
    load: Load,
    sma: Sma,
    now: Duration,
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    sequence: u64,
    handlers: Server,
    worker: Server,
    asked: BTreeMap<u64, Duration>,
    in_a_row: usize,
    outcome: Outcome,
}

impl Node {
    /// Lets a node work off a load.
    pub(crate) fn run(model: Model, load: Load, seed: u64) -> Outcome {
        let mut node = Self {
            model,
            load,
            sma: agent(),
            now: Duration::ZERO,
            events: BinaryHeap::new(),
            sequence: 0,
            handlers: Server::default(),
            worker: Server::default(),
            asked: BTreeMap::new(),
            in_a_row: 0,
            outcome: Outcome::default(),
        };
        node.draw(seed);
        while let Some(Reverse((at, _, event))) = node.events.pop() {
            node.now = at;
            node.happen(event);
        }
        node.outcome.latencies.sort();
        node.outcome
    }

    /// Draws everything that comes from outside, from one seed for both models.
    fn draw(&mut self, seed: u64) {
        let mut rng = Rand64::new(seed.into());
        let load = self.load;
        let span = load.span.as_nanos() as u64;
        for number in 0..load.mads_per_s * load.span.as_secs() {
            let at = number * 1_000_000_000 / load.mads_per_s;
            self.at(Duration::from_nanos(at), Event::Ask(number, 1));
        }
        let others = load.mads_per_s * load.span.as_secs();
        for number in others..others + load.burst {
            self.at(Duration::ZERO, Event::Ask(number, 1));
        }
        let longest = load.handler_max.as_nanos() as u64;
        let mut at = 0;
        while at < span {
            let takes = rng.rand_range(longest / 40..longest);
            self.at(
                Duration::from_nanos(at),
                Event::Handler(Duration::from_nanos(takes)),
            );
            // The mean gap keeps the place as busy as intended.
            let gap = takes * 100 / load.handlers_percent.max(1);
            at += rng.rand_range(gap / 2..gap * 3 / 2 + 1);
        }
        let every = 1_000_000_000 / load.connections_per_s.max(1);
        for number in 0..load.connections_per_s * load.span.as_secs() {
            let jitter = rng.rand_range(0..every);
            self.at(
                Duration::from_nanos(number * every + jitter),
                Event::Connection,
            );
        }
        self.at(load.sleeps_at, Event::Sleep);
    }

    fn at(&mut self, at: Duration, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Ask(number, try_number) => self.ask(number, try_number),
            Event::Handler(takes) => self.give(Place::Handlers, Job::Other(takes)),
            Event::Connection => {
                // A completion of the device, or a worker that waits for the device.
                let (place, takes) = match self.model {
                    Model::Inline => (Place::Handlers, QUEUE),
                    Model::Worker => (Place::Worker, self.load.connection),
                };
                self.give(place, Job::Other(takes));
            }
            Event::Sleep => {
                // In the inline model it sleeps in a thread of the client, where routines are queued for it.
                if self.model == Model::Worker {
                    self.give(Place::Worker, Job::Other(Duration::from_secs(1)));
                }
            }
            Event::Done(place) => self.done(place),
        }
    }

    fn ask(&mut self, number: u64, try_number: u32) {
        if try_number == 1 {
            self.asked.insert(number, self.now);
            self.outcome.asked += 1;
        } else if !self.asked.contains_key(&number) {
            // It was answered in the meantime.
            return;
        } else {
            self.outcome.timeouts += 1;
        }
        if try_number > TRIES {
            self.asked.remove(&number);
            self.outcome.given_up += 1;
            return;
        }
        self.at(self.now + TIMEOUT, Event::Ask(number, try_number + 1));
        self.give(Place::Handlers, Job::Mad(number));
    }

    fn server(&mut self, place: Place) -> &mut Server {
        match place {
            Place::Handlers => &mut self.handlers,
            Place::Worker => &mut self.worker,
        }
    }

    fn give(&mut self, place: Place, job: Job) {
        self.server(place).queue.push_back(job);
        self.begin(place);
    }

    fn begin(&mut self, place: Place) {
        let turn_is_over = self.in_a_row >= TURN;
        let server = self.server(place);
        if server.doing.is_some() {
            return;
        }
        // When a turn's datagrams are answered, another waiting handler comes first.
        let other = match place {
            Place::Handlers => server
                .queue
                .iter()
                .position(|job| matches!(job, Job::Other(_))),
            Place::Worker => None,
        };
        let index = match (place, other) {
            (Place::Handlers, Some(other)) if turn_is_over => other,
            _ => 0,
        };
        let Some(job) = server.queue.remove(index) else {
            return;
        };
        server.doing = Some(job);
        let takes = match (job, place, self.model) {
            (Job::Other(takes), ..) => takes,
            (Job::Mad(_), Place::Handlers, Model::Inline) => ANSWER,
            (Job::Mad(_), Place::Handlers, Model::Worker) => QUEUE,
            (Job::Mad(_), Place::Worker, _) => self.load.mad_command,
        };
        if place == Place::Handlers {
            match job {
                Job::Mad(_) if other.is_some() => self.in_a_row += 1,
                _ => self.in_a_row = 0,
            }
            self.outcome.most_in_a_row = self.outcome.most_in_a_row.max(self.in_a_row);
        }
        self.at(self.now + takes, Event::Done(place));
    }

    fn done(&mut self, place: Place) {
        let done = self.server(place).doing.take();
        match (done, place, self.model) {
            (Some(Job::Mad(number)), Place::Handlers, Model::Worker) => {
                self.outcome.handoffs += 1;
                self.give(Place::Worker, Job::Mad(number));
            }
            (Some(Job::Mad(number)), ..) => self.answer(number),
            _ => {}
        }
        self.begin(place);
    }

    /// The agent answers; the manager takes the first answer that arrives in time.
    fn answer(&mut self, number: u64) {
        let mad = question(number);
        let arrival = Arrival {
            port: 1,
            slid: PERMISSIVE_LID,
            now: Instant::ZERO + self.now,
        };
        let Processed::Reply(_) = self.sma.process(arrival, &mad) else {
            panic!("the agent answers every question");
        };
        if let Some(asked) = self.asked.remove(&number) {
            self.outcome.answered += 1;
            self.outcome.latencies.push(self.now - asked);
        }
    }
}

/// The agent of an adapter with one port.
pub(crate) fn agent() -> Sma {
    Sma::new(NodeConfig {
        node_type: NodeType::CA,
        description: "busy node".into(),
        guid: Guid(0x10),
        system_guid: Guid(0x10),
        vendor_id: 1,
        device_id: 1,
        pkey_capacity: 32,
        ports: vec![PortConfig {
            guid: Guid(0x11),
            ..PortConfig::default()
        }],
        switch: SwitchConfig::default(),
    })
}

/// A request to the port, by which a manager checks whether a node is alive.
pub(crate) fn question(number: u64) -> MadBytes {
    let mut mad = [0; 256];
    let header = MadHeader {
        base_version: MadHeader::BASE_VERSION,
        class: Class::SUBN_DIRECTED,
        class_version: sm::CLASS_VERSION,
        method: Method::GET,
        tid: TransactionId(number + 1),
        attribute: AttributeId::PORT_INFO,
        modifier: 1,
        ..MadHeader::default()
    };
    emit_header(&header, &mut mad);
    SmpHeader::directed(0).put(&mut mad);
    mad
}
