//! Big-endian numbers in byte slices: bytes outside a slice read as zero, and are not written.

/// `N` bytes from `at`.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    if let Some(part) = bytes.get(at..at + N) {
        array.copy_from_slice(part);
    }
    array
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array(bytes, at))
}

/// Writes `value` at `at`.
pub(super) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(part) = bytes.get_mut(at..at + value.len()) {
        part.copy_from_slice(value);
    }
}

/// Text in a field of `N` bytes, padded with spaces (SPC-4, 4.3.1).
pub(super) fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    let printable = text.bytes().map(|byte| match byte {
        b' '..=b'~' => byte,
        _ => b'?',
    });
    for (to, byte) in field.iter_mut().zip(printable) {
        *to = byte;
    }
    field
}
