//! The description of a unit (SPC-4, 6.6).

use std::io;

use crate::lun::serial;
use crate::scsi::bytes::{padded, put};

/// Peripheral qualifier and device type of an address without a unit.
const NOTHING_THERE: u8 = 0x7f;

/// The names of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Vendor: 8 characters.
    pub vendor: String,
    /// Product: 16 characters.
    pub product: String,
    /// Revision of the product: 4 characters.
    pub revision: String,
    /// Serial number of the unit.
    pub serial: String,
    /// A permanent unique name: NAA 3, locally assigned, or an identifier of the IEEE.
    pub naa: u64,
}

impl Identity {
    /// The identity of a unit with a unique random serial number.
    ///
    /// # Errors
    /// The system's, if it gives no random numbers.
    pub fn drawn() -> io::Result<Self> {
        Ok(Self::new(serial::drawn()?))
    }

    /// The identity of a unit with that serial number. The unique name is derived from it, locally assigned (NAA
    /// 3).
    pub fn new(serial: impl Into<String>) -> Self {
        let serial = serial.into();
        // FNV-1a: the same name for the same serial number, in every run.
        let hash = serial
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
            });
        Self {
            vendor: "VERBS".into(),
            product: "SRP DISK".into(),
            revision: env!("CARGO_PKG_VERSION")[..3].into(),
            naa: 3 << 60 | hash >> 4,
            serial,
        }
    }
}

/// The description that a unit has returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inquiry {
    /// Peripheral device type; 0 for a disk.
    pub device_type: u8,
    /// Whether a unit is there.
    pub is_there: bool,
    /// Vendor, without trailing spaces.
    pub vendor: String,
    /// Product, without trailing spaces.
    pub product: String,
    /// Revision, without trailing spaces.
    pub revision: String,
}

impl Inquiry {
    /// Bytes of the data.
    pub const LEN: usize = 96;

    /// Reads the data of INQUIRY; `None` if they are too short.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..36)?;
        let text = |range| {
            let text = String::from_utf8_lossy(&bytes[range]);
            text.trim_end().to_owned()
        };
        Some(Self {
            device_type: bytes[0] & 0x1f,
            is_there: bytes[0] >> 5 == 0,
            vendor: text(8..16),
            product: text(16..32),
            revision: text(32..36),
        })
    }

    /// The data of INQUIRY for that unit; without one, that none is there.
    pub fn emit(identity: Option<&Identity>) -> [u8; Self::LEN] {
        // Claimed versions: SAM-5, SPC-4, SBC-3, SRP (SPC-4, 6.6.4).
        const VERSIONS: [u16; 4] = [0x00a0, 0x0460, 0x04c0, 0x0940];
        let mut bytes = [0; Self::LEN];
        bytes[2] = 0x06;
        // HISUP, and the response format.
        bytes[3] = 0x12;
        bytes[4] = (Self::LEN - 5) as u8;
        // CMDQUE.
        bytes[7] = 0x02;
        for (at, version) in VERSIONS.iter().enumerate() {
            put(&mut bytes, 58 + 2 * at, &version.to_be_bytes());
        }
        match identity {
            None => bytes[0] = NOTHING_THERE,
            Some(identity) => {
                put(&mut bytes, 8, &padded::<8>(&identity.vendor));
                put(&mut bytes, 16, &padded::<16>(&identity.product));
                put(&mut bytes, 32, &padded::<4>(&identity.revision));
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        let identity = Identity::new("0001");
        let parsed = Inquiry::parse(&Inquiry::emit(Some(&identity))).expect("long enough");
        assert_eq!(
            (parsed.vendor, parsed.product),
            (identity.vendor, identity.product)
        );
        assert!(parsed.is_there && parsed.device_type == 0);
        let nothing = Inquiry::parse(&Inquiry::emit(None)).expect("long enough");
        assert!(!nothing.is_there);
        assert_eq!(Inquiry::parse(&[0; 35]), None);
        assert_eq!(identity.naa >> 60, 3);
        assert_ne!(Identity::new("0002").naa, identity.naa);
    }
}
