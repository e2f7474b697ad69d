//! The node of the daemon: it does one thing in a turn, and may be killed between any two steps of it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use hca_sim::link::channel_files;
use hca_sim::link::host::uplink::{arrived, burst_of, packet_of, port_of, transmit};
use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, send, sendmsg,
};
use verbs_core::Error;
use verbs_core::host::channel::FILES;
use verbs_core::host::command::{Failure, encode_result};
use verbs_core::host::message::{MESSAGE_MAX, Token};
use verbs_core::host::number::REST;
use verbs_core::host::{Block, Message};
use verbs_core::sync::Arc;
use verbs_host::{ClientId, Daemon, Ended, Files, NewChannel, Record, User};
use verbs_link::PacketLink as _;
use verbs_link::ring::Rings;
use verbs_link::sys::past_reset;
use verbs_link::time::Instant;

use super::mutant::HostMutant;
use super::place::{Channel, Note, Place, Program};
use super::port::Process;
use crate::{Draw, NetworkPort, Ppm};

/// All programs are one user's, in a namespace of processes that the daemon does not see.
const USER: User = User { uid: 1, pid: 0 };
/// How often the system has no memory for a channel.
const NO_MEMORY: Ppm = Ppm::percent(5);

/// The daemon is killed here.
struct Killed;

pub(super) struct Node {
    place: Place,
    /// `None` while there is none.
    daemon: Option<Daemon>,
    uplink: NetworkPort,
    lines: BTreeMap<ClientId, Line>,
    /// Programs, to whom a mutant tells things.
    programs: BTreeMap<Program, Arc<Process>>,
    ready: BTreeSet<ClientId>,
    /// What outlives a daemon.
    records: BTreeMap<Block, Token>,
    /// Steps until it is killed.
    fuse: Option<u32>,
    /// The time of the run, which the daemon's is ahead of.
    real: Instant,
    /// When the next daemon begins.
    back: Instant,
    psn: u32,
    /// What is received into.
    buffer: Vec<u8>,
    draw: Draw,
    mutant: Option<HostMutant>,
    pub(super) kills: u64,
}

struct Line {
    socket: OwnedFd,
    /// Who it says it is; `None` if it is no program that keeps to the rules.
    program: Option<Program>,
    files: BTreeMap<u32, [OwnedFd; FILES]>,
}

/// The resources that programs still hold on the node; zero everywhere when all have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) clients: usize,
    pub(super) channels: usize,
    pub(super) waiting: usize,
    pub(super) leased: usize,
    pub(super) resting: usize,
}

impl Node {
    /// The first daemon, of a host that has so many blocks that are free: the others rest.
    pub(super) fn new(
        place: Place,
        uplink: NetworkPort,
        free: u16,
        mut draw: Draw,
        mutant: Option<HostMutant>,
    ) -> Self {
        let all = (1..=Block::LAST.number()).filter_map(Block::new);
        let mut token = Token::default();
        draw.fill(&mut token);
        Self {
            place,
            daemon: None,
            uplink,
            lines: BTreeMap::new(),
            programs: BTreeMap::new(),
            ready: BTreeSet::new(),
            records: all.skip(free.into()).map(|block| (block, token)).collect(),
            fuse: None,
            real: Instant::ZERO,
            back: Instant::ZERO,
            psn: 0,
            buffer: vec![0; MESSAGE_MAX + 1],
            draw,
            mutant,
            kills: 0,
        }
    }

    /// A program begins.
    pub(super) fn knows(&mut self, process: &Arc<Process>) {
        self.programs.insert(process.number, Arc::clone(process));
    }

    /// It is killed after so many steps, if any, and the next one begins later.
    pub(super) fn light(&mut self, steps: Option<u32>) {
        self.fuse = steps;
    }

    /// What is left; `None` while there is no daemon.
    pub(super) fn left(&self, now: Instant) -> Option<Left> {
        let daemon = self.daemon.as_ref()?;
        let (leased, resting) = daemon.block_counts(now + REST);
        Some(Left {
            clients: daemon.clients().len(),
            channels: daemon.channel_count(),
            waiting: daemon.waiting(),
            leased,
            resting,
        })
    }

    /// How many lines and neighbours have broken rules, as the daemon has it.
    pub(super) fn broken(&self) -> u64 {
        let counters = self.daemon.as_ref().map(Daemon::counters);
        counters.map_or(0, |all| all.broken_lines + all.broken_neighbours)
    }

