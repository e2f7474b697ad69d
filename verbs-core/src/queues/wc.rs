//! Completions: what a completion queue hands out.

mod cause;

use std::fmt;

use bitflags::bitflags;

use crate::addr::{Lid, Qpn, RKey};

pub use cause::{WcCause, WcError};

/// One completion, as [`Cq::poll`](crate::Cq::poll) writes it into the caller's slice.
///
/// When `status` is not [`WcStatus::Success`], only `wr_id`, `status`, `qpn` and `vendor_err` mean
/// anything (IBTA vol. 1, 11.4.2.1).
// In this order a queue whose entries are alike fills several fields by one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Wc {
    /// The work request's own number.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// What else is known.
    pub flags: WcFlags,
    /// Bytes: placed by a receive, moved by the others.
    pub byte_len: u32,
    /// The queue pair whose work request completed.
    pub qpn: Qpn,
    /// Immediate data with [`WcFlags::WITH_IMM`], the invalidated key with [`WcFlags::WITH_INV`].
    pub imm: u32,
    /// Sender of a datagram; what follows is known of datagrams as well.
    pub src_qpn: Qpn,
    /// LID of the sender's port; 0 where there are none.
    pub slid: Lid,
    /// Which entry of the port's P_Key table the datagram came with.
    pub pkey_index: u16,
    /// Service level.
    pub sl: u8,
    /// Which of the port's LIDs the datagram was sent to, by its low bits: 0 where the port has one, or none, and for
    /// multicast. The answer leaves from the same one: [`Av::src_path_bits`](crate::Av::src_path_bits).
    pub dlid_path_bits: u8,
    /// The device's own reason for a failure; 0 when there is none. [`WcCause`] has the table, and [`cause`](Wc::cause) the
    /// reason in words.
    pub vendor_err: u32,
    /// When the completion was made, in nanoseconds of the device's clock; 0 unless the completion
    /// queue was created with timestamps.
    pub timestamp_ns: u64,
}

impl Wc {
    /// Whether the work request did what it was to do.
    #[inline]
    pub const fn is_ok(&self) -> bool {
        matches!(self.status, WcStatus::Success)
    }

    /// The immediate data, if the message carried some.
    #[inline]
    pub const fn immediate(&self) -> Option<u32> {
        if self.flags.contains(WcFlags::WITH_IMM) {
            Some(self.imm)
        } else {
            None
        }
    }

    /// The key that the message invalidated, if it named one.
    #[inline]
    pub const fn invalidated(&self) -> Option<RKey> {
        if self.flags.contains(WcFlags::WITH_INV) {
            Some(RKey::new(self.imm))
        } else {
            None
        }
    }
}

bitflags! {
    /// Flags of a completion, with the values of `ibv_wc_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct WcFlags: u16 {
        /// A 40-byte GRH precedes the payload.
        const GRH = 1 << 0;
        /// Immediate data came with the message.
        const WITH_IMM = 1 << 1;
        /// A key was invalidated by the message.
        const WITH_INV = 1 << 3;
    }
}

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$item:meta])* $variant:ident = $value:literal, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum $name { $($(#[$item])* $variant = $value,)* }

        impl $name {
            /// Every variant.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The variant with that number.
            #[inline]
            pub const fn from_u8(value: u8) -> Option<Self> {
                match value { $($value => Some(Self::$variant),)* _ => None }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $text,)* })
            }
        }
    };
}

