//! Packets as anybody can make them: requests of the connection manager with the address of another.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};

use hca_sim::wire::{Icrc, ROCE_PORT};
use verbs_cm::wire::{IpHeader, IpPair, PortSpace, ServiceId};
use verbs_cm::{Cm, Config, Connect, Port, Route};
use verbs_core::mad::{Blob, TimeCode};
use verbs_core::time::Instant;
use verbs_core::{Gid, Guid, Lid, LinkLayer, Mtu, Qpn};

/// The payload of the UDP datagram that asks the service at `to` for a connection, from `from`; no two
/// numbers are the same connection. With the private data of a protocol, if it has some.
pub(crate) fn request(
    from: Ipv4Addr,
    to: SocketAddrV4,
    number: u32,
    private_data: &[u8],
) -> Vec<u8> {
    let port = Port {
        number: 1,
        ca_guid: Guid(u64::from(u32::from(from)) << 32 | u64::from(number)),
        link_layer: LinkLayer::Ethernet,
        lid: Lid(0),
        gids: vec![(0, Gid::from(from))],
        mtu: Mtu::B1024,
        ack_delay: TimeCode::new(15),
        migrates: false,
    };
    let mut cm = Cm::new(Config::default(), port.clone(), 1, u64::from(number));
    let route = Route::roce(&port, Gid::from(from), Gid::from(*to.ip())).expect("its own GID");
    let service = ServiceId::rdma_cm(PortSpace::Tcp, to.port());
    let addresses = IpPair::V4 {
        source: from,
        destination: *to.ip(),
    };
    let header = IpHeader {
        source_port: 4000,
        addresses,
    };
    let connect = Connect::new(service, Qpn::new(0x100 + number % 0xff_0000), route);
    let private_data = Blob::new(private_data).expect("as much as there is room for");
    let connect = connect.ip(&header, private_data);
    cm.connect(Instant::ZERO, connect).expect("the first one");
    let (_, mad) = cm.poll_transmit().expect("a REQ");
    packet(from, *to.ip(), number, &mad)
}

/// A management datagram as a packet of RoCEv2, with its check sum.
fn packet(from: Ipv4Addr, to: Ipv4Addr, psn: u32, mad: &[u8]) -> Vec<u8> {
    let psn = psn.to_be_bytes();
    // SEND Only of UD to queue pair 1, from queue pair 1, with the Q_Key of management datagrams.
    let mut packet = vec![
        0x64, 0x40, 0xff, 0xff, 0, 0, 0, 1, 0, psn[1], psn[2], psn[3],
    ];
    packet.extend([0x80, 1, 0, 0, 0, 0, 0, 1]);
    packet.extend(mad);
    let udp_len = u16::try_from(8 + packet.len() + Icrc::LEN).expect("one datagram");
    let mut ip = [0; 20];
    ip[..2].copy_from_slice(&[0x45, 0]);
    ip[2..4].copy_from_slice(&(20 + udp_len).to_be_bytes());
    ip[6..10].copy_from_slice(&[0x40, 0, 64, 17]);
    ip[12..16].copy_from_slice(&from.octets());
    ip[16..].copy_from_slice(&to.octets());
    let mut udp = [0; 8];
    udp[..2].copy_from_slice(&ROCE_PORT.to_be_bytes());
    udp[2..4].copy_from_slice(&ROCE_PORT.to_be_bytes());
    udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
    let mut icrc = Icrc::ipv4(&ip, &udp);
    let bth = packet[..12].try_into().expect("twelve bytes");
    icrc.bth(bth);
    icrc.update(&packet[12..]);
    packet.extend(icrc.finish().to_le_bytes());
    packet
}

/// A socket with the port of RoCE at an address, as its owner has.
pub(crate) fn socket(address: Ipv4Addr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((address, ROCE_PORT))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
