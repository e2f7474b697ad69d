//! Port numbers: those of connections and listeners are the host's, whichever side takes one first.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::channel;

use verbs_core::{CmReply, Error, Issued, Recv, Send, WcStatus};

use crate::support::{
    Events, Host, PATIENCE, address, all, bind, connect, free, holds_nothing, param, refused,
    request, until,
};

/// Goal: C2, C1. Method: connects whose endpoints were bound to no number, beside ordinary connections that are not
/// bound either: all numbers differ, and an ordinary socket gets none of them while the connection lives.
#[test]
fn a_connect_without_a_number_shares_none() {
    let (client, server) = (Host::new(address(30, 1)), Host::new(address(30, 2)));
    let plain = TcpListener::bind((server.ip, 0)).unwrap();
    let mut ends = Vec::new();
    let mut numbers = BTreeSet::new();
    for _ in 0..40 {
        let (ours, theirs) = connect(&client, &server);
        let ordinary = TcpStream::connect(plain.local_addr().unwrap()).unwrap();
        let local = ours.endpoint.local();
        assert_eq!(local.ip(), client.ip);
        refused(local);
        refused(all(local.port()));
        assert!(numbers.insert(local.port()));
        assert!(numbers.insert(ordinary.local_addr().unwrap().port()));
        ends.push((ours, theirs, ordinary));
    }
    let space = client.hca.port_space().unwrap();
    assert_eq!(space.len(), ends.len(), "{:?}", space.held());
    drop(ends);
    holds_nothing(&client);
}

/// Goal: C3 for bind and for listen, in both directions, against ordinary listeners, ordinary connections, endpoints of
/// the same device and of another one.
#[test]
fn a_number_in_use_is_refused_whichever_side_has_it() {
    let host = Host::new(address(31, 1));
    let other = Host::new(host.ip);
    // Theirs first.
    let plain = TcpListener::bind((host.ip, 0)).unwrap();
    let theirs = plain.local_addr().unwrap();
    let port = theirs.port();
    assert_eq!(bind(&host, theirs).unwrap_err(), Error::AddrInUse { port });
    assert_eq!(
        bind(&host, all(port)).unwrap_err(),
        Error::AddrInUse { port }
    );
    let stream = TcpStream::connect(theirs).unwrap();
    let at = stream.local_addr().unwrap();
    // The connection is from another address of loopback, or from the same one.
    if at.ip() == host.ip {
        assert!(bind(&host, at).is_err());
    }
    drop((plain, stream));
    // Ours first: bound, and then listening.
    let (ours, _requests) = host.bind(0);
    let at = ours.local();
    let port = at.port();
    for turn in 0..2 {
        refused(at);
        refused(all(port));
        for host in [&host, &other] {
            assert_eq!(bind(host, at).unwrap_err(), Error::AddrInUse { port });
        }
        if turn == 0 {
            ours.listen(1).wait().unwrap();
        }
    }
    drop(ours);
    holds_nothing(&host);
    free(at);
    // An address that is not the device's.
    let foreign = SocketAddr::new(address(31, 9), 0);
    assert_eq!(bind(&host, foreign).unwrap_err(), Error::AddrNotAvailable);
}

