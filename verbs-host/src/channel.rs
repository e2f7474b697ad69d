//! The channels between clients: which pairs have one, and how far it is made.

use std::collections::BTreeMap;

use verbs_core::host::Block;

use crate::client::ClientId;

/// Bytes of each ring of a channel: a few bursts of 64 KiB, and a quarter of what a reliable connection may have
/// unacknowledged.
pub(crate) const RING_LEN: u32 = 256 << 10;

/// Memory for a channel is to be made, and a bell.
///
/// The answer is [`Daemon::channel_made`](crate::Daemon::channel_made).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewChannel {
    /// Its number.
    pub number: u32,
    /// The clients at its ends.
    pub ends: [ClientId; 2],
    /// Bytes of each ring.
    pub ring_len: usize,
}

/// One end of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChannelEnd {
    /// The channel.
    pub number: u32,
    /// 0 or 1: the place in [`NewChannel::ends`].
    pub end: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The files are being made for the first end, which has asked with that block.
    Making(Block),
    /// Each end has its files, and has changed over or not yet.
    Open([bool; 2]),
    /// One end has reported that the other breaks rules: the two never get another one.
    Broken,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Channel {
    pub(crate) ends: [ClientId; 2],
    pub(crate) state: State,
}

/// All channels.
#[derive(Debug)]
pub(crate) struct Channels {
    all: BTreeMap<u32, Channel>,
    last: u32,
}

impl Channel {
    /// The place of a client, if it has an end.
    pub(crate) fn end_of(&self, client: ClientId) -> Option<usize> {
        self.ends.iter().position(|&end| end == client)
    }
}

impl Channels {
    /// No channel has a number yet. Clients may still have some of the last daemon, so that the first number is drawn.
    pub(crate) fn new(first: u32) -> Self {
        Self {
            all: BTreeMap::new(),
            last: first,
        }
    }

    pub(crate) fn begin(&mut self, ends: [ClientId; 2], asked: Block) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1);
            if !self.all.contains_key(&self.last) {
                break;
            }
        }
        let state = State::Making(asked);
        self.all.insert(self.last, Channel { ends, state });
        self.last
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut Channel> {
        self.all.get_mut(&number)
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<Channel> {
        self.all.remove(&number)
    }

    /// The channel between two clients.
    pub(crate) fn between(&self, one: ClientId, other: ClientId) -> Option<(u32, Channel)> {
        let joins =
            |channel: &Channel| channel.end_of(one).is_some() && channel.end_of(other).is_some();
        let mut found = self.all.iter().filter(|(_, channel)| joins(channel));
        found.next().map(|(&number, &channel)| (number, channel))
    }

    /// A client no longer exists. Returns its channels.
    pub(crate) fn forget(&mut self, client: ClientId) -> Vec<Channel> {
        let is_its = |_: &u32, channel: &mut Channel| channel.end_of(client).is_some();
        let gone = self.all.extract_if(.., is_its);
        gone.map(|(_, channel)| channel).collect()
    }

    /// The clients with which one has an open channel.
    pub(crate) fn of(&self, client: ClientId) -> impl Iterator<Item = ClientId> {
        let is_open = |channel: &&Channel| matches!(channel.state, State::Open(_));
        let open = self.all.values().filter(is_open);
        open.filter_map(move |channel| Some(channel.ends[1 - channel.end_of(client)?]))
    }

    /// How many are open.
    pub(crate) fn count(&self) -> usize {
        let is_open = |channel: &&Channel| matches!(channel.state, State::Open(_));
        self.all.values().filter(is_open).count()
    }
}
