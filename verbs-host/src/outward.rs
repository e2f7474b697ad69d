//! Packets of clients to the network: deficit round robin (M. Shreedhar, G. Varghese, 1995).

use std::collections::{BTreeMap, VecDeque};

use crate::client::ClientId;

/// Bytes that a client may send in its turn; as many as the largest message, so that each turn sends one.
const QUANTUM: usize = 65_536;

/// The most bytes of one client that wait; further ones are lost, as on any network.
pub(crate) const WAITING_MAX: usize = 1 << 20;

/// The packets of all clients that wait for the network.
#[derive(Debug, Default)]
pub(crate) struct Outward {
    queues: BTreeMap<ClientId, Queue>,
    /// The clients that have a turn, in order. Every client with packets is in it once.
    turns: VecDeque<ClientId>,
}

#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Vec<u8>>,
    bytes: usize,
    deficit: usize,
}

impl Outward {
    /// Adds packets of a client; false if they are lost.
    #[must_use]
    pub(crate) fn push(&mut self, client: ClientId, message: Vec<u8>) -> bool {
        let queue = self.queues.entry(client).or_default();
        if queue.bytes + message.len() > WAITING_MAX {
            return false;
        }
        if queue.messages.is_empty() {
            self.turns.push_back(client);
            queue.deficit = QUANTUM;
        }
        queue.bytes += message.len();
        queue.messages.push_back(message);
        true
    }

    /// The packets whose turn it is.
    pub(crate) fn next(&self) -> Option<&[u8]> {
        let first = self.turns.front()?;
        self.queues.get(first)?.messages.front().map(Vec::as_slice)
    }

    /// They have been sent.
    pub(crate) fn sent(&mut self) {
        let Some(&client) = self.turns.front() else {
            return;
        };
        let Some(queue) = self.queues.get_mut(&client) else {
            return;
        };
        if let Some(message) = queue.messages.pop_front() {
            queue.bytes -= message.len();
            queue.deficit = queue.deficit.saturating_sub(message.len());
        }
        match queue.messages.front().map(Vec::len) {
            None => {
                self.turns.pop_front();
                self.queues.remove(&client);
            }
            Some(next) if next > queue.deficit => {
                queue.deficit += QUANTUM;
                self.turns.rotate_left(1);
            }
            Some(_) => {}
        }
    }

    /// The client has ended, and its packets are dropped.
    pub(crate) fn forget(&mut self, client: ClientId) {
        self.queues.remove(&client);
        self.turns.retain(|&other| other != client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a client that floods takes nothing from one that sends little. Method: one client with as much waiting as
    /// it may, in small messages, and one with large ones.
    #[test]
    fn clients_have_equal_shares() {
        let [flood, other] = [1, 2].map(|number| ClientId::new(number).expect("not 0"));
        let mut outward = Outward::default();
        while outward.push(flood, vec![1; 1000]) {}
        for _ in 0..8 {
            assert!(outward.push(other, vec![2; 60_000]));
        }
        let mut sent = [0_usize; 3];
        while sent[2] < 8 * 60_000 {
            let next = outward.next().expect("there are more");
            sent[usize::from(next[0])] += next.len();
            outward.sent();
        }
        assert!(sent[1] < sent[2] + 2 * QUANTUM, "{sent:?}");
        assert!(sent[1] + 2 * QUANTUM > sent[2], "{sent:?}");
        outward.forget(flood);
        assert_eq!(outward.next(), None);
    }
}
