//! Connections of iWARP by the connection manager: port numbers, the choice of a device, and what is on the wire.

use std::future::IntoFuture;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use futures::executor::block_on;
use futures::future::join;
use hca_sim::clock::{Clock, Waiter};
use hca_sim::link::Captured;
use hca_sim::link::pcap::reader::Capture;
use hca_sim::link::pcap::{LinkType, PcapNgWriter};
use hca_sim::port_space::PortError;
use hca_sim::stream::{Bound, StreamLink, Token};
use hca_sim::wire::iwarp::{Fpdu, Header, Startup};
use hca_sim::wire::{Envelope, PacketView};
use hca_sim::{Hca, Tcp, Udp};
use verbs_cm::resolver::{Offload, resolve_addr, resolve_addr_by};
use verbs_cm::{Connection, Error, Manager, connect, listen};
use verbs_core::{Access, PortCaps, Qp, QpInit, Qpn, Recv, Seed, Send, TransportType, WcStatus};

use crate::ends::Host;

fn ip(test: u8, host: u8) -> IpAddr {
    IpAddr::from([127, 9, test, host])
}

fn over_tcp(addresses: &[IpAddr]) -> Host {
    Host::on(Hca::iwarp(addresses).unwrap().build())
}

/// A queue pair with a receive for one message: over TCP a message without one ends the connection.
async fn with_receive(host: &Host) -> Qp {
    let mut qp = host.qp();
    qp.init(1, Access::empty()).await.unwrap();
    qp.post_recv(Recv::new(1).into(host.mr.slice(0..64)))
        .unwrap();
    qp
}

/// Both ends of a connection to that address, with one message each way.
async fn meet(client: &mut Host, server: &mut Host, at: SocketAddr) -> (Connection, Connection) {
    let mut listener = listen(&server.device, at).await.unwrap();
    meet_at(client, server, &mut listener, at).await
}

async fn meet_at(
    client: &mut Host,
    server: &mut Host,
    listener: &mut verbs_cm::Listener,
    at: SocketAddr,
) -> (Connection, Connection) {
    let (ours, theirs) = (with_receive(client).await, with_receive(server).await);
    let asks = connect(&client.device, at, ours).private_data(b"hello");
    let answers = async {
        let request = listener.accept().await;
        assert_eq!(&request.private_data()[..5], b"hello");
        request.accept(theirs).private_data(b"welcome").await
    };
    let (connected, accepted) = join(asks.into_future(), answers).await;
    let (mut connected, mut accepted) = (connected.unwrap(), accepted.unwrap());
    connected.post_send(Send::new(2).inline(b"ping")).unwrap();
    assert_eq!(arrived(server).await, b"ping");
    accepted.post_send(Send::new(2).inline(b"pong")).unwrap();
    assert_eq!(arrived(client).await, b"pong");
    (connected, accepted)
}

/// The message that comes next.
async fn arrived(host: &mut Host) -> Vec<u8> {
    let mut wcs = [verbs_core::Wc::default(); 1];
    loop {
        host.cq.ready().await.unwrap();
        for wc in host.cq.poll(&mut wcs).iter() {
            assert_eq!(wc.status, WcStatus::Success);
            if wc.wr_id == 1 {
                let mut bytes = vec![0; wc.byte_len as usize];
                host.mr.read(0, &mut bytes).unwrap();
                return bytes;
            }
        }
    }
}

fn refused(at: SocketAddr) {
    let error = TcpListener::bind(at).expect_err("it is taken");
    assert_eq!(error.kind(), ErrorKind::AddrInUse, "{at}");
}

/// Goal: C1, C2 and C11 by the connection manager. Method: a listener and a connect that name no number: each has one of
/// the host's, which is refused to ordinary sockets; the list of connections has both ends, which lack nothing that
/// ordinary streams have.
#[test]
fn numbers_are_the_hosts() {
    let (mut client, mut server) = (over_tcp(&[ip(1, 1)]), over_tcp(&[ip(1, 2)]));
    block_on(async {
        let mut listener = listen(&server.device, SocketAddr::new(ip(1, 2), 0))
            .await
            .unwrap();
        let at = listener.local_addr();
        refused(at);
        let (ours, theirs) = meet_at(&mut client, &mut server, &mut listener, at).await;
        let local = ours.info().local.unwrap();
        assert_eq!(
            local.ip(),
            ip(1, 1),
            "the address that the peer is reached from"
        );
        refused(local);
        assert_eq!(theirs.peer_addr(), local);
        let listed = verbs_cm::connections();
        for end in [&ours, &theirs] {
            let info = end.info();
            assert!(listed.contains(&info));
            assert_eq!(info.transport, Some(TransportType::Iwarp));
            assert!(!info.is_offloaded);
            assert_eq!(info.host.missing().count(), 0);
        }
        ours.close().await.unwrap();
        theirs.close().await.unwrap();
    });
    client.close();
    server.close();
}