/// Goal: C4. Method: an ordinary listener has the number at the second of three addresses: the wildcard is refused and
/// holds none. Without it the wildcard has all three, and peers reach each.
#[test]
fn a_wildcard_with_a_number_is_on_all_addresses_or_on_none() {
    let ips: Vec<IpAddr> = (1..=3).map(|host| address(32, host)).collect();
    let (server, client) = (Host::at(&ips), Host::new(address(32, 9)));
    let plain = TcpListener::bind((ips[1], 0)).unwrap();
    let port = plain.local_addr().unwrap().port();
    let at = |ip: &IpAddr| SocketAddr::new(*ip, port);
    assert_eq!(
        bind(&server, all(port)).unwrap_err(),
        Error::AddrInUse { port }
    );
    holds_nothing(&server);
    free(at(&ips[0]));
    free(at(&ips[2]));
    drop(plain);
    let (sink, requests) = Events::new();
    let listener = server.device.bind_cm(all(port), sink).wait().unwrap();
    assert_eq!(listener.local(), all(port));
    listener.listen(4).wait().unwrap();
    for ip in &ips {
        refused(at(ip));
        let (qp, (endpoint, _events)) = (client.qp(), client.bind(0));
        let _ = endpoint
            .connect(&qp, at(ip), param(), Vec::new())
            .issue(drop);
        let asked = request(&requests);
        assert_eq!(asked.endpoint.local(), at(ip));
        asked.endpoint.reject(Vec::new()).wait().unwrap();
    }
    // An address of the host that is not the device's is left alone.
    free(SocketAddr::new(client.ip, port));
    listener.unbind().wait().unwrap();
    // The connections that were refused end by themselves, and have the number until then.
    for ip in &ips {
        until("the number is free", || TcpListener::bind(at(ip)).is_ok());
    }
}

/// Goal: C5. Method: ordinary listeners have many of the numbers that the kernel picks, at the second of three addresses:
/// one of three binds or so has to try again. Each gets one number on all three. That a bind gives up cleanly when no
/// number is free is shown where each pick can be made to fail, in `verbs_link::port_space`.
#[test]
fn a_wildcard_without_a_number_converges() {
    let ips: Vec<IpAddr> = (1..=3).map(|host| address(33, host)).collect();
    let host = Host::at(&ips);
    let plain: Vec<_> = (0..400)
        .map_while(|_| TcpListener::bind((ips[1], 0)).ok())
        .collect();
    let taken: BTreeSet<u16> = plain
        .iter()
        .map(|plain| plain.local_addr().unwrap().port())
        .collect();
    for _ in 0..100 {
        let bound = bind(&host, all(0)).unwrap();
        let port = bound.local().port();
        assert!(port != 0 && !taken.contains(&port));
        ips.iter()
            .for_each(|&ip| refused(SocketAddr::new(ip, port)));
        bound.unbind().wait().unwrap();
        ips.iter().for_each(|&ip| free(SocketAddr::new(ip, port)));
    }
    holds_nothing(&host);
}

/// Goal: C6. Method: the verb, with an endpoint in each of its states; the number is free again, of the space and of the
/// host, and what was under way has ended.
#[test]
fn unbinding_rolls_back_and_closes() {
    let (client, server) = (Host::new(address(34, 1)), Host::new(address(34, 2)));
    // Bound, and listening.
    for listens in [false, true] {
        let (endpoint, _events) = server.bind(0);
        let at = endpoint.local();
        if listens {
            endpoint.listen(1).wait().unwrap();
            drop(TcpStream::connect(at).unwrap());
        }
        endpoint.unbind().wait().unwrap();
        let refused = TcpStream::connect(at).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        free(at);
    }
    holds_nothing(&server);
    // Connecting to a peer that never answers: the connect is taken back, and the peer sees the end.
    let silent = TcpListener::bind((server.ip, 0)).unwrap();
    let (qp, (endpoint, _events)) = (client.qp(), client.bind(0));
    let at = endpoint.local();
    let (tell, told) = channel();
    let connecting = endpoint
        .connect(&qp, silent.local_addr().unwrap(), param(), Vec::new())
        .issue(move |reply| tell.send(reply).unwrap());
    let (mut stream, from) = silent.accept().unwrap();
    assert_eq!(from, at);
    let Issued::Pending(connecting) = connecting else {
        panic!("it waits for the peer");
    };
    assert!(connecting.cancel());
    endpoint.unbind().wait().unwrap();
    let reply = told.recv_timeout(PATIENCE).unwrap();
    assert_eq!(reply, Err(Error::Cancelled));
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut asked = Vec::new();
    let _ = stream.read_to_end(&mut asked);
    assert!(asked.starts_with(b"MPA ID Req Frame"));
    drop(stream);
    holds_nothing(&client);
    // Connected: the peer is told, its work is flushed, and the number goes when the connection has.
    let (ours, theirs) = connect(&client, &server);
    let at = ours.endpoint.local();
    refused(at);
    ours.endpoint.unbind().wait().unwrap();
    let closed = theirs.events.recv_timeout(PATIENCE);
    assert!(closed.is_ok(), "{closed:?}");
    drop((ours.qp, theirs));
    holds_nothing(&client);
}

