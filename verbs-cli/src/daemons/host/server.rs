//! The daemon at work: one thread waits for clients, one for packets, and whoever has something holds the daemon for it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use hca_sim::link::host::uplink::{arrived, burst_of, follow, packet_of, port_of, transmit};
use hca_sim::link::{PacketLink, SteeredSocket, Steering, Udp, Waiter, channel_files};
use rustix::process::geteuid;
use verbs_core::host::command::{Failure, encode_result};
use verbs_core::host::message::MESSAGE_MAX;
use verbs_core::sync::{Arc, Mutex, thread};
use verbs_core::time;
use verbs_core::{Attr, Error, Seed};
use verbs_host::{ChannelEnd, ClientId, Daemon, Ended, Files, NewChannel};

use super::super::door::Door;
use super::leases::Leases;
use super::lines::{Came, Line, Read, Source, Watch};
use super::{Place, keeper};
use crate::ending::Signal;
use crate::report::remark;
use crate::subnet::stop::Stop;

/// Datagrams of one client that are taken before others have their turn.
const TURN: usize = 16;

/// Datagrams of a client whose process has ended that are heard at most; a child may go on sending.
const LAST_WORDS: usize = 1024;

/// How soon packets are offered again for which the network had no room.
const AGAIN: Duration = Duration::from_millis(1);

/// What the program's arguments and the system allow.
pub(super) struct Limits {
    /// The program ends so long after the last client has gone.
    pub(super) linger: Option<Duration>,
    /// Connections at most, those among them that have said nothing yet. Of these, the oldest gives way to a new one.
    pub(super) lines_max: usize,
    pub(super) is_verbose: bool,
}

pub(super) struct Server {
    shared: Arc<Mutex<Shared>>,
    watch: Arc<Watch>,
    stop: Stop,
    linger: Option<Duration>,
    /// The socket, which goes last.
    place: Place,
}

/// What both threads use.
struct Shared {
    daemon: Daemon,
    link: Udp,
    is_up: bool,
    /// Which packets of the network come to programs' own sockets.
    steering: Steering,
    /// The addresses whose sockets the keeper has.
    kept: BTreeSet<IpAddr>,
    lines: BTreeMap<ClientId, Line>,
    limits: Limits,
    /// What the next daemon reads.
    leases: Arc<Leases>,
    watch: Arc<Watch>,
    start: Instant,
    /// What is received into.
    buffer: Vec<u8>,
    /// Packet numbers of the daemon's own datagrams.
    psn: u32,
    /// Since when there is no client.
    idle_since: Instant,
}

impl Server {
    pub(super) fn new(
        link: Udp,
        steering: Steering,
        kept: BTreeSet<IpAddr>,
        place: Place,
        stop: Stop,
        limits: Limits,
    ) -> io::Result<Self> {
        let watch = Arc::new(Watch::new()?);
        watch.add(place.door.listener(), Source::Listener)?;
        watch.add(stop.bell(), Source::Stop)?;
        let port = port_of(&link, true);
        let linger = limits.linger;
        let mut daemon = Daemon::new(port, Seed::from_system());
        daemon.restore(time::Instant::ZERO, place.records.iter().copied());
        let mut shared = Shared {
            daemon,
            link,
            is_up: true,
            steering,
            kept,
            lines: BTreeMap::new(),
            limits,
            leases: Arc::clone(&place.leases),
            watch: Arc::clone(&watch),
            start: Instant::now(),
            buffer: vec![0; MESSAGE_MAX + 1],
            psn: 0,
            idle_since: Instant::now(),
        };
        shared.keep_own();
        Ok(Self {
            shared: Arc::new(Mutex::new(shared)),
            watch,
            stop,
            linger,
            place,
        })
    }

    /// Serves until the program is told to end, or nobody has been there for as long as it lingers.
    pub(super) fn run(mut self) -> io::Result<Option<Signal>> {
        let waiter = self.shared.lock().link.waiter();
        if let Some(waiter) = waiter {
            let shared = Arc::clone(&self.shared);
            thread::Builder::new()
                .name("uplink".into())
                .spawn(move || attend(&shared, &*waiter))?;
        }
        let mut is_rung = true;
        loop {
            if is_rung && let Some(signal) = self.stop.signal() {
                self.place.has_programs = !self.shared.lock().daemon.clients().is_empty();
                drop(self.place);
                return Ok(Some(signal));
            }
            let timeout = {
                let mut shared = self.shared.lock();
                shared.flush();
                let rests = self.place.door.rests_until();
                let rests = rests.map(|until| until.since(shared.now()));
                match self.linger.map(|linger| shared.idles_until(linger)) {
                    Some(Some(Duration::ZERO)) => return Ok(None),
                    left => min(min(left.flatten(), rests), shared.timeout()),
                }
            };
            is_rung = false;
            let mut has_visitors = false;
            let mut came = Vec::new();
            self.watch.wait(timeout, |event| came.push(event))?;
            let mut shared = self.shared.lock();
            for event in came {
                match event.from {
                    Source::Stop => is_rung = true,
                    Source::Listener => has_visitors = true,
                    _ => shared.attend(event),
                }
            }
            shared.accept(&mut self.place.door, has_visitors);
        }
    }
}

