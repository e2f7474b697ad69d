//! Sense data: why a command was not executed (SPC-4, 4.5).

use std::fmt;

use super::bytes::{put, u32_at, u64_at};

/// The kind of error (SPC-4, 4.5.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum SenseKey {
    /// Nothing to report.
    NoSense = 0x0,
    /// Executed after error recovery.
    RecoveredError = 0x1,
    /// The unit cannot be used now.
    NotReady = 0x2,
    /// The medium is damaged.
    MediumError = 0x3,
    /// The device is damaged.
    HardwareError = 0x4,
    /// The command is wrong.
    IllegalRequest = 0x5,
    /// An event that the initiator must know of first.
    UnitAttention = 0x6,
    /// The medium is protected.
    DataProtect = 0x7,
    /// The command was aborted; retry it.
    AbortedCommand = 0xb,
    /// Data differ.
    Miscompare = 0xe,
}

impl SenseKey {
    const fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            0x0 => Self::NoSense,
            0x1 => Self::RecoveredError,
            0x2 => Self::NotReady,
            0x3 => Self::MediumError,
            0x4 => Self::HardwareError,
            0x5 => Self::IllegalRequest,
            0x6 => Self::UnitAttention,
            0x7 => Self::DataProtect,
            0xb => Self::AbortedCommand,
            0xe => Self::Miscompare,
            _ => return None,
        })
    }
}

/// Additional sense code and qualifier.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code(pub u8, pub u8);

macro_rules! codes {
    ($($name:ident = $asc:literal, $ascq:literal, $text:literal;)*) => {
        impl Code {
            $(#[doc = concat!("\"", $text, "\".")] pub const $name: Self = Self($asc, $ascq);)*

            /// Its meaning, if it is a known code.
            pub const fn text(self) -> Option<&'static str> {
                match (self.0, self.1) {
                    $(($asc, $ascq) => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    NONE = 0x00, 0x00, "no additional sense information";
    NOT_READY = 0x04, 0x00, "logical unit not ready, cause not reportable";
    WRITE_ERROR = 0x0c, 0x00, "write error";
    UNRECOVERED_READ_ERROR = 0x11, 0x00, "unrecovered read error";
    PARAMETER_LIST_LENGTH = 0x1a, 0x00, "parameter list length error";
    MISCOMPARE = 0x1d, 0x00, "miscompare during verify operation";
    INVALID_OPCODE = 0x20, 0x00, "invalid command operation code";
    LBA_OUT_OF_RANGE = 0x21, 0x00, "logical block address out of range";
    INVALID_FIELD_IN_CDB = 0x24, 0x00, "invalid field in CDB";
    UNKNOWN_LUN = 0x25, 0x00, "logical unit not supported";
    INVALID_PARAMETER = 0x26, 0x00, "invalid field in parameter list";
    WRITE_PROTECTED = 0x27, 0x00, "write protected";
    POWER_ON = 0x29, 0x00, "power on, reset, or bus device reset occurred";
    DEVICE_RESET = 0x29, 0x03, "bus device reset function occurred";
    NEXUS_LOSS = 0x29, 0x07, "I_T nexus loss occurred";
    CAPACITY_CHANGED = 0x2a, 0x09, "capacity data has changed";
    LUNS_CHANGED = 0x3f, 0x0e, "reported LUNs data has changed";
    SAVING_UNSUPPORTED = 0x39, 0x00, "saving parameters not supported";
    NO_MEDIUM = 0x3a, 0x00, "medium not present";
    INTERNAL_FAILURE = 0x44, 0x00, "internal target failure";
    DATA_PHASE = 0x4b, 0x00, "data phase error";
    OVERLAPPED_COMMANDS = 0x4e, 0x00, "overlapped commands attempted";
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}/{:02x}", self.0, self.1)
    }
}

/// Why a command was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sense {
    /// The kind.
    pub key: SenseKey,
    /// The precise reason.
    pub code: Code,
    /// The first block that failed, or the offset at which data differ.
    pub information: Option<u64>,
    /// The first byte of the CDB, or of the parameter list, that is in error.
    pub field: Option<Field>,
}

/// A byte in error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Whether it is in the CDB, rather than in the parameter list.
    pub in_cdb: bool,
    /// The byte's index.
    pub byte: u16,
}

impl Sense {
    /// Bytes of the fixed format.
    pub const FIXED_LEN: usize = 18;

    /// Sense data without further information.
    pub const fn new(key: SenseKey, code: Code) -> Self {
        Self {
            key,
            code,
            information: None,
            field: None,
        }
    }

    /// The command requests something that does not exist.
    pub const fn illegal(code: Code) -> Self {
        Self::new(SenseKey::IllegalRequest, code)
    }

    /// A byte of the CDB is in error.
    pub const fn cdb_field(byte: u16) -> Self {
        let mut sense = Self::illegal(Code::INVALID_FIELD_IN_CDB);
        sense.field = Some(Field { in_cdb: true, byte });
        sense
    }

    /// A byte of the parameter list is in error.
    pub const fn parameter_field(byte: u16) -> Self {
        let mut sense = Self::illegal(Code::INVALID_PARAMETER);
        sense.field = Some(Field {
            in_cdb: false,
            byte,
        });
        sense
    }

    /// An event that the initiator must know of.
    pub const fn attention(code: Code) -> Self {
        Self::new(SenseKey::UnitAttention, code)
    }

    /// Adds the information field.
    pub const fn at(mut self, information: u64) -> Self {
        self.information = Some(information);
        self
    }

    /// The fixed format (SPC-4, 4.5.3), whose information field has only 32 bits.
    pub fn emit_fixed(&self) -> [u8; Self::FIXED_LEN] {
        let mut bytes = [0; Self::FIXED_LEN];
        bytes[0] = 0x70;
        bytes[2] = self.key as u8;
        bytes[7] = (Self::FIXED_LEN - 8) as u8;
        bytes[12] = self.code.0;
        bytes[13] = self.code.1;
        if let Some(place) = self.information.and_then(|place| u32::try_from(place).ok()) {
            bytes[0] |= 0x80;
            put(&mut bytes, 3, &place.to_be_bytes());
        }
        if let Some(field) = self.field {
            bytes[15] = 0x80 | u8::from(field.in_cdb) << 6;
            put(&mut bytes, 16, &field.byte.to_be_bytes());
        }
        bytes
    }

    /// The descriptor format (SPC-4, 4.5.2).
    pub fn emit_descriptors(&self) -> Vec<u8> {
        let mut bytes = vec![0x72, self.key as u8, self.code.0, self.code.1, 0, 0, 0, 0];
        if let Some(place) = self.information {
            bytes.extend([0x00, 0x0a, 0x80, 0]);
            bytes.extend(place.to_be_bytes());
        }
        if let Some(field) = self.field {
            let [high, low] = field.byte.to_be_bytes();
            let flags = 0x80 | u8::from(field.in_cdb) << 6;
            bytes.extend([0x02, 0x06, 0, 0, flags, high, low, 0]);
        }
        // Two descriptors at most, of 20 bytes together.
        bytes[7] = (bytes.len() - 8) as u8;
        bytes
    }

    /// Reads sense data of either format; `None` if they are neither or too short. An unknown key reads as a
    /// hardware error.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let first = *bytes.first()?;
        let key = |byte: u8| SenseKey::from_u8(byte & 0xf).unwrap_or(SenseKey::HardwareError);
        match first & 0x7f {
            0x70 | 0x71 => Some(Self {
                key: key(*bytes.get(2)?),
                code: Code(
                    bytes.get(12).copied().unwrap_or(0),
                    bytes.get(13).copied().unwrap_or(0),
                ),
                information: (first & 0x80 != 0).then(|| u32_at(bytes, 3).into()),
                field: field(bytes, 15),
            }),
            0x72 | 0x73 => {
                let mut sense =
                    Self::new(key(*bytes.get(1)?), Code(*bytes.get(2)?, *bytes.get(3)?));
                let mut rest = bytes.get(8..)?;
                while let [kind, len, ..] = *rest {
                    match kind {
                        0x00 => sense.information = Some(u64_at(rest, 4)),
                        0x02 => sense.field = field(rest, 4),
                        _ => {}
                    }
                    rest = rest.get(2 + usize::from(len)..).unwrap_or(&[]);
                }
                Some(sense)
            }
            _ => None,
        }
    }
}

