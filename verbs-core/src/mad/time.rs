//! Time, as the machines of this module take it.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

/// A point in time, in nanoseconds since a start that the caller chooses. Sums saturate.
///
/// The machines read no clock: whoever drives them says what time it is, and may say so out of a
/// simulation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The start.
    pub const ZERO: Self = Self(0);
    /// Later than anything that happens.
    pub const NEVER: Self = Self(u64::MAX);

    /// So many nanoseconds after the start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is not.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = (self.0 / 1_000_000_000, self.0 % 1_000_000_000);
        write!(f, "{seconds}.{nanos:09} s")
    }
}

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

    #[test]
    fn sums_saturate() {
        assert_eq!(Time::from_nanos(1) + Duration::MAX, Time::NEVER);
        assert_eq!(Time::ZERO.since(Time::NEVER), Duration::ZERO);
    }
}