fn min(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// The thread that waits for packets.
fn attend(shared: &Mutex<Shared>, waiter: &dyn Waiter) {
    loop {
        waiter.wait(None, true);
        let mut shared = shared.lock();
        shared.receive();
        shared.flush();
    }
}

impl Shared {
    fn now(&self) -> time::Instant {
        let nanos = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        time::Instant::from_nanos(nanos)
    }

    /// When something is due that nobody else brings about.
    fn timeout(&self) -> Option<Duration> {
        let now = self.now();
        let due = self.daemon.deadline().map(|deadline| deadline.since(now));
        min(due, self.daemon.next_outward().map(|_| AGAIN))
    }

    /// How long the program goes on without a client; `None` if there is one.
    fn idles_until(&self, linger: Duration) -> Option<Duration> {
        let is_idle = self.lines.is_empty();
        is_idle.then(|| linger.saturating_sub(self.idle_since.elapsed()))
    }

    /// Takes those who have connected.
    fn accept(&mut self, door: &mut Door, is_ready: bool) {
        let did_rest = door.rests_until().is_some();
        for socket in door.accept(self.now(), is_ready) {
            let line = Line::new(socket);
            if self.lines.len() >= self.limits.lines_max {
                let silent = self
                    .lines
                    .keys()
                    .copied()
                    .find(|&id| !self.daemon.is_member(id));
                let Some(oldest) = silent else { continue };
                self.close(oldest, Ended::Closed);
            }
            let Ok(line) = line else { continue };
            let id = self.daemon.enter(line.user);
            if self.watch.add_line(&line, id).is_err() {
                self.daemon.leave(self.now(), id, Ended::Closed);
                continue;
            }
            self.lines.insert(id, line);
        }
        let rests = door.rests_until().is_some();
        if rests != did_rest {
            self.watch.listen(door.listener(), !rests);
        }
    }

    /// Something has come of a client.
    fn attend(&mut self, came: Came) {
        match came.from {
            Source::Process(client) => {
                // What it has said before it ended is heard.
                self.hear(client, LAST_WORDS);
                self.close(client, Ended::Died);
            }
            Source::Line(client) => {
                if came.has_room {
                    self.write(client);
                }
                self.hear(client, TURN);
            }
            Source::Listener | Source::Stop => {}
        }
    }

    fn hear(&mut self, client: ClientId, turns: usize) {
        let mut buffer = std::mem::take(&mut self.buffer);
        for _ in 0..turns {
            let Some(line) = self.lines.get(&client) else {
                break;
            };
            match line.read(&mut buffer) {
                Read::Datagram(len) => {
                    let now = self.now();
                    self.daemon.hear(now, client, &buffer[..len]);
                    self.see_to_ended();
                }
                Read::Nothing => break,
                Read::Closed => self.close(client, Ended::Closed),
            }
        }
        self.buffer = buffer;
        self.flush();
    }

    /// Packets that have come, and news of the network.
    fn receive(&mut self) {
        let now = self.now();
        let Self { daemon, link, .. } = self;
        link.receive(&mut |arrival| {
            // What programs of this host send each other does not come from the network, but for groups: so the address is
            // forged.
            let is_ours = daemon.port().addresses.contains(&arrival.src);
            let is_forged = is_ours && !arrival.dst.is_multicast();
            if let Some(packets) = arrived(arrival).filter(|_| !is_forged) {
                daemon.arrive(now, &packets);
            }
        });
        while self.link.refusal().is_some() {}
        if follow(&mut self.link, &mut self.is_up) {
            let port = port_of(&self.link, self.is_up);
            self.daemon.port_changed(port);
            let given = self.steering.followed(&self.link);
            self.hand_out(given);
            self.keep_own();
        }
    }

    /// Sends what there is to be sent, and does what else the daemon wants.
    fn flush(&mut self) {
        let now = self.now();
        if self
            .daemon
            .deadline()
            .is_some_and(|deadline| deadline <= now)
        {
            self.daemon.expire(now);
        }
        self.keep_records();
        loop {
            while let Some(change) = self.daemon.poll_group() {
                match change.joins {
                    true => {
                        if let Err(error) = self.link.join(change.group) {
                            let group = change.group;
                            remark(format_args!("verbs host: cannot join {group}: {error}"));
                        }
                    }
                    false => self.link.leave(change.group),
                }
            }
            // Before the daemon's own: what a program has sent arrives before its peers learn that it has gone.
            while let Some(packets) = self.daemon.next_outward() {
                if !transmit(&mut self.link, &packets) {
                    break;
                }
                self.daemon.outward_sent();
            }
            while let Some(mad) = self.daemon.poll_mad() {
                self.psn = self.psn.wrapping_add(1);
                let way = (mad.src, mad.dst);
                let Some(packet) = packet_of(way, &mad.mad, self.psn) else {
                    continue;
                };
                let burst = burst_of(way, &packet);
                if self.daemon.port().addresses.contains(&mad.dst) {
                    self.daemon.arrive(now, &burst);
                } else {
                    // One that is lost is as one that the network loses.
                    let _ = transmit(&mut self.link, &burst);
                }
            }
            while let Some((client, tag, _)) = self.daemon.poll_command() {
                // What programs do with their devices they do themselves.
                let failure = Failure::Verb(Error::Unsupported(Attr::Verb));
                self.daemon
                    .answer(client, tag, &encode_result(&Err(failure)));
            }
            while let Some(channel) = self.daemon.poll_channel() {
                self.open_channel(&channel);
            }
            while let Some((client, blocks)) = self.daemon.poll_moved() {
                // What is sent by a socket is seen by nobody: those of other users have none.
                let line = self.lines.get(&client);
                let is_ours = line.is_some_and(|line| line.user.uid == geteuid().as_raw());
                let blocks = if is_ours { blocks } else { Vec::new() };
                let given = self.steering.moved(&self.link, client.number(), blocks);
                self.hand_out(given);
            }
            let Some(client) = self.daemon.poll_ready() else {
                break;
            };
            self.write(client);
        }
        self.see_to_ended();
    }

    /// Programs get sockets of their own, which the keeper keeps.
    fn hand_out(&mut self, given: Vec<SteeredSocket>) {
        for one in given {
            if one.is_new {
                keeper::keep_seat(one.seat, &one.socket);
            }
            let (address, _) = one.seat;
            let client = ClientId::new(one.program);
            let line = client.and_then(|client| Some((client, self.lines.get_mut(&client)?)));
            if let Some((client, line)) = line {
                let files = Files::Socket(address);
                line.files.insert(files, vec![one.socket]);
                self.daemon.give_socket(client, address);
            }
        }
    }

    /// The keeper has the sockets of the addresses that the link has now.
    fn keep_own(&mut self) {
        let mut kept = BTreeSet::new();
        for (address, socket) in self.link.sockets() {
            if !self.kept.contains(&address) {
                keeper::keep_seat((address, 0), socket);
            }
            kept.insert(address);
        }
        self.kept
            .difference(&kept)
            .copied()
            .for_each(keeper::forget);
        self.kept = kept;
    }

    /// Keeps what the next daemon has to know; before clients hear of it.
    fn keep_records(&mut self) {
        while let Some(record) = self.daemon.poll_record() {
            if let Err(error) = self.leases.write(record) {
                tracing::warn!(%error, "the next daemon does not learn which numbers are leased");
            }
        }
    }

    /// Makes what two clients share.
    fn open_channel(&mut self, channel: &NewChannel) {
        let files = channel_files(channel.ring_len);
        if let Err(error) = &files {
            tracing::warn!(%error, "no memory can be shared between two programs");
        }
        let is_needed = self.daemon.channel_made(channel.number, files.is_ok());
        let Some(files) = files.ok().filter(|_| is_needed) else {
            return;
        };
        let mut pids = [0; 2];
        let number = channel.number;
        let ends = (0..).zip(&channel.ends);
        for (((end, client), files), pid) in ends.zip(files).zip(&mut pids) {
            if let Some(line) = self.lines.get_mut(client) {
                let end = Files::Channel(ChannelEnd { number, end });
                line.files.insert(end, files.map(Arc::new).into());
                *pid = line.user.pid;
            }
        }
        if self.limits.is_verbose {
            let [one, other] = pids;
            remark(format_args!(
                "verbs host: processes {one} and {other} share memory"
            ));
        }
    }

    /// Sends what a client is to read, as far as there is room.
    fn write(&mut self, client: ClientId) {
        let Some(line) = self.lines.get_mut(&client) else {
            return;
        };
        let mut is_full = false;
        while let Some(datagram) = self.daemon.next_for(client) {
            let files = self.daemon.files_for_next(client);
            if !line.write(datagram, files) {
                is_full = true;
                break;
            }
            self.daemon.sent(client);
        }
        self.watch.ask_for_room(line, client, is_full);
    }

    /// Closes the lines of those whom the daemon has ended.
    fn see_to_ended(&mut self) {
        while let Some((client, why)) = self.daemon.poll_ended() {
            // Who is refused reads why.
            self.write(client);
            self.close(client, why);
        }
    }

    fn close(&mut self, client: ClientId, why: Ended) {
        let Some(line) = self.lines.remove(&client) else {
            return;
        };
        let now = self.now();
        self.daemon.leave(now, client, why);
        if self.limits.is_verbose {
            let pid = line.user.pid;
            remark(format_args!("verbs host: process {pid} has gone: {why}"));
        }
        if self.lines.is_empty() {
            self.idle_since = Instant::now();
        }
    }
}
