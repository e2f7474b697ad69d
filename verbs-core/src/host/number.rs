//! Queue pair numbers of a host: blocks of them, which processes lease.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use crate::addr::Qpn;

/// Queue pair numbers of one process: 1,024 of them, with the same upper 14 bits. Whose a number is can be seen from
/// the number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block(u16);

impl Block {
    /// Bits of a queue pair number that count within a block.
    ///
    /// A block is the least that a process takes, and rests for two minutes after it: 16,382 of them last for a hundred processes
    /// that end each second.
    pub const INDEX_BITS: u32 = 10;

    /// The daemon's own: queue pair 1 of the host is in it, and multicast.
    pub const DAEMON: Self = Self(0);

    /// The last that clients can have. Above is the number of multicast packets.
    pub const LAST: Self = Self(0x3ffe);

    /// The block with that number. `None` if there is none.
    pub const fn new(number: u16) -> Option<Self> {
        match number {
            0..=0x3ffe => Some(Self(number)),
            _ => None,
        }
    }

    /// The block of a queue pair number. That of multicast packets is in none.
    pub const fn of(qpn: Qpn) -> Option<Self> {
        Self::new((qpn.value() >> Self::INDEX_BITS) as u16)
    }

    /// Its number.
    pub const fn number(self) -> u16 {
        self.0
    }

    /// Its queue pair numbers.
    pub const fn qpns(self) -> Range<u32> {
        let first = (self.0 as u32) << Self::INDEX_BITS;
        first..first + (1 << Self::INDEX_BITS)
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {}", self.0)
    }
}

/// How long a block rests after it was returned: packets that are on their way to its last owner are gone by then, as the
/// transport gives a packet up within two minutes.
pub const REST: Duration = Duration::from_secs(120);

/// The blocks of a host: whose they are, and which rest.
///
/// `O` is an owner. Time is what has passed since any point that does not change.
#[derive(Debug)]
pub struct Blocks<O> {
    leased: BTreeMap<Block, O>,
    /// Until when a block rests.
    resting: BTreeMap<Block, Duration>,
    next: u16,
}

impl<O: Copy + Eq> Blocks<O> {
    /// All free; the search begins where `seed` says, so that a daemon that is started again does not give out first what
    /// the last one gave out last.
    pub fn new(seed: u64) -> Self {
        Self {
            leased: BTreeMap::new(),
            resting: BTreeMap::new(),
            next: (seed % u64::from(Block::LAST.0)) as u16 + 1,
        }
    }

    /// A block that had an owner before this was made: it rests.
    pub fn rest(&mut self, block: Block, now: Duration) {
        self.resting.insert(block, now + REST);
    }

    /// Its owner before this was made goes on with it. False if it does not rest.
    pub fn claim(&mut self, owner: O, block: Block) -> bool {
        let has_rested = self.resting.remove(&block).is_some();
        if has_rested {
            self.leased.insert(block, owner);
        }
        has_rested
    }

    /// The blocks that rest no longer, each once.
    pub fn rested(&mut self, now: Duration) -> Vec<Block> {
        let rested = self.resting.extract_if(.., |_, until| *until <= now);
        rested.map(|(block, _)| block).collect()
    }

    /// A block that has no owner and does not rest, as [`rested`](Self::rested) has found. `None` if there is none.
    pub fn lease(&mut self, owner: O) -> Option<Block> {
        for _ in 0..Block::LAST.0 {
            let block = Block(self.next);
            self.next = self.next % Block::LAST.0 + 1;
            if !self.leased.contains_key(&block) && !self.resting.contains_key(&block) {
                self.leased.insert(block, owner);
                return Some(block);
            }
        }
        None
    }

    /// Takes a block back, which rests. False if it is not the owner's.
    pub fn give_back(&mut self, owner: O, block: Block, now: Duration) -> bool {
        let is_theirs = self.leased.get(&block) == Some(&owner);
        if is_theirs {
            self.leased.remove(&block);
            self.resting.insert(block, now + REST);
        }
        is_theirs
    }

