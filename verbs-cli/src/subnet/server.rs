//! The sockets of a hosted subnet: one thread that waits for whatever comes next.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use hca_sim::link::fabric::socket::{Take, accept_from, listen_at, receive_into, send};
use hca_sim::link::fabric::{Host, PortRef};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use verbs_core::mad::Time;
use verbs_sm::Config;

use crate::subnet::builtin::BuiltIn;
use crate::subnet::error::SubnetError;
use crate::subnet::managers::Managers;

/// Messages that wait for a client to read: more than it ever has requests outstanding. One that does
/// not read at all is disconnected.
const BACKLOG_MAX: usize = 100_000;

/// Messages with packets that wait for an HCA to take them, from which on its senders are not read from. So a
/// sender waits for a receiver that does not keep up, as it waits for credits on a link.
const FULL: usize = 8;

/// How long senders wait for a receiver that takes nothing, as long as packets stay at the head of a queue in
/// a switch: others than that receiver may wait for those senders.
const LIFETIME: Duration = Duration::from_secs(1);

/// Messages with packets that wait in any case; what comes then is lost.
const PACKETS_MAX: usize = 256;

/// Messages and bytes taken from one client before others have their turn.
const TURN: usize = 64;
const TURN_BYTES: usize = 256 << 10;

#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    backlog: VecDeque<Vec<u8>>,
    /// Messages with packets; others go before them.
    packets: VecDeque<Vec<u8>>,
    /// Since when the first of these is that.
    since: Time,
    /// The receiver that was full when something came from here for it.
    held_by: Option<u32>,
}

/// A hosted subnet and its clients' sockets.
#[derive(Debug)]
pub(crate) struct Server {
    host: Host,
    listener: OwnedFd,
    clients: BTreeMap<u32, Client>,
    managers: Managers,
    builtin: Option<BuiltIn>,
    start: Instant,
    /// What is received into.
    buffer: Vec<u8>,
}

/// What poll has said.
struct Ready {
    listener: bool,
    watch: bool,
    closed_ends: Vec<bool>,
    readable: Vec<u32>,
}

