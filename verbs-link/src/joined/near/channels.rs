//! The channels of a port: which of them packets to a queue pair number take, and which of them are read in a turn.

use std::collections::BTreeMap;

use arrayvec::ArrayVec;
use slab::Slab;
use verbs_core::Bounce;
use verbs_core::host::Block;
use verbs_core::host::channel::Head;
use verbs_core::host::message::{PACKETS_MAX, Packets};
use verbs_core::mem::{Unmapped, Window};

use super::channel::{Channel, Put};
use super::inbound::{Bounds, Taken};
use crate::FillWindow;
use crate::joined::waiter::Heard;
use crate::ring::{Broken, Mapped, Watch};
use crate::time::Clock;

/// Messages that are read of one channel in a turn.
const MESSAGES: usize = 4;
/// Channels that are read in every turn, because they had something lately.
const HOT: usize = 8;
/// Other channels that are read in a turn, one after the other.
const COLD: usize = 8;
/// Bursts through the daemon after which a channel is asked for again that could not be had.
const ASK_AGAIN: u32 = 1024;

/// How packets to a block of queue pair numbers travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Through the daemon, which was asked for a channel.
    Asked,
    /// Through the daemon, so many more bursts at least.
    Daemon(u32),
    /// Through the channel with that key.
    Channel(usize),
}

/// Takes the packets of a message; of a long packet the headers, and its payload.
type Sink<'s> = &'s mut dyn FnMut(&Packets<'_>, Option<Window<'_>>);

/// A channel that is read from now on, and what it is watched with.
pub(in crate::joined) type Opened = (u32, Watch<Mapped>);

/// What a channel's end means for the port.
#[derive(Debug)]
pub(in crate::joined) struct Ended {
    /// The channel that has ended; `None` if only blocks of its neighbour have.
    pub(in crate::joined) number: Option<u32>,
    /// The neighbour has broken the rules.
    pub(in crate::joined) is_broken: bool,
    /// The neighbour's blocks that no longer exist for this process.
    pub(in crate::joined) gone: Vec<Block>,
}

/// Which way a burst takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::joined) enum Path {
    Channel(usize),
    Daemon,
    /// Through the daemon, and a channel to the owner of that block is to be asked for.
    Ask(Block),
}

#[derive(Debug)]
pub(in crate::joined) struct Channels {
    all: Slab<Channel>,
    /// The keys in the order in which they are read.
    keys: Vec<usize>,
    next: usize,
    hot: ArrayVec<usize, HOT>,
    /// Those whose neighbour has ended, or blocks of it, which are read in every turn.
    ending: Vec<usize>,
    ways: BTreeMap<Block, Way>,
    /// What messages are copied to before they are looked at.
    buffer: Bounce,
    pub(in crate::joined) clock: Clock,
    /// Messages that neighbours may not send.
    pub(in crate::joined) refused: u64,
    /// Blocks end with the channel of their neighbour.
    pub(in crate::joined) ends_blocks: bool,
    takes_long: bool,
}

impl Channels {
    pub(in crate::joined) fn new() -> Self {
        Self {
            all: Slab::new(),
            keys: Vec::new(),
            next: 0,
            hot: ArrayVec::new(),
            ending: Vec::new(),
            ways: BTreeMap::new(),
            buffer: Bounce::new(Head::LEN_MAX + PACKETS_MAX),
            clock: Clock::wall(),
            refused: 0,
            ends_blocks: false,
            takes_long: false,
        }
    }

    /// How packets to a block travel now.
    pub(in crate::joined) fn path(&mut self, block: Block) -> Path {
        match self.ways.get_mut(&block) {
            Some(Way::Channel(key)) => Path::Channel(*key),
            Some(Way::Asked) => Path::Daemon,
            Some(Way::Daemon(left)) if *left > 0 => {
                *left -= 1;
                Path::Daemon
            }
            Some(Way::Daemon(_)) | None => {
                self.ways.insert(block, Way::Asked);
                Path::Ask(block)
            }
        }
    }

    /// The channel that packets to a block take now.
    pub(in crate::joined) fn channel_of(&self, block: Option<Block>) -> Option<usize> {
        match self.ways.get(&block?) {
            Some(Way::Channel(key)) => Some(*key),
            _ => None,
        }
    }

    /// There is no channel to the owner of that block.
    pub(in crate::joined) fn refuse(&mut self, block: Block) {
        self.ways.insert(block, Way::Daemon(ASK_AGAIN));
    }

    /// A new channel.
    pub(in crate::joined) fn add(&mut self, mut channel: Channel) {
        if self.takes_long {
            channel.inbound.take_long();
        }
        let key = self.all.insert(channel);
        self.keys.push(key);
    }

