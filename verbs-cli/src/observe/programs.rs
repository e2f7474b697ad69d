//! `verbs connections --host`: the programs that share this host's addresses, as its daemon knows them.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use hca_sim::link::host::{self, HostError};
use serde::Serialize;
use verbs_cm::wire::ServiceId;
use verbs_core::host::list::{Listed, ListedConnection};
use verbs_core::host::message::Service;

use super::connections::Or;

/// A program.
#[derive(Debug, Serialize)]
struct Program {
    /// The daemon's number for it: a process with several ports has several.
    client: u32,
    /// `None` if it is in another namespace of processes.
    process: Option<u32>,
    user: u32,
    name: String,
    /// Its queue pair numbers: first and last of each block.
    queue_pairs: Vec<[u32; 2]>,
    listens: Vec<Listener>,
    groups: Vec<IpAddr>,
    /// The clients with which it shares memory.
    shares_memory_with: Vec<u32>,
    connections: Vec<Connection>,
}

/// What a program listens for.
#[derive(Debug, Serialize)]
struct Listener {
    /// `None` for all addresses.
    address: Option<IpAddr>,
    /// `None` if the service is not a port number.
    port: Option<u16>,
    service: u64,
}

#[derive(Debug, Serialize)]
struct Connection {
    local: IpAddr,
    remote: IpAddr,
    /// The port number that was asked for, at the end that was asked.
    port: Option<u16>,
    /// This program has asked.
    active: bool,
    qpn: Option<u32>,
    remote_qpn: Option<u32>,
    /// Both ends have a queue pair for it.
    established: bool,
}

/// All of them, to be printed.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Programs(Vec<Program>);

/// Asks the daemon; `None` if there is none.
pub(crate) fn list() -> Result<Option<Programs>, HostError> {
    let clients = host::clients()?;
    Ok(clients.map(|clients| Programs(clients.into_iter().map(Program::of).collect())))
}

fn port_of(service: u64) -> Option<u16> {
    ServiceId(service).port().map(|(_, port)| port)
}

impl Program {
    fn of(listed: Listed) -> Self {
        let blocks = listed.blocks.iter().map(|&block| u32::from(block) << 12);
        Self {
            client: listed.client,
            process: Some(listed.pid).filter(|&pid| pid != 0),
            user: listed.uid,
            name: listed.name,
            queue_pairs: blocks.map(|first| [first, first | 0xfff]).collect(),
            listens: listed.services.iter().map(Listener::of).collect(),
            groups: listed.groups,
            shares_memory_with: listed.shares,
            connections: listed.connections.iter().map(Connection::of).collect(),
        }
    }

    /// Its process or, if that has no number here, the daemon's number for it.
    fn who(&self) -> String {
        match self.process {
            Some(process) => process.to_string(),
            None => format!("#{}", self.client),
        }
    }
}

impl Listener {
    fn of(service: &Service) -> Self {
        Self {
            address: service.addr,
            port: port_of(service.id),
            service: service.id,
        }
    }
}

impl Connection {
    fn of(listed: &ListedConnection) -> Self {
        Self {
            local: listed.local,
            remote: listed.remote,
            port: listed.service.and_then(port_of),
            active: listed.is_active,
            qpn: listed.qpn.map(|qpn| qpn.value()),
            remote_qpn: listed.remote_qpn.map(|qpn| qpn.value()),
            established: listed.remote_qpn.is_some(),
        }
    }

    /// Both ends; the one that was asked with its port number.
    fn ends(&self) -> [String; 2] {
        let end = |address, was_asked: bool| match self.port.filter(|_| was_asked) {
            Some(port) => SocketAddr::new(address, port).to_string(),
            None => address.to_string(),
        };
        [end(self.local, !self.active), end(self.remote, self.active)]
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.address, self.port) {
            (Some(address), Some(port)) => write!(f, "{}", SocketAddr::new(address, port)),
            (None, Some(port)) => write!(f, "*:{port}"),
            (Some(address), None) => write!(f, "{address}/{:#x}", self.service),
            (None, None) => write!(f, "*/{:#x}", self.service),
        }
    }
}

