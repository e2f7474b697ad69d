//! Why a verb failed, as bytes.

use crate::caps::Capability;
use crate::error::{Attr, ByteCount, Error, Why};
use crate::host::bytes::{Encode, Malformed, Reader, encode};
use crate::host::quota::QuotaError;
use crate::qp_state::{QpAttrMask, QpState, QpType, Transition};

/// Why a command has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The verb failed.
    #[error("{0}")]
    Verb(Error),
    /// A destroy found the object in use by so many others.
    #[error("{objects} objects still use this one; destroy those first")]
    Busy {
        /// Child objects, exact at the moment of the decision.
        objects: u32,
    },
    /// The client has as much as it may have.
    #[error("{0}")]
    Quota(QuotaError),
    /// The bytes are no command.
    #[error("the bytes are no command: {0}")]
    Malformed(Malformed),
}

impl Encode for Failure {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Verb(error) => {
                1_u16.put(out);
                error.put(out);
            }
            Self::Busy { objects } => {
                2_u16.put(out);
                objects.put(out);
            }
            Self::Quota(error) => {
                3_u16.put(out);
                error.put(out);
            }
            Self::Malformed(malformed) => {
                4_u16.put(out);
                malformed.put(out);
            }
        }
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        match from.read::<u16>()? {
            1 => from.read().map(Self::Verb),
            2 => Ok(Self::Busy {
                objects: from.read()?,
            }),
            3 => from.read().map(Self::Quota),
            4 => from.read().map(Self::Malformed),
            got => Err(Malformed::Unknown {
                what: "failure",
                got: got.into(),
            }),
        }
    }
}

/// What the bytes of a peer were not is told without the names of values, which are texts of this program.
impl Encode for Malformed {
    fn put(&self, out: &mut Vec<u8>) {
        let (number, got, max): (u16, u32, u32) = match *self {
            Self::Short => (1, 0, 0),
            Self::Unknown { got, .. } => (2, got, 0),
            Self::TooMany { got, max, .. } => (3, got, max),
            Self::Newer => (4, 0, 0),
            Self::Text => (5, 0, 0),
        };
        number.put(out);
        got.put(out);
        max.put(out);
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (number, got, max): (u16, u32, u32) = (from.read()?, from.read()?, from.read()?);
        Ok(match number {
            1 => Self::Short,
            2 => Self::Unknown { what: "value", got },
            3 => Self::TooMany {
                what: "values",
                got,
                max,
            },
            4 => Self::Newer,
            5 => Self::Text,
            got => {
                return Err(Self::Unknown {
                    what: "fault",
                    got: got.into(),
                });
            }
        })
    }
}

/// Numbers of errors, written by hand and never used again.
impl Encode for Error {
    fn put(&self, out: &mut Vec<u8>) {
        let plain: u16 = match self {
            Self::Invalid { attr, got, max } => {
                put_about(1, *attr, out);
                got.put(out);
                return max.put(out);
            }
            Self::Mismatch { attr, why } => {
                put_about(2, *attr, out);
                return why.put(out);
            }
            Self::OutOfRange { end, size } => {
                3_u16.put(out);
                end.value().put(out);
                return size.value().put(out);
            }
            Self::Transition(transition) => {
                4_u16.put(out);
                return transition.put(out);
            }
            Self::Unsupported(attr) => {
                return put_about(5, *attr, out);
            }
            Self::Os { errno } => {
                6_u16.put(out);
                return errno.put(out);
            }
            Self::TooManyRequests { max } => {
                7_u16.put(out);
                return max.put(out);
            }
            Self::Exhausted { attr, max } => {
                put_about(8, *attr, out);
                return max.put(out);
            }
            Self::AddrInUse { port } => {
                18_u16.put(out);
                return port.put(out);
            }
            Self::NoCapability { attr, missing } => {
                put_about(20, *attr, out);
                return u16::from(missing.number()).put(out);
            }
            Self::Outstanding {
                attr,
                got,
                outstanding,
            } => {
                put_about(21, *attr, out);
                got.put(out);
                return outstanding.put(out);
            }
            Self::Busy => 9,
            Self::Closing => 10,
            Self::WouldBlock => 11,
            Self::AccessDenied => 12,
            Self::Cancelled => 13,
            Self::DeviceRemoved => 14,
            Self::DeviceFailed => 15,
            Self::NoMemory => 16,
            Self::Dropped => 17,
            Self::AddrNotAvailable => 19,
        };
        plain.put(out);
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match from.read::<u16>()? {
            1 => Self::Invalid {
                attr: from.read()?,
                got: from.read()?,
                max: from.read()?,
            },
            2 => Self::Mismatch {
                attr: from.read()?,
                why: from.read()?,
            },
            3 => Self::OutOfRange {
                end: ByteCount::new(from.read()?),
                size: ByteCount::new(from.read()?),
            },
            4 => Self::Transition(from.read()?),
            5 => Self::Unsupported(from.read()?),
            6 => Self::Os {
                errno: from.read()?,
            },
            7 => Self::TooManyRequests { max: from.read()? },
            8 => Self::Exhausted {
                attr: from.read()?,
                max: from.read()?,
            },
            9 => Self::Busy,
            10 => Self::Closing,
            11 => Self::WouldBlock,
            12 => Self::AccessDenied,
            13 => Self::Cancelled,
            14 => Self::DeviceRemoved,
            15 => Self::DeviceFailed,
            16 => Self::NoMemory,
            17 => Self::Dropped,
            18 => Self::AddrInUse { port: from.read()? },
            19 => Self::AddrNotAvailable,
            20 => {
                let (attr, number): (_, u16) = (from.read()?, from.read()?);
                let known = u8::try_from(number).ok().and_then(Capability::from_number);
                let missing = known.ok_or(Malformed::Unknown {
                    what: "capability",
                    got: number.into(),
                })?;
                Self::NoCapability { attr, missing }
            }
            21 => Self::Outstanding {
                attr: from.read()?,
                got: from.read()?,
                outstanding: from.read()?,
            },
            got => {
                return Err(Malformed::Unknown {
                    what: "error",
                    got: got.into(),
                });
            }
        })
    }
}

