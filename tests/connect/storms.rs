//! Many connections at a time over bad networks.
//!
//! Goal: whatever the network loses, duplicates and reorders, each attempt ends with one of the defined results,
//! messages on connections arrive, both ends learn of the end, and nothing is left. Method: a seed decides the network
//! and what two hosts do, connecting to each other at the same time, rejecting, and ending connections from one side or
//! from both at once; all in virtual time.

use std::cell::RefCell;
use std::future::IntoFuture;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures::future::{Either, join, join_all, select};
use verbs_cm::{ConnParam, Connection, Error, Manager, NotConnected};
use verbs_core::mad::TimeCode;
use verbs_simulator::{Draw, LinkConfig, Ppm, Sim};

use crate::ends::Host;

/// Seeds that are run; `VERBS_CM_SEEDS` requests more.
const SEEDS: u64 = 40;
/// Attempts of each host.
const ATTEMPTS: u32 = 6;
const PORT: u16 = 7174;

/// The counts of what happened on both hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    established: u32,
    rejected: u32,
    accepted: u32,
    ended: u32,
    lost: u64,
    /// Connections that the server accepted, and that were not confirmed.
    unconfirmed: u32,
    /// Ends that should have been reported to a client, and were not.
    untold: u32,
}

/// Which side ends a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    Client,
    Server,
    Both,
    /// By dropping it, which informs the peer at most once.
    Dropped,
}

struct Node {
    host: RefCell<Host>,
    addr: IpAddr,
    manager: Manager,
}

fn network(draw: &mut Draw) -> LinkConfig {
    LinkConfig {
        loss: Ppm::percent(draw.below(30) as u32),
        duplication: Ppm::percent(draw.below(20) as u32),
        reordering: Ppm::percent(draw.below(30) as u32),
        delay: draw.duration(Duration::ZERO..=Duration::from_micros(400)),
        ..LinkConfig::default()
    }
}

/// Patient enough for any of these networks.
fn param() -> ConnParam {
    ConnParam {
        response_timeout: TimeCode::new(12),
        ..ConnParam::default()
    }
}

async fn ask(node: &Node, to: SocketAddr) -> Result<Connection, NotConnected> {
    let qp = node.host.borrow().qp();
    node.manager.connect(to, qp).param(param()).await
}

/// The requests that a host sends its peer.
async fn client(sim: Sim, node: Rc<Node>, to: SocketAddr, tally: Rc<RefCell<Tally>>) {
    let mut draw = sim.draw();
    for _ in 0..ATTEMPTS {
        sim.sleep(draw.duration(Duration::ZERO..=Duration::from_micros(500)))
            .await;
        let connection = match ask(&node, to).await {
            Ok(connection) => connection,
            Err(refused) => {
                assert!(
                    matches!(refused.error, Error::Rejected(_)),
                    "{}",
                    refused.error
                );
                tally.borrow_mut().rejected += 1;
                continue;
            }
        };
        tally.borrow_mut().established += 1;
        // The server's private data say which side ends it.
        let ends = match connection.private_data()[0] {
            0 => Ends::Client,
            1 => Ends::Server,
            2 => Ends::Both,
            _ => Ends::Dropped,
        };
        let untold = end(&sim, connection, ends, Ends::Client).await;
        let mut tally = tally.borrow_mut();
        tally.ended += 1;
        tally.untold += u32::from(untold);
    }
}

/// Ends a connection, or waits for its end. Returns whether this end should have been informed and was not.
async fn end(sim: &Sim, connection: Connection, ends: Ends, me: Ends) -> bool {
    sim.sleep(Duration::from_micros(50)).await;
    if ends == Ends::Dropped && me == Ends::Client {
        return false;
    }
    if ends == me || ends == Ends::Both {
        connection.close().await.unwrap();
        return false;
    }
    // The message of a peer that drops its connection may be lost: then this end ends it itself.
    let over = sim.timeout(Duration::from_secs(40), connection.closed().into_future());
    let untold = over.await.is_none() && ends != Ends::Dropped;
    connection.close().await.unwrap();
    untold
}

