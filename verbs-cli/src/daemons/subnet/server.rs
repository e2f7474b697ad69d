//! The sockets of a hosted subnet: one thread that waits for whatever comes next.

use std::collections::BTreeMap;
use std::io;
use std::iter;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use hca_sim::link::fabric::message::{BELL, Message, PACKETS_MAX, Refusal};
use hca_sim::link::fabric::socket::{Take, pair, receive_into, send};
use hca_sim::link::fabric::{Host, PortRef};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::thread::sched_yield;
use verbs_core::time;
use verbs_sm::Config;

use super::super::door::Door;
use crate::capture::{CaptureError, LinkCapture};
use crate::ending::Signal;
use crate::subnet::builtin::BuiltIn;
use crate::subnet::client::{Client, Kind, MESSAGE_BYTES, TURN_BYTES, WAITING_BYTES_MAX};
use crate::subnet::descriptors::Descriptors;
use crate::subnet::error::SubnetError;
use crate::subnet::managers::Managers;
use crate::subnet::place::{Place, control_of};
use crate::subnet::stop::Stop;

/// How often it looks for packets before it sleeps, and lets others go on in between: as [`RemotePort`] does.
///
/// [`RemotePort`]: hca_sim::link::fabric::RemotePort
const LINGERS: usize = 100;

/// A hosted subnet and its clients' sockets.
pub(crate) struct Server {
    host: Host,
    /// For clients, and for operators.
    doors: [Door; 2],
    clients: BTreeMap<u32, Client>,
    /// Connections of each process, sessions among them.
    processes: BTreeMap<i32, usize>,
    of_process_max: usize,
    managers: Managers,
    builtin: Option<BuiltIn>,
    stop: Stop,
    start: Instant,
    /// What is received into: what clients say, and their packets.
    buffer: Vec<u8>,
    message: Vec<u8>,
    /// Packets have come since it slept.
    has_carried: bool,
    /// So much waits for clients that do not read that it is not to become much more.
    is_tight: bool,
    /// Has all packets on all links.
    capture: Option<LinkCapture>,
    /// Its files, which go when all else has gone.
    _place: Place,
}

/// What poll has said.
#[derive(Default)]
struct Ready {
    stop: bool,
    watch: bool,
    doors: [bool; 2],
    closed_ends: Vec<bool>,
    /// Clients that have something to say, and perhaps packets.
    readable: Vec<u32>,
    /// Clients whose sockets have room.
    writable: Vec<u32>,
}

impl Server {
    /// Listens at a path, and for operators beside it.
    pub(crate) fn new(
        host: Host,
        mut place: Place,
        path: &Path,
        room: Descriptors,
        stop: Stop,
    ) -> Result<Self, SubnetError> {
        let managers = place.managers(room.managers_max)?;
        // A program that finds the first finds the other.
        let control = place.listen(&control_of(path))?;
        let main = place.listen(path)?;
        Ok(Self {
            host,
            doors: [main, control].map(Door::new),
            clients: BTreeMap::new(),
            processes: BTreeMap::new(),
            of_process_max: (room.clients_max / 2).max(1),
            managers,
            builtin: None,
            stop,
            start: Instant::now(),
            buffer: Vec::new(),
            message: Vec::new(),
            has_carried: false,
            is_tight: false,
            capture: None,
            _place: place,
        })
    }

    /// Writes all packets on all links there from now on.
    pub(crate) fn capture(&mut self, capture: LinkCapture) {
        self.host.record().begin();
        self.capture = Some(capture);
    }

    /// Flushes the capture, if there is one, and tells why it ended early, if it did.
    pub(crate) fn finish_capture(&mut self) -> Result<(), CaptureError> {
        self.write_capture();
        match &self.capture {
            Some(capture) => capture.finish(),
            None => Ok(()),
        }
    }

    fn write_capture(&mut self) {
        let Self { capture, host, .. } = self;
        if let Some(capture) = capture {
            capture.write(iter::from_fn(|| host.record().poll()));
        }
    }

    /// Has the subnet managed from here.
    pub(crate) fn manage(
        &mut self,
        at: PortRef,
        name: &str,
        config: Config,
    ) -> Result<(), SubnetError> {
        let now = self.now();
        let builtin = BuiltIn::new(&mut self.host, now, at, name, config)?;
        self.builtin = Some(builtin.ok_or(SubnetError::NoAdapter)?);
        self.write()
    }