    /// The neighbour of that channel has these blocks. False if there is no such channel.
    pub(in crate::joined) fn name_blocks(&mut self, number: u32, blocks: &[Block]) -> bool {
        let Some(key) = self.key_of(number) else {
            for &block in blocks {
                self.refuse(block);
            }
            return false;
        };
        for &block in blocks {
            // A channel that there was under another daemon goes on.
            let way = self.ways.get(&block);
            if let Some(Way::Channel(other)) = way
                && self.all.contains(*other)
                && *other != key
            {
                continue;
            }
            match self.all[key].is_over {
                true => self.refuse(block),
                false => drop(self.ways.insert(block, Way::Channel(key))),
            }
            if !self.all[key].blocks.contains(&block) {
                self.all[key].blocks.push(block);
            }
        }
        true
    }

    pub(in crate::joined) fn get_mut(&mut self, number: u32) -> Option<&mut Channel> {
        let key = self.key_of(number)?;
        self.all.get_mut(key)
    }

    /// Blocks that no longer exist, as a rule of one neighbour. Returns those whose end is told now: if there is a channel to
    /// their owner, what this one has written is read first. Also returns what channels are watched with that are read
    /// from now on.
    pub(in crate::joined) fn end_blocks(&mut self, blocks: &[Block]) -> (Vec<Block>, Vec<Opened>) {
        let mut opened = Vec::new();
        let mut neighbour = None;
        let mut rest = Vec::new();
        for &block in blocks {
            self.ways.remove(&block);
            let mut all = self.all.iter_mut();
            let Some((key, channel)) = all.find(|(_, it)| it.blocks.contains(&block)) else {
                rest.push(block);
                continue;
            };
            let was_open = channel.is_open;
            channel.lose_block(block);
            if channel.is_open && !was_open {
                opened.push((channel.number, channel.watch()));
            }
            if channel.has_ended() {
                neighbour = Some(key);
            }
            self.ends(key);
        }
        // Blocks of it that this process has not heard of.
        if let Some(key) = neighbour {
            let known = &mut self.all[key];
            rest.drain(..).for_each(|block| known.lose_block(block));
        }
        (rest, opened)
    }

    /// Writes packets to a channel.
    pub(in crate::joined) fn put(
        &mut self,
        key: usize,
        packets: &Packets<'_>,
    ) -> Result<Put, Ended> {
        let Some(channel) = self.all.get_mut(key) else {
            return Ok(Put::Lost);
        };
        let put = channel.put(packets, &self.clock);
        put.map_err(|Broken| self.break_off(key))
    }

    /// Long packets are taken, from all neighbours.
    pub(in crate::joined) fn take_long(&mut self) {
        self.takes_long = true;
        for (_, channel) in &mut self.all {
            channel.inbound.take_long();
        }
    }

    /// The longest payload of a long packet to a block.
    pub(in crate::joined) fn longest(&mut self, block: Option<Block>) -> Option<usize> {
        let key = self.channel_of(block)?;
        self.all.get_mut(key)?.longest()
    }

    /// Writes a long packet to a channel, whose headers these are; within, what `fill` fails with.
    pub(in crate::joined) fn put_long(
        &mut self,
        key: usize,
        headers: &Packets<'_>,
        len: usize,
        fill: FillWindow<'_>,
    ) -> Result<Result<Put, Unmapped>, Ended> {
        let Some(channel) = self.all.get_mut(key) else {
            return Ok(Ok(Put::Lost));
        };
        let put = channel.put_long(headers, len, fill, &self.clock);
        put.map_err(|Broken| self.break_off(key))
    }

    /// Whether a channel takes so many bytes now; one that has been full for too long does, and loses them.
    pub(in crate::joined) fn takes(&mut self, key: usize, bytes: usize) -> Result<bool, Ended> {
        let Some(channel) = self.all.get_mut(key) else {
            return Ok(true);
        };
        let takes = channel.takes(bytes, &self.clock);
        takes.map_err(|Broken| self.break_off(key))
    }

    /// What a waiting thread has heard.
    pub(in crate::joined) fn heard(&mut self, heard: &Heard) -> Option<Ended> {
        let key = self.key_of(heard.number)?;
        let channel = &mut self.all[key];
        if heard.is_over && !std::mem::replace(&mut channel.is_over, true) {
            // Nobody reads what would be written.
            for &block in &channel.blocks {
                self.ways.insert(block, Way::Daemon(ASK_AGAIN));
            }
            self.ends(key);
        }
        let may = self.all[key].check_rings(heard.rings);
        self.warm(key);
        may.err().map(|Broken| self.break_off(key))
    }

    /// Reads a bounded number of messages. Returns how many packets those had.
    pub(in crate::joined) fn read(
        &mut self,
        bounds: &Bounds<'_>,
        sink: Sink<'_>,
        ended: &mut Vec<Ended>,
    ) -> usize {
        let mut packets = 0;
        let turn = self.turn();
        for &key in &turn {
            packets += self.read_one(key, bounds, sink, ended);
        }
        // Most often there is none.
        for key in std::mem::take(&mut self.ending) {
            if !turn.contains(&key) {
                packets += self.read_one(key, bounds, sink, ended);
            }
            let is_left = self.all.get(key).is_some_and(Channel::is_ending);
            if is_left {
                self.ends(key);
            }
        }
        packets
    }