/// Goal: C3 by the connection manager, in both directions; the errors name the address. C4: a wildcard listens on all
/// addresses of the device or on none.
#[test]
fn numbers_in_use_are_refused() {
    let (first, second) = (ip(2, 1), ip(2, 2));
    let host = over_tcp(&[first, second]);
    let plain = TcpListener::bind((second, 0)).unwrap();
    let at = plain.local_addr().unwrap();
    let all = SocketAddr::new([0; 4].into(), at.port());
    for local in [at, all] {
        let error = listen(&host.device, local).wait().unwrap_err();
        assert_eq!(error, Error::AddressInUse(local));
    }
    drop(TcpListener::bind((first, at.port())).expect("none was kept"));
    let from = connect(&host.device, SocketAddr::new(first, 9), host.qp()).bind(at);
    let error = from.wait().unwrap_err().error;
    assert_eq!(error, Error::AddressInUse(at));
    let foreign = connect(&host.device, at, host.qp()).bind(SocketAddr::new(ip(2, 9), 0));
    let error = foreign.wait().unwrap_err().error;
    assert_eq!(error, Error::AddressNotAvailable(ip(2, 9)));
    drop(plain);
    let listener = listen(&host.device, all).wait().unwrap();
    for ip in [first, second] {
        refused(SocketAddr::new(ip, at.port()));
        let again = listen(&host.device, SocketAddr::new(ip, at.port()));
        assert!(matches!(again.wait(), Err(Error::AddressInUse(_))));
    }
    drop(listener);
    host.close();
}

/// Goal: B6, the device, port and source address are chosen as `rdma_resolve_addr` does: one call for devices over UDP and
/// over TCP. Method: devices at different addresses; by source address, by the host's own choice, and by order.
#[test]
fn an_address_chooses_the_device() {
    let (roce, iwarp) = (ip(3, 1), ip(3, 2));
    let usual = IpAddr::from([127, 0, 0, 1]);
    let hosts = [
        Host::on(Hca::over(Udp::bind(&[roce]).unwrap()).build()),
        over_tcp(&[iwarp]),
        over_tcp(&[usual]),
    ];
    let names: Vec<_> = hosts
        .iter()
        .map(|host| host.device.query().wait().unwrap().node_guid)
        .collect();
    let server = over_tcp(&[ip(3, 9)]);
    let devices = block_on(async {
        let devices: Vec<_> = hosts
            .iter()
            .map(|host| host.hca.open().wait().unwrap())
            .collect();
        let guid = async |index: usize, to: IpAddr, local: Option<IpAddr>| {
            let remote = SocketAddr::new(to, 7174);
            let chosen = resolve_addr(&devices[..index], remote, local).await?;
            let guid = chosen.device.query().await.unwrap().node_guid;
            Ok::<_, Error>((guid, chosen.port, chosen.hop.local))
        };
        let to = ip(3, 9);
        // By the source address.
        assert_eq!(guid(3, to, Some(roce)).await, Ok((names[0], 1, roce)));
        assert_eq!(guid(3, to, Some(iwarp)).await, Ok((names[1], 1, iwarp)));
        // Loopback sends from 127.0.0.1: the device that has it goes before the others.
        assert_eq!(guid(3, to, None).await, Ok((names[2], 1, usual)));
        // No device has it: the first that has a way.
        assert_eq!(guid(2, to, None).await, Ok((names[0], 1, roce)));
        let foreign = ip(3, 8);
        let refused = guid(3, to, Some(foreign)).await;
        assert_eq!(refused, Err(Error::AddressNotAvailable(foreign)));
        assert_eq!(guid(0, to, None).await, Err(Error::NoManager(1)));
        let nowhere = IpAddr::from([224, 0, 0, 9]);
        assert_eq!(guid(3, nowhere, None).await, Err(Error::NoRoute(nowhere)));

        // And connects from there.
        let at = SocketAddr::new(to, 0);
        let mut listener = listen(&server.device, at).await.unwrap();
        let chosen = resolve_addr(&devices, listener.local_addr(), Some(iwarp))
            .await
            .unwrap();
        let pd = chosen.device.alloc_pd().await.unwrap();
        let cq = chosen.device.create_cq(4).await.unwrap();
        let qp = pd.create_qp(QpInit::rc(&cq, &cq)).await.unwrap();
        let answers = async {
            let request = listener.accept().await;
            assert_eq!(request.peer_addr().ip(), iwarp);
            request.reject(b"seen")
        };
        let (rejected, _) = join(chosen.connect(qp).into_future(), answers).await;
        assert!(matches!(rejected.unwrap_err().error, Error::Rejected(_)));
        drop((cq, pd, chosen));
        devices
    });
    drop(devices);
    hosts.into_iter().for_each(Host::close);
    server.close();
}

