//! The option that sets how connections react to congestion.

use std::str::FromStr;
use std::time::Duration;

use hca_sim::Dcqcn;

use crate::units::{chunk, span};

/// The reaction of reliable connections to congestion notifications: `None` is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Congestion(pub(crate) Option<Dcqcn>);

/// Takes a value into its parameter.
type Setter = fn(&mut Dcqcn, &str) -> Result<(), String>;

/// The parameters, by their names.
const PARAMETERS: [(&str, Setter); 10] = [
    ("line-rate", |d, text| rate(text).map(|to| d.line_rate = to)),
    ("min-rate", |d, text| rate(text).map(|to| d.min_rate = to)),
    ("ai-rate", |d, text| rate(text).map(|to| d.ai_rate = to)),
    ("hai-rate", |d, text| rate(text).map(|to| d.hai_rate = to)),
    ("threshold", |d, text| {
        number(text, u32::MAX).map(|to| d.threshold = to)
    }),
    ("time-reset", |d, text| {
        time(text).map(|to| d.time_reset = to)
    }),
    ("byte-reset", |d, text| {
        bytes(text).map(|to| d.byte_reset = to)
    }),
    ("alpha-period", |d, text| {
        time(text).map(|to| d.alpha_period = to)
    }),
    ("g-shift", |d, text| {
        number(text, G_SHIFT_MAX).map(|to| d.g_shift = to)
    }),
    ("cut-period", |d, text| {
        time(text).map(|to| d.cut_period = to)
    }),
];

/// Alpha has 20 bits behind the point.
const G_SHIFT_MAX: u32 = 20;

impl FromStr for Congestion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self(None));
        }
        let mut dcqcn = Dcqcn::default();
        for word in text.split(',') {
            let Some((name, value)) = word.split_once('=') else {
                return Err(format!(
                    "`{word}` is not NAME=VALUE, such as line-rate=1gbit; or it is off"
                ));
            };
            let found = PARAMETERS.iter().find(|(known, _)| *known == name);
            let Some((_, set)) = found else {
                let names = PARAMETERS.map(|(name, _)| name).join(", ");
                return Err(format!("DCQCN has no parameter `{name}`; it has {names}"));
            };
            set(&mut dcqcn, value).map_err(|why| format!("{name}: {why}"))?;
        }
        if dcqcn.min_rate > dcqcn.line_rate {
            return Err(format!(
                "min-rate is {} bytes a second, and line-rate {}: it cannot be more",
                dcqcn.min_rate, dcqcn.line_rate
            ));
        }
        Ok(Self(Some(dcqcn)))
    }
}

/// Bytes per second, from bits with the units that `tc` has.
fn rate(text: &str) -> Result<u64, String> {
    let units = [
        ("kbit", 1_000),
        ("mbit", 1_000_000),
        ("gbit", 1_000_000_000),
        ("bit", 1),
    ];
    let wrong = || format!("`{text}` is no rate; 100mbit, 10gbit and 40000kbit are");
    let lower = text.to_ascii_lowercase();
    let (digits, unit) = units
        .iter()
        .find_map(|(name, unit)| Some((lower.strip_suffix(name)?, unit)))
        .ok_or_else(wrong)?;
    let bits = digits
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(*unit));
    match bits.map(|bits| bits / 8) {
        None => Err(wrong()),
        Some(0) => Err(format!("{text} is less than a byte a second")),
        Some(bytes) => Ok(bytes),
    }
}

fn number(text: &str, max: u32) -> Result<u32, String> {
    match text.parse() {
        Ok(number) if number <= max => Ok(number),
        _ => Err(format!("`{text}` is no number of at most {max}")),
    }
}

/// A time, as the commands' other options have it.
fn time(text: &str) -> Result<Duration, String> {
    span(text).ok_or_else(|| format!("`{text}` is no time; 55us and 1ms are"))
}

fn bytes(text: &str) -> Result<u64, String> {
    chunk(text).map(u64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_have_names_and_units() {
        let text = "line-rate=1gbit,min-rate=1mbit,ai-rate=8000kbit,hai-rate=80mbit,threshold=3,time-reset=300us,\
                    byte-reset=1m,alpha-period=1ms,g-shift=4,cut-period=4us";
        let dcqcn = Dcqcn {
            line_rate: 125_000_000,
            min_rate: 125_000,
            ai_rate: 1_000_000,
            hai_rate: 10_000_000,
            threshold: 3,
            time_reset: Duration::from_micros(300),
            byte_reset: 1 << 20,
            alpha_period: Duration::from_millis(1),
            g_shift: 4,
            cut_period: Duration::from_micros(4),
        };
        assert_eq!(text.parse(), Ok(Congestion(Some(dcqcn))));
        assert_eq!("off".parse(), Ok(Congestion(None)));
        let one = Dcqcn {
            threshold: 1,
            ..Dcqcn::default()
        };
        assert_eq!("threshold=1".parse(), Ok(Congestion(Some(one))));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("", "NAME=VALUE"),
            ("on", "NAME=VALUE"),
            ("rate=1gbit", "it has line-rate, min-rate"),
            ("line-rate=1", "line-rate: `1` is no rate"),
            ("line-rate=4bit", "less than a byte"),
            ("line-rate=99999999999gbit", "is no rate"),
            ("g-shift=21", "at most 20"),
            ("time-reset=55", "is no time"),
            ("byte-reset=0", "at least 1 byte"),
            ("line-rate=1mbit,min-rate=1gbit", "it cannot be more"),
        ] {
            let error = text.parse::<Congestion>().expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
