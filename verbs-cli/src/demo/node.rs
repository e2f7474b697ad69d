//! A node: an HCA on the subnet, an interface over it, and a stack of IP on that.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::future::{Either, poll_fn, select, select_all};
use hca_sim::Hca;
use smoltcp::iface::{Config as StackConfig, Interface as Stack, SocketSet};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpCidr};
use ulp_ipoib::embedded::Embedded;
use ulp_ipoib::{Config, Mode};
use verbs_cm::Manager;
use verbs_cm::sa::SaClient;
use verbs_core::{Device, Timer};

use crate::demo::error::DemoError;
use crate::demo::{Fabric, PATIENCE};

/// Bits of the network's part of an address.
const PREFIX: u8 = 24;

/// How long a stack that says nothing is left alone.
const REST: Duration = Duration::from_millis(5);

pub(crate) struct Node {
    pub(crate) device: Arc<Device>,
    pub(crate) link: Embedded,
    pub(crate) stack: Stack,
    pub(crate) sockets: SocketSet<'static>,
    pub(crate) addr: Ipv4Addr,
    /// Makes connections by the interface's addresses; kept, so that it stays as it is.
    pub(crate) manager: Manager,
    timer: Arc<dyn Timer>,
}

impl Node {
    /// The node with that number, whose interface is not up yet.
    pub(crate) async fn new(
        fabric: &Fabric,
        number: u8,
        name: &'static str,
    ) -> Result<Self, DemoError> {
        let at = fabric.ports.get(usize::from(number) - 1).copied();
        let port = at.and_then(|at| fabric.subnet.attach(at, number.into()));
        let port = port.ok_or(DemoError::TimedOut(name))?;
        let device = Hca::over(port).clock(fabric.clock.clone()).open().await?;
        let device = Arc::new(device);
        let timer = device.target().provider_of().timer();
        let timer = timer.ok_or(DemoError::TimedOut("a timer"))?;
        let addr = Ipv4Addr::new(10, 0, 0, number);
        let config = Config {
            mode: Mode::Connected,
            ..Config::with_address(addr.into(), PREFIX)
        };
        let admin = Arc::new(SaClient::of(&device, 1).await?);
        let mut link = Embedded::new(&device, admin, config).await?;
        let hardware = StackConfig::new(HardwareAddress::Ip);
        let mut stack = Stack::new(hardware, &mut link, Instant::ZERO);
        stack.update_ip_addrs(|all| {
            // A new stack has room for one.
            let _full = all.push(IpCidr::new(IpAddr::from(addr).into(), PREFIX));
        });
        let manager = Manager::of(&device);
        manager.use_resolver(link.interface().resolver()).await?;
        Ok(Self {
            device,
            link,
            stack,
            sockets: SocketSet::new(Vec::new()),
            addr,
            manager,
            timer,
        })
    }

    /// Waits until the interface is up.
    pub(crate) async fn bring_up(&mut self) -> Result<(), DemoError> {
        let is_up =
            |nodes: &mut [&mut Self]| nodes.iter().all(|node| node.link.interface().link().is_up);
        drive(&mut [self], "an interface", is_up).await
    }

    pub(crate) fn mtu(&self) -> usize {
        self.link.interface().link().mtu
    }
}

/// Lets the stacks of some nodes work until it is so.
pub(crate) async fn drive(
    nodes: &mut [&mut Node],
    what: &'static str,
    mut done: impl FnMut(&mut [&mut Node]) -> bool,
) -> Result<(), DemoError> {
    let Some(timer) = nodes.first().map(|node| Arc::clone(&node.timer)) else {
        return Ok(());
    };
    let end = timer.now() + PATIENCE;
    loop {
        let time = timer.now();
        let now = Instant::from_micros(i64::try_from(time.as_nanos() / 1000).unwrap_or(i64::MAX));
        for node in nodes.iter_mut() {
            node.stack.poll(now, &mut node.link, &mut node.sockets);
        }
        if done(nodes) {
            return Ok(());
        }
        // What was just given to a socket or taken from one may be a reason to go on at once.
        let delays = nodes.iter_mut().filter_map(|node| {
            let delay = node.stack.poll_delay(now, &node.sockets);
            delay.map(Duration::from)
        });
        let pause = delays.fold(REST, Duration::min);
        if time >= end {
            return Err(DemoError::TimedOut(what));
        }
        let readable = nodes.iter().map(|node| Box::pin(node.link.readable()));
        let rested = Box::pin(rest(&*timer, pause));
        match select(select_all(readable), rested).await {
            Either::Left(_) | Either::Right(_) => {}
        }
    }
}

/// Lets that much time pass.
async fn rest(timer: &dyn Timer, time: Duration) {
    let due = timer.now() + time;
    poll_fn(|cx| {
        if timer.now() >= due {
            return Poll::Ready(());
        }
        timer.wake_at(due, cx.waker().clone());
        Poll::Pending
    })
    .await;
}