numbered! {
    /// How a work request ended; numbers as `ibv_wc_status`.
    WcStatus {
        /// It did what it was to do.
        #[default]
        Success = 0, "success";
        /// The message did not fit the receive, or was longer than the device allows.
        LocLenErr = 1, "local length error";
        /// The work request is malformed or the queue pair is inconsistent.
        LocQpOpErr = 2, "local QP operation error";
        /// Reliable datagram only.
        LocEecOpErr = 3, "local EE context operation error";
        /// A local key, its protection domain, its rights or its bounds do not allow the access.
        LocProtErr = 4, "local protection error";
        /// The queue pair was in Error, or went there, before the work request was done.
        WrFlushErr = 5, "Work Request Flushed Error";
        /// A memory window could not be bound.
        MwBindErr = 6, "memory management operation error";
        /// The peer's response makes no sense.
        BadRespErr = 7, "bad response error";
        /// Protection error while a peer's WRITE with immediate was received.
        LocAccessErr = 8, "local access error";
        /// The peer found the request invalid.
        RemInvReqErr = 9, "remote invalid request error";
        /// The remote key, its protection domain, its rights or its bounds do not allow the access.
        RemAccessErr = 10, "remote access error";
        /// The peer failed on its own side.
        RemOpErr = 11, "remote operation error";
        /// The peer did not answer in spite of all retries.
        RetryExcErr = 12, "transport retry counter exceeded";
        /// The peer had no receive posted in spite of all retries.
        RnrRetryExcErr = 13, "RNR retry counter exceeded";
        /// Reliable datagram only.
        LocRddViolErr = 14, "local RDD violation error";
        /// Reliable datagram only.
        RemInvRdReqErr = 15, "remote invalid RD request";
        /// The peer aborted the operation.
        RemAbortErr = 16, "aborted error";
        /// Reliable datagram only.
        InvEecnErr = 17, "invalid EE context number";
        /// Reliable datagram only.
        InvEecStateErr = 18, "invalid EE context state";
        /// The device failed.
        FatalErr = 19, "fatal error";
        /// The peer's response timed out.
        RespTimeoutErr = 20, "response timeout error";
        /// Anything else.
        GeneralErr = 21, "general error";
    }
}

numbered! {
    /// What completed; numbers as `ibv_wc_opcode`.
    WcOpcode {
        /// SEND, with or without immediate or invalidate.
        #[default]
        Send = 0, "SEND";
        /// RDMA WRITE, with or without immediate.
        RdmaWrite = 1, "RDMA_WRITE";
        /// RDMA READ.
        RdmaRead = 2, "RDMA_READ";
        /// Compare and swap.
        CompSwap = 3, "COMP_SWAP";
        /// Fetch and add.
        FetchAdd = 4, "FETCH_ADD";
        /// Bind of a memory window.
        BindMw = 5, "BIND_MW";
        /// Local invalidate.
        LocalInv = 6, "LOCAL_INV";
        /// FLUSH.
        Flush = 8, "FLUSH";
        /// ATOMIC WRITE.
        AtomicWrite = 9, "ATOMIC_WRITE";
        /// Fast registration; this number and the next two are those of the Linux kernel.
        RegMr = 10, "REG_MR";
        /// Compare and swap under masks.
        MaskedCompSwap = 11, "MASKED_COMP_SWAP";
        /// Fetch and add to fields.
        MaskedFetchAdd = 12, "MASKED_FETCH_ADD";
        /// A receive that took a SEND.
        Recv = 128, "RECV";
        /// A receive that a WRITE with immediate consumed.
        RecvRdmaWithImm = 129, "RECV_RDMA_WITH_IMM";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        for &status in WcStatus::ALL {
            assert_eq!(WcStatus::from_u8(status as u8), Some(status));
        }
        for &opcode in WcOpcode::ALL {
            assert_eq!(WcOpcode::from_u8(opcode as u8), Some(opcode));
        }
        assert_eq!(WcStatus::from_u8(99), None);
    }

    #[test]
    fn immediate_and_invalidated_key_share_a_field() {
        let wc = Wc {
            imm: 0x1234_5605,
            flags: WcFlags::WITH_INV,
            ..Wc::default()
        };
        assert_eq!(wc.immediate(), None);
        assert_eq!(wc.invalidated(), Some(RKey::new(0x1234_5605)));
    }
}
