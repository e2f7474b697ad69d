//! Spans of time as management formats write them.

use std::fmt;
use std::time::Duration;

/// A span of time as management formats write it: 4.096 us * 2^n in five bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TimeCode(u8);

impl TimeCode {
    /// The longest: 2.4 hours.
    pub const MAX: Self = Self(31);

    /// The code, or the longest span if there is no such code.
    pub const fn new(code: u8) -> Self {
        if code > Self::MAX.0 {
            Self::MAX
        } else {
            Self(code)
        }
    }

    /// The code, 0 to 31.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The span.
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(4096 << self.0)
    }

    /// The shortest span that is not shorter than that, or the longest there is.
    pub fn at_least(span: Duration) -> Self {
        let codes = (0..Self::MAX.0).map(Self);
        codes
            .into_iter()
            .find(|code| code.duration() >= span)
            .unwrap_or(Self::MAX)
    }
}

impl fmt::Debug for TimeCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.0, self.duration())
    }
}

crate::number_fields! {
    TimeCode: |bits| Self(bits.to_le_bytes()[0] & 31), |value| u64::from(value.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_powers_of_two() {
        assert_eq!(
            TimeCode::new(20).duration(),
            Duration::from_nanos(4_294_967_296)
        );
        assert_eq!(
            TimeCode::at_least(Duration::from_nanos(4096)),
            TimeCode::new(0)
        );
        assert_eq!(
            TimeCode::at_least(Duration::from_nanos(4097)),
            TimeCode::new(1)
        );
        assert_eq!(TimeCode::at_least(Duration::MAX), TimeCode::MAX);
        assert_eq!(TimeCode::new(200), TimeCode::MAX);
    }
}