/// The answers of a host.
async fn server(sim: Sim, node: Rc<Node>, tally: Rc<RefCell<Tally>>) {
    let mut draw = sim.draw();
    let at = SocketAddr::new(node.addr, PORT);
    let mut listener = node.manager.listen(at).backlog(4).await.unwrap();
    loop {
        let request = listener.accept().await;
        if draw.below(5) == 0 {
            // The client may have given up, or not have learned of the end of an earlier one.
            let _gone = request.reject(b"not now");
            continue;
        }
        let ends = draw.below(4) as u8;
        let qp = node.host.borrow().qp();
        let accepting = request
            .accept(qp)
            .param(param())
            .private_data(&[ends])
            .into_future();
        let (sim2, tally) = (sim.clone(), Rc::clone(&tally));
        sim.spawn(async move {
            let Ok(connection) = accepting.await else {
                tally.borrow_mut().unconfirmed += 1;
                return;
            };
            tally.borrow_mut().accepted += 1;
            let ends = [Ends::Client, Ends::Server, Ends::Both, Ends::Dropped][usize::from(ends)];
            let untold = end(&sim2, connection, ends, Ends::Server).await;
            assert!(!untold, "the end was not told");
        });
    }
}

fn storm(seed: u64) -> Tally {
    let sim = Sim::new(seed);
    let mut draw = sim.draw();
    let config = network(&mut draw);
    sim.network().set_all(config);
    let addrs = [1, 2].map(|n| IpAddr::from([10, 0, 0, n]));
    let nodes = addrs.map(|addr| {
        let host = Host::in_sim(&sim, addr);
        let manager = Manager::of(&host.device);
        Rc::new(Node {
            host: RefCell::new(host),
            addr,
            manager,
        })
    });
    let tally = Rc::new(RefCell::new(Tally::default()));
    let serve = |node: &Rc<Node>| server(sim.clone(), Rc::clone(node), Rc::clone(&tally));
    let servers = nodes.each_ref().map(serve);
    let [one, other] = &nodes;
    let both = join(
        client(
            sim.clone(),
            Rc::clone(one),
            SocketAddr::new(other.addr, PORT),
            Rc::clone(&tally),
        ),
        client(
            sim.clone(),
            Rc::clone(other),
            SocketAddr::new(one.addr, PORT),
            Rc::clone(&tally),
        ),
    );
    // The servers never end by themselves.
    let ran = sim.run(async {
        let servers = pin!(join_all(servers));
        matches!(select(pin!(both), servers).await, Either::Left(_))
    });
    assert_eq!(ran, Ok(true), "seed {seed}");
    sim.network().set_all(config.healed());
    sim.run(async {
        // Longer than every timewait and every patience of the ends.
        sim.sleep(Duration::from_secs(600)).await;
        for node in &nodes {
            let counts = node.manager.count().await.unwrap();
            let left = (counts.connections, counts.handles);
            assert_eq!(left, (0, 0), "seed {seed}: connections are left");
            assert_eq!(counts.ports, 0, "seed {seed}: port numbers are left");
        }
    })
    .unwrap();
    let hits = sim.network().hits(addrs[0], addrs[1]);
    let mut tally = tally.borrow_mut();
    tally.lost = hits.lost;
    // A server sends the REP twice and one REJ to a client from which it has received nothing: if the network loses all
    // of them, or the answers, the client considers the connection established.
    assert!(
        tally.untold <= tally.unconfirmed,
        "seed {seed}: {} ends were not told, {} connections not confirmed",
        tally.untold,
        tally.unconfirmed
    );
    *tally
}

#[test]
fn storms_leave_nothing() {
    let seeds = std::env::var("VERBS_CM_SEEDS").ok();
    let seeds = seeds.map_or(SEEDS, |seeds| seeds.parse().expect("a number of seeds"));
    let mut sum = Tally::default();
    for seed in 0..seeds {
        let tally = storm(seed);
        assert_eq!(
            tally.established + tally.rejected,
            2 * ATTEMPTS,
            "seed {seed}: each attempt has one end"
        );
        sum.established += tally.established;
        sum.rejected += tally.rejected;
        sum.accepted += tally.accepted;
        sum.ended += tally.ended;
        sum.lost += tally.lost;
    }
    println!("{seeds} seeds: {sum:?}");
    assert!(
        sum.established > 0 && sum.rejected > 0 && sum.lost > 0,
        "{sum:?}"
    );
    assert_eq!(sum.established, sum.ended);
}

#[test]
fn a_storm_repeats() {
    assert_eq!(storm(7), storm(7));
}
