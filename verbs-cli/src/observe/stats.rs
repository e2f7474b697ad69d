//! `verbs stats`: what the software HCAs of this user's running programs have counted.

use std::fmt::Write as _;
use std::io::{self, Write};

use clap::Args;
use hca_sim::Hca;
use serde::{Deserialize, Serialize};
use verbs_core::sync::{Arc, Weak};

use crate::published::{self, Published, Said};
use crate::report::{self, line};

pub(crate) const ABOUT: &str = "\
Show what the software HCAs of running programs have counted.

Programs of the verbs command that have an HCA on a network (perf, pingpong, serve, copy, rping, srp, rds) tell it to \
other programs of the same user, at sockets in the user's runtime directory. Counts are since the program has begun.";

pub(crate) const EXAMPLES: &str = "\
Examples:
  verbs stats                       a block for each program
  verbs stats --json | jq '.[].counters.timeouts'
  verbs stats --prometheus          in Prometheus' text form, for a collector of text files

Exit codes:
  0  done
  1  the programs cannot be looked for, or stdout not be written
  2  the arguments are wrong";

/// Counters of running programs.
#[derive(Args, Debug)]
pub(crate) struct StatsArgs {
    /// For programs, as JSON
    #[arg(long)]
    json: bool,
    /// For Prometheus
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
}

/// The folder of the sockets.
const NAME: &str = "verbs-stats";

/// What one program says.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Program {
    /// The reader takes it from the kernel.
    #[serde(default)]
    pub(crate) pid: u32,
    pub(crate) command: String,
    pub(crate) addresses: Vec<String>,
    pub(crate) counters: Counters,
}

macro_rules! counters {
    ($($name:ident: $help:literal,)*) => {
        /// What an HCA's port has counted.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub(crate) struct Counters { $(pub(crate) $name: u64,)* }

        impl Counters {
            /// Each with its name, what it counts, and its value.
            fn all(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($name), $help, self.$name),)*]
            }
        }
    };
}

counters! {
    packets_sent: "packets made",
    packets_received: "packets that came",
    timeouts: "attempts that were not acknowledged in time",
    rnr_naks: "attempts that found no receive at the peer",
    sequence_naks: "answers that showed that something was missing",
    duplicates: "requests that had come before",
    out_of_sequence: "requests before which something was missing",
    remote_errors: "messages that the peer refused",
    local_errors: "messages that were wrong here, or given up",
    cnps_received: "congestion notifications that came",
    cnps_sent: "congestion notifications sent",
    rate_cuts: "times that a notification slowed a connection down",
    kept_early: "packets that came early and were kept",
    probes: "packets sent again to learn what the peer has",
    cq_overruns: "completion queues that lost completions",
    link_downed: "times that the link went down",
    malformed: "packets dropped: of no known form",
    bad_icrcs: "packets dropped: damaged",
    bad_pkeys: "packets dropped: of another partition",
    bad_qkeys: "datagrams dropped: with another Q_Key",
    dropped: "messages of unreliable services dropped",
    strangers: "packets dropped: for no queue pair, or not from its peer",
}

/// Shows what the HCA counts to this user's other programs, as long as what is returned is kept; `None` where that
/// cannot be.
pub(crate) fn publish(hca: &Arc<Hca>, addresses: Vec<String>) -> Option<Published> {
    let hca = Arc::downgrade(hca);
    let command = command_name(std::env::args().skip(1));
    published::publish(NAME, move || {
        let program = Program {
            pid: 0,
            command: command.clone(),
            addresses: addresses.clone(),
            counters: ask(&hca).unwrap_or_default(),
        };
        serde_json::to_vec(&program).map_err(io::Error::other)
    })
}

/// The command among the arguments: what comes before it is `--log`.
fn command_name(mut args: impl Iterator<Item = String>) -> String {
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--log" => drop(args.next()),
            option if option.starts_with('-') => {}
            _ => return arg,
        }
    }
    String::new()
}

