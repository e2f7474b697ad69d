//! A neighbour that sends what a test decides: a queue pair for datagrams in the broadcast group.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use hca_sim::Hca;
use ulp_ipoib::wire::{
    Advertisement, Arp, ArpOperation, GRH_LEN, HEADER_LEN, HardwareAddress, HardwareFlags, Nd,
    Protocol, Scope, broadcast, group_of,
};
use ulp_ipoib::{Administration, Membership};
use verbs_cm::sa::Join;
use verbs_core::wr::Datagram;
use verbs_core::{
    Access, Av, Cq, Device, Gid, GlobalRoute, Lid, Mcast, Memory, Mr, PKey, Pd, QKey, Qp, QpInit,
    Qpn, Recv, Send, Wc,
};

use crate::node::{Node, World, port_address};

/// The Q_Key of the tests' administrator.
const QKEY: QKey = QKey(0x0b1c);
const RECEIVES: usize = 64;
const STRIDE: usize = 2100;

/// A port of the network with a queue pair, and no software that answers by itself.
pub(crate) struct Peer {
    pub(crate) device: Arc<Device>,
    pub(crate) pd: Pd,
    pub(crate) gid: Gid,
    _hca: Arc<Hca>,
    cq: Cq,
    mr: Mr,
    qp: Qp,
    _groups: Vec<(Mcast, Box<dyn Membership>)>,
}

/// A message that has arrived.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) what: Message,
    /// Whether it was sent to a group.
    pub(crate) is_group: bool,
}

#[derive(Debug)]
pub(crate) enum Message {
    Arp(Arp),
    Nd(Nd),
    Ip(Vec<u8>),
}

impl Peer {
    pub(crate) async fn new(world: &World, number: u8) -> Self {
        let port = world.sim.network().attach(&[port_address(number.into())]);
        let hca = Hca::over(port).clock(world.sim.clock().clone()).build();
        let device = Arc::new(hca.open().await.unwrap());
        let pd = device.alloc_pd().await.unwrap();
        let cq = device.create_cq(256).await.unwrap();
        let memory = Memory::alloc(RECEIVES * STRIDE).unwrap();
        let mr = pd.register(memory, Access::LOCAL_WRITE).await.unwrap();
        let init = QpInit::ud(&cq, &cq).depth(64, 64).inline(256);
        let qp = pd.create_qp(init).await.unwrap();
        qp.init_datagram(1, QKEY).await.unwrap();
        qp.ready_to_receive_datagrams().await.unwrap();
        qp.ready_to_send(verbs_core::Psn::default()).await.unwrap();
        let mut peer = Self {
            gid: hca.gid(),
            device,
            pd,
            _hca: hca,
            cq,
            mr,
            qp,
            _groups: Vec::new(),
        };
        (0..RECEIVES).for_each(|index| peer.receive(index));
        let all_nodes = IpAddr::V6(ulp_ipoib::wire::all_nodes());
        let all_nodes = group_of(all_nodes, PKey::DEFAULT, Scope::default()).unwrap();
        for mgid in [broadcast(PKey::DEFAULT, Scope::default()), all_nodes] {
            peer.attach(world, mgid).await;
        }
        peer
    }

    /// Starts to receive what is sent to a group.
    pub(crate) async fn attach(&mut self, world: &World, mgid: Gid) {
        let member = world.admin.join(Join::full(mgid)).await.unwrap();
        let attached = self.qp.attach_mcast(mgid, Lid(0)).await.unwrap();
        self._groups.push((attached, member));
    }

    /// Its hardware address, with or without the flag of connections.
    pub(crate) fn at(&self, flags: HardwareFlags) -> HardwareAddress {
        HardwareAddress {
            flags,
            qpn: self.qp.qpn(),
            gid: self.gid,
        }
    }

    fn receive(&mut self, index: usize) {
        let place = self.mr.slice(index * STRIDE..(index + 1) * STRIDE);
        let recv = Recv::new(index as u64).into(place);
        self.qp.post_recv(recv).unwrap();
    }

    /// Sends to one node, or to a group.
    pub(crate) fn send(&mut self, (qpn, gid): (Qpn, Gid), protocol: Protocol, body: &[u8]) {
        let route = GlobalRoute {
            dgid: gid,
            sgid_index: 0,
            flow_label: 0,
            hop_limit: 64,
            traffic_class: 0,
        };
        let av = Av {
            global: Some(route),
            ..Av::to_gid(1, 0, gid)
        };
        let message = [&protocol.header()[..], body].concat();
        let to = Datagram::new(av, qpn, QKEY);
        self.qp
            .post_send(Send::new(1 << 32).inline(&message).to(&to).signaled())
            .unwrap();
    }

