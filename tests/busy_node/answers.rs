//! A node that is asked for what its device answers itself.

use std::marker;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures::executor::block_on;
use hca_sim::Hca;
use hca_sim::clock::VirtualClock;
use hca_sim::command::{CommandConfig, CommandInterface, CommandTime};
use hca_sim::engine::Engine;
use hca_sim::link::Cable;
use verbs_cm::UDP_QKEY;
use verbs_core::mad::header::{emit_header, header_of};
use verbs_core::mad::{
    Address, AttributeId, Class, Delivery, MadAgent, MadBytes, MadClient, MadHeader, MadService,
    MadVerdict, Method, Retry, Status,
};
use verbs_core::sync::{Mutex, Weak};
use verbs_core::{
    Access, Av, Cq, Datagram, Device, Gid, Memory, Mr, Pd, Provider, Qp, QpAttr, QpInit, QpState,
    QpType, Send, Wc,
};

use crate::front::Front;
use crate::{Service, Work, alone, datagrams, finish, poll_until, service};

/// The questions that the node has answered: the number of each, and how long the node had worked in its turn.
type Answered = Arc<Mutex<Vec<(u16, Duration)>>>;

/// An HCA that answers PERF questions itself, each in 10 us, and records when it did.
fn answering(hca: &Arc<Hca>, work: &Work, answered: &Answered) -> Front {
    let (work, answered) = (work.clone(), Arc::clone(answered));
    Front::of(Arc::clone(hca), move |incoming, reply| {
        let header = MadHeader::parse(header_of(incoming.mad));
        if header.class != Class::PERF || header.method != Method::GET {
            return MadVerdict::NotMine;
        }
        work.spend(Duration::from_micros(10));
        let answer = (header.class_specific, work.spent());
        answered.lock().push(answer);
        *reply = *incoming.mad;
        emit_header(&header.response(Status::OK), reply);
        MadVerdict::Reply
    })
}

/// A question with that number.
fn question(class: Class, number: u16) -> MadBytes {
    let mut mad = [0; 256];
    let header = MadHeader {
        base_version: MadHeader::BASE_VERSION,
        class,
        class_version: if class == Class::CM { 2 } else { 1 },
        method: if class == Class::CM {
            Method::SEND
        } else {
            Method::GET
        },
        attribute: AttributeId::CLASS_PORT_INFO,
        class_specific: number,
        ..MadHeader::default()
    };
    emit_header(&header, &mut mad);
    mad
}

/// Two ends of a cable: the asking end, and the node.
struct Bed {
    clock: VirtualClock,
    hcas: [Arc<Hca>; 2],
    answered: Answered,
    work: Work,
    asks: MadAgent,
    /// The node's; keeps its service open.
    _service: MadService,
    to: Address,
    /// Where answers arrive.
    inbox: Arc<Inbox>,
    sender: Qp,
    sends: Cq,
    _mr: Mr,
    _pd: Pd,
    device: Device,
    _asking: Device,
}

#[derive(Default)]
struct Inbox(Mutex<Vec<Delivery>>);

impl MadClient for Inbox {
    fn deliver(&self, delivery: Delivery) {
        self.0.lock().push(delivery);
    }
}

impl Bed {
    fn new() -> Self {
        Self::of(|node, _| node)
    }

    /// The node's commands take time: those of its own device, not those of other devices that are opened on the HCA.
    fn on_commands(config: CommandConfig) -> Self {
        Self::of(|node, clock| {
            let engine = Engine::new(clock.clone());
            Arc::new(CommandInterface::new(node, engine, config))
        })
    }

    fn of(front: impl FnOnce(Arc<dyn Provider>, &VirtualClock) -> Arc<dyn Provider>) -> Self {
        let clock = VirtualClock::new();
        let addrs = [1, 2].map(|n| IpAddr::from([10, 0, 0, n]));
        let (a, b) = Cable::new().plug(&[addrs[0]], &[addrs[1]]);
        let hcas = [a, b].map(|link| Hca::over(link).clock(clock.clone()).build());
        let work = Work::default();
        let answered = Answered::default();
        let node = Arc::new(answering(&hcas[1], &work, &answered));
        let provider = front(node, &clock);
        let asking = hcas[0].open().wait().unwrap();
        let device = finish(&clock, Device::open(provider));
        let opening = MadService::of(&device, 1);
        let service = poll_until(&clock, opening).unwrap();
        let inbox = Arc::new(Inbox::default());
        let client: Arc<dyn MadClient> = Arc::<Inbox>::clone(&inbox);
        let client: Weak<dyn MadClient> = Arc::downgrade(&client);
        let asks = block_on(MadService::of(&asking, 1)).unwrap();
        let asks = asks.register(Class::PERF, 1, &[], client).unwrap();
        let pd = asking.alloc_pd().wait().unwrap();
        let sends = asking.create_cq(4096).wait().unwrap();
        let mr = pd
            .register(Memory::alloc(64).unwrap(), Access::empty())
            .wait()
            .unwrap();
        let init = QpInit::of(QpType::Ud, &sends, &sends)
            .depth(4096, 1)
            .inline(8);
        let sender = pd.create_qp(init).wait().unwrap();
        datagrams(&clock, &sender);
        Self {
            clock,
            hcas,
            answered,
            work,
            asks,
            _service: service,
            to: Address::gsi(Av::to_gid(1, 0, Gid::from(addrs[1]))),
            inbox,
            sender,
            sends,
            _mr: mr,
            _pd: pd,
            device,
            _asking: asking,
        }
    }

