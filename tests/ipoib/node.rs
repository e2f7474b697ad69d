//! Nodes of a simulated network with an IP stack.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use hca_sim::Hca;
use smoltcp::iface::{Config as StackConfig, Interface as Stack, SocketHandle, SocketSet};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::phy::{Device as _, RxToken as _};
use smoltcp::socket::{icmp, tcp, udp};
use smoltcp::time::Instant;
use smoltcp::wire::{
    HardwareAddress, Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, IpAddress, IpCidr,
};
use ulp_ipoib::embedded::Embedded;
use ulp_ipoib::{Administration, Config, Counters, Mode};
use verbs_core::{Device, EventType, Mtu, Subject};
use verbs_simulator::Sim;

use crate::admin::Admin;

/// The identifier of all echoes.
const IDENT: u16 = 0x22b;

pub(crate) struct World {
    pub(crate) sim: Sim,
    pub(crate) admin: Admin,
}

/// A host of the network, with one interface.
pub(crate) struct Node {
    pub(crate) link: Embedded,
    stack: Stack,
    sockets: SocketSet<'static>,
    echo: SocketHandle,
    pub(crate) addr: IpAddr,
    pub(crate) hca: Arc<Hca>,
    pub(crate) device: Arc<Device>,
}

/// The address of a node's port on the network.
pub(crate) fn port_address(number: u16) -> IpAddr {
    Ipv6Addr::new(0xfd00, 0xb, 0, 0, 2, 0, 0, number).into()
}