    /// Takes all of an owner's blocks back.
    pub fn give_back_all(&mut self, owner: O, now: Duration) -> Vec<Block> {
        let theirs: Vec<_> = self.all_of(owner).collect();
        for &block in &theirs {
            self.give_back(owner, block, now);
        }
        theirs
    }

    /// All blocks of an owner.
    pub fn all_of(&self, owner: O) -> impl Iterator<Item = Block> {
        let is_its = move |(&block, &whose): (&Block, &O)| (whose == owner).then_some(block);
        self.leased.iter().filter_map(is_its)
    }

    /// Whose a block is.
    pub fn owner(&self, block: Block) -> Option<O> {
        self.leased.get(&block).copied()
    }

    /// Whose a queue pair number is.
    pub fn owner_of(&self, qpn: Qpn) -> Option<O> {
        self.owner(Block::of(qpn)?)
    }

    /// How many blocks are leased, and how many rest.
    pub fn counts(&self, now: Duration) -> (usize, usize) {
        let resting = self.resting.values().filter(|&&until| until > now);
        (self.leased.len(), resting.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_names_its_block() {
        let block = Block::new(0x2af3).expect("there is one");
        assert_eq!(block.qpns(), 0xabcc00..0xabd000);
        assert_eq!(Block::of(Qpn::new(0xabcdef)), Some(block));
        assert_eq!(Block::of(Qpn::new(1)), Some(Block::DAEMON));
        assert_eq!(Block::of(Qpn::MULTICAST), None);
        assert_eq!(Block::new(0x3fff), None);
    }

    /// Goal: a number is not used again before packets to its last owner are gone, and blocks run out without that.
    /// Method: all blocks, one of them returned.
    #[test]
    fn a_returned_block_rests() {
        let (mut blocks, start) = (Blocks::new(9), Duration::from_secs(7));
        let all: Vec<_> = std::iter::from_fn(|| blocks.lease(1)).collect();
        assert_eq!(all.len(), usize::from(Block::LAST.number()));
        assert_eq!(all[0].number(), 10);
        assert!(!all.contains(&Block::DAEMON));
        assert!(!blocks.give_back(2, all[3], start), "another's");
        assert!(blocks.give_back(1, all[3], start));
        assert!(!blocks.give_back(1, all[3], start), "twice");
        assert_eq!(blocks.owner(all[3]), None);
        let early = start + REST - Duration::from_nanos(1);
        assert_eq!((blocks.rested(early), blocks.lease(2)), (vec![], None));
        assert_eq!(blocks.counts(early), (all.len() - 1, 1));
        assert_eq!(blocks.rested(start + REST), [all[3]]);
        assert_eq!(blocks.lease(2), Some(all[3]));
        assert_eq!(blocks.owner_of(Qpn::new(all[3].qpns().start + 5)), Some(2));
        assert_eq!(blocks.give_back_all(1, start).len(), all.len() - 1);
    }

    /// Goal: blocks of a daemon that has ended are their owners', or nobody's until they have rested.
    #[test]
    fn a_block_of_the_last_daemon_is_claimed_or_rests() {
        let (mut blocks, start) = (Blocks::new(0), Duration::from_secs(7));
        let [first, second] = [1, 2].map(|number| Block::new(number).expect("there is one"));
        blocks.rest(first, start);
        blocks.rest(second, start);
        assert!(blocks.claim(5, second));
        assert!(!blocks.claim(6, second), "it has an owner");
        assert_eq!(blocks.owner(second), Some(5));
        assert_eq!(blocks.lease(7).map(Block::number), Some(3));
        assert!(!blocks.claim(6, Block::LAST), "nobody had it");
        assert_eq!(blocks.rested(start + REST), [first]);
        assert!(!blocks.claim(6, first), "too late");
    }
}
