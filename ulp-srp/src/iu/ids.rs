//! Names and numbers of information units.

use std::fmt;
use std::str::FromStr;

use bitflags::bitflags;
use verbs_core::mad::field::{Field, Run, number, put_number};
use verbs_core::{Guid, RKey, Remote, number_fields};

/// The tag that matches an answer to its request. Opaque to the other side; unique among the outstanding requests
/// of a nexus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Tag(pub u64);

/// Name of a port of an initiator or a target: an extension and a GUID, in the order of revision 16a.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PortId {
    /// Identifier extension: tells ports of one GUID apart.
    pub extension: u64,
    /// The GUID: of a channel adapter for initiators, of an I/O controller for targets.
    pub guid: Guid,
}

impl PortId {
    /// The same name for a target of revision 10 (I/O class 0xff00), which has the two in reverse order.
    pub const fn revision_10(self) -> Self {
        Self {
            extension: self.guid.0,
            guid: Guid(self.extension),
        }
    }
}

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.extension, self.guid.0)
    }
}

impl fmt::Debug for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not the 32 hexadecimal digits of a port's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the name of a port is 32 hexadecimal digits: extension and GUID")]
pub struct NoPortId;

impl FromStr for PortId {
    type Err = NoPortId;

    fn from_str(text: &str) -> Result<Self, NoPortId> {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        if digits.len() != 32 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(NoPortId);
        }
        let (extension, guid) = digits.split_at(16);
        let number = |digits| u64::from_str_radix(digits, 16).map_err(|_| NoPortId);
        Ok(Self {
            extension: number(extension)?,
            guid: Guid(number(guid)?),
        })
    }
}

impl Field for PortId {
    fn read(bytes: &[u8], run: Run) -> Self {
        let [extension, guid] = <[u64; 2]>::read(bytes, run);
        Self {
            extension,
            guid: Guid(guid),
        }
    }

    fn write(self, bytes: &mut [u8], run: Run) {
        [self.extension, self.guid.0].write(bytes, run);
    }
}

/// Number of a logical unit, in the eight bytes of SAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lun(pub u64);

impl Lun {
    /// The unit with that number on one level: peripheral addressing below 256, flat addressing above. `None` for
    /// numbers from 2^14 on, which have no such form.
    pub const fn new(number: u16) -> Option<Self> {
        match number {
            0..0x100 => Some(Self((number as u64) << 48)),
            0x100..0x4000 => Some(Self((0x4000 | number as u64) << 48)),
            _ => None,
        }
    }

    /// The number, if the value has one of the two forms of [`Lun::new`].
    pub const fn number(self) -> Option<u16> {
        let first = (self.0 >> 48) as u16;
        if self.0 << 16 != 0 {
            return None;
        }
        match first >> 14 {
            0 if first < 0x100 => Some(first),
            1 => Some(first & 0x3fff),
            _ => None,
        }
    }
}

impl fmt::Display for Lun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number() {
            Some(number) => write!(f, "{number}"),
            None => write!(f, "0x{:016x}", self.0),
        }
    }
}

bitflags! {
    /// Formats of data buffers that a side can read; unknown bits are kept.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct BufferFormats: u16 {
        /// One memory descriptor.
        const DIRECT = 0x0002;
        /// A table of memory descriptors.
        const INDIRECT = 0x0004;
        const _ = !0;
    }
}

/// One piece of the initiator's memory as the target addresses it: 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct MemoryDescriptor {
    /// Address of the first byte.
    pub addr: u64,
    /// Memory handle.
    pub rkey: RKey,
    /// Bytes.
    pub len: u32,
}

impl MemoryDescriptor {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// The address `offset` bytes after the start.
    pub const fn remote(&self, offset: u32) -> Remote {
        Remote {
            addr: self.addr.wrapping_add(offset as u64),
            rkey: self.rkey,
        }
    }
}

impl Field for MemoryDescriptor {
    fn read(bytes: &[u8], run: Run) -> Self {
        let [high, low, rkey, len] = <[u32; 4]>::read(bytes, run);
        Self {
            addr: u64::from(high) << 32 | u64::from(low),
            rkey: RKey::new(rkey),
            len,
        }
    }