/// Goal: a service that ends and begins again has its number although connections of it live on.
#[test]
fn a_listener_comes_back_over_its_connections() {
    let (mut client, mut server) = (Host::new(address(35, 1)), Host::new(address(35, 2)));
    let (listener, requests) = server.bind(0);
    let at = listener.local();
    listener.listen(4).wait().unwrap();
    let (mut ours, theirs) = (client.qp(), server.qp());
    let (endpoint, _events) = client.bind(0);
    let (tell, told) = channel();
    let _ = endpoint
        .connect(&ours, at, param(), Vec::new())
        .issue(move |reply| tell.send(reply).unwrap());
    let asked = request(&requests);
    asked
        .endpoint
        .accept(&theirs, param(), Vec::new())
        .wait()
        .unwrap();
    let reply = told.recv_timeout(PATIENCE).unwrap().unwrap();
    assert!(matches!(reply, CmReply::Established(_)), "{reply:?}");
    listener.unbind().wait().unwrap();
    holds_nothing(&server);
    let (again, _requests) = server.bind(at.port());
    again.listen(4).wait().unwrap();
    assert_eq!(again.local(), at);
    // The connection carries messages still.
    let mut theirs = theirs;
    let recv = Recv::new(1).into(server.mr.slice(0..64));
    theirs.post_recv(recv).unwrap();
    client.mr.write(0, b"still there").unwrap();
    let send = Send::new(2).from(client.mr.slice(0..11)).signaled();
    ours.post_send(send).unwrap();
    assert_eq!(client.completions(1)[0].status, WcStatus::Success);
    assert_eq!(server.completions(1)[0].status, WcStatus::Success);
    assert_eq!(server.bytes(0, 11), b"still there");
}

/// Goal: C8 on the device's own space. Method: a reserved number is refused to binds and left out of draws; it can be had
/// when the reservation has gone.
#[test]
fn a_reserved_number_is_kept_from_binds() {
    let host = Host::new(address(36, 1));
    let space = host.hca.port_space().unwrap();
    let reserved = space.reserve(SocketAddr::new(host.ip, 0)).unwrap();
    let at = reserved.local();
    let port = at.port();
    free(at);
    for local in [at, all(port)] {
        assert_eq!(bind(&host, local).unwrap_err(), Error::AddrInUse { port });
    }
    drop(reserved);
    assert_eq!(bind(&host, at).unwrap().local(), at);
    holds_nothing(&host);
}

/// Goal: C10. Method: ordinary servers and clients, and ours, at one address at once; each gets what is meant for it.
#[test]
fn ordinary_streams_and_ours_live_at_one_address() {
    let (mut client, mut server) = (Host::new(address(37, 1)), Host::new(address(37, 1)));
    let plain = TcpListener::bind((server.ip, 0)).unwrap();
    let (mut ours, mut theirs) = connect(&client, &server);
    let mut out = TcpStream::connect(plain.local_addr().unwrap()).unwrap();
    let (mut taken, _) = plain.accept().unwrap();
    for turn in 0..20_u8 {
        let recv = Recv::new(1).into(server.mr.slice(0..64));
        theirs.qp.post_recv(recv).unwrap();
        client.mr.write(0, &[turn; 64]).unwrap();
        let send = Send::new(2).from(client.mr.slice(0..64)).signaled();
        ours.qp.post_send(send).unwrap();
        out.write_all(&[turn]).unwrap();
        let mut got = [0xff];
        taken.read_exact(&mut got).unwrap();
        assert_eq!(got, [turn]);
        assert_eq!(client.completions(1)[0].status, WcStatus::Success);
        assert_eq!(server.completions(1)[0].status, WcStatus::Success);
        assert_eq!(server.bytes(0, 64), [turn; 64]);
    }
}
