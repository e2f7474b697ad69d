//! The client of a copy between hosts: asks for a file and receives it.

use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use futures::executor::block_on;
use verbs_cm::Manager;
use verbs_core::sync::{Arc, thread};
use verbs_core::{Access, Gid};

use super::control::{Control, Watch};
use super::drive::{drive, unexpected};
use super::managed::Managed;
use super::message::{Get, Message, Offer, Ready};
use super::{Seat, connect, identify, streams};
use crate::address::{Scheme, ServedUrl};
use crate::cli::CopyArgs;
use crate::copy::endpoint::Endpoint;
use crate::copy::error::{CopyError, End};
use crate::copy::fabric::check;
use crate::copy::receiver::{Receiver, Verdict};
use crate::copy::sink::{Sink, Target};
use crate::copy::window::Plan;
use crate::copy::{Copied, Failure, compare};
use crate::ending::{Ending, GOODBYE, within};
use crate::net::{Connection, NetError, lookup, sends_from};
use crate::report::{Progress, Report};
use crate::wire::{Network, Transport, Wire, WireError};

/// Runs `verbs copy roce://... DST`, or from `rdma://...` or `iwarp://...`. Blocks until the copy is complete.
pub(crate) fn run(
    args: &CopyArgs,
    url: &ServedUrl,
    network: &dyn Network,
) -> Result<Report, Failure> {
    if args.fault.is_some() {
        let (option, when) = ("--fault", "is a file of this host");
        return Err(CopyError::Useless { option, when }.into());
    }
    if url.scheme == Scheme::Roce && args.wire.transport == Transport::Iwarp {
        return Err(CopyError::from(WireError::PacketsOnly).into());
    }
    let target = Target::find(&args.dst, None)?;
    let fate = target.fate();
    let started = Instant::now();
    let fetched = fetch(args, url, network, target);
    let Copied {
        verdict,
        chunk,
        window,
        writes,
        sync,
        ..
    } = fetched.map_err(|error| Failure::at(error, fate))?;
    Ok(Report {
        source: url.to_string(),
        destination: args.dst.display().to_string(),
        bytes: verdict.arrived.bytes,
        chunk,
        window,
        writes,
        retries: 0,
        seconds: started.elapsed().as_secs_f64(),
        sync_seconds: sync.as_secs_f64(),
        digest: verdict.arrived.digest.to_string(),
    })
}

/// From the first connection to the target's name.
fn fetch(
    args: &CopyArgs,
    url: &ServedUrl,
    network: &dyn Network,
    target: Target,
) -> Result<Copied, CopyError> {
    let (control, wire) = match url.scheme {
        Scheme::Roce => {
            let stream = Connection::open(&url.host, url.port, args.connect)?;
            let (local, peer) = (stream.local().ip(), stream.peer().ip());
            let wire = Wire::open_towards(network, &args.wire.bind, local, peer)?;
            (Control::Stream(stream), wire)
        }
        Scheme::Rdma | Scheme::Iwarp => find(args, url, network)?,
    };
    let received = block_on(receive(args, url, &wire, control, target));
    let captured = wire.finish_capture();
    let (sink, offer, verdict) = received?;
    captured?;
    compare(url.to_string().as_ref(), &verdict)?;
    let started = Instant::now();
    sink.commit()?;
    Ok(Copied {
        verdict,
        chunk: offer.chunk,
        window: offer.window,
        writes: verdict.arrived.chunks,
        retries: 0,
        sync: started.elapsed(),
    })
}

