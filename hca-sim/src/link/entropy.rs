//! Numbers that nobody outside can guess.

use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

/// Such a number, from the system.
pub(super) fn system_entropy() -> u64 {
    let mut number = [0; 8];
    let mut filled = 0;
    // At most 256 bytes come whole, once the system has gathered entropy after its start.
    while filled < number.len() {
        match rustix::rand::getrandom(&mut number[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, "no entropy: keys and numbers can be guessed");
                break;
            }
        }
    }
    u64::from_ne_bytes(number)
}
