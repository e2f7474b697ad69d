//! How long a connection waits, by the codes of the IBTA.

use std::time::Duration;

use crate::wire::RnrTimer;

/// The delay that a responder asks for, by its code (IBTA vol. 1, table 45).
pub(crate) fn rnr_delay(code: u8) -> Duration {
    RnrTimer::from_u8(code & 31)
        .unwrap_or(RnrTimer::MAX)
        .duration()
}

/// The local ACK timeout, 4.096 us * 2^code; none for code 0 (IBTA vol. 1, 9.7.6.1.3).
pub(crate) fn ack_timeout(code: u8) -> Option<Duration> {
    (code != 0).then(|| Duration::from_nanos(4_096 << (code & 31)))
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;

    #[test]
    fn delays_are_those_of_the_specification() {
        assert_eq!(rnr_delay(0), Duration::from_micros(655_360));
        assert_eq!(rnr_delay(1), Duration::from_micros(10));
        assert_eq!(rnr_delay(12), Duration::from_micros(640));
        assert_eq!(rnr_delay(31), Duration::from_micros(491_520));
    }

    #[test]
    fn timeouts_double_with_their_code() {
        assert_eq!(ack_timeout(0), None);
        assert_eq!(ack_timeout(1), Some(Duration::from_nanos(8_192)));
        assert_eq!(ack_timeout(14), Some(Duration::from_nanos(67_108_864)));
    }
}