impl Server {
    /// Listens at a path.
    pub(crate) fn new(host: Host, path: &Path) -> Result<Self, SubnetError> {
        let listener = listen_at(path).map_err(|source| SubnetError::Listen {
            path: path.to_owned(),
            source: source.into(),
        })?;
        let mut folder = path.as_os_str().to_owned();
        folder.push(".d");
        let managers = Managers::new(folder.clone().into());
        let managers = managers.map_err(|source| SubnetError::Files {
            path: folder.into(),
            source,
        })?;
        Ok(Self {
            host,
            listener,
            clients: BTreeMap::new(),
            managers,
            builtin: None,
            start: Instant::now(),
            buffer: Vec::new(),
        })
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

    /// Serves until waiting fails.
    pub(crate) fn run(&mut self) -> Result<(), SubnetError> {
        loop {
            let ready = self.wait().map_err(SubnetError::Wait)?;
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
            for client in ready.readable {
                self.read(client);
            }
            if ready.listener {
                self.accept();
            }
            self.write()?;
        }
    }

    fn now(&self) -> Time {
        Time::ZERO + self.start.elapsed()
    }

    /// Waits until something can be read or written, or it is time for something.
    fn wait(&self) -> io::Result<Ready> {
        let mut entries = vec![
            PollFd::new(&self.listener, PollFlags::IN),
            PollFd::from_borrowed_fd(self.managers.watch(), PollFlags::IN),
        ];
        // A closed other end is told without being asked for.
        let ends = self.managers.ends();
        entries.extend(ends.map(|end| PollFd::from_borrowed_fd(end, PollFlags::empty())));
        let first_client = entries.len();
        let now = self.now();
        let mut hold = None;
        for client in self.clients.values() {
            let mut wanted = PollFlags::IN;
            wanted.set(PollFlags::OUT, client.has_waiting());
            let receiver = client.held_by.and_then(|it| self.clients.get(&it));
            if let Some(end) = receiver.and_then(|it| it.holds_until(now)) {
                // That a client is gone is told all the same.
                wanted.remove(PollFlags::IN);
                hold = hold.into_iter().chain([end]).min();
            }
            entries.push(PollFd::new(&client.socket, wanted));
        }
        let builtin = self.builtin.as_ref().and_then(BuiltIn::poll_timeout);
        let due = self.host.poll_timeout().into_iter();
        let due = due.chain(builtin).chain(hold).min();
        let left = due.map(|due| Timespec::try_from(due.since(now)).unwrap_or(LONG));
        match poll(&mut entries, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let happened = |entry: &PollFd<'_>| !entry.revents().is_empty();
        let (own, clients) = entries.split_at(first_client);
        let is_ready = |index: usize| own.get(index).is_some_and(happened);
        let numbers = self.clients.keys().zip(clients);
        let readable = numbers.filter(|(_, entry)| {
            let events = entry.revents();
            events.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR)
        });
        Ok(Ready {
            listener: is_ready(0),
            watch: is_ready(1),
            closed_ends: own.iter().skip(2).map(happened).collect(),
            readable: readable.map(|(&number, _)| number).collect(),
        })
    }

    fn accept(&mut self) {
        // One that has gone again, or that there is no room for, is its own affair.
        let Ok(socket) = accept_from(self.listener.as_fd()) else {
            return;
        };
        if let Some(number) = self.host.connect() {
            let (backlog, packets) = (VecDeque::new(), VecDeque::new());
            let client = Client {
                socket,
                backlog,
                packets,
                since: Time::ZERO,
                held_by: None,
            };
            self.clients.insert(number, client);
        }
    }

    fn read(&mut self, number: u32) {
        let mut bytes = 0;
        for _ in 0..TURN {
            if bytes >= TURN_BYTES {
                break;
            }
            let Some(client) = self.clients.get(&number) else {
                return;
            };
            let now = self.now();
            let (socket, buffer) = (client.socket.as_fd(), &mut self.buffer);
            match receive_into(socket, Take::Away, false, buffer) {
                Ok(len @ 1..) if self.host.handle(now, number, &self.buffer[..len]).is_ok() => {
                    bytes += len;
                }
                Err(Errno::AGAIN | Errno::INTR) => break,
                _ => return self.drop_client(number),
            }
        }
        let full = self.queue_packets();
        if let Some(client) = self.clients.get_mut(&number) {
            client.held_by = full;
        }
    }

    /// Queues packets for the clients that they are for. A client whose queue is full then.
    fn queue_packets(&mut self) -> Option<u32> {
        let now = self.now();
        let mut full = None;
        while let Some((number, message)) = self.host.poll_packets() {
            match self.clients.get_mut(&number) {
                Some(client) if client.packets.len() < PACKETS_MAX => {
                    if client.packets.is_empty() {
                        client.since = now;
                    }
                    client.packets.push_back(message);
                    if client.packets.len() >= FULL {
                        full = Some(number);
                    }
                }
                _ => self.host.recycle(message),
            }
        }
        full
    }

    fn drop_client(&mut self, number: u32) {
        self.clients.remove(&number);
        let now = self.now();
        self.host.disconnect(now, number);
    }

    /// Hands out what the host has for its clients, as far as they take it.
    fn write(&mut self) -> Result<(), SubnetError> {
        // Who is lost may leave something for others.
        while self.write_to_all()? {}
        Ok(())
    }

    /// Whether somebody was lost.
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
            if let Some(client) = self.clients.get_mut(&number) {
                client.backlog.push_back(message.encode());
            }
        }
        self.queue_packets();
        let now = self.now();
        let mut lost = Vec::new();
        for (&number, client) in &mut self.clients {
            if client.flush(&mut self.host, now).is_err() || client.backlog.len() > BACKLOG_MAX {
                lost.push(number);
            }
        }
        let is_anybody_lost = !lost.is_empty();
        for number in lost {
            self.drop_client(number);
        }
        Ok(is_anybody_lost)
    }
}

impl Client {
    fn has_waiting(&self) -> bool {
        !self.backlog.is_empty() || !self.packets.is_empty()
    }

    /// Until when senders wait for it, if they do.
    fn holds_until(&self, now: Time) -> Option<Time> {
        let end = self.since + LIFETIME;
        (self.packets.len() >= FULL && now < end).then_some(end)
    }

    /// Sends what waits, as far as there is room.
    fn flush(&mut self, host: &mut Host, now: Time) -> Result<(), Errno> {
        while let Some(bytes) = self.backlog.front() {
            match send(self.socket.as_fd(), bytes, false) {
                Ok(()) => {
                    self.backlog.pop_front();
                }
                Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        while let Some(bytes) = self.packets.front() {
            match send(self.socket.as_fd(), bytes, false) {
                Ok(()) => {
                    self.since = now;
                    if let Some(sent) = self.packets.pop_front() {
                        host.recycle(sent);
                    }
                }
                Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// As good as for ever.
const LONG: Timespec = Timespec {
    tv_sec: Duration::from_secs(3600).as_secs().cast_signed(),
    tv_nsec: 0,
};
