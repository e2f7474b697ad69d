//! ACK extended header: acknowledgements, NAKs and their parameters (IBTA vol. 1, 9.7.5).

use std::fmt;
use std::time::Duration;

use verbs_core::addr::Msn;

use crate::WireError;
use crate::field::{u24, u24_bytes, view};

/// Kind of a syndrome: its upper three bits.
const KIND_MASK: u8 = 0xe0;
const KIND_ACK: u8 = 0x00;
const KIND_RNR_NAK: u8 = 0x20;
const KIND_NAK: u8 = 0x60;
/// Parameter of a syndrome: its lower five bits.
const VALUE_MASK: u8 = 0x1f;

view! {
    /// An AETH in bytes; also prints reserved syndromes, which [`Aeth`] refuses.
    pub AethView of Aeth, 4 bytes
}

impl AethView<'_> {
    /// The syndrome, reserved or not.
    #[inline]
    pub const fn syndrome_byte(self) -> u8 {
        self.0[0]
    }

    /// Message sequence number.
    #[inline]
    pub const fn msn(self) -> Msn {
        let &[_, a, b, c] = self.0;
        Msn::new(u24([a, b, c]))
    }
}

impl fmt::Debug for AethView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Aeth::parse(*self) {
            Ok(aeth) => aeth.fmt(f),
            Err(_) => write!(
                f,
                "AETH {{ syndrome {:#04x}?, msn: {} }}",
                self.syndrome_byte(),
                self.msn().value()
            ),
        }
    }
}

/// The responder's answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Aeth {
    /// The syndrome.
    pub syndrome: Syndrome,
    /// Messages executed so far.
    pub msn: Msn,
}

impl Aeth {
    /// Bytes on the wire.
    pub const LEN: usize = AethView::LEN;

    /// The header in these bytes.
    ///
    /// # Errors
    /// [`WireError::ReservedSyndrome`]: the receiver must ignore the packet.
    #[inline]
    pub fn parse(view: AethView<'_>) -> Result<Self, WireError> {
        Ok(Self {
            syndrome: Syndrome::from_u8(view.syndrome_byte())
                .ok_or(WireError::ReservedSyndrome(view.syndrome_byte()))?,
            msn: view.msn(),
        })
    }

    /// Writes the header.
    #[inline]
    pub const fn emit(&self, out: &mut [u8; Self::LEN]) {
        let [a, b, c] = u24_bytes(self.msn.value());
        *out = [self.syndrome.to_u8(), a, b, c];
    }
}

impl fmt::Debug for Aeth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "AETH {{ {:?}, msn: {} }}",
            self.syndrome,
            self.msn.value()
        )
    }
}

/// The meaning of an AETH.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// Everything up to the packet's PSN arrived; the credit is the number of further messages that may be sent.
    Ack(CreditCode),
    /// No receive was posted: repeat from this PSN, but not before that time has passed.
    RnrNak(RnrTimer),
    /// The packet was refused.
    Nak(NakCode),
}

impl Syndrome {
    /// The meaning of a syndrome byte; `None` when it is reserved.
    #[inline]
    pub const fn from_u8(byte: u8) -> Option<Self> {
        let value = byte & VALUE_MASK;
        match byte & KIND_MASK {
            KIND_ACK => Some(Self::Ack(CreditCode(value))),
            KIND_RNR_NAK => Some(Self::RnrNak(RnrTimer(value))),
            KIND_NAK => match NakCode::from_u8(value) {
                Some(code) => Some(Self::Nak(code)),
                None => None,
            },
            _ => None,
        }
    }

    /// The byte on the wire.
    #[inline]
    pub const fn to_u8(self) -> u8 {
        match self {
            Self::Ack(credit) => KIND_ACK | credit.0,
            Self::RnrNak(timer) => KIND_RNR_NAK | timer.0,
            Self::Nak(code) => KIND_NAK | code.to_u8(),
        }
    }
}

/// Why a responder refused a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NakCode {
    /// A packet is missing before it; the PSN is the one expected.
    PsnSequence,
    /// The request is not valid there.
    InvalidRequest,
    /// The key, its protection domain, its rights or its bounds do not allow the access.
    RemoteAccess,
    /// The responder failed on its own side.
    RemoteOperational,
    /// Reliable datagram only.
    InvalidRdRequest,
}

impl NakCode {
    /// Every code, in numerical order.
    pub const ALL: [Self; 5] = [
        Self::PsnSequence,
        Self::InvalidRequest,
        Self::RemoteAccess,
        Self::RemoteOperational,
        Self::InvalidRdRequest,
    ];

    /// The code of that number; `None` when it is reserved.
    #[inline]
    pub const fn from_u8(value: u8) -> Option<Self> {
        match value {
            0 => Some(Self::PsnSequence),
            1 => Some(Self::InvalidRequest),
            2 => Some(Self::RemoteAccess),
            3 => Some(Self::RemoteOperational),
            4 => Some(Self::InvalidRdRequest),
            _ => None,
        }
    }

    /// Its number.
    #[inline]
    pub const fn to_u8(self) -> u8 {
        match self {
            Self::PsnSequence => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccess => 2,
            Self::RemoteOperational => 3,
            Self::InvalidRdRequest => 4,
        }
    }
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PsnSequence => "PSN sequence error",
            Self::InvalidRequest => "invalid request",
            Self::RemoteAccess => "remote access error",
            Self::RemoteOperational => "remote operational error",
            Self::InvalidRdRequest => "invalid RD request",
        })
    }
}

