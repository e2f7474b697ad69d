//! `verbs ipoib`: interfaces of the system over a simulated subnet.

mod args;
mod error;
mod forward;
mod tun;

use std::fmt;
use std::io::Write;

use futures::executor::block_on;
use hca_sim::Hca;
use hca_sim::link::fabric::socket::default_path;
use rustix::event::{PollFd, PollFlags, poll};
use smallvec::SmallVec;
use ulp_ipoib::{Config, Interface};
use verbs_cm::sa::SaClient;
use verbs_core::sync::Arc;

pub(crate) use args::{ABOUT, EXAMPLES, IpoibArgs, Place, place};
pub(crate) use error::IpoibError;

use crate::report::line;
use args::{IpoibCommand, UpArgs};
use tun::{News, Tun};

pub(crate) fn run(args: &IpoibArgs, out: &mut dyn Write) -> Result<(), IpoibError> {
    match &args.command {
        IpoibCommand::Up(args) => up(args, out),
        IpoibCommand::Forward(args) => forward::run(args, out),
    }
}

/// Brings the interfaces up, and carries packets until the program is ended.
fn up(args: &UpArgs, out: &mut dyn Write) -> Result<(), IpoibError> {
    let path = args.subnet.clone().unwrap_or_else(default_path);
    let hca = Hca::subnet(&path, &args.port.node, args.port.port);
    let hca = hca.map_err(|error| IpoibError::Attach { path, error })?;
    let device = Arc::new(hca.open().wait()?);
    let admin = Arc::new(SaClient::of(&device, 1).wait()?);
    let news = News::new().map_err(IpoibError::Wait)?;
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
    carry(&news, &mut interfaces, out)
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

/// One loop for all: news of the links, and packets of the system's.
fn carry(
    news: &News,
    interfaces: &mut [(Tun, Interface)],
    out: &mut dyn Write,
) -> Result<(), IpoibError> {
    loop {
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
        poll(&mut waited, None).map_err(|error| IpoibError::Wait(error.into()))?;
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
