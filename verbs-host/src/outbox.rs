//! The datagrams that wait for a client to read them.

use std::collections::VecDeque;
use std::net::IpAddr;

use crate::channel::ChannelEnd;

/// The files that go with a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Files {
    /// Those of one end of a channel.
    Channel(ChannelEnd),
    /// The client's socket for that address.
    Socket(IpAddr),
}

/// The most bytes of messages that wait for a client; a client with more has stopped reading, and its line is closed.
pub(crate) const MESSAGES_MAX: usize = 1 << 20;

/// The most bytes of packets that wait for a client; further ones are lost, as on any network.
pub(crate) const PACKETS_MAX: usize = 4 << 20;

/// The datagrams of one client, in the order in which they are sent: a message about another client is read after the
/// packets that this one had sent before. So what a client wrote arrives before its end is told.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    all: VecDeque<Waiting>,
    message_bytes: usize,
    packet_bytes: usize,
}

#[derive(Debug)]
enum Waiting {
    /// A message, and the files that go with it.
    Message(Vec<u8>, Option<Files>),
    Packets(Vec<u8>),
}

impl Outbox {
    /// Adds a message, and the files that go with it; false if there are too many.
    #[must_use]
    pub(crate) fn say(&mut self, message: Vec<u8>, files: Option<Files>) -> bool {
        if self.message_bytes + message.len() > MESSAGES_MAX {
            return false;
        }
        self.message_bytes += message.len();
        self.all.push_back(Waiting::Message(message, files));
        true
    }

    /// Adds packets; false if they are lost.
    #[must_use]
    pub(crate) fn carry(&mut self, packets: Vec<u8>) -> bool {
        if self.packet_bytes + packets.len() > PACKETS_MAX {
            return false;
        }
        self.packet_bytes += packets.len();
        self.all.push_back(Waiting::Packets(packets));
        true
    }

    /// The next datagram.
    pub(crate) fn next(&self) -> Option<&[u8]> {
        let (Waiting::Message(bytes, _) | Waiting::Packets(bytes)) = self.all.front()?;
        Some(bytes)
    }

    /// The files that go with it.
    pub(crate) fn files(&self) -> Option<Files> {
        match self.all.front()? {
            Waiting::Message(_, files) => *files,
            Waiting::Packets(_) => None,
        }
    }

    /// The next one has been sent.
    pub(crate) fn sent(&mut self) {
        match self.all.pop_front() {
            Some(Waiting::Message(message, _)) => self.message_bytes -= message.len(),
            Some(Waiting::Packets(packets)) => self.packet_bytes -= packets.len(),
            None => {}
        }
    }

    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.message_bytes + self.packet_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_bounded() {
        let mut outbox = Outbox::default();
        while outbox.carry(vec![1; 60_000]) {}
        assert!(outbox.bytes() <= PACKETS_MAX);
        while outbox.say(vec![2; 1000], None) {}
        assert!(outbox.bytes() <= PACKETS_MAX + MESSAGES_MAX);
        let mut order = Vec::new();
        while let Some(next) = outbox.next() {
            order.push(next[0]);
            outbox.sent();
        }
        assert!(order.is_sorted(), "messages do not overtake packets");
        assert_eq!(outbox.bytes(), 0);
    }
}