/// What it has counted; `None` if it is gone.
fn ask(hca: &Weak<Hca>) -> Option<Counters> {
    let all = hca.upgrade()?.counters();
    let (port, packets) = (all.port, all.packets.unwrap_or_default());
    Some(Counters {
        packets_sent: packets.sent,
        packets_received: packets.received,
        timeouts: port.timeouts,
        rnr_naks: port.rnr_naks,
        sequence_naks: packets.sequence_naks,
        duplicates: packets.duplicates,
        out_of_sequence: packets.out_of_sequence,
        remote_errors: port.remote_errors,
        local_errors: port.local_errors,
        cnps_received: packets.cnps_received,
        cnps_sent: packets.cnps_sent,
        rate_cuts: packets.rate_cuts,
        kept_early: packets.kept_early,
        probes: packets.probes,
        cq_overruns: port.cq_overruns,
        link_downed: port.link_downed,
        malformed: packets.malformed,
        bad_icrcs: packets.bad_icrcs,
        bad_pkeys: packets.bad_pkeys,
        bad_qkeys: packets.bad_qkeys,
        dropped: packets.dropped,
        strangers: packets.strangers,
    })
}

/// What all programs say.
///
/// # Errors
/// Of the folder of the sockets.
pub(crate) fn programs() -> io::Result<Vec<Program>> {
    let said = published::ask_all(NAME)?.into_iter();
    Ok(said
        .map(|Said { pid, what }| Program { pid, ..what })
        .collect())
}

/// Shows what all programs say.
///
/// # Errors
/// Of the folder of the sockets, and of `out`.
pub(crate) fn run(args: &StatsArgs, out: &mut dyn Write) -> io::Result<()> {
    let programs = programs()?;
    if args.json {
        return report::json(out, &programs);
    }
    if args.prometheus {
        return out.write_all(prometheus(&programs).as_bytes());
    }
    if programs.is_empty() {
        return line(
            out,
            &"no program with a software HCA on a network is running",
        );
    }
    for program in &programs {
        let Program {
            pid,
            command,
            addresses,
            counters,
        } = program;
        let at = addresses.join(" ");
        line(out, &format_args!("process {pid}: verbs {command} at {at}"))?;
        for (name, help, value) in counters.all() {
            if value != 0 {
                line(out, &format_args!("  {name:<18} {value:>12}  {help}"))?;
            }
        }
    }
    Ok(())
}

/// Prometheus' text form: for each counter what it is, then a line for each program.
fn prometheus(programs: &[Program]) -> String {
    let mut text = String::new();
    for (index, (name, help, _)) in Counters::default().all().into_iter().enumerate() {
        // Writing to a string does not fail.
        let _ = writeln!(text, "# HELP verbs_{name}_total {help}");
        let _ = writeln!(text, "# TYPE verbs_{name}_total counter");
        for program in programs {
            let (_, _, value) = program.counters.all()[index];
            let (pid, command) = (program.pid, label(&program.command));
            let at = label(&program.addresses.join(","));
            let _ = writeln!(
                text,
                "verbs_{name}_total{{pid=\"{pid}\",command=\"{command}\",address=\"{at}\"}} {value}"
            );
        }
    }
    text
}

/// The value of a label: quotes, backslashes and line ends are escaped.
fn label(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    text.replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_found_behind_the_filter() {
        for args in [
            &["rping", "-s"][..],
            &["--log", "debug", "rping"],
            &["--log=debug", "rping"],
        ] {
            let args = args.iter().map(ToString::to_string);
            assert_eq!(command_name(args), "rping");
        }
        assert_eq!(command_name(std::iter::empty()), "");
    }

    /// Goal: what a collector reads: one head for each counter, one line for each program, labels escaped.
    #[test]
    fn prometheus_reads_it() {
        let program = |pid| Program {
            pid,
            command: "a\"b".into(),
            addresses: vec!["127.0.0.1".into(), "::1".into()],
            counters: Counters {
                timeouts: 7,
                ..Counters::default()
            },
        };
        let text = prometheus(&[program(1), program(2)]);
        let is_wanted = |line: &&str| line.starts_with("verbs_timeouts_total{");
        let lines: Vec<_> = text.lines().filter(is_wanted).collect();
        let right = r#"verbs_timeouts_total{pid="1",command="a\"b",address="127.0.0.1,::1"} 7"#;
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0], right);
        assert_eq!(
            text.matches("# TYPE").count(),
            Counters::default().all().len()
        );
    }

    /// Goal: the numbers of a living HCA, and none of one that is gone.
    #[test]
    fn a_living_hca_is_asked() {
        let hca = Hca::loopback().build();
        let weak = Arc::downgrade(&hca);
        assert_eq!(ask(&weak), Some(Counters::default()));
        drop(hca);
        assert_eq!(ask(&weak), None);
    }
}
