//! Devices that arrive, lose their port for a while, and are removed, while clients have messages under way: over any
//! link.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use hca_sim::{Hca, connect_with};
use verbs_core::device_list::{Change, DeviceList};
use verbs_core::sync::Mutex;
use verbs_core::{
    Access, Cq, Device, Error, EventType, Memory, Mr, Pd, PostError, Qp, QpAttr, QpInit, Recv,
    Send, Wc, WcStatus,
};

/// Threads of the clients of a device, and queue pairs of each.
const THREADS: usize = 2;
const QPS: usize = 3;
/// Messages of a direction of a queue pair that may be under way.
const DEPTH: u64 = 8;
/// Messages that every thread carries before the next thing happens.
const SOME: u64 = 500;
const BYTES: usize = 64;
/// How long a test waits for something that is bound to happen.
const PATIENCE: Duration = Duration::from_secs(60);

type Log = Arc<Mutex<Vec<String>>>;

fn told(change: &Change) -> String {
    match change {
        Change::Arrived(entry) => format!("+{}", entry.name),
        Change::Gone { name, reason, .. } => format!("-{name}: {reason}"),
        Change::Port { port, is_up, .. } => format!("port {port} {is_up}"),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain until {what}");
        thread::yield_now();
    }
}

/// One queue pair and what was posted to it.
struct Lane {
    qp: Qp,
    sends: u64,
    sent: u64,
    recvs: u64,
    received: u64,
    /// Work requests that completed in error, and the status of the first.
    flushed: u64,
    first_error: Option<WcStatus>,
}

/// Several queue pairs of a thread, their completion queue and memory. Dropped in this order.
struct Client {
    lanes: Vec<Lane>,
    cq: Cq,
    mr: Mr,
    _pd: Pd,
    device: Arc<Device>,
    /// Whether it sends anything.
    sends: bool,
    /// Messages that it has sent, and that have arrived.
    count: Arc<AtomicU64>,
}

const RECEIVE: u64 = 1 << 32;

impl Client {
    fn new(device: &Arc<Device>) -> Self {
        let pd = device.alloc_pd().wait().unwrap();
        let cq = device.create_cq(256).wait().unwrap();
        let memory = Memory::alloc(2 * BYTES).unwrap();
        let mr = pd.register(memory, Access::LOCAL_WRITE).wait().unwrap();
        let lane = || Lane {
            qp: pd.create_qp(QpInit::rc(&cq, &cq)).wait().unwrap(),
            sends: 0,
            sent: 0,
            recvs: 0,
            received: 0,
            flushed: 0,
            first_error: None,
        };
        Self {
            lanes: (0..QPS).map(|_| lane()).collect(),
            cq,
            mr,
            _pd: pd,
            device: Arc::clone(device),
            sends: true,
            count: Arc::default(),
        }
    }

    /// Connects each queue pair of one with one of the other. A port may be away for 2 s.
    fn connect(&mut self, other: &mut Self) {
        let patient = |rts: &mut QpAttr| (rts.timeout, rts.retry_cnt) = (Some(16), Some(7));
        for (a, b) in self.lanes.iter_mut().zip(&mut other.lanes) {
            block_on(connect_with(&mut a.qp, &mut b.qp, patient)).unwrap();
        }
    }

    /// Posts as much as may be under way to the queue pairs that have no error.
    fn post(&mut self) -> Result<(), PostError> {
        let (from, into) = (self.mr.slice(0..BYTES), self.mr.slice(BYTES..2 * BYTES));
        for (at, lane) in self.lanes.iter_mut().enumerate() {
            if lane.first_error.is_some() {
                continue;
            }
            let name = (at as u64) << 40;
            while lane.recvs - lane.received < 2 * DEPTH {
                let recv = Recv::new(name | RECEIVE | lane.recvs & 0xffff).into(into);
                lane.qp.post_recv(recv)?;
                lane.recvs += 1;
            }
            while self.sends && lane.sends - lane.sent < DEPTH {
                let send = Send::new(name | lane.sends & 0xffff).from(from);
                lane.qp.post_send(send.signaled())?;
                lane.sends += 1;
            }
        }
        Ok(())
    }

    /// Takes what has completed: of each queue each once and in order.
    fn poll(&mut self) {
        let mut out = [Wc::default(); 32];
        for wc in self.cq.poll(&mut out) {
            let lane = &mut self.lanes[(wc.wr_id >> 40) as usize];
            let done = match wc.wr_id & RECEIVE {
                0 => &mut lane.sent,
                _ => &mut lane.received,
            };
            assert_eq!(wc.wr_id & 0xffff, *done & 0xffff, "in order: {wc:?}");
            *done += 1;
            if wc.is_ok() {
                assert_eq!(lane.first_error, None, "nothing succeeds behind an error");
                self.count.fetch_add(1, Relaxed);
            } else {
                lane.first_error.get_or_insert(wc.status);
                lane.flushed += 1;
            }
        }
    }

