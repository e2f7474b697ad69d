//! Devices on a wire: the one place that knows how a software HCA gets to a network.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use hca_sim::Hca;
use rustix::rand::{GetRandomFlags, getrandom};
use verbs_core::sync::Arc;
use verbs_core::{Device, Error, Gid, Psn};

use crate::address::same_family;
use crate::cli::WireArgs;

/// The only port of a software HCA.
pub(crate) const PORT: u8 = 1;

/// Addresses of 127.0.0.0/8 that are tried for a program which talks to another on the same host.
const LOOPBACK_ADDRESSES_MAX: u8 = 32;

/// Opens devices on a network.
pub(crate) trait Network: Sync {
    /// Puts an HCA on these addresses of this host; the index of each is its GID index.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`] if another process has one of the addresses.
    fn attach(&self, addresses: &[IpAddr]) -> io::Result<Wire>;
}

/// RoCEv2: UDP sockets on addresses of this host.
#[derive(Debug)]
pub(crate) struct Roce<'a> {
    args: &'a WireArgs,
}

impl<'a> Roce<'a> {
    pub(crate) fn new(args: &'a WireArgs) -> Self {
        Self { args }
    }
}

impl Network for Roce<'_> {
    fn attach(&self, _addresses: &[IpAddr]) -> io::Result<Wire> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// An HCA on a network.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    hca: Arc<Hca>,
    addresses: Vec<IpAddr>,
}

/// An HCA could not be put on a network. One sentence without its full stop.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    /// One host, one program per address.
    #[error(
        "another program has the UDP port of RoCE on {}; name another address of this host with --bind",
        list(.0)
    )]
    InUse(Vec<IpAddr>),
    /// Anything else.
    #[error("cannot put a device on {}: {error}", list(addresses))]
    Attach {
        addresses: Vec<IpAddr>,
        error: io::Error,
    },
}

impl Wire {
    /// An HCA that is on a network with these addresses.
    pub(crate) fn new(hca: Arc<Hca>, addresses: &[IpAddr]) -> Self {
        let addresses = addresses.to_vec();
        Self { hca, addresses }
    }

    /// Puts an HCA on exactly these addresses.
    pub(crate) fn open(network: &dyn Network, addresses: &[IpAddr]) -> Result<Self, WireError> {
        network.attach(addresses).map_err(|error| {
            let addresses = addresses.to_vec();
            match error.kind() {
                io::ErrorKind::AddrInUse => WireError::InUse(addresses),
                _ => WireError::Attach { addresses, error },
            }
        })
    }

    /// Puts an HCA on the addresses that the user named, or else where the system sends from when it
    /// talks to `peer`. When that is the peer's own address, the peer is on this host and has it, or
    /// will soon: then it is the next one of 127.0.0.0/8 that is free.
    pub(crate) fn open_towards(
        network: &dyn Network,
        named: &[IpAddr],
        local: IpAddr,
        peer: IpAddr,
    ) -> Result<Self, WireError> {
        if !named.is_empty() {
            return Self::open(network, named);
        }
        if local != peer || !local.is_ipv4() {
            return Self::open(network, &[local]);
        }
        let others = (2..=LOOPBACK_ADDRESSES_MAX).map(|n| IpAddr::V4(Ipv4Addr::new(127, 0, 0, n)));
        for address in others.filter(|&address| address != local) {
            match Self::open(network, &[address]) {
                Err(WireError::InUse(_)) => {}
                result => return result,
            }
        }
        Err(WireError::InUse(vec![local]))
    }

    /// Opens a device on the HCA. Devices on one HCA share its addresses and nothing else.
    pub(crate) async fn device(&self) -> Result<Device, Error> {
        self.hca.open().await
    }

    /// The addresses; the index of each is its GID index.
    pub(crate) fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }
}

/// The GID of a device with which it can reach the peer, and its index: the one of address `wanted`
/// if that fits, else the first that does.
pub(crate) async fn gid_towards(
    device: &Device,
    addresses: &[IpAddr],
    wanted: IpAddr,
    peer: Gid,
) -> Result<Option<(u16, Gid)>, Error> {
    let mut found = None;
    for (index, &address) in (0..).zip(addresses) {
        let gid = device.query_gid(PORT, index).await?;
        if same_family(gid, peer) && (found.is_none() || address == wanted) {
            found = Some((index, gid));
        }
    }
    Ok(found)
}

/// A first packet sequence number that is hard to guess.
pub(crate) fn draw_psn() -> io::Result<Psn> {
    let mut bytes = [0; 4];
    // Four bytes come whole or not at all.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(Psn::new(u32::from_ne_bytes(bytes)))
}

fn list(addresses: &[IpAddr]) -> String {
    let texts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

#[cfg(test)]
pub(crate) mod stand_in {
    //! A network within the test: a loopback link whose ports claim addresses.

    use std::collections::BTreeSet;

    use hca_sim::Loopback;
    use verbs_core::sync::Mutex;

    use super::*;
    use crate::address::address_of;

    /// Addresses are only claimed; the GIDs are those of the link's ports.
    #[derive(Default)]
    pub(crate) struct LoopbackNetwork {
        link: Loopback,
        claimed: Mutex<BTreeSet<IpAddr>>,
    }

    impl Network for LoopbackNetwork {
        fn attach(&self, addresses: &[IpAddr]) -> io::Result<Wire> {
            let mut claimed = self.claimed.lock();
            if addresses.iter().any(|address| claimed.contains(address)) {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            claimed.extend(addresses);
            let hca = Hca::on(&self.link).build();
            let address = address_of(hca.gid());
            Ok(Wire::new(hca, &[address]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::stand_in::LoopbackNetwork;
    use super::*;

    /// Goal: programs on one host find addresses without being told, and leave the server its own.
    #[test]
    fn programs_on_one_host_take_turns_at_loopback_addresses() {
        let network = LoopbackNetwork::default();
        let [one, other] = ["127.0.0.1", "10.0.0.9"].map(|text| text.parse().unwrap());
        for _ in 2..=LOOPBACK_ADDRESSES_MAX {
            Wire::open_towards(&network, &[], one, one).expect("there are more");
        }
        let refused = Wire::open_towards(&network, &[], one, one).expect_err("all are taken");
        assert!(refused.to_string().contains("on 127.0.0.1;"), "{refused}");
        Wire::open(&network, &[one]).expect("it was left");
        Wire::open_towards(&network, &[], other, one).expect("nobody has it");
        let refused = Wire::open_towards(&network, &[other], one, one);
        assert!(matches!(refused, Err(WireError::InUse(_))), "{refused:?}");
    }
}
