//! The place where the host's daemon listens, and what is known of its programs beside the code under test.

use std::collections::{BTreeMap, VecDeque};
use std::hash::Hasher as _;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use siphasher::sip128::SipHasher24;
use verbs_core::host::Block;
use verbs_core::host::number::REST;
use verbs_core::sync::{Arc, Mutex};
use verbs_link::ring::{Mapped, Shared as _, Word};
use verbs_link::time::Instant;

use crate::Digest;

/// A program, whose number is never used again in a run.
pub(super) type Program = u32;

/// What all nodes of a run see. Clones are the same.
#[derive(Clone, Default)]
pub(super) struct Place(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    is_up: bool,
    /// How many daemons there were.
    daemons: u32,
    /// Sockets of programs that the daemon has not taken yet.
    backlog: VecDeque<OwnedFd>,
    channels: BTreeMap<u32, Channel>,
    blocks: BTreeMap<Block, (Program, Option<Instant>)>,
    violation: Option<(Instant, String)>,
    /// Of all that was noted.
    hasher: SipHasher24,
}

/// What happens in a run, for its digest; the first number of each note.
#[derive(Clone, Copy)]
pub(super) enum Note {
    Leased = 1,
    Died,
    Gone,
    Daemon,
    Established,
    Received,
    Over,
}

/// The memory of two programs.
#[derive(Clone)]
pub(super) struct Channel {
    pub(super) ends: [Program; 2],
    /// The ring that each of them writes to.
    pub(super) rings: [Mapped; 2],
}

impl Channel {
    /// The ring that `writer` writes to, if it has an end of this channel.
    pub(super) fn written_by(&self, writer: Program) -> Option<&Mapped> {
        let end = self.ends.iter().position(|&end| end == writer)?;
        Some(&self.rings[end])
    }
}

impl Place {
    /// Connects, as a program does.
    pub(super) fn connect(&self) -> Result<OwnedFd, Errno> {
        let mut known = self.0.lock();
        if !known.is_up {
            return Err(Errno::CONNREFUSED);
        }
        let (kind, flags) = (
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        );
        let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
        known.backlog.push_back(theirs);
        Ok(ours)
    }

    pub(super) fn accept(&self) -> Option<OwnedFd> {
        self.0.lock().backlog.pop_front()
    }

    /// A daemon begins to listen, or has ended: then those who have connected learn that.
    pub(super) fn set_up(&self, is_up: bool) {
        let mut known = self.0.lock();
        known.is_up = is_up;
        known.daemons += u32::from(is_up);
        known.backlog.clear();
    }

    /// The number of the daemon that listens.
    pub(super) fn daemon(&self) -> Option<u32> {
        let known = self.0.lock();
        known.is_up.then_some(known.daemons)
    }

    /// How many daemons there were.
    pub(super) fn daemons(&self) -> u32 {
        self.0.lock().daemons
    }

    pub(super) fn add_channel(&self, number: u32, channel: Channel) {
        self.0.lock().channels.insert(number, channel);
    }

    /// The rings that a program writes to.
    pub(super) fn written_by(&self, writer: Program) -> Vec<Mapped> {
        let known = self.0.lock();
        let all = known.channels.values();
        all.filter_map(|channel| channel.written_by(writer).cloned())
            .collect()
    }

    /// Bytes that the owner of a block has written for a program, and that this one has not read.
    pub(super) fn unread(&self, block: Block, reader: Program) -> u64 {
        let known = self.0.lock();
        let Some(&(writer, _)) = known.blocks.get(&block) else {
            return 0;
        };
        let between = |channel: &&Channel| channel.ends.contains(&reader);
        let all = known.channels.values().filter(between);
        let rings = all.filter_map(|channel| channel.written_by(writer));
        rings
            .map(|ring| ring.load(Word::Tail).saturating_sub(ring.load(Word::Head)))
            .sum()
    }

    /// A program has a block from now on.
    pub(super) fn leased(&self, now: Instant, block: Block, program: Program) {
        self.note(now, Note::Leased, [block.number().into(), program.into()]);
        let before = self.0.lock().blocks.insert(block, (program, None));
        match before {
            Some((owner, _)) if owner == program => {}
            Some((owner, None)) => {
                let what = format!("{block:?} is program {owner}'s and was leased to {program}");
                self.violated(now, what);
            }
            Some((owner, Some(left))) if now.since(left) < REST => {
                let rested = now.since(left);
                let what = format!(
                    "{block:?} of program {owner} has rested {rested:?} and was leased to {program}"
                );
                self.violated(now, what);
            }
            _ => {}
        }
    }

    /// A program has ended.
    pub(super) fn died(&self, now: Instant, program: Program) {
        self.note(now, Note::Died, [program.into(), 0]);
        let mut known = self.0.lock();
        let theirs = known.blocks.values_mut();
        for (_, left) in theirs.filter(|(owner, left)| *owner == program && left.is_none()) {
            *left = Some(now);
        }
    }

    /// A block of a program that is there.
    pub(super) fn block_of(&self, program: Program) -> Option<Block> {
        let known = self.0.lock();
        let mut all = known.blocks.iter();
        all.find(|(_, owner)| **owner == (program, None))
            .map(|(&block, _)| block)
    }

    /// Something has happened. Packets are no part of the digest: connection managers draw the numbers in them.
    pub(super) fn note(&self, now: Instant, note: Note, numbers: [u64; 2]) {
        let mut known = self.0.lock();
        let [first, second] = numbers;
        for number in [note as u64, now.as_nanos(), first, second] {
            known.hasher.write(&number.to_le_bytes());
        }
    }

    pub(super) fn digest(&self) -> Digest {
        Digest::of(&self.0.lock().hasher)
    }

    /// A rule is broken; the first one counts.
    pub(super) fn violated(&self, now: Instant, what: String) {
        self.0.lock().violation.get_or_insert((now, what));
    }

    pub(super) fn violation(&self) -> Option<(Instant, String)> {
        self.0.lock().violation.clone()
    }
}

/// How soon the peers of a program that has ended know it, as long as there is a daemon.
pub(super) const TOLD: Duration = Duration::from_millis(20);
