//! Why a work request failed, as far as its device knows.

use std::fmt;

use super::{Wc, WcStatus};
use crate::addr::Qpn;
use crate::mem::Fault;

macro_rules! causes {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $text:literal;)*) => {
        /// What a device found wrong with a work request, beside the [status](WcStatus) that the specification has for it.
        ///
        /// The status says on which side it was found: a *local* status is about the memory and queues of the queue pair
        /// that has the completion, a *remote* one about its peer's.
        ///
        /// # `vendor_err`
        ///
        /// A software HCA knows the cause, and [`Wc::vendor_err`] has its [`code`](WcCause::code): `0x7663_0000` and a
        /// number of this table. C programs print it too.
        ///
        /// | number | cause |
        /// |---|---|
        $(#[doc = concat!("| ", $number, " | ", $text, " |")])*
        ///
        /// Other values mean something to their device alone:
        ///
        /// | value | device | meaning |
        /// |---|---|---|
        /// | 0 | any | nothing but the status is known |
        /// | 0x60 to 0x64 | hca-sim over UDP or on a subnet | the syndrome of the peer's NAK: 0x60 sequence, 0x61 invalid request, 0x62 remote access, 0x63 remote operation, 0x64 invalid RD request. What the peer found is not on the wire |
        /// | others | RDMA NICs (`hca-rdma`) | see the vendor's manual |
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        #[non_exhaustive]
        pub enum WcCause { $($(#[$doc])* $variant = $number,)* }

        impl WcCause {
            /// Every cause.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];
        }

        impl fmt::Display for WcCause {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $text,)* })
            }
        }
    };
}

causes! {
    /// The key was never valid, or was deregistered, revoked or invalidated.
    KeyGone = 1, "no memory has this key: it was deregistered or invalidated, or never valid";
    /// Memory and queue pair have different protection domains.
    OtherDomain = 2, "the memory belongs to another protection domain than the queue pair";
    /// The memory was registered without that right.
    NoRight = 3, "the memory was registered without the right that this needs";
    /// The range leaves the memory that was registered.
    Range = 4, "the range leaves the registered memory";
    /// A window of type 2 that is bound to another queue pair.
    OtherQueuePair = 5, "the memory window is bound to another queue pair";
    /// A region or window whose state does not allow the operation.
    KeyState = 6, "the region or window is in no state for this";
    /// Windows are bound to the region.
    HasWindows = 7, "memory windows are bound to the region";
    /// The pages of a fast registration were mapped again since.
    Mapping = 8, "the pages are others than those that were mapped";
    /// The address and the pages of a fast registration do not fit together.
    Alignment = 9, "the address does not fit the pages";
    /// The receive, or the path MTU of datagrams, has fewer bytes than the message.
    TooLong = 10, "the message is longer than the receive, or than a datagram can be";
    /// The queue pair that responds was not given the right: its access flags.
    QpNoRight = 11, "the responding queue pair does not allow this operation (access flags of its attributes)";
    /// The address of an atomic operation is no multiple of 8, or spans two pieces of memory.
    Misaligned = 12, "the word of an atomic is not aligned to 8 bytes in one piece";
    /// READs and atomics need the peer to remember them: `max_rd_atomic` here, `max_dest_rd_atomic` there.
    NoReadAtomic = 13, "the connection was made without READs and atomics (max_rd_atomic, max_dest_rd_atomic)";
    /// The response does not fit what was asked.
    BadAnswer = 14, "the peer's response does not fit the request";
    /// No acknowledgement, after all retries. Any provider has this one: it follows from the status.
    NoAnswer = 15, "the peer did not acknowledge in spite of all retries: it is gone, unreachable or its queue pair is in error";
    /// No receive was posted, after all RNR retries. Follows from the status.
    NoReceive = 16, "the peer had no receive posted in spite of all retries";
    /// The queue pair went to ERR before this work request was carried out. Follows from the status.
    State = 17, "the queue pair was in ERR, or went there, before this was carried out; an earlier completion or the peer's leaving is the cause";
    /// Memory that is registered was unmapped, cut short or protected by its program; see
    /// [`catch_faults`](crate::mem::catch_faults).
    Unmapped = 18, "the registered memory was unmapped, cut short or protected afterwards";
}

impl WcCause {
    /// What the codes of causes have in their upper half.
    const TAG: u32 = 0x7663_0000;

    /// Its number in [`Wc::vendor_err`].
    pub const fn code(self) -> u32 {
        Self::TAG | self as u32
    }

    /// The cause with that [`code`](Self::code).
    pub fn from_code(code: u32) -> Option<Self> {
        let known = |cause: &&Self| cause.code() == code;
        Self::ALL.iter().find(known).copied()
    }