    /// Serves until the program is told to end, or waiting fails.
    pub(crate) fn run(&mut self) -> Result<Signal, SubnetError> {
        let mut is_rung = true;
        loop {
            if is_rung && let Some(signal) = self.stop.signal() {
                return Ok(signal);
            }
            self.linger();
            let ready = self.wait().map_err(SubnetError::Wait)?;
            is_rung = ready.stop;
            let now = self.now();
            self.host.handle_timeout(now);
            if let Some(builtin) = &mut self.builtin {
                builtin.handle_timeout(&mut self.host, now)?;
            }
            if ready.watch {
                for at in self.managers.opened() {
                    self.host.set_sm(now, at, true);
                }
            }
            let closed = |number| ready.closed_ends.get(number).copied().unwrap_or(false);
            for at in self.managers.closed(closed) {
                self.host.set_sm(now, at, false);
            }
            for client in ready.writable {
                self.clients.get_mut(&client).map(Client::unblock);
            }
            // So many as have something to say share a turn, so that the wait for the next one does not grow by what
            // each of them has.
            let sharers = ready.readable.len();
            for client in ready.readable {
                self.hear(client, sharers);
            }
            self.take_packets();
            self.accept(ready.doors);
            self.write()?;
            self.write_capture();
        }
    }

    fn now(&self) -> time::Instant {
        time::Instant::ZERO + self.start.elapsed()
    }

    /// After packets, lets others go on for a moment before it sleeps: packets that they send in the meantime cost no process a
    /// bell and a wake.
    fn linger(&mut self) {
        if !std::mem::take(&mut self.has_carried) {
            return;
        }
        for _ in 0..LINGERS {
            if self.clients.values().any(Client::has_packets) {
                return;
            }
            sched_yield();
        }
    }

    /// Waits until something can be read or written, or it is time for something.
    fn wait(&self) -> io::Result<Ready> {
        let [main, control] = &self.doors;
        let mut entries = vec![
            PollFd::from_borrowed_fd(self.stop.bell(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.managers.watch(), PollFlags::IN),
            main.entry(),
            control.entry(),
        ];
        let first_end = entries.len();
        // A closed other end is told without being asked for.
        let ends = self.managers.ends();
        entries.extend(ends.map(|end| PollFd::from_borrowed_fd(end, PollFlags::empty())));
        let first_client = entries.len();
        let now = self.now();
        // No client is told by a descriptor of packets that wait; a client that is held back has its own end.
        let (mut hold, mut packets_at) = (None, None);
        for client in self.clients.values() {
            let mut wanted = PollFlags::empty();
            wanted.set(PollFlags::IN, client.is_heard());
            wanted.set(PollFlags::OUT, client.has_messages());
            entries.push(PollFd::new(&client.socket, wanted));
            match self.held_until(client, now) {
                Some(end) => hold = hold.into_iter().chain([end]).min(),
                None if client.sleep() => {}
                None => packets_at = Some(now),
            }
        }
        let builtin = self.builtin.as_ref().and_then(BuiltIn::poll_timeout);
        let due = self.host.poll_timeout().into_iter();
        let doors = self.doors.iter().filter_map(Door::rests_until);
        let due = due
            .chain(builtin)
            .chain(hold)
            .chain(packets_at)
            .chain(doors);
        let left = due.min();
        let left = left.map(|due| Timespec::try_from(due.since(now)).unwrap_or(LONG));
        let polled = poll(&mut entries, left.as_ref());
        self.clients.values().for_each(Client::wake);
        match polled {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Ready::default()),
            Err(error) => return Err(error.into()),
        }
        let happened = |entry: &PollFd<'_>| !entry.revents().is_empty();
        let (own, clients) = entries.split_at(first_client);
        let is_ready = |index: usize| own.get(index).is_some_and(happened);
        let with = |events: PollFlags| {
            let numbers = self.clients.keys().zip(clients);
            let found = numbers.filter(move |(_, entry)| entry.revents().intersects(events));
            found.map(|(&number, _)| number).collect()
        };
        Ok(Ready {
            stop: is_ready(0),
            watch: is_ready(1),
            doors: [is_ready(2), is_ready(3)],
            closed_ends: own.iter().skip(first_end).map(happened).collect(),
            readable: with(PollFlags::IN | PollFlags::HUP | PollFlags::ERR),
            writable: with(PollFlags::OUT | PollFlags::HUP | PollFlags::ERR),
        })
    }