/// The number of an error about an argument, and which one.
fn put_about(number: u16, attr: Attr, out: &mut Vec<u8>) {
    number.put(out);
    attr.put(out);
}

encode! {
    struct Transition { from, to, qp_type, missing, forbidden }
    flags QpAttrMask;
    enum QpState("state of a queue pair") {
        Reset = 0, Init = 1, Rtr = 2, Rts = 3, Sqd = 4, Sqe = 5, Err = 6,
    }
    enum QpType("type of a queue pair") {
        Smi = 0, Gsi = 1, Rc = 2, Uc = 3, Ud = 4, RawPacket = 8, XrcSend = 9, XrcRecv = 10,
    }
    enum Attr("argument") {
        Port = 1, PkeyIndex = 2, GidIndex = 3, Cqe = 4, MaxCq = 5, CompVector = 6, Timestamps = 7,
        MaxQp = 8, QpType = 9, MaxSendWr = 10, MaxRecvWr = 11, MaxSendSge = 12, MaxRecvSge = 13,
        MaxInlineData = 14, LowLatency = 15, MaxPd = 16, MaxMr = 17, PageList = 18, MaxMw = 19,
        MaxFmr = 20, MrSize = 21, Access = 22, Key = 23, Iova = 24, MaxSrq = 25, MaxSrqWr = 26,
        SrqLimit = 27, MaxAh = 28, MaxMcast = 29, MaxMcastGrp = 30, Mgid = 31, Xrcd = 32,
        TargetQpn = 33, MaxXrcd = 34, PathMtu = 35, DestQpn = 36, MinRnrTimer = 37, Timeout = 38,
        RetryCnt = 39, RnrRetry = 40, MaxRdAtomic = 41, MaxDestRdAtomic = 42, Av = 43, AltPath = 44,
        Moderation = 45, Cq = 46, Pd = 47, Qp = 48, Address = 49, Srq = 50, Device = 51, NodeDesc = 52,
        Verb = 53, Extension = 54, MemoryWindow = 55, Atomics = 56, Requests = 57, MaxTcpPort = 58,
        CmEndpoint = 59,
        PrivateData = 60,
        ResponderResources = 61,
        InitiatorDepth = 62,
        SysImageGuid = 63,
        PathMigState = 64,
    }
    enum Why("reason") {
        OtherDevice = 1, OtherPd = 2, NeedsLocalWrite = 3, Zero = 4, NotMulticast = 5, Multicast = 6,
        Unreachable = 7, NotDatagram = 8, NoReceives = 9, UsesSrq = 10, StillUsed = 11, Exists = 12,
        Missing = 13, Overflow = 14, Alignment = 15, State = 16,
        Malformed = 17, NeedsConnection = 18,
    }
}
