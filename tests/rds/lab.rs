//! Nodes on a simulated network.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hca_sim::Hca;
use ulp_rds::{Config, Node, RdsSocket};
use verbs_core::Device;
use verbs_simulator::Sim;

/// The address of a host.
pub(crate) fn addr(host: u8) -> IpAddr {
    [10, 0, 0, host].into()
}

/// A socket's address.
pub(crate) fn at(host: u8, port: u16) -> SocketAddr {
    SocketAddr::new(addr(host), port)
}

/// A device with an address of the network.
pub(crate) fn device(sim: &Sim, addr: IpAddr) -> Arc<Device> {
    let port = sim.network().attach(&[addr]);
    let hca = Hca::over(port).clock(sim.clock().clone()).build();
    Arc::new(hca.open().wait().unwrap())
}

/// Small buffers, so that their ends are reached.
pub(crate) fn config(addr: IpAddr) -> Config {
    let mut config = Config::new([addr]);
    config.receives = 16;
    config.sends = 8;
    config.send_buffer = 64 << 10;
    config.receive_buffer = 64 << 10;
    config
}

/// Two nodes, each with a socket at port 4000.
pub(crate) async fn pair(sim: &Sim) -> [(Node, RdsSocket); 2] {
    let mut pair = Vec::new();
    for host in [1, 2] {
        let device = device(sim, addr(host));
        let node = Node::open(&device, config(addr(host))).await.unwrap();
        let socket = RdsSocket::bind(&node, at(host, 4000)).unwrap();
        pair.push((node, socket));
    }
    pair.try_into().unwrap()
}
