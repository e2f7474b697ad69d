//! `verbs perf`: bandwidth and latency between two hosts, as perftest measures them. Either end can be one of its
//! programs.
//!
//! [`exchange`] is what the ends tell each other over TCP, [`bed`] what a test is made of, [`bandwidth`], [`latency`] and
//! [`calls`] are the tests, [`report`] shows what follows from the times, as text and as a
//! picture.

mod args;
mod bandwidth;
mod bed;
mod calls;
mod error;
mod exchange;
mod key;
mod latency;
mod pace;
mod report;

use std::io::Write;

use futures::executor::block_on;
use verbs_core::{Device, Gid};

use self::args::{Measure, Plan};
use self::bed::{Bed, agreement};
use self::exchange::{Role, Streams, Talk};
use self::report::{Report, plot};
use crate::net::{self, Connection};
use crate::wire::{Network, PORT, Wire, WireError, gid_towards};

pub(crate) use self::args::{ABOUT, EXAMPLES, PerfArgs};
pub(crate) use self::error::PerfError;

/// Runs the command, printing as it goes. Blocks until both ends are done.
pub(crate) fn run(
    args: &PerfArgs,
    network: &dyn Network,
    out: &mut dyn Write,
) -> Result<(), PerfError> {
    let plan = Plan::of(args)?;
    network.check()?;
    let mut report = Report::new(out, args);
    let (role, connection, streams) = match &args.host {
        Some(host) => {
            let connection = Connection::open(host, args.port, args.connect)?;
            let streams = Streams::to(&connection, args.connect);
            (Role::Client, connection, streams)
        }
        None => {
            let listener = net::listen(None, args.port)?;
            report.waiting()?;
            let accepted = net::accept_first_to_speak(&listener);
            let connection = accepted.map_err(|error| PerfError::System {
                doing: "accept a connection",
                error,
            })?;
            let streams = Streams::at(listener, &connection);
            (Role::Server, connection, streams)
        }
    };
    let streams = network.is_over_streams().then_some(streams);
    let wire = open(args, network, role, &connection)?;
    let measured = measure(args, &plan, role, (connection, streams), &wire, &mut report);
    let measured = block_on(measured);
    let captured = wire.finish_capture();
    measured.and(captured.map_err(PerfError::from))?;
    let title = args.test.title();
    match &args.plot {
        Some(path) if plan.measures == Measure::Bandwidth => {
            plot::bandwidths(path, title, &report.bandwidths)
        }
        // A server that only answers has nothing to draw.
        Some(path) if !report.latencies.is_empty() => {
            plot::latencies(path, title, &report.latencies)
        }
        _ => Ok(()),
    }
}

/// The ends tell each other their addresses, so that the server can have another one than it was found at: a client on
/// this host may have that.
fn open(
    args: &PerfArgs,
    network: &dyn Network,
    role: Role,
    connection: &Connection,
) -> Result<Wire, WireError> {
    let named = &args.wire.bind;
    let (local, peer) = (connection.local().ip(), connection.peer().ip());
    match role {
        Role::Server if named.is_empty() => match network.attach(&[local]) {
            Err(WireError::InUse(_)) if local.is_loopback() => {
                Wire::open_towards(network, named, local, peer)
            }
            result => result,
        },
        Role::Server => network.attach(named),
        Role::Client => Wire::open_towards(network, named, local, peer),
    }
}

/// A test, from the device to its end.
async fn measure(
    args: &PerfArgs,
    plan: &Plan,
    role: Role,
    (connection, mut streams): (Connection, Option<Streams>),
    wire: &Wire,
    report: &mut Report<'_>,
) -> Result<(), PerfError> {
    let device = wire.device().await;
    let device = device.map_err(PerfError::verb("open the device"))?;
    let gid = own_gid(args, &device, &connection, wire).await?;
    let port = device.query_port(PORT).await;
    let max = port.map_err(PerfError::verb("query the port"))?.active_mtu;
    let mtu = args.mtu.unwrap_or(max);
    if mtu > max {
        return Err(PerfError::Mtu { got: mtu, max });
    }
    let mut talk = Talk::new(role, connection);
    let agreed = talk.agree(agreement(mtu))?;
    let mut bed = Bed::new(device, plan, args, agreed, gid).await?;
    let mut ours = bed.ours().to_vec();
    report.head(plan, agreed, gid.0)?;
    if plan.measures == Measure::Latency && plan.is_one_sided() {
        talk.handshake(&ours[0])?;
    }
    let mut theirs = Vec::new();
    for key in &mut ours {
        if let Some(streams) = &mut streams {
            streams.begin(key)?;
        }
        let told = talk.handshake(key)?;
        if let Some(streams) = &mut streams {
            streams.end(&told)?;
        }
        theirs.push(told);
    }
    match streams {
        Some(streams) => bed.adopt(theirs.clone(), streams.into_made())?,
        None => bed.connect(theirs.clone(), args.qp_timeout).await?,
    }
    let first = &ours[0];
    if !plan.is_one_sided() {
        talk.handshake(first)?;
    }
    for key in &ours {
        talk.handshake(key)?;
    }
    if plan.is_one_sided() {
        talk.handshake(first)?;
    }
    report.keys(&ours, &theirs)?;
    match plan.measures {
        Measure::Bandwidth => bandwidth::run(&mut bed, plan, role, &mut talk, &mut |rates| {
            report.bandwidth(rates)
        })?,
        Measure::Latency => latency::run(&mut bed, plan, role, &mut talk, &mut |measured| {
            report.latency(&measured)
        })?,
        Measure::Calls => calls::run(&mut bed, plan, role, &mut talk, &mut |measured| {
            report.latency(&measured)
        })?,
    }
    talk.close(first)?;
    report.end(role.name(), plan, agreed, gid.0)?;
    bed.close().await
}

/// The GID to measure from, and its index: the one that was named, or the first that has a way to the peer.
async fn own_gid(
    args: &PerfArgs,
    device: &Device,
    connection: &Connection,
    wire: &Wire,
) -> Result<(u16, Gid), PerfError> {
    let (local, peer) = (connection.local().ip(), connection.peer().ip());
    if let Some(got) = args.gid_index {
        let count = wire.addresses().len();
        if usize::from(got) >= count {
            let max = count.saturating_sub(1);
            return Err(PerfError::GidIndex { got, max });
        }
        let gid = device.query_gid(PORT, got).await;
        return Ok((got, gid.map_err(PerfError::verb("query the GID"))?));
    }
    let found = gid_towards(device, wire.addresses(), local, peer.into()).await;
    if let Some(found) = found.map_err(PerfError::verb("query the GIDs"))? {
        return Ok(found);
    }
    let gid = device.query_gid(PORT, 0).await;
    Ok((0, gid.map_err(PerfError::verb("query the GID"))?))
}
