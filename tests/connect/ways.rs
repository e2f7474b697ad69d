//! One connection at a time, over every link.

use std::future::IntoFuture;
use std::net::IpAddr;
use std::time::Duration;

use futures::FutureExt;
use futures::executor::block_on;
use futures::future::join;
use hca_sim::{Hca, Loopback, Udp};
use verbs_cm::resolver::Fixed;
use verbs_cm::{Ended, Error, Manager, connect, listen};
use verbs_core::Mtu;
use verbs_core::mad::TimeCode;
use verbs_core::sync::Arc;
use verbs_simulator::Sim;

use crate::ends::Host;

fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Two programs connect, exchange messages, and disconnect.
async fn meet(client: &mut Host, server: &mut Host, at: &str) {
    let mut listener = listen(&server.device, at).backlog(2).await.unwrap();
    let asks = connect(&client.device, at, client.qp()).private_data(b"hello");
    let qp = server.qp();
    let answers = async {
        let request = listener.accept().await;
        assert_eq!(&request.private_data()[..6], b"hello\0");
        request.accept(qp).private_data(b"welcome").await
    };
    let (connected, accepted) = join(asks.into_future(), answers).await;
    let (mut connected, mut accepted) = (connected.unwrap(), accepted.unwrap());
    assert_eq!(&connected.private_data()[..8], b"welcome\0");
    assert_eq!(connected.peer_addr(), at.parse().unwrap());

    let talk = join(
        client.ask(&mut connected, b"ping"),
        server.answer(&mut accepted, b"pong"),
    );
    let (pong, ping) = talk.await;
    assert_eq!((&ping[..], &pong[..]), (&b"ping"[..], &b"pong"[..]));

    assert_eq!((connected.ended(), accepted.ended()), (None, None));
    let place = server.mr.slice(0..8);
    accepted
        .post_recv(verbs_core::Recv::new(9).into(place))
        .unwrap();
    let closed = accepted.closed();
    connected.close().await.unwrap();
    // Flushed work can be distinguished from a failure at once.
    let wcs = &mut [verbs_core::Wc::default()];
    server.cq.ready().await.unwrap();
    assert_eq!(
        server.cq.poll(wcs)[0].status,
        verbs_core::WcStatus::WrFlushErr
    );
    assert_eq!(accepted.ended(), Some(Ended::Peer));
    closed.await.unwrap();
    assert!(!accepted.is_established());
    accepted.close().await.unwrap();
}

#[test]
fn over_a_simulated_network() {
    for at in ["10.0.0.2:7174", "[fd00::2]:7174"] {
        let sim = Sim::new(1);
        let server: std::net::SocketAddr = at.parse().unwrap();
        let client = match server.ip() {
            IpAddr::V4(_) => addr("10.0.0.1"),
            IpAddr::V6(_) => addr("fd00::1"),
        };
        let mut client = Host::in_sim(&sim, client);
        let mut server = Host::in_sim(&sim, server.ip());
        sim.run(meet(&mut client, &mut server, at)).unwrap();
        client.close();
        server.close();
    }
}

/// Goal: two ports of different MTUs are connected with the smaller path MTU, whichever of them asks. Method: the request
/// is rejected with what the peer takes (IBTA vol. 1, 12.6.7.2, reason 26), and made again.
#[test]
fn ports_of_different_mtus_meet_at_the_smaller() {
    for (here, there) in [(Mtu::B4096, Mtu::B1024), (Mtu::B512, Mtu::B2048)] {
        let sim = Sim::new(1);
        let client = Host::in_sim_with(&sim, addr("10.0.0.1"), here);
        let server = Host::in_sim_with(&sim, addr("10.0.0.2"), there);
        let mtus = sim.run(async {
            let at = "10.0.0.2:7174";
            let mut listener = listen(&server.device, at).backlog(2).await.unwrap();
            let asks = connect(&client.device, at, client.qp()).into_future();
            let qp = server.qp();
            let answers = async { listener.accept().await.accept(qp).await };
            let (connected, accepted) = join(asks, answers).await;
            let ends = [connected.unwrap(), accepted.unwrap()];
            let mut mtus = Vec::new();
            for end in ends {
                let qp = end.into_qp().expect("it is whole");
                mtus.push(qp.query().await.unwrap().attr.path_mtu);
                qp.destroy().await.unwrap();
            }
            mtus
        });
        assert_eq!(mtus.unwrap(), [Some(here.min(there)); 2]);
        client.close();
        server.close();
    }
}