    /// Another service of the node, which works `each` for each datagram.
    fn service(&self, each: Duration, called: impl Fn() + marker::Send + 'static) -> Service {
        service(&self.clock, &self.device, &self.work, each, called)
    }

    /// A datagram for a service, which reaches the cable at once.
    fn send(&mut self, service: &Service) {
        let to = Datagram {
            av: self.to.av,
            qpn: service.qpn,
            qkey: UDP_QKEY,
            pkey_index: 0,
        };
        self.sender
            .post_send(Send::new(1).inline(b"datagram").to(&to).signaled())
            .unwrap();
        self.sends.poll(&mut [Wc::default(); 64]);
    }

    /// The asking end's packets are sent, and answers reach it.
    fn turn_asking(&self) {
        while self.hcas[0].turn() {}
    }

    /// Whether the answers from `first` on were in time, for a turn that began at that moment.
    fn judge(&self, first: usize, at: Duration, asked: &[Duration], patience: Duration) {
        for (number, spent) in &self.answered.lock()[first..] {
            let late = (at + *spent).saturating_sub(asked[usize::from(*number)]);
            assert!(
                late <= patience,
                "question {number} was answered after {late:?}"
            );
        }
    }

    /// One turn of the node. Returns how long it worked.
    fn turn_node(&self) -> Duration {
        self.work.begin();
        self.hcas[1].turn();
        self.work.spent()
    }
}

/// Goal: of a burst of datagrams no more than fit in a turn are answered before another client runs (P5). Method: 402
/// questions in one turn of the HCA, with a datagram for another service between the second and the third.
#[test]
fn a_burst_of_questions_lets_others_run() {
    let _alone = alone();
    let mut bed = Bed::new();
    let answered = Arc::clone(&bed.answered);
    let first = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&first);
    let service = service(
        &bed.clock,
        &bed.device,
        &bed.work,
        Duration::ZERO,
        move || {
            seen.lock().get_or_insert(answered.lock().len());
        },
    );
    let to = bed.to;
    bed.asks
        .send((0..2).map(|number| (to, question(Class::PERF, number))));
    bed.turn_asking();
    bed.send(&service);
    bed.asks
        .send((2..402).map(|number| (to, question(Class::PERF, number))));
    // The service takes its own time for what finds no room at once; the node receives nothing until then.
    for _ in 0..64 {
        bed.turn_asking();
        bed.clock.advance(Duration::from_micros(10));
    }
    for _ in 0..64 {
        bed.turn_node();
    }
    let answered = bed.answered.lock().len();
    assert!(answered > 200, "{answered} of 402 had room");
    let before = first.lock().expect("the other client has run");
    assert!(before <= 2 * 16, "{before} answers came before it");
    service.stop();
}