    /// Until when nothing is taken from a client because a receiver of its packets is full.
    fn held_until(&self, client: &Client, now: time::Instant) -> Option<time::Instant> {
        let receiver = client.held_by.and_then(|it| self.clients.get(&it));
        receiver.and_then(|it| it.holds_until(now))
    }

    fn accept(&mut self, [is_client, is_operator]: [bool; 2]) {
        let now = self.now();
        let [main, control] = &mut self.doors;
        let clients = main.accept(now, is_client);
        let operators = control.accept(now, is_operator);
        for socket in clients {
            let process = process_of(&socket);
            let of_process = self.processes.get(&process).copied().unwrap_or(0);
            let is_over = of_process >= self.of_process_max;
            let number = (!is_over).then(|| self.host.connect()).flatten();
            self.admit(number, socket, process);
        }
        for socket in operators {
            let process = process_of(&socket);
            let number = self.host.connect_operator();
            self.admit(number, socket, process);
        }
    }

    /// Takes a client in, or tells it that there are too many.
    fn admit(&mut self, number: Option<u32>, socket: OwnedFd, process: i32) {
        match number {
            Some(number) => self.insert(number, Client::new(socket, Kind::Asker, process)),
            None => {
                // Its socket is new, and has room for one.
                let _ = send(
                    socket.as_fd(),
                    &Message::Refused(Refusal::Full).encode(),
                    false,
                );
            }
        }
    }

    fn insert(&mut self, number: u32, client: Client) {
        *self.processes.entry(client.process).or_default() += 1;
        self.clients.insert(number, client);
    }

    fn remove(&mut self, number: u32) {
        let Some(client) = self.clients.remove(&number) else {
            return;
        };
        if let Some(count) = self.processes.get_mut(&client.process) {
            *count -= 1;
            if *count == 0 {
                self.processes.remove(&client.process);
            }
        }
    }

    /// Takes what a client says, as one of so many.
    fn hear(&mut self, number: u32, sharers: usize) {
        let turn = self.clients.get(&number).map_or(0, Client::turn);
        let turn = (turn / sharers).max(1);
        let mut taken = 0;
        for _ in 0..turn {
            let Some(client) = self.clients.get_mut(&number) else {
                return;
            };
            let socket = client.socket.as_fd();
            let len = match receive_into(socket, Take::Away, false, &mut self.buffer) {
                Ok((len, file)) => {
                    client.offer(file);
                    len
                }
                Err(Errno::AGAIN | Errno::INTR) => return,
                Err(_) => 0,
            };
            if self.buffer[..len] == BELL {
                continue;
            }
            // What it has sent before goes before, and most of all before it is gone.
            let is_in_order = self.drain(number);
            let now = self.now();
            let said = &self.buffer[..len];
            if !is_in_order || said.is_empty() || self.host.handle(now, number, said).is_err() {
                return self.drop_client(number);
            }
            taken += len;
            if taken >= MESSAGE_BYTES / sharers {
                return;
            }
        }
    }

    /// Takes packets from each client that has some and is not held back, in turn.
    fn take_packets(&mut self) {
        let now = self.now();
        let has_packets = |&(_, client): &(&u32, &Client)| {
            client.has_packets() && self.held_until(client, now).is_none()
        };
        let ready = self.clients.iter().filter(has_packets);
        let ready: Vec<u32> = ready.map(|(&number, _)| number).collect();
        let bytes = TURN_BYTES / ready.len().max(1);
        for number in ready {
            self.has_carried = true;
            match self.take_some(number, bytes) {
                Some(_) => {
                    let full = self.queue_packets();
                    if let Some(client) = self.clients.get_mut(&number) {
                        client.held_by = full;
                    }
                }
                None => self.drop_client(number),
            }
        }
    }

    /// Takes all packets that a client has sent so far. Whether they made sense.
    fn drain(&mut self, number: u32) -> bool {
        self.take_some(number, usize::MAX).is_some()
    }

