//! Messages that name their sender and their number, and the receivers that they may be reported to.
//!
//! The first bytes of a message are its tag and the others follow from it, so a message that was put together from two,
//! or was never sent, or was for another receiver, can be recognised. A message that is too short for its tag carries
//! it as immediate data.

use std::collections::BTreeMap;

use crate::Draw;

/// Names a message: its sender, by a number that is unique in a run, and its own number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tag {
    pub(crate) sender: u16,
    pub(crate) seq: u16,
}

impl Tag {
    /// Bytes of a tag in front of its message.
    pub(crate) const LEN: usize = 4;

    /// As immediate data.
    pub(crate) fn number(self) -> u32 {
        u32::from(self.sender) << 16 | u32::from(self.seq)
    }

    fn of(number: u32) -> Self {
        Self {
            sender: (number >> 16) as u16,
            seq: (number & 0xffff) as u16,
        }
    }

    /// The message of that length.
    pub(crate) fn compose(self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        Draw::new(u64::from(self.number())).fill(&mut bytes);
        if let Some(head) = bytes.first_chunk_mut() {
            *head = self.number().to_le_bytes();
        }
        bytes
    }
}

/// What a service permits the network to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Laws {
    /// A message may be reported as often as the network repeats it.
    pub(crate) repeats: bool,
    /// A message may be reported after one that was sent later.
    pub(crate) overtakes: bool,
}

/// A message as it is reported to a receiver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived<'a> {
    /// The bytes in the receive; `None` if they are not written there.
    pub(crate) bytes: Option<&'a [u8]>,
    pub(crate) len: usize,
    pub(crate) imm: Option<u32>,
}

/// The messages of a session. `T` is what its owner needs to know of each.
#[derive(Debug)]
pub(crate) struct Deliveries<T> {
    laws: Laws,
    posted: BTreeMap<Tag, Posted<T>>,
    /// Reports by message and receiver.
    told: BTreeMap<(Tag, u16), u32>,
    /// The newest message by sender and receiver.
    newest: BTreeMap<(u16, u16), u16>,
}

#[derive(Debug)]
struct Posted<T> {
    len: usize,
    imm: Option<u32>,
    about: T,
}

impl<T> Deliveries<T> {
    pub(crate) fn new(laws: Laws) -> Self {
        Self {
            laws,
            posted: BTreeMap::new(),
            told: BTreeMap::new(),
            newest: BTreeMap::new(),
        }
    }

    pub(crate) fn laws(&self) -> Laws {
        self.laws
    }

    /// A message was posted.
    pub(crate) fn post(&mut self, tag: Tag, len: usize, imm: Option<u32>, about: T) {
        self.posted.insert(tag, Posted { len, imm, about });
    }

    /// A message was flushed before anything of it was sent, so it may not be reported to any receiver.
    ///
    /// # Errors
    /// It was reported.
    pub(crate) fn recall(&mut self, tag: Tag) -> Result<(), String> {
        self.posted.remove(&tag);
        match self.was_told(tag) {
            true => Err(format!("{tag:?} was flushed, and had been told of")),
            false => Ok(()),
        }
    }

    /// The owner's information about a message.
    pub(crate) fn about(&self, tag: Tag) -> Option<&T> {
        self.posted.get(&tag).map(|posted| &posted.about)
    }

    /// Whether that message was reported to any receiver.
    pub(crate) fn was_told(&self, tag: Tag) -> bool {
        let of_tag = (tag, 0)..=(tag, u16::MAX);
        self.told.range(of_tag).next().is_some()
    }

