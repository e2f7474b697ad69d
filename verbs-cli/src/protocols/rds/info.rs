//! `verbs rds info`: programs of this command show what their nodes know at a socket of this user's, and this asks all
//! of them.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::process;

use serde::{Deserialize, Serialize};
use ulp_rds::Node;

use super::RdsError;
use super::args::InfoArgs;
use super::report::{show_json, write};
use crate::published::{self, Published, Said};

/// What one program knows.
#[derive(Debug, Serialize, Deserialize)]
struct Program {
    pid: u32,
    sockets: Vec<SocketAddr>,
    connections: Vec<Connection>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Connection {
    local: IpAddr,
    remote: IpAddr,
    tos: u8,
    state: String,
    queued: usize,
    unacked: usize,
    received: u64,
    duplicates: u64,
    packets: u64,
    connects: u64,
    losses: u64,
    refused: u64,
    pings_dropped: u64,
    peer_restarts: u64,
    probes: u64,
}

impl Program {
    fn of(node: &Node) -> Self {
        let connections = node.connections().into_iter().map(|of| Connection {
            local: of.local,
            remote: of.remote,
            tos: of.tos,
            state: format!("{:?}", of.state).to_lowercase(),
            queued: of.queued,
            unacked: of.unacked,
            received: of.counts.received,
            duplicates: of.counts.duplicates,
            packets: of.counts.packets,
            connects: of.counts.connects,
            losses: of.counts.losses,
            refused: of.counts.refused,
            pings_dropped: of.counts.pings_dropped,
            peer_restarts: of.counts.peer_restarts,
            probes: of.counts.probes,
        });
        Self {
            pid: process::id(),
            sockets: node.sockets(),
            connections: connections.collect(),
        }
    }
}

/// The folder of the sockets.
const NAME: &str = "verbs-rds";

/// Shows what a node knows to this user's other programs; `None` where that cannot be, as nothing else depends on it.
pub(super) fn publish(node: &Node) -> Option<Published> {
    let node = node.clone();
    published::publish(NAME, move || {
        serde_json::to_vec(&Program::of(&node)).map_err(io::Error::other)
    })
}

pub(super) fn run(args: &InfoArgs, out: &mut (dyn Write + Send)) -> Result<(), RdsError> {
    let said = published::ask_all(NAME).map_err(RdsError::system("look for running programs"))?;
    let programs: Vec<Program> = said
        .into_iter()
        .map(|Said { pid, what }| Program { pid, ..what })
        .collect();
    if args.json {
        return show_json(out, &programs);
    }
    if programs.is_empty() {
        return write(out, &"no program of `verbs rds` is running");
    }
    for program in &programs {
        write(out, &format_args!("process {}", program.pid))?;
        for socket in &program.sockets {
            write(out, &format_args!("  socket {socket}"))?;
        }
        for of in &program.connections {
            let Connection {
                local,
                remote,
                tos,
                state,
                ..
            } = of;
            write(
                out,
                &format_args!(
                    "  connection {local} to {remote}, type of service {tos}: {state}; {} queued, {} unacknowledged; \
                     {} messages and {} packets; made {} times, lost {}, {} requests refused; {} duplicates dropped, \
                     {} pings unanswered, peer restarted {} times, {} probes answered",
                    of.queued,
                    of.unacked,
                    of.received,
                    of.packets,
                    of.connects,
                    of.losses,
                    of.refused,
                    of.duplicates,
                    of.pings_dropped,
                    of.peer_restarts,
                    of.probes
                ),
            )?;
        }
    }
    Ok(())
}