    /// Takes packets of a client: some of them, of about so many bytes. `None` if they make no sense.
    fn take_some(&mut self, number: u32, bytes: usize) -> Option<()> {
        let now = self.now();
        let Self {
            host,
            clients,
            message,
            ..
        } = self;
        let Some(rings) = clients.get_mut(&number).and_then(Client::rings) else {
            return Some(());
        };
        // One that writes while this reads has another turn.
        let mut left = bytes.min(rings.reader.capacity());
        while let Some(len) = rings.reader.next_len().ok()? {
            if message.len() < len {
                *message = host.spare();
            }
            if message.len() < len {
                message.resize(Some(PACKETS_MAX).filter(|&max| len <= max)?, 0);
            }
            let len = rings.reader.read(message).ok()??;
            host.handle_packets(now, number, message, len).ok()?;
            left = left.saturating_sub(len.max(1));
            if left == 0 {
                break;
            }
        }
        let bell = rings.reader.bell();
        clients.get(&number)?.ring(bell);
        Some(())
    }

    /// Queues packets for the clients that they are for. A client whose queue is full then.
    fn queue_packets(&mut self) -> Option<u32> {
        let now = self.now();
        let mut full = None;
        while let Some((number, message)) = self.host.poll_packets() {
            match self.clients.get_mut(&number) {
                Some(client) => {
                    let refused = client.queue(message, now, self.is_tight);
                    refused.into_iter().for_each(|it| self.host.recycle(it));
                    full = client.is_full().then_some(number).or(full);
                }
                None => self.host.recycle(message),
            }
        }
        full
    }

    fn drop_client(&mut self, number: u32) {
        self.remove(number);
        let now = self.now();
        self.host.disconnect(now, number);
        while let Some(session) = self.host.poll_closed() {
            self.remove(session);
        }
    }

    /// Hands out what the host has for its clients, as far as they take it.
    fn write(&mut self) -> Result<(), SubnetError> {
        // A client that is lost may leave something for others.
        while self.write_to_all()? {}
        Ok(())
    }

    /// Whether a client was lost.
    fn write_to_all(&mut self) -> Result<bool, SubnetError> {
        while let Some((number, at)) = self.host.poll_file() {
            let path = self.managers.file(at).ok();
            let path = path.and_then(|path| path.to_str());
            self.host.answer_file(number, path);
        }
        while let Some((number, message)) = self.host.poll_transmit() {
            let now = self.now();
            if let Some(builtin) = self.builtin.as_mut().filter(|it| it.client() == number) {
                builtin.handle(&mut self.host, now, &message)?;
                continue;
            }
            match message {
                Message::Opened { session } => self.open(number, session),
                other => self.say(number, &other, None),
            }
        }
        self.queue_packets();
        let now = self.now();
        let mut lost = Vec::new();
        let mut waiting = 0;
        for (&number, client) in &mut self.clients {
            if client.flush(&mut self.host, now).is_err() || client.is_deaf() {
                lost.push(number);
            }
            waiting += client.waiting();
        }
        self.is_tight = waiting > WAITING_BYTES_MAX;
        let is_anybody_lost = !lost.is_empty();
        for number in lost {
            self.drop_client(number);
        }
        Ok(is_anybody_lost)
    }

    fn say(&mut self, number: u32, message: &Message, end: Option<OwnedFd>) {
        if let Some(client) = self.clients.get_mut(&number) {
            client.say(message, end, self.is_tight);
        }
    }

    /// Makes the connection of a session, and hands its other end to the client that has opened it.
    fn open(&mut self, number: u32, session: u32) {
        let Some(process) = self.clients.get(&number).map(|client| client.process) else {
            // Its session has ended with it.
            return;
        };
        match pair() {
            Ok((near, far)) => {
                self.insert(session, Client::new(near, Kind::Session, process));
                self.say(number, &Message::Opened { session }, Some(far));
            }
            Err(_) => {
                let now = self.now();
                self.host.disconnect(now, session);
                self.say(number, &Message::Refused(Refusal::Full), None);
            }
        }
    }
}

/// The process at the other end of a new connection; 0 if it is not in sight.
fn process_of(socket: &OwnedFd) -> i32 {
    socket_peercred(socket).map_or(0, |peer| peer.pid.as_raw_nonzero().get())
}

/// As good as for ever.
const LONG: Timespec = Timespec {
    tv_sec: Duration::from_secs(3600).as_secs().cast_signed(),
    tv_nsec: 0,
};