/// Entries behind each other, or a dash.
fn joined(entries: impl Iterator<Item = String>) -> Or<String> {
    let all: Vec<_> = entries.collect();
    Or((!all.is_empty()).then(|| all.join(",")))
}

/// A program's name, which it has chosen, as a terminal may show it.
fn plain(name: &str) -> String {
    let shown = name.chars().take(24);
    shown
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

impl fmt::Display for Programs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("no program shares this host's addresses");
        }
        write!(
            f,
            "{:<24} {:>8} {:>6} {:<16} {:<24} shares memory with",
            "program", "process", "user", "queue pairs", "listens"
        )?;
        let who: BTreeMap<_, _> = self.0.iter().map(|one| (one.client, one.who())).collect();
        for program in &self.0 {
            let blocks = program.queue_pairs.iter();
            let blocks = joined(blocks.map(|[first, _]| format!("{first:#x}+")));
            let listens = joined(program.listens.iter().map(Listener::to_string));
            let shares = program.shares_memory_with.iter();
            let shares = joined(shares.filter_map(|client| who.get(client).cloned()));
            write!(
                f,
                "\n{:<24} {:>8} {:>6} {blocks:<16} {listens:<24} {shares}",
                plain(&program.name),
                program.who(),
                program.user,
            )?;
        }
        let connections = self.0.iter().flat_map(|program| {
            let of = program.connections.iter();
            of.map(|connection| (program.who(), connection))
        });
        for (n, (who, of)) in connections.enumerate() {
            if n == 0 {
                write!(
                    f,
                    "\n\n{:<22} {:<22} {:>8} {:>8} {:<12} {:>8}",
                    "local", "remote", "qpn", "peer qpn", "state", "process"
                )?;
            }
            let [local, remote] = of.ends();
            let state = match of.established {
                true => "established",
                false => "connecting",
            };
            write!(
                f,
                "\n{local:<22} {remote:<22} {:>8} {:>8} {state:<12} {who:>8}",
                Or(of.qpn),
                Or(of.remote_qpn),
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use verbs_cm::wire::PortSpace;
    use verbs_core::Qpn;

    use super::*;

    fn sample() -> Listed {
        let [here, there] = ["10.0.0.1", "fd00::2"].map(|text| text.parse().expect("one"));
        let service = ServiceId::rdma_cm(PortSpace::Tcp, 7174).0;
        Listed {
            client: 3,
            uid: 1000,
            pid: 99,
            name: "evil\u{1b}[2J".into(),
            blocks: vec![5],
            services: vec![Service {
                id: service,
                addr: None,
            }],
            groups: Vec::new(),
            shares: vec![4, 3],
            connections: vec![
                ListedConnection {
                    local: here,
                    remote: there,
                    service: Some(service),
                    is_active: true,
                    qpn: Some(Qpn::new(0x5011)),
                    remote_qpn: None,
                },
                ListedConnection {
                    local: here,
                    remote: here,
                    service: Some(7),
                    is_active: false,
                    qpn: None,
                    remote_qpn: Some(Qpn::new(0x6011)),
                },
            ],
            next: None,
        }
    }

    #[test]
    fn programs_are_shown_with_what_they_have() {
        let hidden = Listed {
            client: 4,
            pid: 0,
            connections: Vec::new(),
            ..sample()
        };
        let programs = Programs([sample(), hidden].map(Program::of).into());
        let text = programs.to_string();
        for part in [
            "*:7174",
            "#4,99",
            "0x5000+",
            "[fd00::2]:7174",
            "connecting",
            "established",
            "20497",
            "1000",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains('\u{1b}'), "{text:?}");
        let json = serde_json::to_value(&programs).expect("JSON");
        assert_eq!(
            json[0]["queue_pairs"][0],
            serde_json::json!([0x5000, 0x5fff])
        );
        assert_eq!(json[0]["listens"][0]["port"], 7174);
        assert_eq!(json[1]["process"], serde_json::Value::Null);
        assert_eq!(json[0]["connections"][1]["remote_qpn"], 0x6011);
        assert!(Programs(Vec::new()).to_string().contains("no program"));
    }
}
