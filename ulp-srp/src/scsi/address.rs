//! Logical unit numbers: eight bytes, of which block devices use the first two (SAM-5, 4.7).

use std::fmt;

use super::bytes::{put, u32_at};

/// The address of a logical unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lun([u8; 8]);

impl Lun {
    /// The well known logical unit that answers REPORT LUNS whatever else there is.
    pub const REPORT_LUNS: Self = Self([0xc1, 0x01, 0, 0, 0, 0, 0, 0]);

    /// Largest number that the flat address method has room for.
    pub const NUMBER_MAX: u16 = 0x3fff;

    /// The unit of that number: by the peripheral device method up to 255, by the flat method above, as
    /// initiators expect. Numbers beyond [`Lun::NUMBER_MAX`] have no address.
    pub const fn number(number: u16) -> Option<Self> {
        let [high, low] = number.to_be_bytes();
        match number {
            0..=0xff => Some(Self([0, low, 0, 0, 0, 0, 0, 0])),
            0x100..=Self::NUMBER_MAX => Some(Self([high | 0x40, low, 0, 0, 0, 0, 0, 0])),
            _ => None,
        }
    }

    /// As it is in a message.
    pub const fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(bytes)
    }

    /// As it goes into a message.
    pub const fn to_bytes(self) -> [u8; 8] {
        self.0
    }

    /// The number, by whichever method it is addressed: peripheral device on bus 0, flat, or logical unit
    /// on bus 0 and target 0. `None` for deeper levels, other buses and well known units.
    pub fn to_number(self) -> Option<u16> {
        let [first, second, rest @ ..] = self.0;
        if rest != [0; 6] {
            return None;
        }
        match first >> 6 {
            0b00 if first == 0 => Some(second.into()),
            0b01 => Some(u16::from_be_bytes([first & 0x3f, second])),
            0b10 if first == 0x80 && second >> 5 == 0 => Some(u16::from(second & 0x1f)),
            _ => None,
        }
    }
}

impl fmt::Display for Lun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_number() {
            Some(number) => number.fmt(f),
            None => write!(f, "{:#018x}", u64::from_be_bytes(self.0)),
        }
    }
}

/// The data of REPORT LUNS (SPC-4, 6.33).
pub fn report_luns(luns: &[Lun]) -> Vec<u8> {
    let mut bytes = vec![0; 8 + 8 * luns.len()];
    // As many as a target has: far below 2^29.
    let len = u32::try_from(8 * luns.len()).unwrap_or(u32::MAX);
    put(&mut bytes, 0, &len.to_be_bytes());
    for (at, lun) in luns.iter().enumerate() {
        put(&mut bytes, 8 + 8 * at, &lun.0);
    }
    bytes
}

/// The units in the data of REPORT LUNS, as far as they are there.
pub fn reported_luns(bytes: &[u8]) -> impl Iterator<Item = Lun> + '_ {
    let said = u32_at(bytes, 0) as usize / 8;
    let list = bytes.get(8..).unwrap_or(&[]);
    let (luns, _) = list.as_chunks::<8>();
    luns.iter().take(said).map(|lun| Lun(*lun))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_addresses_and_back() {
        for number in [0, 1, 255, 256, Lun::NUMBER_MAX] {
            let lun = Lun::number(number).expect("in range");
            assert_eq!(lun.to_number(), Some(number));
        }
        assert_eq!(Lun::number(0x4000), None);
        assert_eq!(
            Lun::number(300).map(Lun::to_bytes),
            Some([0x41, 0x2c, 0, 0, 0, 0, 0, 0])
        );
        // The other methods of addressing unit 5.
        assert_eq!(Lun([0x40, 5, 0, 0, 0, 0, 0, 0]).to_number(), Some(5));
        assert_eq!(Lun([0x80, 5, 0, 0, 0, 0, 0, 0]).to_number(), Some(5));
        for other in [[1, 5], [0x81, 5], [0x80, 0x25], [0xc1, 1]] {
            let lun = Lun([other[0], other[1], 0, 0, 0, 0, 0, 0]);
            assert_eq!(lun.to_number(), None, "{lun}");
        }
        assert_eq!(Lun([0, 5, 0, 1, 0, 0, 0, 0]).to_number(), None);
    }

    #[test]
    fn lists_of_units_come_back() {
        let luns: Vec<_> = [0, 7, 300].into_iter().filter_map(Lun::number).collect();
        let bytes = report_luns(&luns);
        assert_eq!(bytes[..8], [0, 0, 0, 24, 0, 0, 0, 0]);
        assert_eq!(reported_luns(&bytes).collect::<Vec<_>>(), luns);
        assert_eq!(reported_luns(&bytes[..20]).count(), 1, "cut short");
        assert_eq!(reported_luns(&[0xff]).count(), 0);
    }
}
