//! A test's name and numbers, as both ends read them.

use std::str::FromStr;

use verbs_core::{Mtu, QpState, WcStatus};

use crate::Failure;

/// The most work requests of one test; the queues are made for them.
const COUNT_MAX: u32 = 128;

/// The most bytes of one message.
const SIZE_MAX: u32 = 16 << 20;

/// The requests of the requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    /// Many requests of one kind.
    Many(Kind),
    /// SENDs to a responder that posts its receives late.
    Rnr,
    /// All kinds in one batch.
    Mixed,
    /// READs, each followed by a fenced SEND of what was read.
    Fence,
    /// Both ends SEND at once.
    Both,
    /// A WRITE through a memory window, a SEND that invalidates it, a WRITE with the invalid key.
    SendInv,
    /// A WRITE through a memory window of type 1, and one under its previous key.
    Window,
    /// One request that fails and two behind it.
    Fails(Fault),
}

/// The kinds of [`Test::Many`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    FetchAdd,
    CompareSwap,
    AtomicWrite,
}

/// Why the request of [`Test::Fails`] fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The key belongs to no region.
    BadRkey { read: bool },
    /// The region has another key byte.
    BadKeyByte { read: bool },
    /// One byte beyond the region.
    BadRange { read: bool },
    /// The region is not open to WRITEs.
    NoMrRight,
    /// The responder's queue pair is not open to WRITEs.
    NoQpRight,
    /// A SEND of one byte more than the receive holds.
    TooLong,
    /// No receive is ever posted.
    RnrExhausted,
    /// The responder's queue pair is destroyed.
    Gone,
}

impl FromStr for Test {
    type Err = Failure;

    fn from_str(name: &str) -> Result<Self, Failure> {
        Ok(match name {
            "send" => Self::Many(Kind::Send),
            "send-imm" => Self::Many(Kind::SendImm),
            "write" => Self::Many(Kind::Write),
            "write-imm" => Self::Many(Kind::WriteImm),
            "read" => Self::Many(Kind::Read),
            "faa" => Self::Many(Kind::FetchAdd),
            "cas" => Self::Many(Kind::CompareSwap),
            "rnr" => Self::Rnr,
            "mixed" => Self::Mixed,
            "fence" => Self::Fence,
            "both" => Self::Both,
            "send-inv" => Self::SendInv,
            "window" => Self::Window,
            "atomic-write" => Self::Many(Kind::AtomicWrite),
            "bad-rkey-write" => Self::Fails(Fault::BadRkey { read: false }),
            "bad-rkey-read" => Self::Fails(Fault::BadRkey { read: true }),
            "bad-key-byte-write" => Self::Fails(Fault::BadKeyByte { read: false }),
            "bad-key-byte-read" => Self::Fails(Fault::BadKeyByte { read: true }),
            "bad-range-write" => Self::Fails(Fault::BadRange { read: false }),
            "bad-range-read" => Self::Fails(Fault::BadRange { read: true }),
            "no-mr-right" => Self::Fails(Fault::NoMrRight),
            "no-qp-right" => Self::Fails(Fault::NoQpRight),
            "too-long" => Self::Fails(Fault::TooLong),
            "rnr-exhausted" => Self::Fails(Fault::RnrExhausted),
            "gone" => Self::Fails(Fault::Gone),
            _ => return Err(format!("no test {name}").into()),
        })
    }
}

/// The numbers of a test. Both ends use the same defaults, and the requester sends the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) test: Test,
    /// Bytes of a message.
    pub(crate) size: u32,
    /// Messages.
    pub(crate) count: u32,
    /// Requests under way at once, as far as the requester polls.
    pub(crate) window: u32,
    /// One of that many requests is signaled; the last one in any case.
    pub(crate) signal: u32,
    /// Payload bytes per packet.
    pub(crate) mtu: Mtu,
    /// READs and atomics outstanding, at both ends.
    pub(crate) rd_atomic: u8,
    /// Local ACK timeout, as an exponent.
    pub(crate) timeout: u8,
    pub(crate) retry: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) rnr_timer: u8,
    /// The requester's first status in [`Test::Fails`].
    pub(crate) expect: WcStatus,
    /// Milliseconds until the responder posts its receives.
    pub(crate) late_ms: u64,
    /// The limit of a shared receive queue that the responder takes its receives from; 0 for none.
    pub(crate) limit: u32,
    /// The status of the responder's first receive after a failure; `None` if it stays posted.
    pub(crate) receive: Option<WcStatus>,
    /// The state of the responder's queue pair after a failure.
    pub(crate) state: Option<QpState>,
}

impl Plan {
    /// A plan with the default numbers.
    pub(crate) fn of(test: Test) -> Self {
        Self {
            test,
            size: 64,
            count: 4,
            window: COUNT_MAX,
            signal: 1,
            mtu: Mtu::B1024,
            rd_atomic: 16,
            timeout: 17,
            retry: 7,
            rnr_retry: 7,
            rnr_timer: 12,
            expect: WcStatus::Success,
            late_ms: 0,
            limit: 0,
            receive: None,
            state: None,
        }
    }

    /// Takes over a number; other keys are ignored.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<(), Failure> {
        match key {
            "size" => self.size = at_most(value, SIZE_MAX)?,
            "count" => self.count = at_most(value, COUNT_MAX)?.max(1),
            "window" => self.window = at_most(value, COUNT_MAX)?.max(1),
            "signal" => self.signal = at_most(value, COUNT_MAX)?.max(1),
            "mtu" => self.mtu = Mtu::from_bytes(value.parse()?)?,
            "rd" => self.rd_atomic = value.parse()?,
            "timeout" => self.timeout = value.parse()?,
            "retry" => self.retry = value.parse()?,
            "rnr-retry" => self.rnr_retry = value.parse()?,
            "rnr-timer" => self.rnr_timer = value.parse()?,
            "expect" => self.expect = status(value)?,
            "late" => self.late_ms = value.parse()?,
            "limit" => self.limit = at_most(value, COUNT_MAX)?,
            "rexpect" => self.receive = Some(status(value)?),
            "rstate" => self.state = Some(state(value)?),
            _ => {}
        }
        Ok(())
    }
}

fn at_most(value: &str, max: u32) -> Result<u32, Failure> {
    let number: u32 = value.parse()?;
    if number > max {
        return Err(format!("{number} is more than {max}").into());
    }
    Ok(number)
}

/// A status by its number in `ibv_wc_status`.
fn status(value: &str) -> Result<WcStatus, Failure> {
    let known = value.parse().ok().and_then(WcStatus::from_u8);
    known.ok_or_else(|| format!("no status {value}").into())
}

/// The two states that a responder may end in, by their numbers in `ibv_qp_state`.
fn state(value: &str) -> Result<QpState, Failure> {
    match value {
        "3" => Ok(QpState::Rts),
        "6" => Ok(QpState::Err),
        _ => Err(format!("no state {value}").into()),
    }
}
