//! Peers that do not exist, over the machine's own sockets: the kernel's reports are used.
//!
//! The addresses are this process's own, so that tests may run in parallel.

use std::future::IntoFuture;
use std::net::IpAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use futures::future::{Either, join, select};
use hca_sim::extension::PacketCounters;
use hca_sim::link::LinkCounters;
use hca_sim::{Hca, Udp};
use verbs_cm::{Ended, Error, connect, listen, resolve_service};
use verbs_core::timer::Sleep;

use crate::ends::Host;

/// An address that this process has for itself.
fn own(number: u8) -> IpAddr {
    let [.., high, low] = std::process::id().to_be_bytes();
    [127, high | 0x80, low, number].into()
}

fn host(addr: IpAddr) -> Host {
    Host::on(Hca::over(Udp::bind(&[addr]).unwrap()).build())
}

fn link_counters(host: &Host) -> LinkCounters {
    host.device.call::<PacketCounters>(()).wait().unwrap().link
}

/// Goal: an attempt to reach a host without a program ends when the host has reported that twice, not when the time is
/// over; so does a request for a service for datagrams; the queue pair is returned.
#[test]
fn nobody_there_is_told_at_once() {
    let client = host(own(60));
    let at = format!("{}:7174", own(61));
    let begun = Instant::now();
    let long = Duration::from_secs(60);
    let asked = connect(&client.device, at.as_str(), client.qp()).timeout(long);
    let refused = block_on(asked.into_future()).unwrap_err();
    assert_eq!(
        refused.error.to_string(),
        format!(
            "nobody is at {}: UDP port 4791 there refuses packets (start the peer, or check the address)",
            own(61)
        )
    );
    let qp = refused.qp.expect("it comes back");
    qp.destroy().wait().unwrap();
    let asked = block_on(resolve_service(&client.device, at.as_str(), b"").into_future());
    let error = asked.unwrap_err();
    assert!(matches!(error, Error::PortUnreachable(peer) if peer.to_string() == at));
    // Each takes half a second; the rest is for a busy machine.
    assert!(begun.elapsed() < long / 2, "{:?}", begun.elapsed());
    let counters = link_counters(&client);
    // The requests, their repetitions, and the withdrawal of the first.
    assert!(counters.port_unreachable >= 4, "{counters:?}");
    assert_eq!(counters.send_errors, 0, "{counters:?}");
    client.close();
}

/// Goal: a peer that starts while requests are sent is reached. Rule: the request is sent again half a second after the
/// first report; a peer that exists by then answers. Method: the peer starts 100 ms after the first report is counted;
/// if this machine is so busy that it is too late nevertheless, the next attempt reaches it.
#[test]
fn a_peer_that_starts_late_is_reached() {
    let client = host(own(62));
    let timer = client.device.target().provider_of().timer().unwrap();
    let at = format!("{}:7174", own(63));
    let refusals = || link_counters(&client).port_unreachable;
    let asks = async {
        let ask =
            || connect(&client.device, at.as_str(), client.qp()).timeout(Duration::from_secs(60));
        let mut attempts = 1;
        loop {
            match ask().await {
                Err(refused) if attempts < 20 => {
                    assert!(
                        matches!(refused.error, Error::PortUnreachable(_)),
                        "{refused}"
                    );
                    attempts += 1;
                }
                ended => return (ended.unwrap(), refusals()),
            }
        }
    };
    let answers = async {
        while refusals() == 0 {
            Sleep::new(&timer, Duration::from_millis(5)).await;
        }
        Sleep::new(&timer, Duration::from_millis(100)).await;
        let server = host(own(63));
        let mut listener = listen(&server.device, at.as_str()).await.unwrap();
        let accepted = listener.accept().await.accept(server.qp()).await.unwrap();
        (accepted, listener, server)
    };
    let ((connected, refused), (accepted, listener, server)) =
        block_on(async { join(asks, answers).await });
    assert!(refused >= 1);
    block_on(async {
        let closed = accepted.closed();
        connected.close().await.unwrap();
        closed.await.unwrap();
        accepted.close().await.unwrap();
    });
    // The engine's thread may hold an endpoint for a moment yet, and with it a queue pair.
    drop((listener, client, server));
}

/// In the environment: the address at which this process is the server of the next test.
const SERVER: &str = "VERBS_TEST_SERVER";

/// Goal: a connection whose peer's process was killed ends within 2 s, as a break, although nothing was sent on it. Method: this
/// program again, as the server.
#[test]
fn a_peer_that_is_killed_is_noticed() {
    if let Ok(addr) = std::env::var(SERVER) {
        let server = host(addr.parse().unwrap());
        let at = format!("{addr}:7174");
        let serves = async {
            let mut listener = listen(&server.device, at.as_str()).await.unwrap();
            let accepted = listener.accept().await.accept(server.qp()).await.unwrap();
            accepted.closed().await
        };
        block_on(serves).unwrap();
        return;
    }
    let (client, server) = (host(own(66)), own(67));
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "absent::a_peer_that_is_killed_is_noticed"])
        .env(SERVER, server.to_string())
        .spawn()
        .unwrap();
    let at = format!("{server}:7174");
    let ask = || connect(&client.device, at.as_str(), client.qp()).timeout(Duration::from_secs(60));
    // It may take a second to start, and refuses until then.
    let asked = (0..20).find_map(|_| block_on(ask().into_future()).ok());
    let connection = asked.expect("the server answers");
    child.kill().unwrap();
    let killed = Instant::now();
    let timer = client.device.target().provider_of().timer().unwrap();
    let closed = std::pin::pin!(connection.closed().into_future());
    let late = std::pin::pin!(Sleep::new(&timer, Duration::from_secs(10)));
    let ended = matches!(block_on(select(closed, late)), Either::Left(_));
    assert!(
        ended && killed.elapsed() < Duration::from_secs(2),
        "{:?}",
        killed.elapsed()
    );
    assert_eq!(connection.ended(), Some(Ended::Failed));
    child.wait().unwrap();
    drop(connection);
}
