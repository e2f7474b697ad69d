//! `verbs connections`: the connections of this user's running programs.

use std::fmt;
use std::io;
#[cfg(test)]
use std::net::SocketAddr;
use std::time::Duration;

use hca_sim::{Hca, connected_qps};
use serde::Serialize;
use verbs_cm::Listed;
use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_core::{Provider, QpStats};

use crate::published::{self, Published, Said};
use crate::wire::PORT;

pub(crate) const ABOUT: &str = "\
Show the connections of running programs.

Asks all programs that this user runs, at sockets in the user's runtime directory, and shows each queue pair that has a \
peer, whoever has connected it: both addresses (with port numbers, if a connection manager has made the connection), the \
numbers of both queue pairs, the service, its state, what carries it, how much was sent again, the round trip, and what the \
host's network stack does not do for it (packet filters, queueing disciplines, statistics), which ordinary connections have. \
--json has all counters.

Programs are those of this command, those that `verbs run` has started, and Rust programs that call verbs::publish.

With --host, asks the host's daemon instead (verbs host), for all programs that share its addresses, those that use the \
libraries among them: the queue pair numbers and the port numbers of each, with which it shares memory, and the connections \
that the messages of its connection manager have shown to the daemon.";

pub(crate) const EXAMPLES: &str = "\
Examples:
  verbs rping -s -a 127.0.0.1            in one terminal
  verbs rping -c -a 127.0.0.1            in another
  verbs connections                      in a third
  verbs connections --json | jq '.[].remote'
  verbs connections --host               programs of `verbs host`, and what they share
  verbs connections --host --json | jq '.[].process'

Exit codes:
  0  done
  1  the runtime directory could not be read, or is not this user's own; with --host: there is no daemon, or it does not
     answer
  2  the arguments are wrong";

/// Arguments of `verbs connections`.
#[derive(Debug, clap::Args)]
pub(crate) struct ConnectionsArgs {
    /// Ask the host's daemon for all programs that share its addresses
    #[arg(long)]
    pub(crate) host: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The software HCAs of this process, with some that have gone.
static HCAS: Mutex<Vec<Weak<Hca>>> = Mutex::new(Vec::new());

/// A connection with its process.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    process: u32,
    #[serde(flatten)]
    connection: Listed,
}

/// All of them, to be printed.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Listing(Vec<Row>);

/// The connections of that HCA are this process's.
pub(crate) fn watch(hca: &Arc<Hca>) {
    let mut hcas = HCAS.lock();
    hcas.retain(|hca| hca.strong_count() > 0);
    hcas.push(Arc::downgrade(hca));
}

/// Tells the user's other programs of this process's connections for as long as the value is kept.
pub(crate) fn publish() -> Option<Published> {
    published::publish(Listed::PUBLISHED, || {
        let hcas: Vec<_> = HCAS.lock().iter().filter_map(Weak::upgrade).collect();
        let of = hcas
            .iter()
            .map(|hca| (hca.query_provider(PORT), connected_qps(hca)));
        serde_json::to_vec(&verbs_cm::listed(of)).map_err(io::Error::other)
    })
}

/// Asks all running programs.
pub(crate) fn list() -> io::Result<Listing> {
    let said: Vec<Said<Vec<Listed>>> = published::ask_all(Listed::PUBLISHED)?;
    let all = said.into_iter().flat_map(|Said { pid, what }| {
        what.into_iter().map(move |connection| Row {
            process: pid,
            connection,
        })
    });
    Ok(Listing(all.collect()))
}

/// A value, or a dash.
pub(super) struct Or<T>(pub(super) Option<T>);

impl<T: fmt::Display> fmt::Display for Or<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(value) => f.pad(&value.to_string()),
            None => f.pad("-"),
        }
    }
}

/// What was repeated on a connection, for whatever reason.
fn repeats(stats: &QpStats) -> u64 {
    stats.timeouts + stats.rnr_naks + stats.sequence_naks
}

/// A peer: its address, or its LID.
fn peer(of: &Listed) -> Or<String> {
    let lid = of.remote_lid.map(|lid| format!("LID {lid}"));
    Or(of.remote.map(|remote| remote.to_string()).or(lid))
}

/// A round trip in microseconds.
fn microseconds(time: Duration) -> String {
    format!("{:.1}us", time.as_secs_f64() * 1e6)
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("no program of this user has a connection");
        }
        write!(
            f,
            "{:<22} {:<22} {:>8} {:>8} {:<8} {:<12} {:<10} {:<9} {:>8} {:>8} {:>8}  unavailable",
            "local",
            "remote",
            "qpn",
            "peer qpn",
            "service",
            "state",
            "transport",
            "in",
            "process",
            "repeats",
            "rtt"
        )?;
        for Row {
            process,
            connection: of,
        } in &self.0
        {
            let place = if of.offloaded { "hardware" } else { "software" };
            let missing = Some(of.unavailable.join(",")).filter(|names| !names.is_empty());
            let round_trip = of.stats.and_then(|stats| stats.round_trip);
            write!(
                f,
                "\n{:<22} {:<22} {:>8} {:>8} {:<8} {:<12} {:<10} {place:<9} {process:>8} {:>8} {:>8}  {}",
                Or(of.local),
                peer(of),
                Or(of.qpn),
                Or(of.remote_qpn),
                Or(of.service.as_deref()),
                of.state,
                Or(of.transport.as_deref()),
                Or(of.stats.as_ref().map(repeats)),
                Or(round_trip.map(microseconds)),
                Or(missing),
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Listed {
        let mut stats = QpStats::default();
        (stats.timeouts, stats.rnr_naks) = (2, 3);
        stats.round_trip = Some(Duration::from_micros(17));
        Listed {
            local: None,
            remote: Some(SocketAddr::from(([10, 0, 0, 2], 7174))),
            remote_lid: None,
            qpn: Some(17),
            remote_qpn: None,
            service: Some("RC".into()),
            state: "established".into(),
            transport: Some("RoCEv2".into()),
            offloaded: false,
            unavailable: vec!["statistics".into()],
            stats: Some(stats),
        }
    }

    #[test]
    fn what_is_said_is_read_again() {
        let said = serde_json::to_string(&vec![sample()]).unwrap();
        let read: Vec<Listed> = serde_json::from_str(&said).unwrap();
        assert_eq!(read, [sample()]);
        assert!(serde_json::from_str::<Vec<Listed>>(r#"[{"remote": 7}]"#).is_err());
    }

    #[test]
    fn connections_are_shown_a_line_each() {
        let row = |connection| Row {
            process: 99,
            connection,
        };
        let in_a_subnet = Listed {
            remote: None,
            remote_lid: Some(5),
            ..sample()
        };
        let text = Listing(vec![row(sample()), row(in_a_subnet)]).to_string();
        let lines: Vec<_> = text.lines().collect();
        for part in [
            "10.0.0.2:7174",
            "17",
            "RC",
            "established",
            "RoCEv2",
            "software",
            "99",
            " 5 ",
            "17.0us",
            "statistics",
        ] {
            assert!(lines[1].contains(part), "{part} in {}", lines[1]);
        }
        assert!(lines[2].contains("LID 5"), "{}", lines[2]);
        assert!(Listing(Vec::new()).to_string().contains("no program"));
    }
}