/// The field pointer of three bytes at `at`, if it is valid.
fn field(bytes: &[u8], at: usize) -> Option<Field> {
    let &[flags, high, low] = bytes.get(at..at + 3)? else {
        return None;
    };
    (flags & 0x80 != 0).then(|| Field {
        in_cdb: flags & 0x40 != 0,
        byte: u16::from_be_bytes([high, low]),
    })
}

impl fmt::Display for Sense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, {:?}", self.key, self.code)?;
        if let Some(text) = self.code.text() {
            write!(f, " ({text})")?;
        }
        match self.information {
            Some(place) => write!(f, " at {place}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_formats_say_the_same() {
        let all = [
            Sense::illegal(Code::INVALID_OPCODE),
            Sense::new(SenseKey::MediumError, Code::UNRECOVERED_READ_ERROR).at(77),
            Sense::cdb_field(2),
            Sense::parameter_field(0x1234),
        ];
        for sense in all {
            assert_eq!(Sense::parse(&sense.emit_fixed()), Some(sense));
            assert_eq!(Sense::parse(&sense.emit_descriptors()), Some(sense));
        }
        let far = Sense::new(SenseKey::Miscompare, Code::MISCOMPARE).at(1 << 40);
        assert_eq!(Sense::parse(&far.emit_descriptors()), Some(far));
        let cut = Sense::parse(&far.emit_fixed()).map(|sense| sense.information);
        assert_eq!(cut, Some(None), "the fixed format has no room for it");
        assert_eq!(
            Sense::illegal(Code::LBA_OUT_OF_RANGE).emit_fixed()[..14],
            [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x21, 0]
        );
    }

    proptest! {
        #[test]
        fn garbage_is_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = Sense::parse(&bytes);
        }
    }
}
