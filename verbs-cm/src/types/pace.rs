//! How often a question is asked within the time that there is for its answer.

use std::time::Duration;

/// A question is sent so often at least, however short the time is: one that gets lost is not the end.
const SENDS_MIN: u32 = 5;

/// Spreads `sends` of a question, which are `wait` apart, over the time for a first answer if that is shorter: the pause
/// between two, and how many they are.
pub(crate) fn spread(wait: Duration, sends: u32, timeout: Option<Duration>) -> (Duration, u32) {
    match timeout {
        Some(timeout) if timeout < wait * sends => {
            // Not more often than needed: a second is long for most networks.
            let needed = u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX);
            let sends = needed.max(SENDS_MIN).min(sends);
            (timeout / sends, sends)
        }
        _ => (wait, sends),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_spread_over_a_shorter_time() {
        let secs = Duration::from_secs;
        let usual = secs(4);
        assert_eq!(spread(usual, 16, None), (usual, 16));
        assert_eq!(spread(usual, 16, Some(secs(64))), (usual, 16));
        assert_eq!(spread(usual, 16, Some(secs(63))), (secs(63) / 16, 16));
        assert_eq!(spread(usual, 16, Some(secs(10))), (secs(1), 10));
        assert_eq!(spread(usual, 16, Some(secs(1))), (secs(1) / 5, 5));
        assert_eq!(spread(usual, 3, Some(secs(1))), (secs(1) / 3, 3));
    }
}
