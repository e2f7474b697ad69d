//! The units of a target (SPC-4, 6.33).

use crate::iu::Lun;
use crate::scsi::bytes::{put, u32_at, u64_at};

/// The data of REPORT LUNS.
pub fn report_luns(luns: &[Lun]) -> Vec<u8> {
    let mut bytes = vec![0; 8 + 8 * luns.len()];
    // A target has far fewer than 2^29 units.
    let len = u32::try_from(8 * luns.len()).unwrap_or(u32::MAX);
    put(&mut bytes, 0, &len.to_be_bytes());
    for (at, lun) in luns.iter().enumerate() {
        put(&mut bytes, 8 + 8 * at, &lun.0.to_be_bytes());
    }
    bytes
}

/// The units in the data of REPORT LUNS, as far as the data reach.
pub fn reported_luns(bytes: &[u8]) -> impl Iterator<Item = Lun> + '_ {
    let said = u32_at(bytes, 0) as usize / 8;
    let list = bytes.get(8..).unwrap_or(&[]);
    let luns = list.chunks_exact(8).map(|lun| Lun(u64_at(lun, 0)));
    luns.take(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_units_come_back() {
        let luns: Vec<_> = [0, 7, 300].into_iter().filter_map(Lun::new).collect();
        let bytes = report_luns(&luns);
        assert_eq!(bytes[..8], [0, 0, 0, 24, 0, 0, 0, 0]);
        assert_eq!(reported_luns(&bytes).collect::<Vec<_>>(), luns);
        assert_eq!(reported_luns(&bytes[..20]).count(), 1, "cut short");
        assert_eq!(reported_luns(&[0xff]).count(), 0);
    }
}