/// The host's TCP, as an adapter that carries streams by itself.
#[derive(Debug)]
struct Adapter(Tcp);

impl StreamLink for Adapter {
    fn addresses(&self) -> Vec<IpAddr> {
        self.0.addresses()
    }

    fn bind(&self, local: SocketAddr) -> Result<Box<dyn Bound>, PortError> {
        self.0.bind(local)
    }

    fn ready(&self, tokens: &mut Vec<Token>) {
        self.0.ready(tokens);
    }

    fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        self.0.waiter()
    }

    fn seed(&self) -> Seed {
        self.0.seed()
    }
}

/// Goal: C9, the user chooses for each connection whether an adapter carries it. Method: a software device and an adapter at one
/// address, in either order; each connection says what carries it.
#[test]
fn offload_is_the_users_choice() {
    let here = ip(5, 1);
    let server = over_tcp(&[ip(5, 9)]);
    let software = over_tcp(&[here]);
    let link = Adapter(Tcp::on(&[here]).unwrap());
    let adapter = Host::on(Hca::over_streams(link).build());
    block_on(async {
        let mut listener = listen(&server.device, SocketAddr::new(ip(5, 9), 0))
            .await
            .unwrap();
        let to = listener.local_addr();
        let open = |host: &Host| host.hca.open().wait().unwrap();
        for devices in [
            [open(&software), open(&adapter)],
            [open(&adapter), open(&software)],
        ] {
            let first = devices[0].query_provider(1).caps;
            for (offload, is_offloaded) in [
                (Offload::Either, !first.contains(PortCaps::SOFTWARE)),
                (Offload::Never, false),
                (Offload::Only, true),
            ] {
                let chosen = resolve_addr_by(&devices, to, Some(here), offload).await;
                let chosen = chosen.unwrap();
                let pd = chosen.device.alloc_pd().await.unwrap();
                let cq = chosen.device.create_cq(4).await.unwrap();
                let qp = pd.create_qp(QpInit::rc(&cq, &cq)).await.unwrap();
                let accepting = async {
                    let request = listener.accept().await;
                    request.accept(server.qp()).await.unwrap()
                };
                let (ours, theirs) = join(chosen.connect(qp).into_future(), accepting).await;
                let ours = ours.unwrap();
                let info = ours.info();
                assert_eq!(info.is_offloaded, is_offloaded, "{offload:?}");
                let missing = info.host.missing().count();
                assert_eq!(missing, if is_offloaded { 3 } else { 0 });
                ours.close().await.unwrap();
                theirs.close().await.unwrap();
            }
        }
        let alone = [open(&software)];
        let refused = resolve_addr_by(&alone, to, None, Offload::Only).await;
        let error = refused.unwrap_err();
        assert_eq!(error, Error::NoAdapter);
        assert!(error.to_string().contains("all are software"), "{error}");
    });
    [software, adapter, server]
        .into_iter()
        .for_each(Host::close);
}

/// What was recorded of one direction of a stream.
type Bytes = Arc<Mutex<Vec<u8>>>;

/// Passes one connection on to that address, and keeps its bytes, ours first.
fn record(listener: TcpListener, to: SocketAddr) -> [Bytes; 2] {
    let kept = [Bytes::default(), Bytes::default()];
    let [ours, theirs] = kept.clone();
    thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(to).unwrap();
        let (from, back) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let there = thread::spawn(move || pass(from, server, &ours));
        pass(back, client, &theirs);
        there.join().unwrap();
    });
    kept
}

