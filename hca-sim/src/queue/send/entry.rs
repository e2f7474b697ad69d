//! The words of a work request that waits.

use verbs_core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use verbs_core::{Datagram, Dest, LKey, Payload, Sge, Srqn};

use super::{DATAGRAM, DATAGRAM_WORDS, INLINE, OPERANDS, SRQ, WORD_PIECE, datagram, op};
use crate::queue::base::memory::{pack, unpack};

/// The words of one entry.
#[derive(Clone, Copy)]
pub(super) struct SendEntry<'r> {
    /// Operation, flags, kind of payload, and the work request's number.
    pub(super) what: &'r AtomicU64,
    pub(super) wr_id: &'r AtomicU64,
    /// A remote address.
    pub(super) remote: &'r AtomicU64,
    /// A remote key, and a number of 32 bits.
    pub(super) keys: &'r AtomicU64,
    pub(super) room: &'r [AtomicU64],
    pub(super) to: &'r [AtomicU64],
}

impl<'r> SendEntry<'r> {
    pub(super) fn operands(self) -> &'r [AtomicU64; OPERANDS] {
        let operands = self.room.last_chunk();
        operands.expect("every entry has room for operands")
    }

    /// Writes the payload of that operation. Returns its kind and count, and the lower half of the keys.
    pub(super) fn write_payload(self, op: u64, imm: u32, payload: Payload<'_>) -> (u64, u64, u32) {
        let one;
        let sges = match payload {
            Payload::Inline(bytes) => {
                for (word, chunk) in self.room.iter().zip(bytes.chunks(8)) {
                    let mut eight = [0; 8];
                    eight[..chunk.len()].copy_from_slice(chunk);
                    word.store(u64::from_le_bytes(eight), Relaxed);
                }
                return (INLINE, bytes.len() as u64, imm);
            }
            Payload::One(sge) => {
                one = [sge];
                &one[..]
            }
            Payload::List(sges) => sges,
        };
        if let (true, [sge]) = (has_operands(op), sges) {
            debug_assert_eq!(sge.len, 8, "posting has checked it");
            self.room[0].store(sge.addr, Relaxed);
            return (WORD_PIECE, 1, sge.lkey.value());
        }
        for (pair, sge) in self.room.chunks_exact(2).zip(sges) {
            pack(&pair[0], &pair[1], *sge);
        }
        (0, sges.len() as u64, imm)
    }

    /// The only piece of a work request.
    pub(super) fn read_sge(self, what: u64, keys: u64) -> Sge {
        if what & WORD_PIECE != 0 {
            return Sge {
                addr: self.room[0].load(Relaxed),
                len: 8,
                lkey: LKey::new(keys as u32),
            };
        }
        unpack(&self.room[0], &self.room[1])
    }

    /// The pieces of a work request that has several, and whatever is in the room behind them.
    pub(super) fn read_sges(self) -> impl Iterator<Item = Sge> + use<'r> {
        let pairs = self.room.chunks_exact(2);
        pairs.map(|pair| unpack(&pair[0], &pair[1]))
    }

    pub(super) fn write_dest(self, dest: Dest<'_>) -> u64 {
        match (dest, self.to) {
            (Dest::Srq(srqn), [word]) => {
                word.store(srqn.value().into(), Relaxed);
                SRQ
            }
            (Dest::Datagram(to), words) => {
                words.last_chunk::<DATAGRAM_WORDS>().map_or(0, |words| {
                    datagram::write(words, to);
                    DATAGRAM
                })
            }
            _ => 0,
        }
    }

    /// The destination that the work request names; `room` is for a datagram's.
    pub(super) fn read_dest(self, what: u64, room: &mut Option<Datagram>) -> Dest<'_> {
        let words = self.to.last_chunk().filter(|_| what & DATAGRAM != 0);
        *room = words.map(datagram::read);
        match (room, self.to) {
            (Some(to), _) => Dest::Datagram(to),
            (None, [srqn]) if what & SRQ != 0 => Dest::Srq(Srqn::new(srqn.load(Relaxed) as u32)),
            _ => Dest::Peer,
        }
    }
}

/// Whether an operation has operands. Then it has no inline bytes, and its pieces are 8 bytes in all, or none.
pub(super) const fn has_operands(op: u64) -> bool {
    matches!(
        op,
        op::COMPARE_SWAP
            | op::FETCH_ADD
            | op::MASKED_COMPARE_SWAP
            | op::MASKED_FETCH_ADD
            | op::FLUSH
            | op::REG_MR
            | op::BIND_MW
    )
}
