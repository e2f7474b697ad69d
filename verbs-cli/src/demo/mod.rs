//! `verbs demo`: what a newcomer runs first. Two nodes and a switch in one process, without root and with
//! nothing installed: the subnet comes up, packets of IP go across, a file goes by TCP and by RDMA.

mod error;
mod file;
mod ip;
mod node;
mod rdma;
mod table;

use std::io::Write;
use std::iter;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use futures::executor::block_on;
use hca_sim::clock::Clock;
use hca_sim::link::fabric::{PortRef, SharedSubnet, Subnet, SubnetConfig, Topology};
use verbs_core::time;
use verbs_sm::{Config as SmConfig, Manager};

pub(crate) use error::DemoError;

use crate::capture::{CaptureError, LinkCapture};
use file::Payload;
use node::Node;
use table::{Demo, Row};

pub(crate) const ABOUT: &str = "\
Show what all this is, in a few seconds: no root, no hardware, nothing installed.

Two nodes and a switch live in this process. The built-in subnet manager brings the subnet up; then the nodes \
ping each other by IP over InfiniBand, send a file by TCP over that, and the same file by RDMA over a \
connection that they make by IP address. Everything that crosses the switch is made and taken apart in \
software.";

pub(crate) const EXAMPLES: &str = "\
Examples:
  verbs demo                       with this program's own file
  verbs demo --file photo.jpg      with another one
  verbs demo --json                what took how long, for programs
  verbs demo --pcap demo.pcapng    with all packets, for Wireshark

Exit codes:
  0  done
  1  the file could not be read, or the output or the capture not written
  3  what arrived is not what was sent
  5  a device failed, or somebody does not answer";

/// Bytes of the file at most: the demonstration is to be over soon.
const BYTES_MAX: u64 = 16 << 20;

/// Echoes that are sent one after the other.
const PINGS: u16 = 100;

/// `verbs demo`.
#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// The file that is sent; by default this program's own. Of a longer one, the first 16 MiB
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Print the steps as JSON when all are done, and nothing else
    #[arg(long)]
    json: bool,
    /// Write all packets on both links to a file for Wireshark (link type 197, ERF, as ibdump writes them)
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
}

/// Runs it, and says what there was to see.
pub(crate) fn run(args: &DemoArgs, out: &mut dyn Write) -> Result<(), DemoError> {
    let payload = Payload::read(args.file.as_deref(), BYTES_MAX)?;
    let fabric = subnet(args.pcap.as_deref())?;
    let shown = block_on(show(&payload, &fabric, &mut Demo::new(out, args.json)));
    let captured = fabric.finish_capture().map_err(DemoError::from);
    // A node that has gone does not hear what comes last either.
    let flushed = out.flush().map_err(DemoError::Output);
    shown.and(captured).and(flushed)
}

async fn show(payload: &Payload, subnet: &Fabric, demo: &mut Demo<'_>) -> Result<(), DemoError> {
    let begun = Instant::now();
    demo.say("two nodes and a switch, in this process:")?;
    demo.say("    A 10.0.0.1 ---- [ switch ] ---- B 10.0.0.2")?;

    let (mut a, mut b) = (
        Node::new(subnet, 1, "A").await?,
        Node::new(subnet, 2, "B").await?,
    );
    let step = Instant::now();
    let manager = Manager::start(&a.device, 1, SmConfig::default()).await?;
    manager.up().await;
    let counts = subnet.port_counts();
    demo.row(Row {
        what: "the built-in subnet manager",
        took: step.elapsed(),
        says: format!(
            "{} nodes, {} of {} ports in service",
            manager.nodes(),
            counts.1,
            counts.0
        ),
    })?;

    a.bring_up().await?;
    b.bring_up().await?;
    let mtu = a.mtu();
    demo.row(Row {
        what: "IP over InfiniBand",
        took: step.elapsed(),
        says: format!("both interfaces are up, MTU {mtu}"),
    })?;

    let step = Instant::now();
    let pings = ip::ping(&mut a, &mut b, PINGS).await?;
    demo.row(Row {
        what: "ping 10.0.0.2",
        took: step.elapsed(),
        says: pings.to_string(),
    })?;

    let tcp = ip::copy(&mut a, &mut b, payload).await?;
    demo.row(Row::rate("the file by TCP", tcp, payload.len()))?;
    let rdma = rdma::copy(&a, &b, payload).await?;
    demo.row(Row::rate("the same by RDMA", rdma.took, payload.len()))?;
    demo.row(Row {
        what: "of that, the connection",
        took: rdma.connected,
        says: "made by the connection manager: ARP, a path, REQ, REP, RTU".into(),
    })?;
    demo.end(payload, begun.elapsed())
}

/// A switch with two adapters, whose packets are written there.
fn subnet(pcap: Option<&Path>) -> Result<Fabric, DemoError> {
    let mut topology = Topology::new();
    let switch = topology.switch("switch", 4)?;
    let mut ports = Vec::new();
    for (number, name) in [(1, "A"), (2, "B")] {
        let node = topology.hca(name, 1)?;
        topology.link((switch, number), (node, 1))?;
        ports.push(PortRef { node, port: 1 });
    }
    let capture = pcap.map(|path| LinkCapture::create(path, &topology));
    let capture = capture.transpose()?;
    let clock = Clock::wall();
    let mut subnet = Subnet::new(&topology, SubnetConfig::default());
    if capture.is_some() {
        subnet.record().begin();
    }
    Ok(Fabric {
        subnet: SharedSubnet::timed(subnet, clock.clone()),
        ports,
        clock,
        capture,
    })
}

/// The subnet, and where its adapters are.
pub(crate) struct Fabric {
    subnet: SharedSubnet,
    ports: Vec<PortRef>,
    clock: Clock,
    capture: Option<LinkCapture>,
}

impl Fabric {
    /// Writes what was recorded, if that was asked for.
    fn finish_capture(self) -> Result<(), CaptureError> {
        let Some(mut capture) = self.capture else {
            return Ok(());
        };
        let take = |subnet: &mut Subnet| iter::from_fn(|| subnet.record().poll()).collect();
        let carried: Vec<_> = self.subnet.with(time::Instant::ZERO, take);
        capture.write(carried.into_iter());
        capture.finish()
    }

    /// Ports with a link, and how many of those are in service.
    fn port_counts(&self) -> (usize, usize) {
        self.subnet
            .with(time::Instant::ZERO, |subnet| subnet.port_counts())
    }
}

/// Longest time that anything is waited for.
const PATIENCE: Duration = Duration::from_secs(20);
