//! Channels: two clients get memory that they share.

use verbs_core::host::channel::FEATURE;
use verbs_core::host::quota::Quota;
use verbs_core::host::{Block, Channel, Message};

use super::{Daemon, Ended};
use crate::channel::{ChannelEnd, NewChannel, RING_LEN, State};
use crate::client::{ClientId, acquaint};
use crate::outbox::Files;

/// What a channel takes of each end's quotas.
const TAKES: [Quota; 2] = [Quota::Channels, Quota::NewChannels];

impl Daemon {
    /// A channel whose files are to be made.
    pub fn poll_channel(&mut self) -> Option<NewChannel> {
        self.new_channels.pop_front()
    }

    /// The files of a channel that came out of [`poll_channel`](Self::poll_channel) have been made, or could not be.
    /// If they have, one [`ChannelEnd`] comes out of [`files_for_next`](Self::files_for_next) for each client. Returns
    /// whether the files are still needed: a client may have ended.
    pub fn channel_made(&mut self, number: u32, is_made: bool) -> bool {
        let Some(channel) = self.channels.get_mut(number) else {
            return false;
        };
        let (ends, State::Making(asked)) = (channel.ends, channel.state) else {
            return false;
        };
        if !is_made {
            self.channels.remove(number);
            for end in ends {
                self.give_back_channel(end, &TAKES);
            }
            self.tell(ends[0], &Message::NoChannel(asked.number()));
            return false;
        }
        channel.state = State::Open([false; 2]);
        for (end, client) in (0..).zip(ends) {
            let news = self.channel_news(number, ends, end, true);
            let files = Files::Channel(ChannelEnd { number, end });
            self.tell_with(client, &Message::Channel(news), Some(files));
        }
        true
    }

    /// The channel, as the client at that end hears of it.
    fn channel_news(&self, number: u32, ends: [ClientId; 2], end: u8, is_new: bool) -> Channel {
        let other = ends[1 - usize::from(end)];
        let blocks = self.blocks.all_of(other);
        Channel {
            number,
            end,
            ring_len: RING_LEN,
            is_new,
            blocks: blocks.map(Block::number).collect(),
        }
    }

    /// A client asks for a channel to the owner of a block.
    pub(super) fn open_channel(&mut self, client: ClientId, block: u16) -> Result<(), Ended> {
        let block = Block::new(block).ok_or(Ended::Unexpected)?;
        let none = Message::NoChannel(block.number());
        let other = self.blocks.owner(block).filter(|&other| other != client);
        let has_channels = |client| {
            let known = self.clients.get(&client);
            known.is_some_and(|known| known.has(FEATURE))
        };
        let both = other.filter(|&other| has_channels(other) && has_channels(client));
        let Some(other) = both else {
            self.tell(client, &none);
            return Ok(());
        };
        acquaint(&mut self.clients, client, other);
        match self.channels.between(client, other) {
            Some((_, channel)) if matches!(channel.state, State::Making(_)) => {}
            Some((number, channel)) => match channel.end_of(client) {
                Some(end) if channel.state != State::Broken => {
                    let news = self.channel_news(number, channel.ends, end as u8, false);
                    self.tell(client, &Message::Channel(news));
                }
                _ => self.tell(client, &none),
            },
            None if self.take_channels([client, other]) => {
                let ends = [client, other];
                let number = self.channels.begin(ends, block);
                self.new_channels.push_back(NewChannel {
                    number,
                    ends,
                    ring_len: RING_LEN as usize,
                });
            }
            None => self.tell(client, &none),
        }
        Ok(())
    }

    /// A client writes to the ring of a channel from now on.
    pub(super) fn change_over(&mut self, client: ClientId, number: u32) -> Result<(), Ended> {
        let channel = self.channels.get_mut(number);
        let Some(channel) = channel else {
            // The other end has just gone.
            return Ok(());
        };
        let end = channel.end_of(client).ok_or(Ended::Unexpected)?;
        let other = channel.ends[1 - end];
        match &mut channel.state {
            State::Open(changed) if !changed[end] => changed[end] = true,
            State::Broken => return Ok(()),
            _ => return Err(Ended::Unexpected),
        }
        self.give_back_channel(client, &[Quota::NewChannels]);
        // Behind the packets that this client has sent before.
        self.tell(other, &Message::ChangedOver(number));
        Ok(())
    }

    /// A client reports that the owner of a block breaks the rules of their channel.
    pub(super) fn break_channel(&mut self, client: ClientId, block: u16) {
        self.counters.broken_neighbours += 1;
        let other = Block::new(block).and_then(|block| self.blocks.owner(block));
        tracing::warn!(
            ?client,
            block,
            ?other,
            "reports a neighbour that breaks rules"
        );
        let found = other.and_then(|other| self.channels.between(client, other));
        let Some((number, channel)) = found else {
            return;
        };
        self.give_back_new(&channel);
        if let Some(channel) = self.channels.get_mut(number) {
            channel.state = State::Broken;
        }
    }

    /// The channels of a client that has ended.
    pub(super) fn forget_channels(&mut self, client: ClientId) {
        for channel in self.channels.forget(client) {
            self.give_back_new(&channel);
            for end in channel.ends {
                self.give_back_channel(end, &[Quota::Channels]);
            }
        }
        self.new_channels
            .retain(|channel| !channel.ends.contains(&client));
    }

    /// How many channels are open.
    pub fn channel_count(&self) -> usize {
        self.channels.count()
    }

    /// Takes what a channel takes of the quotas of both, or nothing.
    fn take_channels(&mut self, ends: [ClientId; 2]) -> bool {
        let mut taken = Vec::new();
        for end in ends {
            for quota in TAKES {
                if self.take_one(end, quota).is_ok() {
                    taken.push((end, quota));
                }
            }
        }
        let has_all = taken.len() == ends.len() * TAKES.len();
        if !has_all {
            for (end, quota) in taken {
                self.give_back_channel(end, &[quota]);
            }
        }
        has_all
    }

    /// The ends that have not changed over do not count as such any longer.
    fn give_back_new(&mut self, channel: &crate::channel::Channel) {
        let changed = match channel.state {
            State::Making(_) => [false; 2],
            State::Open(changed) => changed,
            State::Broken => return,
        };
        for (end, _) in channel
            .ends
            .into_iter()
            .zip(changed)
            .filter(|(_, has)| !has)
        {
            self.give_back_channel(end, &[Quota::NewChannels]);
        }
    }

    fn give_back_channel(&mut self, client: ClientId, quotas: &[Quota]) {
        if let Some(known) = self.clients.get_mut(&client) {
            quotas
                .iter()
                .for_each(|&quota| known.usage.give_back(quota));
        }
    }
}