    fn is_idle(&self) -> bool {
        let mut lanes = self.lanes.iter();
        lanes.all(|lane| lane.sends == lane.sent && lane.recvs == lane.received)
    }

    /// Carries messages until the device is gone, or every queue pair has an error; then takes the rest.
    fn work(&mut self) {
        while self.lanes.iter().any(|lane| lane.first_error.is_none()) {
            match self.post() {
                Ok(()) => self.poll(),
                Err(PostError::DeviceRemoved) => break,
                Err(error) => panic!("{error}"),
            }
            thread::yield_now();
        }
        until("everything posted has completed", || {
            self.poll();
            self.is_idle()
        });
    }

    /// Carries messages until it is told to end.
    fn work_until(&mut self, is_over: &AtomicU64) {
        while is_over.load(Relaxed) == 0 {
            self.post().unwrap();
            self.poll();
            thread::yield_now();
        }
    }
}

/// Clients on one device each, connected in pairs.
fn connected(a: &Arc<Device>, b: &Arc<Device>, count: usize) -> Vec<[Client; 2]> {
    let pair = |_| {
        let mut pair = [a, b].map(Client::new);
        let [here, there] = &mut pair;
        here.connect(there);
        pair
    };
    (0..count).map(pair).collect()
}

/// Every one of them carries so many more messages.
#[track_caller]
fn go_on(what: &str, counts: &[Arc<AtomicU64>], messages: u64) {
    let now = || counts.iter().map(|count| count.load(Relaxed));
    let before: Vec<_> = now().collect();
    until(what, || {
        now()
            .zip(&before)
            .all(|(now, before)| now >= before + messages)
    });
}

/// Ends the threads of a test that fails, which would wait for ever otherwise.
struct EndsThreads<'a> {
    is_over: &'a AtomicU64,
    near: &'a Hca,
}

impl Drop for EndsThreads<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.is_over.store(1, Relaxed);
            self.near.remove();
        }
    }
}

/// Those that watch a list: a thread with a stream, which opens every device that is called "far", and a handler.
fn watched<'s>(list: &DeviceList, scope: &'s Scope<'s, '_>) -> (Receiver<Device>, [Log; 2]) {
    let logs = [Log::default(), Log::default()];
    let [stream, handler] = logs.clone();
    list.on_change(move |change| handler.lock().push(told(&change)));
    let (opened, devices) = channel();
    let mut changes = list.watch();
    scope.spawn(move || {
        loop {
            let change = block_on(changes.next());
            let is_over = matches!(&change, Change::Gone { name, .. } if &**name == "near");
            if let Change::Arrived(entry) = &change
                && &*entry.name == "far"
            {
                opened.send(entry.open().wait().unwrap()).unwrap();
            }
            stream.lock().push(told(&change));
            if is_over {
                return;
            }
        }
    });
    (devices, logs)
}

/// A device that was opened by the watcher of a list.
fn arrives(devices: &Receiver<Device>, events: &Arc<Mutex<Vec<EventType>>>) -> Arc<Device> {
    let device = devices.recv_timeout(PATIENCE).unwrap();
    let events = Arc::clone(events);
    device.on_event(move |event| events.lock().push(event.event));
    Arc::new(device)
}

/// The device was removed under that client, which still has all that it had: what it has posted has completed once each,
/// and its objects can be let go.
fn was_told(client: Client) {
    let Client {
        lanes,
        mut cq,
        mr,
        device,
        ..
    } = client;
    for mut lane in lanes {
        let refused = lane.qp.post_send(Send::new(0).from(mr.slice(0..1)));
        assert_eq!(refused, Err(PostError::DeviceRemoved));
        assert!(matches!(
            lane.first_error,
            None | Some(WcStatus::WrFlushErr)
        ));
        lane.qp.destroy().wait().unwrap();
    }
    assert_eq!(block_on(cq.ready()), Err(Error::DeviceRemoved));
    assert_eq!(device.query().wait().unwrap_err(), Error::DeviceRemoved);
    cq.destroy().wait().unwrap();
    let memory = Arc::clone(mr.memory());
    mr.dereg().wait().unwrap();
    memory.write(0, b"is the client's").unwrap();
}