    /// Does one thing.
    pub(super) fn turn(&mut self, now: Instant) {
        let Some(mut daemon) = self.daemon.take() else {
            // What comes in the meantime is lost.
            self.uplink.receive(&mut |_| {});
            if now >= self.back {
                self.begin(now);
            }
            return;
        };
        // The daemon's clock has gone for a while.
        self.real = now;
        let at = now + REST;
        match self.act(&mut daemon, at) {
            Ok(()) => self.daemon = Some(daemon),
            Err(Killed) => self.end(now),
        }
    }

    fn begin(&mut self, now: Instant) {
        let port = port_of(&self.uplink, true);
        let mut daemon = Daemon::new(port, self.draw.number());
        let records = self.records.iter().map(|(&block, &token)| Record {
            block,
            token: Some(token),
        });
        daemon.restore(now + REST, records);
        self.daemon = Some(daemon);
        self.place.set_up(true);
        self.place.note(now, Note::Daemon, [1, 0]);
    }

    /// The daemon's process has ended.
    fn end(&mut self, now: Instant) {
        self.kills += 1;
        self.fuse = None;
        self.place.set_up(false);
        self.place
            .note(now, Note::Daemon, [0, self.lines.len() as u64]);
        self.lines.clear();
        self.ready.clear();
        let down = Duration::from_micros(50)..=Duration::from_millis(5);
        self.back = now + self.draw.duration(down);
    }