/// Goal: peers that send requests and withdraw them take no memory behind a listener that is busy elsewhere. Method: a
/// hundred of them, before the first request is taken.
#[test]
fn requests_that_were_taken_back_do_not_gather() {
    let link = Loopback::with_seed(4);
    let [client, server] = [(); 2].map(|()| Host::on(Hca::on(&link).build()));
    let table = [&client, &server]
        .iter()
        .zip(1..)
        .fold(Fixed::new(), |table, (host, number)| {
            let addr = IpAddr::from([10, 0, 0, number]);
            table.way(addr, host.hca.gid(), Some(host.hca.lid()))
        });
    let table = Arc::new(table);
    let managers = [&client, &server].map(|host| Manager::of(&host.device));
    for manager in &managers {
        let table = Arc::<Fixed>::clone(&table);
        manager.use_resolver(table).wait().unwrap();
    }
    let at = "10.0.0.2:7174";
    let mut listener = listen(&server.device, at).backlog(4).wait().unwrap();
    let ask_and_take_it_back = || {
        let asking = connect(&client.device, at, client.qp()).into_future();
        assert!(asking.now_or_never().is_none(), "it waits for an answer");
    };
    ask_and_take_it_back();
    assert!(listener.accept().now_or_never().is_some(), "it had come");
    (0..100).for_each(|_| ask_and_take_it_back());
    let mut waiting = 0;
    while listener.accept().now_or_never().is_some() {
        waiting += 1;
    }
    assert!((1..=9).contains(&waiting), "{waiting} wait");
    drop((listener, managers));
    client.close();
    server.close();
}

#[test]
fn over_a_loopback_link() {
    let link = Loopback::with_seed(3);
    let [mut client, mut server] = [(); 2].map(|()| Host::on(Hca::on(&link).build()));
    let table = [&client, &server].iter().zip(1..).fold(
        Fixed::new().name("server", [10, 0, 0, 2].into()),
        |table, (host, number)| {
            let addr = IpAddr::from([10, 0, 0, number]);
            table.way(addr, host.hca.gid(), Some(host.hca.lid()))
        },
    );
    let managers = [&client, &server].map(|host| Manager::of(&host.device));
    let table = Arc::new(table);
    block_on(async {
        for manager in &managers {
            manager
                .use_resolver(Arc::<Fixed>::clone(&table))
                .await
                .unwrap();
        }
        meet(&mut client, &mut server, "10.0.0.2:7174").await;
        // The address of another port of the table is not an address here.
        let foreign = listen(&client.device, "10.0.0.2:1").await.unwrap_err();
        assert_eq!(foreign, Error::AddressNotAvailable(addr("10.0.0.2")));
        // A name that the table has.
        let refused = connect(&client.device, "server:1", client.qp()).await;
        assert_eq!(
            refused.unwrap_err().to_string(),
            "nobody listens at 10.0.0.2:1"
        );
    });
    drop(managers);
    client.close();
    server.close();
}

#[test]
fn over_udp() {
    let hosts = ["127.0.0.41", "127.0.0.42"].map(|text| {
        let link = Udp::bind(&[addr(text)]).unwrap();
        Host::on(Hca::over(link).build())
    });
    let [mut client, mut server] = hosts;
    block_on(meet(&mut client, &mut server, "127.0.0.42:7174"));
    client.close();
    server.close();
}

