//! What the table says: rates of each program, between one sample and the next.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::stats::{Counters, Program};

const HEAD: [&str; 9] = [
    "PID", "OUT/s", "IN/s", "RESENT/s", "RNR/s", "CNP/s", "DROP/s", "ERRORS", "COMMAND",
];

/// The samples before, by process.
#[derive(Debug, Default)]
pub(super) struct Samples(BTreeMap<u32, (Instant, Counters)>);

/// A program in the table.
#[derive(Debug, PartialEq)]
pub(super) struct Row {
    pid: u32,
    /// Of the columns from `OUT/s` to `DROP/s`; `None` if there is no sample before.
    rates: Option<[f64; 6]>,
    errors: u64,
    name: String,
}

impl Samples {
    /// The rows of a sample, the busiest program first. Programs that have ended are forgotten.
    pub(super) fn rows(&mut self, programs: &[Program], now: Instant) -> Vec<Row> {
        let mut fresh = BTreeMap::new();
        let mut rows: Vec<Row> = programs
            .iter()
            .map(|program| {
                let before = self.0.get(&program.pid);
                fresh.insert(program.pid, (now, program.counters));
                Row {
                    pid: program.pid,
                    rates: before.and_then(|before| rates(before, now, &program.counters)),
                    errors: program.counters.remote_errors + program.counters.local_errors,
                    name: format!("{} {}", program.command, program.addresses.join(" ")),
                }
            })
            .collect();
        self.0 = fresh;
        let packets = |row: &Row| {
            row.rates
                .map_or(0.0, |[sent, received, ..]| sent + received)
        };
        rows.sort_by(|a, b| packets(b).total_cmp(&packets(a)).then(a.pid.cmp(&b.pid)));
        rows
    }
}

/// Events a second. A process that has the number of another one that has ended may have counted less.
fn rates((then, before): &(Instant, Counters), now: Instant, after: &Counters) -> Option<[f64; 6]> {
    let seconds = now.saturating_duration_since(*then).as_secs_f64();
    let columns = columns(before).into_iter().zip(columns(after));
    let mut rates = [0.0; 6];
    for (rate, (before, after)) in rates.iter_mut().zip(columns) {
        *rate = after.saturating_sub(before) as f64 / seconds;
    }
    (seconds > 0.0).then_some(rates)
}

fn columns(of: &Counters) -> [u64; 6] {
    let dropped = [
        of.malformed,
        of.bad_icrcs,
        of.bad_pkeys,
        of.bad_qkeys,
        of.dropped,
        of.strangers,
    ];
    [
        of.packets_sent,
        of.packets_received,
        of.timeouts.saturating_add(of.sequence_naks),
        of.rnr_naks,
        of.cnps_received,
        dropped.into_iter().fold(0, u64::saturating_add),
    ]
}

/// The table: a head, a line for each row, or a line that says that there is none.
pub(super) fn lines(rows: &[Row]) -> Vec<String> {
    let of = |cells: [&str; 9]| {
        let [pid, out, into, resent, rnr, cnp, drop, errors, name] = cells;
        format!(
            "{pid:>8} {out:>9} {into:>9} {resent:>9} {rnr:>7} {cnp:>7} {drop:>7} {errors:>7}  {name}"
        )
    };
    let mut lines = vec![of(HEAD)];
    for row in rows {
        let rates = row.rates.map(|rates| rates.map(short));
        let rates = rates.unwrap_or_else(|| [(); 6].map(|()| "-".into()));
        let [out, into, resent, rnr, cnp, drop] = &rates;
        let (pid, errors) = (row.pid.to_string(), row.errors.to_string());
        // What others say must not command the terminal.
        let name: String = row.name.chars().filter(|c| !c.is_control()).collect();
        lines.push(of([
            &pid, out, into, resent, rnr, cnp, drop, &errors, &name,
        ]));
    }
    if rows.is_empty() {
        lines.push("no program with a software HCA on a network is running".into());
    }
    lines
}

/// A rate in at most seven characters.
fn short(rate: f64) -> String {
    match rate {
        0.0 => "0".into(),
        rate if rate < 9.95 => format!("{rate:.1}"),
        rate if rate < 999_999.5 => format!("{rate:.0}"),
        rate if rate < 999_950_000.0 => format!("{:.1}M", rate / 1e6),
        rate => format!("{:.1}G", rate / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn program(pid: u32, packets_sent: u64, timeouts: u64) -> Program {
        Program {
            pid,
            command: "perf\x1b[2J".into(),
            addresses: vec!["127.0.0.1".into()],
            counters: Counters {
                packets_sent,
                timeouts,
                local_errors: 3,
                ..Counters::default()
            },
        }
    }

    /// Goal: rates are of the time between two samples, the busiest comes first, a program that is new has none, and
    /// one that ended is not remembered under its number.
    #[test]
    fn rates_are_differences() {
        let (mut samples, start) = (Samples::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let first = samples.rows(&[program(1, 5000, 0), program(2, 0, 0)], at(0));
        assert!(first.iter().all(|row| row.rates.is_none()));
        let second = samples.rows(&[program(1, 5100, 0), program(2, 4000, 1)], at(500));
        let [two, one] = &second[..] else {
            panic!("{second:?}")
        };
        assert_eq!(
            (two.pid, two.rates),
            (2, Some([8000.0, 0.0, 2.0, 0.0, 0.0, 0.0]))
        );
        assert_eq!(one.rates, Some([200.0, 0.0, 0.0, 0.0, 0.0, 0.0]));
        samples.rows(&[program(2, 4000, 1)], at(1000));
        let again = samples.rows(&[program(1, 7, 0), program(2, 1, 0)], at(1500));
        assert_eq!(again[0].rates, None, "another process with that number");
        assert_eq!(again[1].rates, Some([0.0; 6]), "it has counted less");
    }

    #[test]
    fn names_cannot_command_the_terminal() {
        let rows = Samples::default().rows(&[program(7, 1, 0)], Instant::now());
        let text = lines(&rows).join("\n");
        assert!(
            text.contains("perf[2J 127.0.0.1") && !text.contains('\x1b'),
            "{text}"
        );
        assert!(lines(&[])[1].contains("no program"));
    }

    #[test]
    fn rates_are_short() {
        for (rate, text) in [
            (0.0, "0"),
            (0.25, "0.2"),
            (9.96, "10"),
            (999_999.0, "999999"),
            (1_234_567.0, "1.2M"),
            (5e9, "5.0G"),
        ] {
            assert_eq!(short(rate), text);
        }
    }
}
