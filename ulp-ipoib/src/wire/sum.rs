//! The Internet checksum (RFC 1071).

/// The checksum of bytes, added to the sum `start` of earlier ones; over bytes that include their own checksum, 0 if
/// that is right. What comes before `bytes` has an even length.
pub fn checksum(start: u32, bytes: &[u8]) -> u16 {
    !sum(start, bytes)
}

/// The ones' complement sum of the 16-bit words of `bytes`, and of `start`.
pub(crate) fn sum(start: u32, bytes: &[u8]) -> u16 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut last = [0; 4];
    for (to, &byte) in last.iter_mut().zip(rest) {
        *to = byte;
    }
    // Words of this machine's order can be added, and of any size: only the sum is turned (RFC 1071, section 2).
    let mut total = u64::from(u32::from_ne_bytes(last));
    for &word in words {
        total += u64::from(u32::from_ne_bytes(word));
    }
    fold(u64::from(u16::from_be(fold(total))) + u64::from(start))
}

/// Folds a sum to 16 bits: what is carried out is added again.
pub(crate) fn fold(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the RFC describes it: words of the network's order.
    fn plain(start: u32, bytes: &[u8]) -> u16 {
        let pairs = bytes.chunks(2).map(|pair| {
            let low = pair.get(1).copied().unwrap_or(0);
            u64::from(u16::from_be_bytes([pair[0], low]))
        });
        fold(u64::from(start) + pairs.sum::<u64>())
    }

    #[test]
    fn sums_are_those_of_the_standard() {
        // The example of RFC 1071, section 3.
        let example = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(sum(0, &example), 0xddf2);
        let bytes: Vec<u8> = (0..=255).chain((0..=255).rev()).collect();
        for len in [0, 1, 2, 3, 4, 5, 6, 7, 8, 41, 255, 256, 511, 512] {
            for start in [0, 1, 0xffff, 0x0001_ffff, u32::MAX] {
                let bytes = &bytes[..len];
                assert_eq!(sum(start, bytes), plain(start, bytes), "{len} {start}");
            }
        }
        let most = vec![0xff; 65_535];
        assert_eq!(sum(0, &most), plain(0, &most));
    }
}