#[test]
fn what_goes_wrong_is_told() {
    let sim = Sim::new(2);
    let client = Host::in_sim(&sim, addr("10.0.0.1"));
    let server = Host::in_sim(&sim, addr("10.0.0.2"));
    let done = sim.run(async {
        let ask = |at: &str| connect(&client.device, at, client.qp());
        let error = |at: &str| {
            let asked = ask(at).into_future();
            async move { asked.await.unwrap_err() }
        };
        let said = error("10.0.0.2:7174").await;
        assert_eq!(
            said.to_string(),
            "10.0.0.2:7174 did not answer within 5s: see that a program listens there and that packets \
             get there and back, or allow it more time",
            "nobody opened its manager"
        );
        let manager = Manager::of(&server.device);
        manager.open().await.unwrap();
        let said = error("10.0.0.2:7174").await;
        assert_eq!(said.to_string(), "nobody listens at 10.0.0.2:7174");
        assert!(said.qp.is_some(), "the queue pair comes back");
        // It can be used again at once.
        let mut listener = listen(&server.device, "0.0.0.0:0").await.unwrap();
        let at = format!("10.0.0.2:{}", listener.local_addr().port());
        let again = connect(&client.device, at.as_str(), said.qp.unwrap());
        let (refused, ()) = join(again.into_future(), async {
            listener.accept().await.reject(b"too busy").unwrap();
        })
        .await;
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.ends_with("rejected the connection (\"too busy\")"),
            "{refused}"
        );

        // No program takes the request from the backlog, and the client gives up.
        let started = sim.now();
        let silent = ask(&at).param(verbs_cm::ConnParam {
            response_timeout: TimeCode::new(14),
            max_cm_retries: 2,
            ..verbs_cm::ConnParam::default()
        });
        let said = silent.await.unwrap_err();
        let said = said.to_string();
        assert!(said.starts_with(&format!("{at} did not answer within 5s")), "{said}");
        // Three sends take that long, except for rounding down.
        let took = sim.now() - started;
        let five = Duration::from_secs(5);
        assert!(took <= five && five - took < Duration::from_millis(1), "{took:?}");
        let request = listener.accept().await;
        // The client has withdrawn its request.
        sim.sleep(Duration::from_millis(1)).await;
        let late = request.accept(server.qp()).await.unwrap_err();
        assert!(matches!(late.error, Error::Machine(_)), "{late}");
    });
    done.unwrap();
    client.close();
    server.close();
}

/// Goal: a silent peer is waited for as long as the user has chosen, or 5 s, whether its host does not exist or it does
/// not answer; a peer that asks for time gets it.
#[test]
fn silence_has_an_end() {
    let sim = Sim::new(5);
    let client = Host::in_sim(&sim, addr("10.0.0.1"));
    let server = Host::in_sim(&sim, addr("10.0.0.2"));
    let done = sim.run(async {
        let since = |started| sim.now() - started;
        let started = sim.now();
        let said = connect(&client.device, "10.0.0.3:7174", client.qp()).await;
        let Error::NoAnswer { peer, timeout } = said.unwrap_err().error else {
            panic!("nobody has that address")
        };
        let five = Duration::from_secs(5);
        assert_eq!((peer, timeout), ("10.0.0.3:7174".parse().unwrap(), five));
        assert_eq!(since(started), five);

        let mut listener = listen(&server.device, "10.0.0.2:7174").await.unwrap();
        let ask = || connect(&client.device, "10.0.0.2:7174", client.qp());
        let short = Duration::from_millis(700);
        for slow in [Duration::from_millis(600), Duration::from_millis(1500)] {
            let started = sim.now();
            let asks = async {
                let ended = ask().timeout(short).await;
                (ended, since(started))
            };
            let answers = async {
                let request = listener.accept().await;
                sim.sleep(slow).await;
                request.accept(server.qp()).await
            };
            let ((asked, took), answered) = join(asks, answers).await;
            assert_eq!(asked.is_ok(), slow < short);
            let Err(refused) = asked else {
                assert!(answered.is_ok() && took <= short, "{took:?}");
                continue;
            };
            assert!(matches!(refused.error, Error::NoAnswer { timeout, .. } if timeout == short));
            assert_eq!(took, short);
            assert!(answered.is_err(), "the request was taken back");
            // The queue pair can be used for another attempt.
            let again = connect(&client.device, "10.0.0.2:7174", refused.qp.unwrap());
            let answers = async { listener.accept().await.accept(server.qp()).await };
            let (connected, accepted) = join(again.into_future(), answers).await;
            drop((connected.unwrap(), accepted.unwrap()));
        }

        // A client that was told that it takes longer waits longer than 5 s.
        let answers = async {
            let request = listener.accept().await;
            request
                .delay(TimeCode::at_least(Duration::from_secs(20)))
                .unwrap();
            sim.sleep(Duration::from_secs(15)).await;
            request.accept(server.qp()).await
        };
        let (connected, accepted) = join(ask().into_future(), answers).await;
        drop((connected.unwrap(), accepted.unwrap()));
    });
    done.unwrap();
    client.close();
    server.close();
}