/// An interface whose address is `10.0.0.number`, or `fd00:a::number`.
pub(crate) fn address(number: u8, mode: Mode, is_v6: bool) -> Config {
    let (addr, len): (IpAddr, u8) = match is_v6 {
        true => ([0xfd00, 0xa, 0, 0, 0, 0, 0, number.into()].into(), 64),
        false => ([10, 0, 0, number].into(), 24),
    };
    Config {
        mode,
        // The stack reports IPv6 groups with join and leave exchanged.
        follows_reports: !is_v6,
        ..Config::with_address(addr, len)
    }
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            sim: Sim::new(seed),
            admin: Admin::new(Mtu::B2048),
        }
    }

    /// A host of the network; see [`World::host`].
    pub(crate) async fn node(&self, number: u8, mode: Mode, is_v6: bool) -> Node {
        let port = self.sim.network().attach(&[port_address(number.into())]);
        let hca = Hca::over(port).clock(self.sim.clock().clone()).build();
        let admin = Arc::new(self.admin.clone());
        let config = address(number, mode, is_v6);
        let device = Arc::new(hca.open().await.unwrap());
        self.host(hca, device, admin, config).await
    }

    /// A host with that HCA and interface, when its link is up.
    pub(crate) async fn host(
        &self,
        hca: Arc<Hca>,
        device: Arc<Device>,
        admin: Arc<dyn Administration>,
        config: Config,
    ) -> Node {
        let (addr, len) = config.addresses[0];
        let mut link = Embedded::new(&device, admin, config).await.unwrap();
        let stack = StackConfig::new(HardwareAddress::Ip);
        while !link.interface().link().is_up {
            link.readable().await;
        }
        let mut stack = Stack::new(stack, &mut link, self.now());
        stack.update_ip_addrs(|all| all.push(IpCidr::new(addr.into(), len)).unwrap());
        let buffer =
            || icmp::PacketBuffer::new(vec![icmp::PacketMetadata::EMPTY; 16], vec![0; 80_000]);
        let mut echo = icmp::Socket::new(buffer(), buffer());
        echo.bind(icmp::Endpoint::Ident(IDENT)).unwrap();
        let mut sockets = SocketSet::new(vec![]);
        let echo = sockets.add(echo);
        Node {
            link,
            stack,
            sockets,
            echo,
            addr,
            hca,
            device,
        }
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::from_micros((self.sim.now().as_nanos() / 1000) as i64)
    }

    /// Lets time pass until `done` returns true, at most that long. Returns whether it did.
    pub(crate) async fn drive(
        &self,
        nodes: &mut [&mut Node],
        longest: Duration,
        mut done: impl FnMut(&mut [&mut Node]) -> bool,
    ) -> bool {
        let end = self.sim.now() + longest;
        while self.sim.now() < end {
            let now = self.now();
            let mut pause = 5_000;
            for node in nodes.iter_mut() {
                node.stack.poll(now, &mut node.link, &mut node.sockets);
                let due = node.stack.poll_delay(now, &node.sockets);
                pause = due.map_or(pause, |due| due.total_micros().clamp(10, pause));
            }
            if done(nodes) {
                return true;
            }
            let readable = nodes.iter().map(|node| Box::pin(node.link.readable()));
            let readable = futures::future::select_all(readable);
            let slept = Box::pin(self.sim.sleep(Duration::from_micros(pause)));
            match select(readable, slept).await {
                Either::Left(_) | Either::Right(_) => {}
            }
        }
        false
    }

    /// Waits until the link is up, or down.
    pub(crate) async fn until_link(&self, node: &mut Node, is_up: bool) {
        let longest = Duration::from_secs(30);
        let reached = |nodes: &mut [&mut Node]| nodes[0].link.interface().link().is_up == is_up;
        assert!(self.drive(&mut [node], longest, reached).await);
    }

    /// Another interface of a node's device.
    pub(crate) async fn embedded(&self, node: &Node, config: Config) -> Embedded {
        let admin = Arc::new(self.admin.clone());
        Embedded::new(&node.device, admin, config).await.unwrap()
    }

    /// Sends that many bytes over TCP, and compares what arrives.
    pub(crate) async fn stream(&self, a: &mut Node, b: &mut Node, len: usize) {
        let byte = |at: usize| (at % 251) as u8;
        let (to, ours, theirs) = ((b.addr, 80), a.add_tcp(), b.add_tcp());
        b.tcp(theirs).listen(80).unwrap();
        a.connect(ours, to);
        let (mut sent, mut got) = (0, 0);
        let whole = self
            .drive(&mut [a, b], Duration::from_secs(600), |nodes| {
                let socket = nodes[0].tcp(ours);
                while socket.can_send() && sent < len {
                    let write = |place: &mut [u8]| {
                        let n = place.len().min(len - sent);
                        (0..n).for_each(|at| place[at] = byte(sent + at));
                        (n, n)
                    };
                    sent += socket.send(write).unwrap();
                }
                let socket = nodes[1].tcp(theirs);
                while socket.can_recv() {
                    got += socket
                        .recv(|bytes| {
                            let right = |(at, &read): (usize, &u8)| read == byte(got + at);
                            assert!(bytes.iter().enumerate().all(right), "behind byte {got}");
                            (bytes.len(), bytes.len())
                        })
                        .unwrap();
                }
                got == len
            })
            .await;
        assert!(whole, "{got} of {len} bytes, {sent} sent");
    }

    /// Sends that many echoes of that many bytes one after the other, and returns how many were answered within a
    /// second.
    pub(crate) async fn ping(&self, a: &mut Node, b: &mut Node, count: u16, len: usize) -> u16 {
        let to = b.addr;
        let mut answered = 0;
        for sequence in 0..count {
            a.send_echo(to, sequence, len);
            let mut nodes = [&mut *a, &mut *b];
            let came = self
                .drive(&mut nodes, Duration::from_secs(1), |nodes| {
                    nodes[0].take_echo(to) == Some(sequence)
                })
                .await;
            answered += u16::from(came);
        }
        answered
    }
}

