//! The memory of both ends.
//!
//! A test of `count` messages has `2 * count` slots at each end: the first half for messages from the requester to the
//! responder, the second for those in the other direction. Each slot ends with a guard that must stay unchanged. Behind
//! the last one is the counter that atomics work on.

use verbs_core::{Access, Memory, Mr, Pd, Sge};

use crate::Failure;
use crate::plan::Plan;

/// The counter's first value: a few additions wrap it around.
pub(crate) const COUNTER: u64 = 0xffff_ffff_ffff_fff0;

/// The contents of memory that must stay untouched.
const GUARD: u8 = 0xa5;

/// Bytes behind the slots: the counter and its guard.
const TAIL: usize = 64;

/// The seed of the message in slot `k` of the first half.
pub(crate) fn forth(k: u32) -> u64 {
    u64::from(k)
}

/// The seed of the message in slot `k` of the second half.
pub(crate) fn back(k: u32) -> u64 {
    1000 + u64::from(k)
}

/// The registered memory of one end.
pub(crate) struct Slots {
    pub(crate) mr: Mr,
    pub(crate) pd: Pd,
    /// Bytes of a message.
    size: usize,
    /// The distance between two slots.
    pub(crate) stride: usize,
    count: usize,
}

impl Slots {
    pub(crate) fn new(pd: Pd, plan: &Plan, access: Access) -> Result<Self, Failure> {
        let (size, count) = (plan.size as usize, plan.count as usize);
        let stride = (size + 127) / 64 * 64;
        let memory = Memory::alloc(2 * count * stride + TAIL)?;
        memory.fill(0..2 * count * stride + TAIL, GUARD)?;
        memory.write(2 * count * stride, &COUNTER.to_le_bytes())?;
        let mr = pd.register(memory, access).wait()?;
        Ok(Self {
            mr,
            pd,
            size,
            stride,
            count,
        })
    }

    /// Where slot `k` of the first half begins.
    pub(crate) fn forth_at(&self, k: u32) -> usize {
        k as usize * self.stride
    }

    /// Where slot `k` of the second half begins.
    pub(crate) fn back_at(&self, k: u32) -> usize {
        (self.count + k as usize) * self.stride
    }

    /// Where the counter is.
    pub(crate) fn counter_at(&self) -> usize {
        2 * self.count * self.stride
    }

    /// That many bytes from `offset` on, for a work request.
    pub(crate) fn piece(&self, offset: usize, len: usize) -> Sge {
        self.mr.slice(offset..offset + len)
    }

    pub(crate) fn counter(&self) -> Result<u64, Failure> {
        self.number(self.counter_at())
    }

    /// The eight bytes at `offset`.
    pub(crate) fn number(&self, offset: usize) -> Result<u64, Failure> {
        let mut bytes = [0; 8];
        self.mr.read(offset, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Puts the message with that seed into a slot.
    pub(crate) fn fill(&self, offset: usize, seed: u64) -> Result<(), Failure> {
        Ok(self.mr.write(offset, &message(seed, self.size))?)
    }

    /// Checks that the message with that seed is in the slot, and that the guard behind it is untouched.
    pub(crate) fn check(&self, offset: usize, seed: u64) -> Result<(), Failure> {
        let mut got = vec![0; self.stride];
        self.mr.read(offset, &mut got)?;
        let mut want = message(seed, self.size);
        want.resize(self.stride, GUARD);
        match got.iter().zip(&want).position(|(got, want)| got != want) {
            None => Ok(()),
            Some(at) => Err(format!(
                "slot {}: byte {at} of {} is {:#04x}, not {:#04x}",
                offset / self.stride,
                self.size,
                got[at],
                want[at]
            )
            .into()),
        }
    }

    /// Checks that the first half is untouched.
    pub(crate) fn check_untouched(&self) -> Result<(), Failure> {
        let mut got = vec![0; self.count * self.stride];
        self.mr.read(0, &mut got)?;
        match got.iter().position(|&byte| byte != GUARD) {
            None => Ok(()),
            Some(at) => Err(format!("byte {at} was overwritten").into()),
        }
    }
}

/// The message with that seed: splitmix64, eight bytes at a time, little-endian.
fn message(seed: u64, size: usize) -> Vec<u8> {
    let word = |i: u64| {
        let mut z = (seed << 32).wrapping_add((i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let words = size.div_ceil(8) as u64;
    let mut bytes: Vec<u8> = (0..words).flat_map(|i| word(i).to_le_bytes()).collect();
    bytes.truncate(size);
    bytes
}