/// Credits in an ACK: how many receives are posted beyond the MSN, in steps of about 1.5.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CreditCode(u8);

impl CreditCode {
    /// The responder gives no number: always so on a shared receive queue, and in all ACKs of Linux rxe.
    pub const UNKNOWN: Self = Self(31);

    /// The code of that number; `None` above 31.
    #[inline]
    pub const fn from_u8(code: u8) -> Option<Self> {
        if code <= VALUE_MASK {
            Some(Self(code))
        } else {
            None
        }
    }

    /// The largest code that promises no more than `receives`.
    pub fn at_most(receives: u32) -> Self {
        let mut best = Self(0);
        for (code, &credits) in (0..).zip(&CREDITS) {
            if credits <= receives {
                best = Self(code);
            }
        }
        best
    }

    /// Its number, 0 to 31.
    #[inline]
    pub const fn to_u8(self) -> u8 {
        self.0
    }

    /// Receives promised; `None` if the responder gives no number.
    #[inline]
    pub fn credits(self) -> Option<u32> {
        CREDITS.get(usize::from(self.0)).copied()
    }
}

impl fmt::Debug for CreditCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.credits() {
            Some(credits) => write!(f, "{credits} credits"),
            None => f.write_str("no credit"),
        }
    }
}

/// Credits of the codes 0 to 30.
const CREDITS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

/// How long a requester waits after an RNR NAK, as a code of five bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// The longest wait, 655.36 ms.
    pub const MAX: Self = Self(0);

    /// The code of that number; `None` above 31.
    #[inline]
    pub const fn from_u8(code: u8) -> Option<Self> {
        if code <= VALUE_MASK {
            Some(Self(code))
        } else {
            None
        }
    }

    /// The shortest wait that is at least `time`; [`RnrTimer::MAX`] when there is none.
    pub fn at_least(time: Duration) -> Self {
        // The codes from 1 on are ascending; code 0 is the longest.
        (1..=VALUE_MASK)
            .map(Self)
            .find(|timer| timer.duration() >= time)
            .unwrap_or(Self::MAX)
    }

    /// Its number, 0 to 31.
    #[inline]
    pub const fn to_u8(self) -> u8 {
        self.0
    }

    /// The time to wait.
    #[inline]
    pub fn duration(self) -> Duration {
        let tens = RNR_TENS_OF_US.get(usize::from(self.0)).copied();
        Duration::from_micros(10 * tens.unwrap_or(RNR_TENS_OF_US[0]))
    }
}

impl fmt::Debug for RnrTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.duration().fmt(f)
    }
}

/// Times of the codes 0 to 31 in units of 10 us.
const RNR_TENS_OF_US: [u64; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every syndrome byte reads and writes back the same, or is refused. Method: all of them.
    #[test]
    fn syndromes_round_trip() {
        let mut legal = 0;
        for byte in 0..=u8::MAX {
            if let Some(syndrome) = Syndrome::from_u8(byte) {
                assert_eq!(syndrome.to_u8(), byte);
                legal += 1;
            }
        }
        assert_eq!(legal, 32 + 32 + NakCode::ALL.len());
        assert_eq!(
            Syndrome::from_u8(0x62),
            Some(Syndrome::Nak(NakCode::RemoteAccess))
        );
        assert_eq!(
            Syndrome::from_u8(0x1f),
            Some(Syndrome::Ack(CreditCode::UNKNOWN))
        );
        assert_eq!(Syndrome::from_u8(0x45), None);
        assert_eq!(Syndrome::from_u8(0x9f), None);
    }

    /// Goal: the times of the specification. Method: a sample, in the milliseconds it gives.
    #[test]
    fn rnr_times_are_those_of_the_specification() {
        for (code, ms) in [
            (0, 655.36),
            (1, 0.01),
            (7, 0.12),
            (14, 1.28),
            (25, 61.44),
            (31, 491.52),
        ] {
            let timer = RnrTimer::from_u8(code).unwrap();
            assert_eq!(timer.duration(), Duration::from_secs_f64(ms / 1000.0));
            assert_eq!(RnrTimer::at_least(timer.duration()), timer);
        }
        assert_eq!(RnrTimer::at_least(Duration::from_micros(11)).to_u8(), 2);
        assert_eq!(RnrTimer::at_least(Duration::from_secs(9)), RnrTimer::MAX);
        assert_eq!(RnrTimer::from_u8(32), None);
    }

    #[test]
    fn credits_round_down() {
        for (receives, code) in [(0, 0), (1, 1), (5, 4), (6, 5), (40_000, 30)] {
            assert_eq!(CreditCode::at_most(receives).to_u8(), code);
        }
        assert_eq!(CreditCode::UNKNOWN.credits(), None);
        assert_eq!(CreditCode::from_u8(30).unwrap().credits(), Some(32_768));
        assert_eq!(CreditCode::from_u8(32), None);
    }

    #[test]
    fn views_print_reserved_syndromes() {
        let text = format!("{:?}", AethView::of(&[0x45, 0, 0, 1]));
        assert!(text.contains("0x45?"), "{text}");
    }
}