    pub(crate) fn send_to(&mut self, to: HardwareAddress, protocol: Protocol, body: &[u8]) {
        self.send((to.qpn, to.gid), protocol, body);
    }

    /// Announces the owner of an address by ARP: unsolicited, as an answer, or while asking for another one.
    pub(crate) fn arp(
        &mut self,
        to: &Node,
        operation: ArpOperation,
        sender: (HardwareAddress, Ipv4Addr),
        target: Ipv4Addr,
    ) {
        let hardware = to.link.interface().link().hardware;
        let arp = Arp {
            operation,
            sender,
            target: (hardware, target),
        };
        self.send_to(hardware, Protocol::Arp, &arp.emit());
    }

    pub(crate) fn advertise(&mut self, to: &Node, at: HardwareAddress, flags: (bool, bool)) {
        let (IpAddr::V6(destination), IpAddr::V6(target)) = (to.addr, address_of(9, true)) else {
            unreachable!("addresses of IPv6")
        };
        let told = Advertisement {
            source: target,
            destination,
            target,
            at: Some(at),
            solicited: flags.0,
            overrides: flags.1,
        };
        let hardware = to.link.interface().link().hardware;
        self.send_to(hardware, Protocol::Ipv6, &told.emit());
    }

    /// The messages that have arrived since the last call.
    pub(crate) fn heard(&mut self) -> Vec<Heard> {
        let mut wcs = [Wc::default(); RECEIVES];
        let mut heard = Vec::new();
        loop {
            let taken = self.cq.poll(&mut wcs).len();
            if taken == 0 {
                return heard;
            }
            for wc in &wcs[..taken] {
                let index = wc.wr_id as usize;
                if index >= RECEIVES {
                    continue;
                }
                let mut bytes = vec![0; wc.byte_len as usize];
                self.mr.read(index * STRIDE, &mut bytes).unwrap();
                self.receive(index);
                if wc.src_qpn != self.qp.qpn() {
                    heard.extend(parse(&bytes));
                }
            }
        }
    }
}

fn parse(bytes: &[u8]) -> Option<Heard> {
    let is_group = bytes[24] == 0xff;
    assert!(bytes.len() >= GRH_LEN + HEADER_LEN);
    let what = match Protocol::split(&bytes[GRH_LEN..])? {
        (Protocol::Arp, body) => Message::Arp(Arp::parse(body).unwrap()),
        (Protocol::Ipv6, body) => match Nd::parse(body) {
            Ok(nd) => Message::Nd(nd),
            Err(_) => Message::Ip(body.to_vec()),
        },
        (_, body) => Message::Ip(body.to_vec()),
    };
    Some(Heard { what, is_group })
}

/// The address of a host with that number.
pub(crate) fn address_of(number: u8, is_v6: bool) -> IpAddr {
    match is_v6 {
        true => Ipv6Addr::new(0xfd00, 0xa, 0, 0, 0, 0, 0, number.into()).into(),
        false => Ipv4Addr::new(10, 0, 0, number).into(),
    }
}

/// A packet of that many bytes from a node to an address; its last byte is a mark.
pub(crate) fn packet(from: IpAddr, to: IpAddr, len: usize, mark: u8) -> Vec<u8> {
    let mut packet = vec![0; len];
    let total = u16::try_from(len).unwrap().to_be_bytes();
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            packet[..10].copy_from_slice(&[0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, 17]);
            packet[12..16].copy_from_slice(&from.octets());
            packet[16..20].copy_from_slice(&to.octets());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let body = u16::try_from(len - 40).unwrap().to_be_bytes();
            packet[..8].copy_from_slice(&[0x60, 0, 0, 0, body[0], body[1], 17, 64]);
            packet[8..24].copy_from_slice(&from.octets());
            packet[24..40].copy_from_slice(&to.octets());
        }
        _ => unreachable!("addresses of one family"),
    }
    packet[len - 1] = mark;
    packet
}

impl World {
    /// Lets time pass for a node and a peer, which handles each message by `answer`; the time since the beginning is
    /// passed too.
    pub(crate) async fn meet(
        &self,
        node: &mut Node,
        peer: &mut Peer,
        longest: Duration,
        mut answer: impl FnMut(&mut Peer, &Node, Duration, Heard),
    ) {
        let begin = self.sim.now();
        self.drive(&mut [node], longest, |nodes| {
            for heard in peer.heard() {
                answer(peer, nodes[0], self.sim.now() - begin, heard);
            }
            false
        })
        .await;
    }
}