fn pass(mut from: TcpStream, mut to: TcpStream, kept: &Bytes) {
    let mut piece = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut piece) {
        kept.lock().unwrap().extend_from_slice(&piece[..count]);
        if to.write_all(&piece[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// Goal: B3, the way of iWARP. Method: all bytes of a connection, with its messages and its end, are recorded between both
/// ends: a startup frame each way and FPDUs, to the last byte. No device has a queue pair but those of the
/// connection: without queue pair 1 no management datagram can leave.
#[test]
fn iwarp_is_startup_frames_and_fpdus_only() {
    let (mut client, mut server) = (over_tcp(&[ip(4, 1)]), over_tcp(&[ip(4, 2)]));
    let between = TcpListener::bind((ip(4, 3), 0)).unwrap();
    let at = between.local_addr().unwrap();
    let [ours, theirs] = block_on(async {
        let managers = [&client, &server].map(|host| Manager::of(&host.device));
        for manager in &managers {
            manager.open().await.unwrap();
        }
        let mut listener = listen(&server.device, SocketAddr::new(ip(4, 2), 0))
            .await
            .unwrap();
        let kept = record(between, listener.local_addr());
        let (ours, theirs) = meet_at(&mut client, &mut server, &mut listener, at).await;
        for host in [&client, &server] {
            let queue_pairs = host.hca.object_counts()[4];
            assert_eq!(queue_pairs, 1, "no special queue pair");
        }
        let closed = theirs.closed();
        ours.close().await.unwrap();
        closed.await.unwrap();
        theirs.close().await.unwrap();
        kept
    });
    for (bytes, is_request) in [(ours, true), (theirs, false)] {
        let bytes = bytes.lock().unwrap();
        let parsed = match is_request {
            true => Startup::parse_request(&bytes),
            false => Startup::parse_reply(&bytes),
        };
        let (startup, mut at) = parsed.unwrap().expect("it is whole");
        assert!(startup.wants_crc);
        let mut fpdus = 0;
        while at < bytes.len() {
            let (fpdu, len) = Fpdu::parse(&bytes[at..], true).unwrap().expect("whole");
            Header::parse(fpdu.ulpdu).unwrap();
            at += len;
            fpdus += 1;
        }
        assert!(fpdus >= 1, "the message");
    }
    client.close();
    server.close();
}

/// A file that is read while it is written.
#[derive(Clone, Default)]
struct File(Bytes);

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Goal: B3, the way of RoCE: the same conversation is datagrams to and from queue pair 1 and packets of the connection's
/// queue pairs; none carries a startup frame. Method: every packet of one end is captured.
#[test]
fn roce_is_datagrams_and_packets_only() {
    let (near, far) = (ip(5, 1), ip(5, 2));
    let [a, b] = [near, far].map(|ip| Udp::bind(&[ip]).unwrap());
    let file = File::default();
    let pcap = PcapNgWriter::with_interface(file.clone(), "roce0", LinkType::RawIp).unwrap();
    let a = Captured::new(a, pcap, Clock::wall(), Duration::ZERO);
    let mut client = Host::on(Hca::over(a).build());
    let mut server = Host::on(Hca::over(b).build());
    assert!(client.hca.port_space().is_none());
    let qpns = block_on(async {
        let (ours, theirs) = meet(&mut client, &mut server, SocketAddr::new(far, 7174)).await;
        let qpns = [&ours, &theirs].map(|end| end.info().qpn.unwrap());
        ours.close().await.unwrap();
        theirs.close().await.unwrap();
        qpns
    });
    client.close();
    server.close();
    let capture = Capture::parse("roce0", &file.0.lock().unwrap());
    let (mut datagrams, mut others) = (0, 0);
    for (_, packet) in capture.ip_packets() {
        let (_, transport) = Envelope::parse(packet).unwrap();
        let to = PacketView::new(transport).unwrap().bth().dest_qpn();
        if to == Qpn::new(1) {
            datagrams += 1;
        } else {
            assert!(qpns.contains(&to), "{to}");
            others += 1;
        }
        assert!(!packet.windows(7).any(|bytes| bytes == b"MPA ID "));
    }
    assert!(datagrams >= 5, "REQ, REP, RTU, DREQ, DREP: {datagrams}");
    assert!(others >= 2, "messages: {others}");
}