#[test]
fn wrong_addresses_are_told() {
    let sim = Sim::new(2);
    let client = Host::in_sim(&sim, addr("10.0.0.1"));
    let server = Host::in_sim(&sim, addr("10.0.0.2"));
    let done = sim.run(async {
        let error = |at: &str| {
            let asked = connect(&client.device, at, client.qp()).into_future();
            async move { asked.await.unwrap_err() }
        };
        let listener = listen(&server.device, "0.0.0.0:0").await.unwrap();
        for (at, text) in [
            ("10.0.0.2", "'10.0.0.2' is not an IP address with a port"),
            ("[fd00::2]:5", "no route from the device to fd00::2"),
        ] {
            let said = error(at).await.to_string();
            assert!(said.starts_with(text), "{said}");
        }
        let foreign = listen(&server.device, "10.0.0.9:7174").await.unwrap_err();
        assert_eq!(
            foreign.to_string(),
            "the device has no address 10.0.0.9 on this port"
        );
        let taken = listen(&server.device, listener.local_addr())
            .await
            .unwrap_err();
        assert!(matches!(taken, Error::AddressInUse(_)), "{taken}");
    });
    done.unwrap();
    client.close();
    server.close();
}

#[test]
fn a_peer_that_dies_is_noticed() {
    let sim = Sim::new(3);
    let mut client = Host::in_sim(&sim, addr("10.0.0.1"));
    let server = Host::in_sim(&sim, addr("10.0.0.2"));
    let done = sim.run(async {
        let mut listener = listen(&server.device, "10.0.0.2:7174").await.unwrap();
        let asks = connect(&client.device, "10.0.0.2:7174", client.qp());
        let qp = server.qp();
        let answers = async { listener.accept().await.accept(qp).await };
        let (connected, accepted) = join(asks.into_future(), answers).await;
        let (mut connected, accepted) = (connected.unwrap(), accepted.unwrap());
        // The host disappears without notice.
        sim.network().set_up(addr("10.0.0.2"), false);
        connected
            .post_send(verbs_core::Send::new(1).inline(b"anybody?"))
            .unwrap();
        client.cq.ready().await.unwrap();
        let mut wcs = [verbs_core::Wc::default(); 1];
        let status = client.cq.poll(&mut wcs)[0].status;
        assert_eq!(status, verbs_core::WcStatus::RetryExcErr);
        assert_eq!(connected.ended(), None, "neither side has closed it");
        // The disconnect completes, after all retries.
        connected.disconnect().await.unwrap();
        assert_eq!(connected.ended(), Some(Ended::Here));
        assert!(!connected.is_established());
        drop((connected, accepted));
    });
    done.unwrap();
    client.close();
    server.close();
}

#[test]
fn half_open_connections_are_found_stale() {
    let sim = Sim::new(4);
    let client = Host::in_sim(&sim, addr("10.0.0.1"));
    let server = Host::in_sim(&sim, addr("10.0.0.2"));
    let done = sim.run(async {
        let mut listener = listen(&server.device, "10.0.0.2:7174").await.unwrap();
        let mut accepted = Vec::new();
        for round in 0..2 {
            let asks = connect(&client.device, "10.0.0.2:7174", client.qp());
            let qp = server.qp();
            let answers = async { listener.accept().await.accept(qp).await };
            let (connected, there) = join(asks.into_future(), answers).await;
            let (connected, there) = (connected.unwrap(), there.unwrap());
            if round == 0 {
                // The client disappears without the server being informed.
                sim.network().set_up(addr("10.0.0.1"), false);
                drop(connected);
                sim.sleep(Duration::from_millis(1)).await;
                sim.network().set_up(addr("10.0.0.1"), true);
                assert!(there.is_established(), "the server cannot know");
            }
            accepted.push(there);
        }
        // Its queue pair number may have changed by now; the half-open connection ends when it is used, or its own user
        // ends it.
        let half_open = accepted.remove(0);
        half_open.close().await.unwrap();
    });
    done.unwrap();
    client.close();
    server.close();
}