    fn step(&mut self) -> Result<(), Killed> {
        match &mut self.fuse {
            Some(0) => Err(Killed),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn act(&mut self, daemon: &mut Daemon, now: Instant) -> Result<(), Killed> {
        self.step()?;
        match self.draw.below(10) {
            0 => self.accept(daemon),
            1..=4 => self.hear(daemon, now)?,
            5 => {
                self.uplink.receive(&mut |arrival| {
                    if let Some(packets) = arrived(arrival) {
                        daemon.arrive(now, &packets);
                    }
                });
            }
            6 => {
                if daemon.deadline().is_some_and(|deadline| deadline <= now) {
                    daemon.expire(now);
                }
            }
            _ => {
                self.keep_records(daemon)?;
                self.write_one(daemon)?;
            }
        }
        self.drive(daemon, now)
    }

    fn accept(&mut self, daemon: &mut Daemon) {
        if let Some(socket) = self.place.accept() {
            let line = Line {
                socket,
                program: None,
                files: BTreeMap::new(),
            };
            self.lines.insert(daemon.enter(USER), line);
        }
    }

    /// Takes a datagram of one of the lines.
    fn hear(&mut self, daemon: &mut Daemon, now: Instant) -> Result<(), Killed> {
        if self.lines.is_empty() {
            return Ok(());
        }
        let place = self.draw.below(self.lines.len());
        let Some((&client, line)) = self.lines.iter_mut().nth(place) else {
            return Ok(());
        };
        match past_reset(|| recv(&line.socket, &mut self.buffer[..], RecvFlags::DONTWAIT)) {
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Ok((0, _)) | Err(_) => {
                // To a mutant, blocks have rested when they are given back.
                let when = match self.mutant {
                    Some(HostMutant::Unrested) => self.real,
                    _ => now,
                };
                self.close(daemon, client, when, Ended::Closed);
            }
            Ok((len, _)) => {
                if let Ok(Message::Hello(hello)) = Message::decode(&self.buffer[..len]) {
                    line.program = hello.name.parse().ok();
                }
                daemon.hear(now, client, &self.buffer[..len]);
            }
        }
        self.step()
    }

    fn close(&mut self, daemon: &mut Daemon, client: ClientId, now: Instant, why: Ended) {
        self.lines.remove(&client);
        self.ready.remove(&client);
        daemon.leave(now, client, why);
    }

    /// Does what the daemon wants, a step each.
    fn drive(&mut self, daemon: &mut Daemon, now: Instant) -> Result<(), Killed> {
        self.keep_records(daemon)?;
        while daemon.poll_group().is_some() {}
        while daemon.poll_moved().is_some() {}
        self.send_outward(daemon)?;
        while let Some(mad) = daemon.poll_mad() {
            self.step()?;
            self.psn = self.psn.wrapping_add(1);
            let way = (mad.src, mad.dst);
            let Some(packet) = packet_of(way, &mad.mad, self.psn) else {
                continue;
            };
            if self.mutant == Some(HostMutant::ForgottenDreq) {
                continue;
            }
            let burst = burst_of(way, &packet);
            if daemon.port().addresses.contains(&mad.dst) {
                daemon.arrive(now, &burst);
            } else {
                transmit(&mut self.uplink, &burst);
            }
        }
        while let Some((client, tag, _)) = daemon.poll_command() {
            let failure = Failure::Verb(Error::Unsupported(verbs_core::Attr::Verb));
            daemon.answer(client, tag, &encode_result(&Err(failure)));
        }
        while let Some(channel) = daemon.poll_channel() {
            self.step()?;
            self.open_channel(daemon, &channel);
        }
        while let Some(client) = daemon.poll_ready() {
            self.ready.insert(client);
        }
        while let Some((client, why)) = daemon.poll_ended() {
            self.step()?;
            let program = self.lines.get(&client).and_then(|line| line.program);
            if let (Some(program), false) = (program, matches!(why, Ended::Refused(_))) {
                let what = format!("the daemon ends program {program}: {why}");
                self.place.violated(self.real, what);
            }
            while self.write(daemon, client) {}
            self.close(daemon, client, now, why);
        }
        Ok(())
    }

    fn send_outward(&mut self, daemon: &mut Daemon) -> Result<(), Killed> {
        while let Some(packets) = daemon.next_outward() {
            if !transmit(&mut self.uplink, &packets) {
                break;
            }
            daemon.outward_sent();
            self.step()?;
        }
        Ok(())
    }

    /// Keeps what the next daemon has to know.
    fn keep_records(&mut self, daemon: &mut Daemon) -> Result<(), Killed> {
        while let Some(Record { block, token }) = daemon.poll_record() {
            match token {
                Some(token) => self.records.insert(block, token),
                None => self.records.remove(&block),
            };
            self.step()?;
        }
        Ok(())
    }

    fn open_channel(&mut self, daemon: &mut Daemon, channel: &NewChannel) {
        let files = channel_files(channel.ring_len).ok();
        let files = files.filter(|_| !self.draw.chance(NO_MEMORY));
        if !daemon.channel_made(channel.number, files.is_some()) {
            return;
        }
        let Some(files) = files else { return };
        if let Ok(rings) = Rings::memory(&files[0][0], channel.ring_len) {
            let program = |client| self.lines.get(client).and_then(|line| line.program);
            let ends = channel.ends.each_ref().map(|end| program(end).unwrap_or(0));
            self.place
                .add_channel(channel.number, Channel { ends, rings });
        }
        for (client, files) in channel.ends.iter().zip(files) {
            if let Some(line) = self.lines.get_mut(client) {
                line.files.insert(channel.number, files);
            }
        }
    }

    /// Sends one datagram to one of those who have something to read.
    fn write_one(&mut self, daemon: &mut Daemon) -> Result<(), Killed> {
        if self.ready.is_empty() {
            return Ok(());
        }
        let place = self.draw.below(self.ready.len());
        if let Some(&client) = self.ready.iter().nth(place)
            && !self.write(daemon, client)
            && daemon.next_for(client).is_none()
        {
            self.ready.remove(&client);
        }
        self.step()
    }

    /// Sends a datagram to a client. False if there is none, or no room.
    fn write(&mut self, daemon: &mut Daemon, client: ClientId) -> bool {
        let (Some(line), Some(datagram)) = (self.lines.get_mut(&client), daemon.next_for(client))
        else {
            return false;
        };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let number = match daemon.files_for_next(client) {
            Some(Files::Channel(end)) => Some(end.number),
            // There are no sockets of a network here.
            Some(Files::Socket(_)) | None => None,
        };
        let files = number.and_then(|number| line.files.remove(&number));
        let sent = match &files {
            None => send(&line.socket, datagram, flags),
            Some(files) => {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                let files = files.each_ref().map(AsFd::as_fd);
                control.push(SendAncillaryMessage::ScmRights(&files));
                sendmsg(&line.socket, &[IoSlice::new(datagram)], &mut control, flags)
            }
        };
        if matches!(sent, Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR)) {
            line.files.extend(number.zip(files));
            return false;
        }
        if self.mutant == Some(HostMutant::GoneFirst)
            && let Ok(Message::Gone(blocks)) = Message::decode(datagram)
            && let Some(process) = line.program.and_then(|number| self.programs.get(&number))
        {
            let blocks = blocks.into_iter().filter_map(Block::new);
            blocks.for_each(|block| process.hears_early(block));
        }
        daemon.sent(client);
        true
    }
}
