//! The rules of a pingpong, whatever carries the messages. Nothing here does I/O.

use super::Role;

/// How far a pingpong is: nobody posts a message before the last one is acknowledged and answered.
#[derive(Clone, Copy, Debug)]
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
    /// What the next message waits for.
    awaits_sent: bool,
    awaits_received: bool,
}

impl Game {
    pub(super) fn new(role: Role, iters: u32, rx_depth: u32) -> Self {
        Self {
            iters,
            rx_depth,
            recvs: 0,
            received: 0,
            sent: 0,
            awaits_sent: false,
            awaits_received: role == Role::Server,
        }
    }

    /// Whether it is this end's turn.
    pub(super) fn may_send(&self) -> bool {
        self.sent < self.iters && !self.awaits_sent && !self.awaits_received
    }

    /// A message is on its way.
    pub(super) fn posted(&mut self) {
        (self.awaits_sent, self.awaits_received) = (true, true);
    }

    /// It is acknowledged.
    pub(super) fn handle_sent(&mut self) {
        self.sent += 1;
        self.awaits_sent = false;
    }

    /// A message has arrived, in a receive that was posted.
    pub(super) fn handle_received(&mut self) {
        self.recvs -= 1;
        self.received = self.received.saturating_add(1);
        self.awaits_received = false;
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
            let mut game = Game::new(role, 3, 5);
            game.recvs = 5;
            let mut posts = 0;
            if role == Role::Server {
                assert!(!game.may_send(), "the client begins");
                game.handle_received();
            }
            while game.may_send() {
                posts += 1;
                game.posted();
                for ack in [ack_first, !ack_first] {
                    assert!(!game.may_send());
                    match ack {
                        true => game.handle_sent(),
                        false if role == Role::Server && posts == 3 => {}
                        false => game.handle_received(),
                    }
                }
            }
            assert!(game.is_over());
            assert_eq!((posts, game.received, game.recvs), (3, 3, 2), "{role:?}");
        }
    }
}