    fn write(self, bytes: &mut [u8], run: Run) {
        let at = |byte, width| Run {
            byte: run.byte + byte,
            bit: 0,
            width,
        };
        put_number(bytes, at(0, 64), self.addr);
        put_number(bytes, at(8, 32), u64::from(self.rkey.value()));
        put_number(bytes, at(12, 32), u64::from(self.len));
    }
}

/// A change of the request limit, signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Delta(pub i32);

impl Field for Delta {
    fn read(bytes: &[u8], run: Run) -> Self {
        Self(u32::read(bytes, run).cast_signed())
    }

    fn write(self, bytes: &mut [u8], run: Run) {
        self.0.cast_unsigned().write(bytes, run);
    }
}

/// Enumerations whose wire values need not have a name.
macro_rules! codes {
    ($(
        $(#[$doc:meta])*
        $name:ident: $number:ty { $($(#[$code_doc:meta])* $variant:ident = $code:literal, $text:literal;)* }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($number);

        impl $name {
            $($(#[$code_doc])* pub const $variant: Self = Self($code);)*

            /// The value with that code, with or without a name.
            pub const fn from_code(code: $number) -> Self {
                Self(code)
            }

            /// The code on the wire.
            pub const fn code(self) -> $number {
                self.0
            }

            /// The name in the specification, if it has one.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some($text),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "0x{:x}", self.0),
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{self} (0x{:x})", self.0)
            }
        }

        impl Field for $name {
            fn read(bytes: &[u8], run: Run) -> Self {
                Self(<$number>::read(bytes, run))
            }

            fn write(self, bytes: &mut [u8], run: Run) {
                self.0.write(bytes, run);
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self(0)
            }
        }
    )*};
}

codes! {
    /// Why a target refuses a login. In private data of a CM REJ with reason 28.
    LoginRejectReason: u32 {
        /// Unspecified.
        CANNOT_ESTABLISH = 0x0001_0000, "unable to establish the channel";
        /// The target has no room.
        NO_RESOURCES = 0x0001_0001, "insufficient resources";
        /// The requested length of information units is too large (or too small).
        IU_TOO_LARGE = 0x0001_0002, "the requested length of information units is not supported";
        /// The name of the target's port is not known here, or the initiator may not use it.
        CANNOT_ASSOCIATE = 0x0001_0003, "unable to associate the channel with a nexus";
        /// A requested buffer format is not supported.
        FORMAT = 0x0001_0004, "unsupported descriptor format";
        /// Only one channel for each nexus.
        NO_MULTICHANNEL = 0x0001_0005, "no support for several channels of a nexus";
        /// The nexus has as many channels as it may.
        CHANNEL_LIMIT = 0x0001_0006, "channel limit reached";
    }

    /// What happens to the existing channels of the nexus when an initiator logs in (two bits).
    MultiChannel: u8 {
        /// In a request: close the others. In a response: there were none.
        SINGLE = 0, "single channel";
        /// In a request: keep the others. In a response: the others were closed.
        INDEPENDENT = 1, "multiple independent channels";
        /// In a response: the others were kept.
        MAINTAINED = 2, "existing channels maintained";
    }

    /// How a command is ordered among the commands of its logical unit (three bits).
    TaskAttribute: u8 {
        /// In any order.
        SIMPLE = 0, "simple";
        /// Before all others.
        HEAD_OF_QUEUE = 1, "head of queue";
        /// After all earlier ones.
        ORDERED = 2, "ordered";
        /// While the unit has an auto contingent allegiance.
        ACA = 4, "ACA";
    }

    /// The function that a task management request asks for.
    TaskFunction: u8 {
        /// Abort the task that the request names.
        ABORT_TASK = 0x01, "abort task";
        /// Abort the initiator's tasks on the logical unit.
        ABORT_TASK_SET = 0x02, "abort task set";
        /// Abort all tasks on the logical unit.
        CLEAR_TASK_SET = 0x04, "clear task set";
        /// Reset the logical unit.
        LUN_RESET = 0x08, "logical unit reset";
        /// End the auto contingent allegiance.
        CLEAR_ACA = 0x40, "clear ACA";
    }

    /// The result of a request that is not answered with a SCSI status alone.
    ResponseCode: u8 {
        /// The function is complete, or there was no error.
        COMPLETE = 0, "complete";
        /// A field of the request has an invalid value.
        INVALID_FIELDS = 2, "request fields invalid";
        /// The task management function is not supported.
        NOT_SUPPORTED = 4, "function not supported";
        /// The task management function failed.
        FAILED = 5, "function failed";
    }

    /// Why a target logs an initiator out.
    LogoutReason: u32 {
        /// Unspecified.
        UNSPECIFIED = 0, "no reason given";
        /// The channel has been inactive.
        INACTIVE = 1, "inactive channel";
        /// An information unit's type is invalid.
        INVALID_TYPE = 2, "invalid type of information unit";
        /// An answer without a request outstanding.
        SPURIOUS_ANSWER = 3, "answer without a request";
        /// Another login closed the channel.
        MULTICHANNEL = 4, "closed by a login of the same nexus";
        /// A data-out buffer's format is not supported.
        DATA_OUT_FORMAT = 6, "unsupported data-out format";
        /// A data-in buffer's format is not supported.
        DATA_IN_FORMAT = 7, "unsupported data-in format";
        /// The lengths of a unit's parts are wrong.
        INVALID_LENGTH = 8, "invalid length of data buffer descriptors";
    }

    /// SCSI status of a command (SAM).
    Status: u8 {
        /// Done.
        GOOD = 0x00, "GOOD";
        /// Sense data give the reason.
        CHECK_CONDITION = 0x02, "CHECK CONDITION";
        /// The logical unit cannot take the command now.
        BUSY = 0x08, "BUSY";
        /// Another initiator has a reservation.
        RESERVATION_CONFLICT = 0x18, "RESERVATION CONFLICT";
        /// The logical unit's queue is full.
        TASK_SET_FULL = 0x28, "TASK SET FULL";
        /// The unit has an auto contingent allegiance.
        ACA_ACTIVE = 0x30, "ACA ACTIVE";
        /// Aborted by another initiator.
        TASK_ABORTED = 0x40, "TASK ABORTED";
    }
}

number_fields! {
    Tag: |bits| Self(bits), |value| value.0;
    Lun: |bits| Self(bits), |value| value.0;
}

impl Field for BufferFormats {
    fn read(bytes: &[u8], run: Run) -> Self {
        let [.., high, low] = number(bytes, run).to_be_bytes();
        Self::from_bits_retain(u16::from_be_bytes([high, low]))
    }

    fn write(self, bytes: &mut [u8], run: Run) {
        self.bits().write(bytes, run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logical_units_have_two_forms() {
        assert_eq!(Lun::new(0), Some(Lun(0)));
        assert_eq!(Lun::new(5), Some(Lun(0x0005_0000_0000_0000)));
        assert_eq!(Lun::new(256), Some(Lun(0x4100_0000_0000_0000)));
        assert_eq!(Lun::new(0x4000), None);
        for number in 0..0x4000 {
            assert_eq!(Lun::new(number).and_then(Lun::number), Some(number));
        }
        assert_eq!(Lun(1).number(), None);
        assert_eq!(Lun(0x0100_0000_0000_0000).number(), None);
        assert_eq!(Lun(0xc101_0000_0000_0000).to_string(), "0xc101000000000000");
    }

    #[test]
    fn names_of_ports_are_written_as_they_are_read() {
        let text = "0000000000000001505400fffe770002";
        let id: PortId = text.parse().unwrap();
        assert_eq!(id.extension, 1);
        assert_eq!(id.guid, Guid(0x5054_00ff_fe77_0002));
        assert_eq!(id.to_string(), text);
        assert_eq!(
            id.revision_10().to_string(),
            "505400fffe7700020000000000000001"
        );
        assert_eq!("12".parse::<PortId>(), Err(NoPortId));
        assert_eq!("+".repeat(32).parse::<PortId>(), Err(NoPortId));
    }

    #[test]
    fn codes_have_names() {
        assert_eq!(Status::CHECK_CONDITION.to_string(), "CHECK CONDITION");
        assert_eq!(Status::from_code(0x77).to_string(), "0x77");
        assert_eq!(
            format!("{:?}", LoginRejectReason::CHANNEL_LIMIT),
            "channel limit reached (0x10006)"
        );
    }
}
