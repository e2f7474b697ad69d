//! Packets of clients to the network: deficit round robin (M. Shreedhar, G. Varghese, 1995).

use std::collections::{BTreeMap, VecDeque};

use crate::client::ClientId;

/// Bytes that a client may send in its turn; as many as the largest message, so that each turn sends one.
const QUANTUM: usize = 65_536;

/// The most bytes of one client that wait, and of all together that have ended; further ones are lost, as on any network.
pub(crate) const WAITING_MAX: usize = 1 << 20;

/// Whose packets wait together; `None` for all clients that have ended.
type Whose = Option<ClientId>;

/// The packets of all clients that wait for the network.
#[derive(Debug, Default)]
pub(crate) struct Outward {
    queues: BTreeMap<Whose, Queue>,
    /// Those that have a turn, in order. Everyone with packets is in it once.
    turns: VecDeque<Whose>,
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
        self.push_of(Some(client), message)
    }

    fn push_of(&mut self, whose: Whose, message: Vec<u8>) -> bool {
        let queue = self.queues.entry(whose).or_default();
        if queue.bytes + message.len() > WAITING_MAX {
            return false;
        }
        if queue.messages.is_empty() {
            self.turns.push_back(whose);
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
        let Some(&first) = self.turns.front() else {
            return;
        };
        let Some(queue) = self.queues.get_mut(&first) else {
            return;
        };
        if let Some(message) = queue.messages.pop_front() {
            queue.bytes -= message.len();
            queue.deficit = queue.deficit.saturating_sub(message.len());
        }
        match queue.messages.front().map(Vec::len) {
            None => {
                self.turns.pop_front();
                self.queues.remove(&first);
            }
            Some(next) if next > queue.deficit => {
                queue.deficit += QUANTUM;
                self.turns.rotate_left(1);
            }
            Some(_) => {}
        }
    }

    /// The client has ended. What it has sent still leaves, as packets do that an HCA has taken: its sends have completed.
    /// Returns how many of its messages are lost because those of other clients that have ended wait already.
    pub(crate) fn end(&mut self, client: ClientId) -> u64 {
        let Some(queue) = self.queues.remove(&Some(client)) else {
            return 0;
        };
        self.turns.retain(|&whose| whose != Some(client));
        let lost = queue.messages.into_iter();
        lost.map(|message| u64::from(!self.push_of(None, message)))
            .sum()
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
    }

    /// Goal: what clients have sent before they ended leaves, in its order, and is bounded however many they are. Method:
    /// one that ends with a few messages, and many that end with as many as they may.
    #[test]
    fn the_last_words_of_clients_leave() {
        let [one, other] = [1, 2].map(|number| ClientId::new(number).expect("not 0"));
        let mut outward = Outward::default();
        for words in [1, 2, 3] {
            assert!(outward.push(one, vec![words; 1000]));
        }
        assert!(outward.push(other, vec![4; 1000]));
        assert_eq!(outward.end(one), 0);
        assert_eq!(outward.end(one), 0, "once");
        let mut left = Vec::new();
        while let Some(next) = outward.next() {
            left.push(next[0]);
            outward.sent();
        }
        assert_eq!(left, [4, 1, 2, 3]);

        let mut lost = 0;
        for number in 1..10 {
            let client = ClientId::new(number).expect("not 0");
            while outward.push(client, vec![1; 1000]) {}
            lost += outward.end(client);
        }
        let mut bytes = 0;
        while let Some(next) = outward.next() {
            bytes += next.len();
            outward.sent();
        }
        assert!((WAITING_MAX - 1000..=WAITING_MAX).contains(&bytes));
        assert_eq!(lost, 8 * (WAITING_MAX as u64 / 1000));
    }
}