/// Connects by the connection manager, to the first of the host's addresses that accepts.
fn find(
    args: &CopyArgs,
    url: &ServedUrl,
    network: &dyn Network,
) -> Result<(Control, Wire), CopyError> {
    let mut last = None;
    for peer in lookup(&url.host, url.port)? {
        match connect_to(args, url, network, peer) {
            Ok((control, wire, manager)) => {
                heed_signals(manager)?;
                return Ok((control, wire));
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or(CopyError::NoRoute {
        peer: Gid::default(),
    }))
}

fn connect_to(
    args: &CopyArgs,
    url: &ServedUrl,
    network: &dyn Network,
    peer: SocketAddr,
) -> Result<(Control, Wire, Manager), CopyError> {
    let local = sends_from(peer).map_err(|error| NetError::Connect {
        host: url.host.clone(),
        port: url.port,
        error,
    })?;
    let wire = Wire::open_towards(network, &args.wire.bind, local, peer.ip())?;
    let device = block_on(wire.device());
    let device = device.map_err(|error| CopyError::Verb {
        end: End::Destination,
        doing: "open the device",
        error,
    })?;
    // The connection keeps the device.
    let local = wire.addresses().first().copied().unwrap_or(local);
    let managed = Managed::open(&device, &url.host, peer, (local, 0).into(), args.connect)?;
    Ok((Control::Managed(managed), wire, Manager::of(&device)))
}

/// From now on the server hears of it when the process is told to end: there is no stream that ends with it.
fn heed_signals(manager: Manager) -> Result<(), CopyError> {
    let ending = Ending::begin().map_err(CopyError::Signals)?;
    let builder = thread::Builder::new();
    let spawned = builder.spawn(move || {
        let signal = block_on(ending.told());
        let goodbye = manager.disconnect_all();
        let _unanswered = within(Instant::now() + GOODBYE, goodbye);
        signal.obey()
    });
    spawned.map(drop).map_err(CopyError::Signals)
}

/// Receives the file into a sink that has no name yet.
async fn receive(
    args: &CopyArgs,
    url: &ServedUrl,
    wire: &Wire,
    mut control: Control,
    target: Target,
) -> Result<(Sink, Offer, Verdict), CopyError> {
    let end = End::Destination;
    let local = control.local().ip();
    let seat = Seat::take(end, wire, local, None).await?;
    control.send(&Message::Get(Get {
        chunk: args.chunk,
        window: args.window,
        gid: seat.gid,
        path: url.path.as_bytes().to_vec(),
    }))?;
    let offer = match control.receive()? {
        Message::File(offer) => offer,
        other => return Err(unexpected(End::Source, other)),
    };
    if offer.chunk > args.chunk || offer.window > args.window {
        let what = "offers larger chunks or a larger window than it was asked for";
        return Err(CopyError::Offer {
            end: End::Source,
            what,
        });
    }
    let plan = Plan::new(offer.size, offer.chunk, offer.window);
    check(end, &seat.device, offer.chunk, &plan).await?;
    let mut sink = Sink::create(target, offer.mode & 0o777)?;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let device = Arc::clone(&seat.device);
    let mut endpoint = Endpoint::new(end, seat.device, &plan, rights).await?;
    let ours = identify(&endpoint, seat.gid)?;
    let connects_itself = streams::is_of(&device);
    if !connects_itself {
        connect(&endpoint, seat.index, &ours, &offer.end).await?;
        endpoint.ready_to_send(ours.psn).await?;
    }
    let slots = endpoint.data.remote(0);
    // The server may send as soon as it knows.
    let mut watch = control.watch();
    watch.send(&Message::Ready(Ready { end: ours, slots }))?;
    if connects_itself {
        let peer = control.peer();
        streams::connect(&mut endpoint, &device, peer, &offer.end, args.connect).await?;
    }
    drop(device);

    let progress = Progress::new(plan.size(), args.quiet);
    let mut receiver = Receiver::new(endpoint, &mut sink, plan);
    let driven = drive(&mut receiver, &mut watch, plan.chunks(), &progress, &|| ()).await;
    progress.finish();
    driven?;
    let verdict = end_well(receiver, watch).await?;
    Ok((sink, offer, verdict))
}

/// Everything has arrived and the server knows: lets it go.
async fn end_well(receiver: Receiver<'_>, mut watch: Watch) -> Result<Verdict, CopyError> {
    let verdict = receiver.verdict().ok_or(CopyError::Offer {
        end: End::Source,
        what: "acknowledged a closing message that was not sent",
    })?;
    // A server that has gone already needs no telling.
    let _ = watch.send(&Message::Done);
    receiver.into_endpoint().close().await?;
    Ok(verdict)
}
