//! Completion queues whose completions carry the time: `ibv_cq_ex`, which is polled one completion at a time, each read
//! field by field.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::zeroed;

use rustix::io::Errno;
use verbs_abi as abi;
use verbs_abi::{CqEx, CqExOps};
use verbs_core::Wc;
use verbs_core::sync::Arc;

use crate::convert::completion;
use crate::sys::cq::{Channel, Cq, int};
use crate::sys::table::entry;

/// The clock of a device that stamps completions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticks {
    khz: u64,
}

impl Ticks {
    /// Of a device that reports that mask and that frequency; `None` if its completions carry no time.
    pub(crate) fn new(mask: u64, khz: u64) -> Option<Self> {
        (mask != 0 && khz != 0).then_some(Self { khz })
    }

    /// A stamp in nanoseconds.
    fn nanoseconds(self, stamp: u64) -> u64 {
        (u128::from(stamp) * 1_000_000 / u128::from(self.khz)) as u64
    }
}

/// The functions that every driver with extended queues has, and those of the fields that are asked for.
macro_rules! functions {
    ($($name:ident: $F:ty,)*) => {
        pub(in crate::sys) struct Functions {
            $($name: $F,)*
        }

        impl Functions {
            fn of(ops: &CqExOps) -> Option<Self> {
                Some(Self { $($name: ops.$name?,)* })
            }
        }
    };
}

type Read<T> = unsafe extern "C" fn(*mut CqEx) -> T;

functions! {
    start_poll: unsafe extern "C" fn(*mut CqEx, *const c_void) -> c_int,
    next_poll: Read<c_int>,
    end_poll: Read<()>,
    read_opcode: Read<c_uint>,
    read_vendor_err: Read<u32>,
    read_byte_len: Read<u32>,
    read_imm_data: Read<u32>,
    read_qp_num: Read<u32>,
    read_src_qp: Read<u32>,
    read_wc_flags: Read<c_uint>,
    read_slid: Read<u32>,
    read_sl: Read<u8>,
    read_dlid_path_bits: Read<u8>,
    read_completion_ts: Read<u64>,
}

impl Cq {
    /// As [`Cq::create`], with stamps. Such a queue is polled by [`Cq::poll_stamped`].
    pub(crate) fn create_stamped(
        channel: &Arc<Channel>,
        cqe: u32,
        vector: u32,
        number: u64,
    ) -> Result<Self, Errno> {
        /// Everything that a completion of `ibv_poll_cq` has, except the index of a P_Key, which these queues lack.
        const STANDARD: u64 = 0x7f;
        /// `IBV_WC_EX_WITH_COMPLETION_TIMESTAMP`.
        const STAMP: u64 = 1 << 7;
        let context = &channel.context;
        let create = entry!(context, create_cq_ex).ok_or(Errno::OPNOTSUPP)?;
        int(cqe)?;
        let attr = abi::CqInitAttrEx {
            cqe,
            cq_context: std::ptr::without_provenance_mut(number as usize),
            channel: channel.raw.as_ptr(),
            comp_vector: vector,
            wc_flags: STANDARD | STAMP,
            comp_mask: 0,
            flags: 0,
            parent_domain: std::ptr::null_mut(),
        };
        // SAFETY: context and channel exist; the number is returned and not dereferenced.
        let raw = unsafe { create(context.raw.as_ptr(), &attr) };
        // An extended queue is a queue in front.
        let mut cq = Self::of(channel, raw.cast())?;
        // SAFETY: the queue was just made; its functions do not change.
        let ops = unsafe { &(*raw).ops };
        cq.extended = Some(Box::new(Functions::of(ops).ok_or(Errno::OPNOTSUPP)?));
        Ok(cq)
    }

    /// As [`Cq::poll`], of a queue with stamps.
    pub(crate) fn poll_stamped(&self, out: &mut [Wc], ticks: Ticks) -> usize {
        let (Some(functions), false) = (&self.extended, out.is_empty()) else {
            return 0;
        };
        let raw = self.raw.as_ptr().cast::<CqEx>();
        // `ibv_poll_cq_attr`: a mask in which no bit is defined.
        let asks: u32 = 0;
        // SAFETY: the queue exists, and its functions are called in their order: after a start that has found a
        // completion, that is read, and the end releases the queue's lock.
        unsafe {
            if (functions.start_poll)(raw, (&raw const asks).cast()) != 0 {
                return 0;
            }
            let mut taken = 0;
            loop {
                out[taken] = functions.current(raw, ticks);
                taken += 1;
                if taken == out.len() || (functions.next_poll)(raw) != 0 {
                    break;
                }
            }
            (functions.end_poll)(raw);
            taken
        }
    }
}

impl Functions {
    /// The completion that the poll has come to.
    ///
    /// # Safety
    /// The queue is being polled by this thread, and these are its functions.
    unsafe fn current(&self, cq: *mut CqEx, ticks: Ticks) -> Wc {
        // SAFETY: guaranteed by the caller; for a work request that failed, only these fields are defined.
        unsafe {
            let mut wc: abi::Wc = zeroed();
            (wc.wr_id, wc.status) = ((*cq).wr_id, (*cq).status);
            wc.qp_num = (self.read_qp_num)(cq);
            if wc.status != 0 {
                wc.vendor_err = (self.read_vendor_err)(cq);
            } else {
                wc.opcode = (self.read_opcode)(cq);
                wc.wc_flags = (self.read_wc_flags)(cq);
                wc.byte_len = (self.read_byte_len)(cq);
                wc.imm_or_key = (self.read_imm_data)(cq);
                wc.src_qp = (self.read_src_qp)(cq);
                wc.slid = (self.read_slid)(cq) as u16;
                wc.sl = (self.read_sl)(cq);
                wc.dlid_path_bits = (self.read_dlid_path_bits)(cq);
            }
            Wc {
                timestamp_ns: ticks.nanoseconds((self.read_completion_ts)(cq)),
                ..completion(&wc)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_counts_the_ticks_of_the_devices_clock() {
        assert!(Ticks::new(0, 1000).is_none());
        assert!(Ticks::new(u64::MAX, 0).is_none());
        let ticks = Ticks::new(u64::MAX, 156_250).expect("it has a clock");
        assert_eq!(ticks.nanoseconds(156_250), 1_000_000);
        // 2^47 ticks are ten days: their product with a million does not fit into 64 bits.
        assert_eq!(ticks.nanoseconds(1 << 47), 900_719_925_474_099);
    }
}