impl Node {
    pub(crate) fn send_echo(&mut self, to: IpAddr, sequence: u16, len: usize) {
        let data = vec![sequence as u8; len];
        let (ours, theirs) = (self.addr, to);
        let socket = self.sockets.get_mut::<icmp::Socket<'_>>(self.echo);
        match (ours, theirs) {
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                let echo = Icmpv6Repr::EchoRequest {
                    ident: IDENT,
                    seq_no: sequence,
                    data: &data,
                };
                let place = socket.send(echo.buffer_len(), to.into()).unwrap();
                let mut packet = Icmpv6Packet::new_unchecked(place);
                let sums = ChecksumCapabilities::default();
                echo.emit(&ours, &theirs, &mut packet, &sums);
            }
            _ => {
                let echo = Icmpv4Repr::EchoRequest {
                    ident: IDENT,
                    seq_no: sequence,
                    data: &data,
                };
                let place = socket.send(echo.buffer_len(), to.into()).unwrap();
                let mut packet = Icmpv4Packet::new_unchecked(place);
                echo.emit(&mut packet, &ChecksumCapabilities::default());
            }
        }
    }

    /// The number of an answer that has arrived.
    pub(crate) fn take_echo(&mut self, from: IpAddr) -> Option<u16> {
        let socket = self.sockets.get_mut::<icmp::Socket<'_>>(self.echo);
        // Requests of others arrive here too, and the stack answers them.
        let (payload, source) =
            std::iter::from_fn(|| socket.recv().ok().map(|(p, s)| (p.to_vec(), s)))
                .find(|&(_, source)| source == IpAddress::from(from))?;
        let sequence = match source {
            IpAddress::Ipv4(_) => Icmpv4Packet::new_checked(&payload).unwrap().echo_seq_no(),
            IpAddress::Ipv6(_) => Icmpv6Packet::new_checked(&payload).unwrap().echo_seq_no(),
        };
        Some(sequence)
    }

    /// A packet that has arrived, before the stack sees it.
    pub(crate) fn take_raw(&mut self) -> Option<Vec<u8>> {
        let (received, _) = self.link.receive(Instant::ZERO)?;
        Some(received.consume(<[u8]>::to_vec))
    }

    /// Makes the device raise an event of its port.
    pub(crate) fn raise(&self, event: EventType) {
        self.device.target().raise(event, Subject::Port(1));
    }

    pub(crate) fn add_tcp(&mut self) -> SocketHandle {
        let buffer = || tcp::SocketBuffer::new(vec![0; 512 * 1024]);
        self.sockets.add(tcp::Socket::new(buffer(), buffer()))
    }

    pub(crate) fn tcp(&mut self, handle: SocketHandle) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    pub(crate) fn connect(&mut self, handle: SocketHandle, to: (IpAddr, u16)) {
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(handle);
        let context = self.stack.context();
        socket.connect(context, to, 49_152).unwrap();
    }

    pub(crate) fn add_udp(&mut self, port: u16) -> SocketHandle {
        let buffer =
            || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 16], vec![0; 65_536]);
        let mut socket = udp::Socket::new(buffer(), buffer());
        socket.bind(port).unwrap();
        self.sockets.add(socket)
    }

    pub(crate) fn udp(&mut self, handle: SocketHandle) -> &mut udp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// Receives what is sent to a group, on the link as in the stack.
    pub(crate) fn subscribe(&mut self, group: IpAddr) {
        self.link.interface().subscribe(group).unwrap();
        self.stack.join_multicast_group(group).unwrap();
    }

    /// Stops receiving it.
    pub(crate) fn unsubscribe(&mut self, group: IpAddr) {
        self.link.interface().unsubscribe(group);
        self.leave(group);
    }

    /// Receives what is sent to a group, as far as the stack is concerned: it reports that to the link.
    pub(crate) fn join(&mut self, group: IpAddr) {
        self.stack.join_multicast_group(group).unwrap();
    }

    /// Undoes [`join`](Self::join).
    pub(crate) fn leave(&mut self, group: IpAddr) {
        self.stack.leave_multicast_group(group).unwrap();
    }

    pub(crate) fn counters(&self) -> Counters {
        self.link.interface().counters()
    }
}
