//! `verbs connections`: the connections of this user's running programs of this command.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use verbs_cm::{ConnectionInfo, ConnectionState};

use crate::published::{self, Published, Said};

pub(crate) const ABOUT: &str = "\
Show the connections of running programs.

Asks all programs of this command that this user runs, at sockets in the user's runtime directory, and shows each \
connection that their connection managers have made: both addresses, the numbers of both queue pairs, its state, what \
carries it, and what the host's network stack does not do for it (packet filters, queueing disciplines, statistics), \
which ordinary connections have. Programs that use the libraries are not shown.

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

/// The folder of the sockets.
const NAME: &str = "verbs-connections";

/// One connection, as a program says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Connection {
    local: Option<SocketAddr>,
    remote: SocketAddr,
    qpn: Option<u32>,
    remote_qpn: Option<u32>,
    state: State,
    transport: Option<Transport>,
    offloaded: bool,
    /// What the host does not do for it.
    unavailable: Vec<Service>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Established,
    Closing,
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Transport {
    InfiniBand,
    #[serde(rename = "RoCEv2")]
    RoceV2,
    #[serde(rename = "iWARP")]
    Iwarp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Service {
    Filtering,
    Queueing,
    Statistics,
}

/// A connection with its process.
#[derive(Debug, Serialize)]
pub(crate) struct Listed {
    process: u32,
    #[serde(flatten)]
    connection: Connection,
}

/// All of them, to be printed.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Listing(Vec<Listed>);

/// Tells the user's other programs of this process's connections for as long as the value is kept.
pub(crate) fn publish() -> Option<Published> {
    published::publish(NAME, || {
        let all: Vec<Connection> = verbs_cm::connections().iter().map(Connection::of).collect();
        serde_json::to_vec(&all).map_err(io::Error::other)
    })
}

/// Asks all running programs.
pub(crate) fn list() -> io::Result<Listing> {
    let said: Vec<Said<Vec<Connection>>> = published::ask_all(NAME)?;
    let all = said.into_iter().flat_map(|Said { pid, what }| {
        what.into_iter().map(move |connection| Listed {
            process: pid,
            connection,
        })
    });
    Ok(Listing(all.collect()))
}

impl Connection {
    fn of(info: &ConnectionInfo) -> Self {
        let host = info.host;
        let services = [
            (host.filtering, Service::Filtering),
            (host.queueing, Service::Queueing),
            (host.statistics, Service::Statistics),
        ];
        let missing = services.into_iter().filter(|(is_there, _)| !is_there);
        Self {
            local: info.local,
            remote: info.remote,
            qpn: info.qpn.map(|qpn| qpn.value()),
            remote_qpn: info.remote_qpn.map(|qpn| qpn.value()),
            state: match info.state {
                ConnectionState::Established => State::Established,
                ConnectionState::Closing => State::Closing,
                _ => State::Closed,
            },
            transport: info.transport.and_then(Transport::of),
            offloaded: info.is_offloaded,
            unavailable: missing.map(|(_, service)| service).collect(),
        }
    }
}

impl Transport {
    fn of(transport: verbs_core::TransportType) -> Option<Self> {
        match transport {
            verbs_core::TransportType::InfiniBand => Some(Self::InfiniBand),
            verbs_core::TransportType::RoceV2 => Some(Self::RoceV2),
            verbs_core::TransportType::Iwarp => Some(Self::Iwarp),
            _ => None,
        }
    }
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

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::RoceV2 => "RoCEv2",
            Self::Iwarp => "iWARP",
        })
    }
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("no program of this user has a connection");
        }
        write!(
            f,
            "{:<22} {:<22} {:>8} {:>8} {:<12} {:<10} {:<9} {:>8}  unavailable",
            "local", "remote", "qpn", "peer qpn", "state", "transport", "in", "process"
        )?;
        for Listed {
            process,
            connection: of,
        } in &self.0
        {
            let state = format!("{:?}", of.state).to_lowercase();
            let place = if of.offloaded { "hardware" } else { "software" };
            let names = of
                .unavailable
                .iter()
                .map(|one| format!("{one:?}").to_lowercase());
            let missing = Some(names.collect::<Vec<_>>().join(","));
            write!(
                f,
                "\n{:<22} {:<22} {:>8} {:>8} {state:<12} {:<10} {place:<9} {process:>8}  {}",
                Or(of.local),
                of.remote.to_string(),
                Or(of.qpn),
                Or(of.remote_qpn),
                Or(of.transport),
                Or(missing.filter(|names| !names.is_empty())),
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Connection {
        Connection {
            local: None,
            remote: SocketAddr::from(([10, 0, 0, 2], 7174)),
            qpn: Some(17),
            remote_qpn: None,
            state: State::Established,
            transport: Some(Transport::RoceV2),
            offloaded: false,
            unavailable: vec![Service::Statistics],
        }
    }

    #[test]
    fn what_is_said_is_read_again() {
        let said = serde_json::to_string(&vec![sample()]).unwrap();
        let read: Vec<Connection> = serde_json::from_str(&said).unwrap();
        assert_eq!(read, [sample()]);
        assert!(serde_json::from_str::<Vec<Connection>>(r#"[{"remote": 7}]"#).is_err());
    }

    #[test]
    fn connections_are_shown_a_line_each() {
        let listed = Listed {
            process: 99,
            connection: sample(),
        };
        let text = Listing(vec![listed]).to_string();
        let row = text.lines().nth(1).unwrap();
        for part in [
            "10.0.0.2:7174",
            "17",
            "established",
            "RoCEv2",
            "software",
            "99",
            "statistics",
        ] {
            assert!(row.contains(part), "{part} in {row}");
        }
        assert!(Listing(Vec::new()).to_string().contains("no program"));
    }
}
