//! The rules of a pingpong, whatever carries the messages. Nothing here does I/O.
//!
//! On each connection, neither side posts a message before the last one is acknowledged and answered. Messages
//! are counted over all connections.

/// Which end this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Sends first.
    Client,
    /// Answers.
    Server,
}

/// How far a pingpong is.
#[derive(Clone, Debug)]
pub(super) struct Game {
    /// Messages each way.
    pub(super) iters: u32,
    /// Receives that the queue holds.
    pub(super) rx_depth: u32,
    /// Receives posted.
    pub(super) recvs: u32,
    /// Messages that have arrived.
    pub(super) received: u32,
    /// Messages that are acknowledged.
    sent: u32,
    connections: Vec<Awaits>,
}

/// What the next message of a connection waits for.
#[derive(Clone, Copy, Debug)]
struct Awaits {
    sent: bool,
    received: bool,
}

impl Game {
    pub(super) fn new(role: Role, iters: u32, rx_depth: u32, connections: usize) -> Self {
        let first = Awaits {
            sent: false,
            received: role == Role::Server,
        };
        Self {
            iters,
            rx_depth,
            recvs: 0,
            received: 0,
            sent: 0,
            connections: vec![first; connections],
        }
    }

    /// A connection on which it is this end's turn.
    pub(super) fn turn(&self) -> Option<usize> {
        let turn = |awaits: &Awaits| !awaits.sent && !awaits.received;
        let number = self.connections.iter().position(turn);
        number.filter(|_| self.sent < self.iters)
    }

    /// A message is on its way.
    pub(super) fn posted(&mut self, number: usize) {
        if let Some(awaits) = self.connections.get_mut(number) {
            (awaits.sent, awaits.received) = (true, true);
        }
    }

    /// It is acknowledged.
    pub(super) fn handle_sent(&mut self, number: usize) {
        self.sent += 1;
        if let Some(awaits) = self.connections.get_mut(number) {
            awaits.sent = false;
        }
    }

    /// A message has arrived, in a receive that was posted.
    pub(super) fn handle_received(&mut self, number: usize) {
        self.recvs -= 1;
        self.received = self.received.saturating_add(1);
        if let Some(awaits) = self.connections.get_mut(number) {
            awaits.received = false;
        }
    }

    /// Whether the last message has arrived, acknowledged or not: it was answered. A peer that has all it wants
    /// may be gone before its acknowledgement, if that was lost, can be asked for again.
    pub(super) fn is_answered(&self, number: usize) -> bool {
        let answered = |awaits: &Awaits| awaits.sent && !awaits.received;
        let is_last = self.sent + 1 >= self.iters && self.received >= self.iters;
        is_last && self.connections.get(number).is_some_and(answered)
    }

    /// Whether only acknowledgements of last answers are missing: the peer has sent all that it wants to, and
    /// may be gone, with the answers or without.
    pub(super) fn awaits_last_acks(&self) -> bool {
        self.received >= self.iters && self.turn().is_none()
    }

    /// Whether there may soon be fewer receives than connections.
    pub(super) fn is_running_out(&self) -> bool {
        self.recvs as usize <= self.connections.len()
    }

    /// Whether all messages have gone both ways.
    pub(super) fn is_over(&self) -> bool {
        self.sent >= self.iters && self.received >= self.iters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: acknowledgement and answer may come in either order, and each end sends all its messages
    /// and no more.
    #[test]
    fn ends_take_turns() {
        for (role, ack_first) in [
            (Role::Client, true),
            (Role::Client, false),
            (Role::Server, true),
        ] {
            let mut game = Game::new(role, 3, 5, 1);
            game.recvs = 5;
            let mut posts = 0;
            if role == Role::Server {
                assert_eq!(game.turn(), None, "the client begins");
                game.handle_received(0);
            }
            while game.turn().is_some() {
                posts += 1;
                game.posted(0);
                for ack in [ack_first, !ack_first] {
                    assert_eq!(game.turn(), None);
                    match ack {
                        true => game.handle_sent(0),
                        false if role == Role::Server && posts == 3 => {}
                        false => game.handle_received(0),
                    }
                }
            }
            assert!(game.is_over());
            assert_eq!((posts, game.received, game.recvs), (3, 3, 2), "{role:?}");
        }
    }

    /// Goal: what was answered has arrived, and what was not may not have. Method: the last message at either end.
    #[test]
    fn an_answer_is_an_acknowledgement() {
        let mut client = Game::new(Role::Client, 1, 5, 1);
        client.recvs = 5;
        client.posted(0);
        assert!(!client.is_answered(0));
        client.handle_received(0);
        assert!(client.is_answered(0));
        let mut server = Game::new(Role::Server, 1, 5, 1);
        server.recvs = 5;
        server.handle_received(0);
        assert!(!server.awaits_last_acks(), "there is an answer to be sent");
        server.posted(0);
        assert!(!server.is_answered(0));
        assert!(server.awaits_last_acks());
    }

    /// Goal: an answer that is not acknowledged is the last one only if nothing else is to come.
    #[test]
    fn only_last_answers_may_stay_unacknowledged() {
        let mut server = Game::new(Role::Server, 3, 10, 2);
        server.recvs = 10;
        for number in [0, 1] {
            server.handle_received(number);
            server.posted(number);
        }
        assert!(!server.awaits_last_acks(), "a third message is to come");
        server.handle_sent(0);
        server.handle_received(0);
        assert!(!server.awaits_last_acks(), "it is to be answered");
        server.posted(0);
        assert!(server.awaits_last_acks(), "on both connections");
    }

    /// Goal: connections take their turns apart, and what they send is counted together.
    #[test]
    fn connections_share_the_count() {
        let mut game = Game::new(Role::Client, 3, 10, 2);
        game.recvs = 10;
        assert_eq!(game.turn(), Some(0));
        game.posted(0);
        assert_eq!(game.turn(), Some(1));
        game.posted(1);
        assert_eq!(game.turn(), None);
        for number in [1, 0] {
            game.handle_sent(number);
            game.handle_received(number);
            assert_eq!(game.turn(), Some(number));
            game.posted(number);
        }
        game.handle_sent(0);
        game.handle_received(0);
        assert!(game.is_over());
        assert_eq!(game.turn(), None, "the third was the last");
    }
}
