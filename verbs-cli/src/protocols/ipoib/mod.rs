//! `verbs ipoib`: interfaces of the system over a simulated subnet.

mod args;
mod error;
mod forward;
mod tun;

use std::fmt;
use std::future::Future;
use std::io::Write;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use futures::executor::block_on;
use futures::future::join_all;
use hca_sim::link::fabric::socket::default_path;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use smallvec::SmallVec;
use ulp_ipoib::{Config, Interface};
use verbs_cm::Manager;
use verbs_cm::sa::SaClient;
use verbs_core::Device;
use verbs_core::sync::Arc;

pub(crate) use args::{ABOUT, EXAMPLES, IpoibArgs, Place, place};
pub(crate) use error::IpoibError;

use crate::ending::{Ending, GOODBYE, Signal, within};
use crate::report::line;
use crate::wire::{Network, SubnetNode, WireError};
use args::{IpoibCommand, UpArgs};
use tun::{News, Tun};

pub(crate) fn run(args: &IpoibArgs, out: &mut dyn Write) -> Result<(), IpoibError> {
    match &args.command {
        IpoibCommand::Up(args) => up(args, out),
        IpoibCommand::Forward(args) => forward::run(args, out),
    }
}

/// Brings the interfaces up, and carries packets until the program is told to end. Then groups are left and connections
/// ended, before the process ends by the signal.
fn up(args: &UpArgs, out: &mut dyn Write) -> Result<(), IpoibError> {
    let path = args.subnet.clone().unwrap_or_else(default_path);
    let node = SubnetNode {
        path: path.clone(),
        node: &args.port.node,
        port: args.port.port,
        pcap: args.pcap.as_deref(),
    };
    let addresses: Vec<_> = args.address.iter().map(|(address, _)| *address).collect();
    let wire = node.attach(&addresses).map_err(|error| match error {
        WireError::Subnet(error) => IpoibError::Attach { path, error },
        other => other.into(),
    })?;
    let device = Arc::new(block_on(wire.device())?);
    let admin = Arc::new(SaClient::of(&device, 1).wait()?);
    let news = News::new().map_err(IpoibError::Wait)?;
    let ending = Ending::begin().map_err(IpoibError::Wait)?;
    let mut interfaces = Vec::new();
    for (name, config) in configs(args) {
        let tun = Tun::new(&name, &config.addresses, &news);
        let tun = tun.map_err(|error| IpoibError::Tun { name, error })?;
        let admin = Arc::<SaClient>::clone(&admin);
        let making = Interface::new(&device, admin, tun.face(), config);
        let interface = block_on(making)?;
        for &group in &args.group {
            interface.subscribe(group)?;
        }
        interfaces.push((tun, interface));
    }
    let signal = carry(&news, &ending, &mut interfaces, out)?;
    goodbye(&device, interfaces);
    wire.finish_capture()?;
    signal.obey()
}

/// Ends the interfaces: the administrator and the neighbours hear of it, and have a moment to answer.
fn goodbye(device: &Arc<Device>, interfaces: Vec<(Tun, Interface)>) {
    // No packets are taken from the system any longer.
    let interfaces = interfaces.into_iter().map(|(_tun, interface)| interface);
    let closing = join_all(interfaces.map(Interface::close).collect::<Vec<_>>());
    let ended = async {
        closing.await;
        let _unanswered = Manager::of(device).disconnect_all().await;
    };
    let _unanswered = within(Instant::now() + GOODBYE, Box::pin(ended));
}

/// The interface that was asked for and its children, with the names of their devices.
fn configs(args: &UpArgs) -> Vec<(String, Config)> {
    let own = Config {
        pkey: args.pkey,
        mode: args.mode.into(),
        follows_reports: true,
        addresses: args.address.clone(),
        routers: args.router.clone(),
        ..Config::default()
    };
    let child = |child: &args::Child| {
        let name = format!("{}.{:04x}", args.name, child.pkey.0 | 0x8000);
        let config = Config {
            routers: Vec::new(),
            ..own.child(child.pkey, vec![child.address])
        };
        (name, config)
    };
    let children: Vec<_> = args.child.iter().map(child).collect();
    let mut all = vec![(args.name.clone(), own)];
    all.extend(children);
    all
}

/// One loop for all: news of the links, packets of the system's, and the signal that ends it.
fn carry(
    news: &Arc<News>,
    ending: &Ending,
    interfaces: &mut [(Tun, Interface)],
    out: &mut dyn Write,
) -> Result<Signal, IpoibError> {
    let waker = Waker::from(Arc::clone(news));
    let mut told = pin!(ending.told());
    loop {
        if let Poll::Ready(signal) = told.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Ok(signal);
        }
        for (tun, _) in interfaces.iter() {
            let failed = |error| IpoibError::Tun {
                name: tun.name.clone(),
                error,
            };
            if let Some(link) = tun.link_change().map_err(failed)? {
                say(out, &format_args!("{}: {link}", tun.name))?;
            }
        }
        let mut waited = SmallVec::<[_; 8]>::new();
        waited.push(PollFd::new(news, PollFlags::IN));
        let readers = interfaces.iter().filter(|(tun, _)| tun.reads());
        waited.extend(readers.map(|(tun, _)| PollFd::new(tun, PollFlags::IN)));
        match poll(&mut waited, None) {
            // By a signal, which is told above.
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(IpoibError::Wait(error.into())),
        }
        drop(waited);
        news.take();
        for (tun, interface) in interfaces.iter_mut() {
            tun.carry(interface).map_err(IpoibError::Wait)?;
        }
    }
}

fn say(out: &mut dyn Write, what: &dyn fmt::Display) -> Result<(), IpoibError> {
    line(out, what).map_err(IpoibError::Output)
}