    /// The cause that a completion's status and `vendor_err` tell. `None` for a success, and if only the device knows.
    pub fn of(status: WcStatus, vendor_err: u32) -> Option<Self> {
        match status {
            WcStatus::Success => None,
            WcStatus::RetryExcErr => Some(Self::NoAnswer),
            WcStatus::RnrRetryExcErr => Some(Self::NoReceive),
            WcStatus::WrFlushErr => Some(Self::State),
            _ => Self::from_code(vendor_err),
        }
    }
}

impl From<Fault> for WcCause {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Key => Self::KeyGone,
            Fault::Pd => Self::OtherDomain,
            Fault::Access => Self::NoRight,
            Fault::Bounds => Self::Range,
            Fault::Qp => Self::OtherQueuePair,
            Fault::State => Self::KeyState,
            Fault::Windows => Self::HasWindows,
            Fault::Mapping => Self::Mapping,
            Fault::Alignment => Self::Alignment,
        }
    }
}

/// A completion that is not a success, as an error: see [`Wc::result`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WcError {
    /// The work request's own number.
    pub wr_id: u64,
    /// The queue pair whose work request failed.
    pub qpn: Qpn,
    /// How it ended.
    pub status: WcStatus,
    /// [`Wc::vendor_err`].
    pub vendor_err: u32,
}

impl WcError {
    /// Why, as far as the device knows.
    pub fn cause(&self) -> Option<WcCause> {
        WcCause::of(self.status, self.vendor_err)
    }
}

impl fmt::Display for WcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            wr_id,
            qpn,
            status,
            vendor_err,
        } = *self;
        let qpn = qpn.value();
        write!(f, "work request {wr_id} on queue pair {qpn:#x}: {status}")?;
        match self.cause() {
            Some(cause) => write!(f, ": {cause}"),
            None if vendor_err == 0 => Ok(()),
            None => write!(f, " (vendor_err {vendor_err:#x})"),
        }
    }
}

impl std::error::Error for WcError {}

impl Wc {
    /// Why the work request failed. `None` for a success, and when the device says no more than the
    /// [status](Wc::status): [`WcCause`] has the list.
    ///
    /// ```
    /// use verbs_core::{Wc, WcCause, WcStatus};
    ///
    /// let wc = Wc {
    ///     status: WcStatus::RemAccessErr,
    ///     vendor_err: WcCause::Range.code(),
    ///     ..Wc::default()
    /// };
    /// assert_eq!(wc.cause(), Some(WcCause::Range));
    /// assert_eq!(Wc::default().cause(), None);
    /// ```
    pub fn cause(&self) -> Option<WcCause> {
        WcCause::of(self.status, self.vendor_err)
    }

    /// A success, or what `?` passes on: which work request, its status, and its [cause](Wc::cause).
    ///
    /// ```
    /// use verbs_core::{Wc, WcCause, WcStatus};
    ///
    /// let wc = Wc {
    ///     wr_id: 7,
    ///     status: WcStatus::LocProtErr,
    ///     vendor_err: WcCause::NoRight.code(),
    ///     ..Wc::default()
    /// };
    /// let error = wc.result().expect_err("it failed");
    /// assert_eq!(
    ///     error.to_string(),
    ///     "work request 7 on queue pair 0x0: local protection error: \
    ///      the memory was registered without the right that this needs"
    /// );
    /// ```
    ///
    /// # Errors
    /// [`WcError`], if the status is not [`WcStatus::Success`].
    #[inline]
    pub fn result(&self) -> Result<(), WcError> {
        if self.is_ok() {
            return Ok(());
        }
        Err(WcError {
            wr_id: self.wr_id,
            qpn: self.qpn,
            status: self.status,
            vendor_err: self.vendor_err,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip_and_are_no_syndromes() {
        for &cause in WcCause::ALL {
            assert_eq!(WcCause::from_code(cause.code()), Some(cause));
            assert!(cause.code() > 0xffff);
        }
        for vendors in [0, 1, 0x62, 0x81, 0x7663_0000, u32::MAX] {
            assert_eq!(WcCause::from_code(vendors), None);
        }
    }

    #[test]
    fn a_status_that_says_all_needs_no_code() {
        let said = [
            (WcStatus::RetryExcErr, WcCause::NoAnswer),
            (WcStatus::RnrRetryExcErr, WcCause::NoReceive),
            (WcStatus::WrFlushErr, WcCause::State),
        ];
        for (status, cause) in said {
            assert_eq!(WcCause::of(status, 0x81), Some(cause));
        }
        assert_eq!(WcCause::of(WcStatus::Success, WcCause::Range.code()), None);
        assert_eq!(WcCause::of(WcStatus::RemAccessErr, 0x62), None);
    }
}