    /// A message is reported to a receiver. Returns which one that is. `may` says whether it was for that receiver.
    ///
    /// # Errors
    /// Why it may not be reported.
    pub(crate) fn tell(
        &mut self,
        receiver: u16,
        arrived: &Arrived<'_>,
        may: impl FnOnce(&T) -> Result<(), &'static str>,
    ) -> Result<Tag, String> {
        let head = arrived.bytes.and_then(|bytes| bytes.first_chunk());
        let number = head.map(|head| u32::from_le_bytes(*head)).or(arrived.imm);
        let Some(number) = number else {
            return Err(format!("a message of {} bytes without a tag", arrived.len));
        };
        let tag = Tag::of(number);
        let Some(posted) = self.posted.get(&tag) else {
            return Err(format!("a message that nobody has sent: {number:#010x}"));
        };
        if (posted.len, posted.imm) != (arrived.len, arrived.imm) {
            let Posted { len, imm, .. } = posted;
            return Err(format!(
                "{tag:?} has {len} bytes and {imm:?}, and was told of with {} and {:?}",
                arrived.len, arrived.imm
            ));
        }
        if let Some(bytes) = arrived.bytes {
            let sent = tag.compose(posted.len);
            if let Some(at) = (0..sent.len()).find(|&at| bytes.get(at) != Some(&sent[at])) {
                return Err(format!("byte {at} of {tag:?} is not what was sent"));
            }
        }
        may(&posted.about).map_err(|why| format!("{tag:?} at receiver {receiver}: {why}"))?;
        let told = self.told.entry((tag, receiver)).or_default();
        *told += 1;
        if *told > 1 && !self.laws.repeats {
            return Err(format!("{tag:?} was told of {told} times"));
        }
        let newest = self.newest.entry((tag.sender, receiver)).or_default();
        if tag.seq < *newest && !self.laws.overtakes {
            return Err(format!("{tag:?} was told of behind number {newest}"));
        }
        *newest = tag.seq.max(*newest);
        Ok(tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Tag = Tag { sender: 7, seq: 1 };
    const SECOND: Tag = Tag { sender: 7, seq: 2 };

    fn tell(of: &mut Deliveries<u16>, bytes: &[u8]) -> Result<Tag, String> {
        let arrived = Arrived {
            bytes: Some(bytes),
            len: bytes.len(),
            imm: None,
        };
        let mine = |&to: &u16| if to == 1 { Ok(()) } else { Err("not mine") };
        of.tell(1, &arrived, mine)
    }

    fn deliveries(repeats: bool, overtakes: bool) -> Deliveries<u16> {
        let mut all = Deliveries::new(Laws { repeats, overtakes });
        all.post(FIRST, 600, None, 1);
        all.post(SECOND, 600, None, 1);
        all
    }

    #[test]
    fn a_message_is_told_of_once_and_in_order_unless_the_network_may_do_otherwise() {
        let (first, second) = (FIRST.compose(600), SECOND.compose(600));
        for (repeats, overtakes) in [(false, false), (true, false), (false, true)] {
            let mut all = deliveries(repeats, overtakes);
            assert_eq!(tell(&mut all, &second), Ok(SECOND));
            assert_eq!(tell(&mut all, &second).is_ok(), repeats, "twice");
            assert_eq!(tell(&mut all, &first).is_ok(), overtakes, "too late");
        }
    }

    #[test]
    fn what_was_not_sent_like_that_gives_itself_away() {
        let (first, second) = (FIRST.compose(600), SECOND.compose(600));
        let glued = [&first[..300], &second[300..]].concat();
        let unknown = Tag { sender: 8, seq: 1 }.compose(600);
        for wrong in [&glued, &unknown, &first[..599].to_vec(), &vec![0; 3]] {
            assert!(tell(&mut deliveries(true, true), wrong).is_err());
        }
        let mut all = deliveries(false, false);
        let foreign = Tag { sender: 9, seq: 1 };
        all.post(foreign, 10, None, 2);
        assert!(tell(&mut all, &foreign.compose(10)).is_err());
        assert!(!all.was_told(foreign));
        assert_eq!(all.recall(FIRST), Ok(()));
        assert!(tell(&mut all, &first).is_err(), "it was flushed");
        assert_eq!(tell(&mut all, &second), Ok(SECOND));
        assert!(all.was_told(SECOND) && all.recall(SECOND).is_err());
    }
}
