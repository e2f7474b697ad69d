//! Numbers with units, as options have them.

use std::ops::RangeInclusive;
use std::time::Duration;

use verbs_core::Mtu;

/// Bytes that one message of a reliable connection carries at most (IBTA vol. 1, 9.7.7).
const MESSAGE_BYTES_MAX: u64 = 1 << 31;

/// What [`time`] takes, for messages.
pub(crate) const TIMES: &str = "a time would be right, such as 500ms, 5s, 2m, or 5 for seconds";

/// A span of time as [`span`] takes it, or a number of seconds.
pub(crate) fn time(text: &str) -> Option<Duration> {
    match text.ends_with(|c: char| c.is_ascii_digit()) {
        true => scaled(text, "s"),
        false => span(text),
    }
}

/// A span of time as [`time`] takes it, within bounds, which `words` names.
pub(crate) fn time_within(
    text: &str,
    bounds: RangeInclusive<Duration>,
    words: &str,
) -> Result<Duration, String> {
    match time(text) {
        Some(time) if bounds.contains(&time) => Ok(time),
        Some(_) => Err(format!("{words} would be right")),
        None => Err(TIMES.into()),
    }
}

/// A span of time: a number with us, ms, s, m or h behind it. `None` for other texts, and for more than 2^64 microseconds.
pub(crate) fn span(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    scaled(digits, &text[digits.len()..])
}

/// So many of that unit, to the microsecond.
fn scaled(number: &str, unit: &str) -> Option<Duration> {
    let micros: u64 = match unit {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        _ => return None,
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| {
        let are_digits = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u64>().ok().filter(|_| are_digits)
    };
    let (count, fraction) = (digits(whole)?, digits(part)?);
    // Ten digits of a fraction of an hour would be too many to multiply.
    let scale = 10_u64.checked_pow(u32::try_from(part.len()).ok().filter(|&len| len < 10)?)?;
    let micros = count
        .checked_mul(micros)?
        .checked_add(fraction.checked_mul(micros)? / scale)?;
    Some(Duration::from_micros(micros))
}

/// A path MTU.
pub(crate) fn mtu(text: &str) -> Result<Mtu, String> {
    let bytes = text.parse().ok();
    bytes
        .and_then(|bytes| Mtu::from_bytes(bytes).ok())
        .ok_or_else(|| "256, 512, 1024, 2048 or 4096 would be right".into())
}

/// A number of bytes, with one of `units` behind it or none: each stands for 1,024 times the one before, the first for
/// KiB.
pub(crate) fn bytes(text: &str, units: &[&str]) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 0,
        suffix => match (1..).zip(units).find(|(_, unit)| **unit == suffix) {
            Some((thousands, _)) => 10 * thousands,
            None => return Err(format!("`{suffix}` is no unit; {} are", listed(units))),
        },
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("a number of bytes would be right, such as 65536 or 64k".into());
    }
    let count: Option<u64> = digits.parse().ok();
    let bytes = count.and_then(|count| count.checked_mul(1 << shift));
    bytes.ok_or_else(|| "that is more than 2^64 bytes".into())
}

/// `a, b and c`.
fn listed(words: &[&str]) -> String {
    match words {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        all => all.concat(),
    }
}

/// Bytes of a chunk: a number with an optional suffix.
pub(crate) fn chunk(text: &str) -> Result<u32, String> {
    match u32::try_from(bytes(text, &["k", "m", "g"])?) {
        Ok(0) => Err("a chunk has at least 1 byte".into()),
        Ok(bytes) if u64::from(bytes) <= MESSAGE_BYTES_MAX => Ok(bytes),
        _ => Err("a message carries at most 2g".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_units() {
        for (text, micros) in [
            ("0s", 0),
            ("55us", 55),
            ("500ms", 500_000),
            ("5s", 5_000_000),
            ("2m", 120_000_000),
            ("24h", 86_400_000_000),
            ("1.5s", 1_500_000),
            ("0.25ms", 250),
            ("0.000000001h", 3),
        ] {
            assert_eq!(span(text), Some(Duration::from_micros(micros)), "{text}");
        }
        for text in [
            "",
            "5",
            "s",
            "-1s",
            "+1s",
            "1.s",
            ".5s",
            "1.5.5s",
            "1.0000000000s",
            "5 s",
            "5S",
            "1d",
            "99999999999999999h",
        ] {
            assert_eq!(span(text), None, "{text}");
        }
    }

    #[test]
    fn times_are_spans_or_seconds() {
        for (text, micros) in [
            ("5", 5_000_000),
            ("0.5", 500_000),
            ("500ms", 500_000),
            ("2m", 120_000_000),
        ] {
            assert_eq!(time(text), Some(Duration::from_micros(micros)), "{text}");
        }
        for text in ["", "-1", "+1", "1e3", "5.", ".5", "nan", "inf", "1d"] {
            assert_eq!(time(text), None, "{text}");
        }
    }

    #[test]
    fn chunks_have_units() {
        let right = [
            ("1", 1),
            ("65536", 65536),
            ("64k", 65536),
            ("1M", 1 << 20),
            ("2g", 1 << 31),
        ];
        for (text, bytes) in right {
            assert_eq!(chunk(text), Ok(bytes), "{text}");
        }
        let wrong = [
            "",
            "k",
            "0",
            "0k",
            "-1",
            "+1",
            "1.5m",
            "1kb",
            "1 k",
            "3g",
            "2147483649",
            "99999999999g",
            "x1",
        ];
        for text in wrong {
            assert!(chunk(text).is_err(), "{text}");
        }
    }
}
