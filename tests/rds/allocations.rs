//! Goal: a datagram takes no memory from the allocator, at either end. Method: two nodes of one process on the loopback link, where
//! one thread sends, carries and delivers, so that all of its allocations are counted.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use futures::executor::block_on;
use hca_sim::{Hca, Loopback};
use ulp_rds::{Config, Node, RdsSocket};
use verbs_cm::Manager;
use verbs_cm::resolver::Fixed;

use crate::allocator;
use crate::lab::addr;

/// Datagrams before which memory may still be asked for: lists grow to what they need.
const WARM: u32 = 2000;
const TIMES: u32 = 1000;
/// Allocations after that: how many datagrams wait for their acknowledgement at a time is a matter of other threads too, so that a
/// list may still be longer than ever before. Each datagram with an allocation would be 1000 or 2000 of them.
const GROWN_MAX: u64 = 8;

/// Two sockets of two nodes, with their managers.
async fn pair() -> [(Node, RdsSocket, Manager); 2] {
    let link = Loopback::with_seed(7);
    let hcas = [1, 2].map(|host| (addr(host), Hca::on(&link).build()));
    let table = hcas.iter().fold(Fixed::new(), |table, (addr, hca)| {
        table.way(*addr, hca.gid(), Some(hca.lid()))
    });
    let table = Arc::new(table);
    let [one, other] = hcas.map(|(addr, hca)| open(addr, hca, Arc::clone(&table)));
    [one.await, other.await]
}

async fn open(addr: IpAddr, hca: Arc<Hca>, table: Arc<Fixed>) -> (Node, RdsSocket, Manager) {
    let device = Arc::new(hca.open().await.unwrap());
    let manager = Manager::of(&device);
    manager.use_resolver(table).await.unwrap();
    let node = Node::open(&device, Config::new([addr])).await.unwrap();
    let socket = RdsSocket::bind(&node, SocketAddr::new(addr, 4000)).unwrap();
    (node, socket, manager)
}

/// Allocations of datagrams of that length there and back, each compared and dropped.
fn count(len: usize) {
    block_on(async {
        let [(_a, one, _one), (_b, other, _other)] = pair().await;
        let payload: Vec<u8> = (0..len).map(|at| at as u8).collect();
        let mut before = 0;
        for round in 0..WARM + TIMES {
            if round == WARM {
                before = allocator::allocations();
            }
            one.send_to(&payload, other.local_addr()).await.unwrap();
            let got = other.recv().await;
            assert!(got.payload == payload);
            other.send_to(&got.payload, got.from).await.unwrap();
            assert!(one.recv().await.payload == payload);
        }
        let after = allocator::allocations();
        let grown = after - before;
        assert!(
            grown <= GROWN_MAX,
            "{grown} allocations of {TIMES} datagrams of {len} bytes there and back"
        );
    });
}

#[test]
fn a_short_datagram_allocates_nothing() {
    count(8);
}

#[test]
fn a_datagram_of_a_page_allocates_nothing() {
    count(4096);
}

#[test]
fn a_datagram_of_many_fragments_allocates_nothing() {
    count(100_000);
}