    /// Reads all channels from now on. Returns what those that were not read are watched with.
    pub(in crate::joined) fn open_all(&mut self) -> Vec<Opened> {
        let closed = self.all.iter_mut().filter(|(_, channel)| !channel.is_open);
        let open = closed.map(|(_, channel)| {
            channel.is_open = true;
            (channel.number, channel.watch())
        });
        open.collect()
    }

    /// Channels that were asked for and have not come are to be asked for again.
    pub(in crate::joined) fn forget_asked(&mut self) {
        self.ways.retain(|_, way| matches!(way, Way::Channel(_)));
    }

    /// Ends all of them.
    pub(in crate::joined) fn clear(&mut self) {
        self.all.clear();
        self.keys.clear();
        self.hot.clear();
        self.ending.clear();
        self.ways.clear();
    }

    /// The channels that are read now.
    fn turn(&mut self) -> ArrayVec<usize, { HOT + COLD }> {
        if self.keys.len() <= HOT + COLD {
            return self.keys.iter().copied().collect();
        }
        let mut turn: ArrayVec<usize, { HOT + COLD }> = self.hot.iter().copied().collect();
        for _ in 0..COLD {
            self.next = (self.next + 1) % self.keys.len();
            let key = self.keys[self.next];
            if !turn.contains(&key) {
                turn.push(key);
            }
        }
        turn
    }

    /// A channel has something, or is about to.
    fn warm(&mut self, key: usize) {
        if self.keys.len() <= HOT + COLD || self.hot.contains(&key) {
            return;
        }
        if self.hot.is_full() {
            self.hot.pop();
        }
        self.hot.insert(0, key);
    }

    /// Something is told of a channel when it has been read.
    fn ends(&mut self, key: usize) {
        if !self.ending.contains(&key) {
            self.ending.push(key);
        }
    }

    /// Reads one channel. Returns how many packets came.
    fn read_one(
        &mut self,
        key: usize,
        bounds: &Bounds<'_>,
        sink: Sink<'_>,
        ended: &mut Vec<Ended>,
    ) -> usize {
        let Some(channel) = self.all.get_mut(key) else {
            return 0;
        };
        let mut packets = 0;
        let read = match channel.is_open {
            true => read(channel, &mut self.buffer, bounds, sink, &mut packets),
            false => Ok(0),
        };
        let is_read = match read {
            Ok(refused) => {
                self.refused += refused;
                if packets > 0 {
                    self.warm(key);
                }
                let channel = &mut self.all[key];
                match channel.is_ending() {
                    true => channel.is_read(),
                    false => Ok(false),
                }
            }
            Err(Broken) => Err(Broken),
        };
        match is_read {
            Ok(true) => ended.extend(self.finish(key)),
            Ok(false) => {}
            Err(Broken) => ended.push(self.break_off(key)),
        }
        packets
    }

    /// What had to be read before its end was told has been: the channel ends if its neighbour has.
    fn finish(&mut self, key: usize) -> Option<Ended> {
        let channel = self.all.get_mut(key)?;
        let ends = channel.is_over || channel.has_ended();
        let gone = channel.take_gone();
        if !ends {
            return Some(Ended {
                number: None,
                is_broken: false,
                gone,
            });
        }
        let mut end = self.remove(key, self.ends_blocks);
        end.gone.extend(gone);
        Some(end)
    }

    /// The neighbour has broken the rules: its queue pairs are none any longer for this process.
    fn break_off(&mut self, key: usize) -> Ended {
        let mut end = self.remove(key, true);
        end.is_broken = true;
        end
    }

    fn remove(&mut self, key: usize, with_blocks: bool) -> Ended {
        let channel = self.all.remove(key);
        self.keys.retain(|&other| other != key);
        self.hot.retain(|other| *other != key);
        self.ending.retain(|&other| other != key);
        for &block in channel.blocks.iter() {
            self.ways.insert(block, Way::Daemon(ASK_AGAIN));
        }
        Ended {
            number: Some(channel.number),
            is_broken: false,
            gone: if with_blocks {
                channel.blocks
            } else {
                Vec::new()
            },
        }
    }

    fn key_of(&self, number: u32) -> Option<usize> {
        let mut keys = self.keys.iter().copied();
        keys.find(|&key| self.all[key].number == number)
    }
}

/// Reads a bounded number of messages. Returns how many of them were refused.
fn read(
    channel: &mut Channel,
    buffer: &mut Bounce,
    bounds: &Bounds<'_>,
    sink: Sink<'_>,
    packets: &mut usize,
) -> Result<u64, Broken> {
    let mut refused = 0;
    for _ in 0..MESSAGES {
        match channel.inbound.take(buffer, bounds, sink)? {
            Some(Taken::Packets(count)) => *packets += count,
            Some(Taken::Refused) => refused += 1,
            None => break,
        }
    }
    let bell = channel.inbound.bell();
    channel.ring(bell);
    Ok(refused)
}
