//! Whether the client replies to each message at once.
//!
//! The acknowledgement of a message may then wait for the reply and travel with it: one packet wakes the peer, and not
//! two. A client is *prompt* when it has replied to the last [`ENOUGH`] messages within [`PROMPT`] each. Nothing waits
//! for any other client, and for a prompt one an acknowledgement waits once: whoever drives the port next sends it, or
//! the engine's thread after [`PROMPT`].

use std::time::Duration;

use crate::clock::Instant;
use crate::transport::Acks;

/// A reply that is sent within this time is prompt, and no acknowledgement waits longer for one. It is a few times what
/// it takes to wake a thread, and little beside the delay that a peer has to expect.
pub(crate) const PROMPT: Duration = Duration::from_micros(250);
/// Messages in a row with prompt replies, after which acknowledgements wait.
const ENOUGH: u8 = 8;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Replies {
    /// When the last message arrived, until the client sends one.
    asked: Option<Instant>,
    /// Messages in a row with prompt replies; no more than [`ENOUGH`] are counted.
    prompt: u8,
    /// An acknowledgement has waited once, and is sent in the next round.
    has_waited: bool,
}

impl Replies {
    /// A message has arrived that asks for an acknowledgement.
    #[inline]
    pub(super) fn asked(&mut self, now: Instant) {
        if self.asked.replace(now).is_some() {
            self.prompt = 0;
        }
    }

    /// The client has sent a message.
    #[inline]
    pub(super) fn replied(&mut self, now: Instant) {
        if let Some(asked) = self.asked.take() {
            let is_prompt = now.since(asked) <= PROMPT;
            self.prompt = if is_prompt {
                (self.prompt + 1).min(ENOUGH)
            } else {
                0
            };
        }
    }

    /// An acknowledgement is due: whether it waits for a later round.
    #[inline]
    pub(super) fn waits(&mut self, acks: Acks) -> bool {
        let waits = match acks {
            Acks::Now => false,
            Acks::WithReply => self.prompt == ENOUGH && self.asked.is_some() && !self.has_waited,
            Acks::Later => return true,
        };
        self.has_waited = waits;
        waits
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1_000)
    }

    /// A client whose replies to that many messages were prompt, at one message a millisecond.
    fn client(prompt: u64) -> Replies {
        let mut replies = Replies::default();
        for n in 0..prompt {
            replies.asked(at(n * 1_000));
            replies.replied(at(n * 1_000 + 250));
        }
        replies
    }

    #[test]
    fn an_acknowledgement_waits_once_for_a_prompt_client() {
        for prompt in 0..20 {
            let mut replies = client(prompt);
            replies.asked(at(30_000));
            let waits = replies.waits(Acks::WithReply);
            assert_eq!(waits, prompt >= u64::from(ENOUGH), "{prompt}");
            assert!(!replies.waits(Acks::WithReply), "it has waited");
        }
    }

    #[test]
    fn an_acknowledgement_that_goes_with_the_reply_does_not_wait() {
        let mut replies = client(20);
        replies.asked(at(30_000));
        replies.replied(at(30_010));
        assert!(!replies.waits(Acks::WithReply));
    }

    #[test]
    fn a_late_reply_or_none_ends_the_waiting() {
        let mut late = client(20);
        late.asked(at(30_000));
        late.replied(at(30_251));
        late.asked(at(31_000));
        assert!(!late.waits(Acks::WithReply));
        let mut silent = client(20);
        silent.asked(at(30_000));
        silent.asked(at(30_010));
        assert!(!silent.waits(Acks::WithReply), "there was no reply");
        silent.replied(at(30_020));
        for n in 40..47 {
            silent.asked(at(n * 1_000));
            assert!(!silent.waits(Acks::WithReply));
            silent.replied(at(n * 1_000 + 10));
        }
        silent.asked(at(48_000));
        assert!(silent.waits(Acks::WithReply), "it is prompt again");
    }

    #[test]
    fn a_round_that_sends_acknowledgements_lets_none_wait() {
        let mut replies = client(20);
        replies.asked(at(30_000));
        assert!(!replies.waits(Acks::Now));
        assert!(replies.waits(Acks::Later));
        assert!(replies.waits(Acks::Later), "as often as it is told");
        assert!(client(0).waits(Acks::Later), "for any client");
    }
}
