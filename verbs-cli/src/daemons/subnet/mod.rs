//! `verbs subnet`: hosts a simulated InfiniBand subnet for other programs, and changes one that is hosted.

mod args;
mod builtin;
mod client;
pub(crate) mod descriptors;
mod error;
mod managers;
pub(crate) mod place;
mod server;
pub(crate) mod stop;

use std::fmt;
use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use hca_sim::link::fabric::message::{Message, Refusal};
use hca_sim::link::fabric::place::check_default;
use hca_sim::link::fabric::socket::{Take, connect_to, default_path, receive, send};
use hca_sim::link::fabric::{FatTree, Host, HostLimits, NodeId, PortRef, SubnetConfig, Topology};
use serde::Serialize;
use verbs_core::mad::Bits;
use verbs_sm::Config;

pub(crate) use args::{ABOUT, EXAMPLES, SubnetArgs};
pub(crate) use error::SubnetError;

use crate::capture::LinkCapture;
use crate::report::{self, line};
use args::PortArg;
use descriptors::Descriptors;
use place::{Place, control_of};
use server::Server;
use stop::Stop;

/// Hosts a subnet until the program is told to end, or does one thing to a hosted one. A program that is told to end
/// removes its files, and does not return.
pub(crate) fn run(args: &SubnetArgs, out: &mut dyn Write) -> Result<(), SubnetError> {
    let path = args.socket.clone().unwrap_or_else(default_path);
    if let Some(port) = &args.unplug {
        return plug(&path, port, false);
    }
    if let Some(port) = &args.plug {
        return plug(&path, port, true);
    }
    if args.status {
        let status = status(&path)?;
        return match args.json {
            true => report::json(out, &status).map_err(SubnetError::Output),
            false => say(out, &status),
        };
    }
    let topology = topology(args)?;
    let welcome = Welcome::new(&topology, &path);
    let seat = args.sm.then(|| seat(&topology)).transpose()?;
    let room = Descriptors::claim();
    let limits = HostLimits {
        clients_max: room.clients_max,
        operators_max: room.operators_max,
        ..HostLimits::default()
    };
    // From here on INT and TERM are heard, so that no file is left behind.
    let stop = Stop::begin().map_err(SubnetError::Signals)?;
    let pcap = args.pcap.as_deref();
    let capture = pcap.map(|path| LinkCapture::create(path, &topology));
    let capture = capture.transpose()?;
    let host = Host::with_limits(topology, SubnetConfig::default(), limits);
    let place = Place::take(&path)?;
    let mut server = Server::new(host, place, &path, room, stop)?;
    if let Some(capture) = capture {
        server.capture(capture);
    }
    if let Some((at, name)) = seat {
        let config = Config {
            priority: Bits::saturating(args.sm_priority.into()),
            ..Config::default()
        };
        server.manage(at, &name, config)?;
    }
    say(out, &welcome)?;
    let signal = server.run()?;
    let captured = server.finish_capture();
    drop(server);
    captured?;
    signal.obey()
}

/// Where the built-in manager is: the first port of the first adapter.
fn seat(topology: &Topology) -> Result<(PortRef, String), SubnetError> {
    let nodes = (0..).map(NodeId).zip(topology.nodes());
    let mut adapters = nodes.filter(|(_, node)| !node.is_switch());
    let (node, spec) = adapters.next().ok_or(SubnetError::NoAdapter)?;
    Ok((PortRef { node, port: 1 }, spec.name.clone()))
}

fn topology(args: &SubnetArgs) -> Result<Topology, SubnetError> {
    if let Some(hosts) = args.tree {
        let tree = FatTree::with_hosts(hosts).ok_or(SubnetError::NoTree(hosts))?;
        return Ok(tree.topology()?);
    }
    let Some(file) = &args.topology else {
        return Err(SubnetError::NoTopology);
    };
    let read = |error| SubnetError::Read {
        path: file.clone(),
        error,
    };
    let text = fs::read_to_string(file).map_err(read)?;
    let topology = Topology::parse(&text)?;
    topology
        .first_hca()
        .map(|_| ())
        .ok_or(SubnetError::NoAdapter)?;
    Ok(topology)
}

fn say(out: &mut dyn Write, what: &dyn fmt::Display) -> Result<(), SubnetError> {
    line(out, what).map_err(SubnetError::Output)
}

/// How a hosted subnet is.
#[derive(Debug, Serialize)]
struct Status {
    nodes: u32,
    linked_ports: u32,
    active_ports: u32,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            nodes,
            linked_ports,
            active_ports,
        } = self;
        write!(
            f,
            "{nodes} nodes, {linked_ports} ports with a link, {active_ports} of them in service"
        )
    }
}

/// What is said when the subnet is there.
struct Welcome {
    switches: usize,
    adapters: usize,
    links: usize,
    path: PathBuf,
}

impl Welcome {
    fn new(topology: &Topology, path: &Path) -> Self {
        let nodes = topology.nodes();
        let switches = nodes.iter().filter(|node| node.is_switch()).count();
        Self {
            switches,
            adapters: nodes.len() - switches,
            links: topology.links().len(),
            path: path.to_owned(),
        }
    }
}

impl fmt::Display for Welcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "subnet with {} switches, {} adapters and {} links at {}",
            self.switches,
            self.adapters,
            self.links,
            self.path.display()
        )
    }
}

/// Asks a hosted subnet.
fn ask(path: &Path, question: &Message) -> Result<Message, SubnetError> {
    check_default(path)?;
    let reach = |error: rustix::io::Errno| SubnetError::Reach {
        path: path.to_owned(),
        error: error.into(),
    };
    let socket = connect_to(path).map_err(reach)?;
    send(socket.as_fd(), &question.encode(), true).map_err(reach)?;
    let answer = receive(socket.as_fd(), Take::Away, true).map_err(reach)?;
    let answer = answer.ok_or(rustix::io::Errno::CONNRESET).map_err(reach)?;
    match Message::decode(&answer)? {
        Message::Refused(refusal) => Err(SubnetError::Refused(refusal)),
        answer => Ok(answer),
    }
}

fn plug(path: &Path, port: &PortArg, is_in: bool) -> Result<(), SubnetError> {
    let question = Message::Plug {
        node: port.node.clone(),
        port: port.port,
        is_in,
    };
    check_default(path)?;
    match ask(&control_of(path), &question) {
        Err(SubnetError::Refused(Refusal::Missing)) => {}
        done => return done.map(|_| ()),
    }
    // What is missing is looked up for users that have mistyped it.
    let (host, number) = (port.node.clone(), port.port);
    Err(match ask(path, &Message::Look { host: host.clone() }) {
        Ok(_) => SubnetError::NoCable {
            node: host,
            port: number,
        },
        Err(SubnetError::Refused(Refusal::Missing)) => SubnetError::NoNode(host),
        Err(error) => error,
    })
}

fn status(path: &Path) -> Result<Status, SubnetError> {
    match ask(path, &Message::Count)? {
        Message::Counts {
            nodes,
            linked,
            active,
        } => Ok(Status {
            nodes,
            linked_ports: linked,
            active_ports: active,
        }),
        _ => Err(SubnetError::NoAnswer),
    }
}