/// Goal: the manager's questions are answered within its patience on a node whose handlers take all of its thread,
/// while a storm of connections arrives and objects are being destroyed (A9). Method: for two seconds of virtual time,
/// 40 services with a handler of 2 ms each that are sent more than the node can do, a burst of 64 requests for
/// connections every 100 ms, each of which makes, modifies and destroys a queue pair by verbs whose commands take 200
/// us, and a question every 10 ms.
#[test]
fn a_busy_node_answers_within_the_managers_patience() {
    let _alone = alone();
    const PATIENCE: Duration = Duration::from_millis(200);
    let commands = CommandConfig {
        time: CommandTime::Fixed(Duration::from_micros(200)),
        ..CommandConfig::default()
    };
    let mut bed = Bed::new();
    let connects = Arc::new(Connects::new(&bed, commands));
    let client: Arc<dyn MadClient> = Arc::<Connects>::clone(&connects);
    let agent = bed
        ._service
        .register(Class::CM, 2, &[Method::SEND], Arc::downgrade(&client))
        .unwrap();
    let services: Vec<_> = (0..40)
        .map(|_| bed.service(Duration::from_millis(2), || ()))
        .collect();
    let (mut busy, mut asked, mut turns) = (Duration::ZERO, Vec::new(), 0_usize);
    let begun = bed.clock.now();
    let (mut next_question, mut next_burst) = (Duration::ZERO, Duration::ZERO);
    let now = |bed: &Bed| bed.clock.now() - begun;
    while now(&bed) < Duration::from_secs(2) {
        while now(&bed) >= next_question {
            let number = asked.len() as u16;
            asked.push(next_question);
            bed.asks.send([(bed.to, question(Class::PERF, number))]);
            next_question += Duration::from_millis(10);
        }
        if now(&bed) >= next_burst {
            let to = bed.to;
            bed.asks
                .send((0..64).map(|number| (to, question(Class::CM, number))));
            next_burst += Duration::from_millis(100);
        }
        // One and a half handlers' worth of work for each moment that has passed: the node cannot keep up.
        for n in 0..3 {
            bed.send(&services[(turns * 3 + n) % services.len()]);
        }
        turns += 1;
        bed.turn_asking();
        let before = bed.answered.lock().len();
        let worked = bed.turn_node();
        let at = now(&bed);
        bed.judge(before, at, &asked, PATIENCE);
        busy += worked;
        bed.clock.advance(worked.max(Duration::from_micros(100)));
    }
    let percent = busy.as_nanos() * 100 / now(&bed).as_nanos();
    assert!(
        (80..=100).contains(&percent),
        "handlers were busy for {percent} %"
    );
    bed.turn_asking();
    bed.turn_node();
    let answered = bed.answered.lock().len();
    assert!(
        asked.len() - answered <= 1,
        "{answered} of {} answered",
        asked.len()
    );
    assert!(
        connects.count() > 100,
        "{} connections were made",
        connects.count()
    );
    drop(agent);
    for service in &services {
        service.stop();
    }
}

/// Makes, modifies and destroys a queue pair for each request, on a device whose commands take time.
struct Connects {
    pd: Pd,
    cq: Cq,
    work: Work,
    made: Arc<AtomicU64>,
    _device: Device,
}

impl Connects {
    fn new(bed: &Bed, commands: CommandConfig) -> Self {
        let inner: Arc<dyn Provider> = Arc::<Hca>::clone(&bed.hcas[1]);
        let engine = Engine::new(bed.clock.clone());
        let device = Device::open(Arc::new(CommandInterface::new(inner, engine, commands)));
        let clock = &bed.clock;
        let device = finish(clock, device);
        let pd = finish(clock, device.alloc_pd());
        let cq = finish(clock, device.create_cq(4096));
        let (work, made) = (bed.work.clone(), Arc::default());
        Self {
            pd,
            cq,
            work,
            made,
            _device: device,
        }
    }

    fn count(&self) -> u64 {
        self.made.load(Relaxed)
    }
}

impl MadClient for Connects {
    fn deliver(&self, _request: Delivery) {
        self.work.spend(Duration::from_micros(50));
        let made = Arc::clone(&self.made);
        let init = QpInit::rc(&self.cq, &self.cq);
        let _ = self.pd.create_qp(init).issue(move |qp| {
            let Ok(qp) = qp else { return };
            let qp = Arc::new(qp);
            let theirs = Arc::clone(&qp);
            let to_init = QpAttr::init(1, Access::empty());
            let _ = qp.modify(to_init).issue(move |_| {
                let to_err = QpAttr::to(QpState::Err);
                let again = Arc::clone(&theirs);
                let _ = theirs.modify(to_err).issue(move |_| {
                    made.fetch_add(1, Relaxed);
                    drop(again);
                });
            });
        });
    }
}

/// Goal: a device whose answers are commands answers from their completion, with no thread and no wait; datagrams that
/// are not its own are not delayed (A8). Method: one command slot of 3 ms, two questions.
#[test]
fn a_device_answers_from_the_completion_of_a_command() {
    let _alone = alone();
    let config = CommandConfig {
        slots: std::num::NonZeroU32::MIN,
        time: CommandTime::Fixed(Duration::from_millis(3)),
        datagrams: true,
        ..CommandConfig::default()
    };
    let bed = Bed::on_commands(config);
    for number in 1..=2 {
        let asked = question(Class::PERF, number);
        bed.asks.request(bed.to, &asked, Retry::default()).unwrap();
    }
    let mut arrived = Vec::new();
    for ms in 0..8 {
        bed.turn_asking();
        bed.turn_node();
        bed.turn_asking();
        for delivery in bed.inbox.0.lock().drain(..) {
            let Delivery::Response { mad, .. } = delivery else {
                panic!("{delivery:?}");
            };
            let header = MadHeader::parse(header_of(&mad));
            arrived.push((ms, header.class_specific));
        }
        bed.clock.advance(Duration::from_millis(1));
    }
    assert_eq!(
        arrived,
        [(3, 1), (6, 2)],
        "milliseconds, and which question"
    );
}