/// The clients of a device that has arrived work, while its port goes and is back, until it is removed.
fn works_and_goes<'s>(
    far: &Hca,
    [device, near]: [&Arc<Device>; 2],
    others: &[Arc<AtomicU64>],
    scope: &'s Scope<'s, '_>,
) {
    let [mut idle, _peer] = connected(device, near, 1).remove(0);
    idle.sends = false;
    idle.post().unwrap();
    let pairs = connected(device, near, THREADS);
    let clients = pairs.iter().flatten();
    let counts: Vec<_> = clients.map(|client| Arc::clone(&client.count)).collect();
    let work = |mut client: Client| {
        scope.spawn(move || {
            client.work();
            client
        })
    };
    let at_work: Vec<_> = pairs.into_iter().map(|pair| pair.map(work)).collect();
    go_on("the new device's clients work", &counts, SOME);

    far.port_down();
    thread::sleep(Duration::from_millis(5));
    go_on("others work beside a port that is down", others, SOME / 10);
    far.port_up();
    go_on("the port is back", &counts, SOME);

    let fatal = device.fatal();
    far.remove();
    assert_eq!(block_on(fatal), Error::DeviceRemoved);
    for pair in at_work {
        let [far, near] = pair.map(|client| client.join().unwrap());
        was_told(far);
        // The peer hears the same as from any host that is gone, when its queue pairs have lost patience.
        for lane in &near.lanes {
            assert_eq!(lane.first_error, Some(WcStatus::RetryExcErr));
        }
    }
    until("the receives of an idle client are flushed", || {
        idle.poll();
        idle.is_idle()
    });
    for lane in &idle.lanes {
        assert_eq!(lane.flushed, 2 * DEPTH);
    }
    was_told(idle);
    assert_eq!(device.implicit_destroy_failures(), 0);
    go_on("the others work on", others, SOME);
}

/// Messages go to a device that is back.
fn works_again(device: &Arc<Device>, near: &Arc<Device>) {
    let mut pairs = connected(device, near, 1);
    let [here, there] = &mut pairs[0];
    until("messages go to the device that is back", || {
        for client in [&mut *here, &mut *there] {
            client.post().unwrap();
            client.poll();
        }
        there.count.load(Relaxed) > SOME
    });
}

/// Goal: devices arrive, lose their port and have it back, and are removed under load. Who watches the list hears of all of
/// it, as a stream and by a handler; who holds on to the device is told by it, and loses nothing but the device; who works
/// on others is not disturbed (E12). Method: two devices with clients at work; a third one that arrives, whose clients exchange
/// messages with one of the two, on several queue pairs and threads; `plug` makes an HCA of that name, on a link to the others.
pub(crate) fn comes_and_goes(plug: &dyn Fn(&str) -> Arc<Hca>) {
    let list = DeviceList::new();
    let hcas = ["near", "other"].map(plug);
    hcas.iter().for_each(|hca| hca.join(&list));
    let [near, other] = hcas
        .each_ref()
        .map(|hca| Arc::new(hca.open().wait().unwrap()));
    let mut steady = connected(&near, &other, 1).remove(0);
    let others = steady.each_ref().map(|client| Arc::clone(&client.count));
    let is_over = &AtomicU64::new(0);
    thread::scope(|scope| {
        let _ends = EndsThreads {
            is_over,
            near: &hcas[0],
        };
        let (devices, logs) = watched(&list, scope);
        for client in &mut steady {
            scope.spawn(move || client.work_until(is_over));
        }
        go_on("the others work", &others, SOME);

        let far = plug("far");
        far.join(&list);
        let events = Arc::default();
        let device = arrives(&devices, &events);
        works_and_goes(&far, [&device, &near], &others, scope);
        let events = events.lock();
        let count = |kind| events.iter().filter(|&&event| event == kind).count();
        let (down, up) = (EventType::PortErr, EventType::PortActive);
        assert_eq!((count(down), count(up)), (1, 1), "{events:?}");
        assert_eq!(count(EventType::DeviceFatal), 1, "{events:?}");
        assert_eq!(events.last(), Some(&EventType::DeviceFatal));

        // Another card in its place.
        let again = plug("far");
        again.join(&list);
        works_again(&arrives(&devices, &Arc::default()), &near);
        is_over.store(1, Relaxed);
        again.leave();
        hcas[0].leave();
        let expected = [
            "+near",
            "+other",
            "+far",
            "port 1 false",
            "port 1 true",
            "-far: taken out",
            "+far",
            "-far: no longer offered",
            "-near: no longer offered",
        ];
        for log in logs {
            until("all changes are told", || {
                log.lock().len() >= expected.len()
            });
            assert_eq!(*log.lock(), expected);
        }
    });
    for lane in steady.iter().flat_map(|client| &client.lanes) {
        assert_eq!(lane.first_error, None, "the others were not disturbed");
    }
}
