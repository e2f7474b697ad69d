//! Devices on a wire: the one place that knows how a software HCA gets to a network.

mod args;
mod congestion;
mod iwarp;
mod nic;
mod subnet;
mod wrap;

use std::io;
use std::iter;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use hca_rdma::{Nic, OpenError};
use hca_sim::link::fabric::AttachError;
use hca_sim::link::host::HostError;
use hca_sim::link::pcap::LinkType;
use hca_sim::link::{Joined, LinkError, PacketLink, host, loopback_addresses};
use hca_sim::{Hca, Udp};
use rustix::rand::{GetRandomFlags, getrandom};
use verbs_core::filter::Trace;
use verbs_core::sync::Arc;
use verbs_core::{Device, Error, Gid, Psn};

use crate::address::{Scheme, same_family};
use crate::capture::{CaptureError, CaptureFile};
use crate::connections;
use crate::logging;
use crate::net::sends_from;
use crate::published::Published;
use crate::stats;

pub(crate) use self::args::{NicName, Transport, WireArgs};
pub(crate) use self::congestion::Congestion;
pub(crate) use self::iwarp::Iwarp;
pub(crate) use self::nic::NicNetwork;
pub(crate) use self::subnet::SubnetNode;
use self::wrap::Wrapping;

/// The only port of a software HCA.
pub(crate) const PORT: u8 = 1;

/// Opens devices on a network.
pub(crate) trait Network: Sync {
    /// Puts an HCA on these addresses of this host; the index of each is its GID index.
    ///
    /// # Errors
    /// [`WireError::InUse`] if another program has one of the addresses.
    fn attach(&self, addresses: &[IpAddr]) -> Result<Wire, WireError>;

    /// Puts an HCA on all addresses of this host's interfaces.
    fn attach_all(&self) -> Result<Wire, WireError>;

    /// Whether what the user named is there: for a server that puts an HCA there only when a client has come, and that would
    /// wait for one in vain. Takes no address.
    ///
    /// # Errors
    /// What [`attach`](Self::attach) would say of a NIC that is missing, of an address that is not this host's, or of a
    /// transport that the command cannot use.
    fn check(&self) -> Result<(), WireError> {
        Ok(())
    }

    /// Whether several programs can have one address.
    fn shares_addresses(&self) -> bool {
        false
    }

    /// Whether queue pairs are connected over TCP, whose ports they share with everything else.
    fn is_over_streams(&self) -> bool {
        false
    }

    /// Puts an HCA on the addresses that this host's daemon shares, if there is one.
    fn join(&self) -> Result<Option<Wire>, WireError> {
        Ok(None)
    }
}

/// RoCEv2 over UDP sockets, with what the options put around them.
#[derive(Debug)]
struct Roce<'a> {
    args: &'a WireArgs,
}

impl<'a> Roce<'a> {
    fn new(args: &'a WireArgs) -> Self {
        Self { args }
    }
}

impl Network for Roce<'_> {
    fn attach(&self, addresses: &[IpAddr]) -> Result<Wire, WireError> {
        if let Some(link) = host::join(addresses)? {
            return self.joined(link);
        }
        let link = Udp::bind(addresses).map_err(refused)?;
        self.wire(link, addresses)
    }

    fn attach_all(&self) -> Result<Wire, WireError> {
        if let Some(link) = host::join(&[])? {
            return self.joined(link);
        }
        let link = Udp::bind_interfaces().map_err(refused)?;
        self.wire(link, &[])
    }

    fn join(&self) -> Result<Option<Wire>, WireError> {
        let link = host::join(&[])?;
        link.map(|link| self.joined(link)).transpose()
    }

    fn check(&self) -> Result<(), WireError> {
        let is_missing = |address: &&IpAddr| {
            let bound = UdpSocket::bind((**address, 0));
            bound.is_err_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable)
        };
        match self.args.bind.iter().find(is_missing) {
            Some(&address) => Err(WireError::Link(LinkError::NotOurs { address })),
            None => Ok(()),
        }
    }
}

fn refused(error: LinkError) -> WireError {
    match error {
        LinkError::InUse { .. } => WireError::InUse(error),
        error => WireError::Link(error),
    }
}

impl Roce<'_> {
    fn joined(&self, link: Joined) -> Result<Wire, WireError> {
        let addresses = link.addresses().to_vec();
        self.wire(link, &addresses)
    }

    fn wire(
        &self,
        link: impl PacketLink + 'static,
        addresses: &[IpAddr],
    ) -> Result<Wire, WireError> {
        let wrapping = Wrapping {
            pcap: self.args.pcap.as_deref(),
            loss: self.args.loss,
            seed: self.args.seed,
        };
        let (mut builder, capture) = wrapping.over(link, ROCE, LinkType::RawIp)?;
        if let Some(Congestion(dcqcn)) = self.args.dcqcn {
            builder = builder.congestion(dcqcn);
        }
        let hca = builder.name(ROCE).build();
        let told = addresses.iter().map(ToString::to_string).collect();
        Ok(Wire {
            published: show(&hca, told),
            opened: Opened::Software(hca),
            addresses: addresses.to_vec(),
            capture,
        })
    }
}

/// The name of an HCA of RoCEv2.
const ROCE: &str = "roce0";

/// Other programs can see what the HCA counts, as long as what is returned is kept, and its connections.
fn show(hca: &Arc<Hca>, addresses: Vec<String>) -> Option<Arc<Published>> {
    connections::watch(hca);
    stats::publish(hca, addresses).map(Arc::new)
}

/// The network that the options name, for commands that have been tried with packets only: a NIC's, or the software HCA's.
pub(crate) fn network(args: &WireArgs) -> Box<dyn Network + '_> {
    match args.transport {
        Transport::Roce => any_network(args),
        Transport::Iwarp => Box::new(Refused(|| WireError::PacketsOnly)),
    }
}

/// The same for commands that work over streams too.
pub(crate) fn any_network(args: &WireArgs) -> Box<dyn Network + '_> {
    match (NicName::wanted(args.device.as_ref()), args.transport) {
        (_, Transport::Roce) if args.port_mapper => Box::new(Refused(|| WireError::OnlyStreams)),
        (Some(name), _) => Box::new(NicNetwork::new(name, &args.bind)),
        (None, Transport::Roce) => Box::new(Roce::new(args)),
        (None, Transport::Iwarp) => Box::new(Iwarp::new(args)),
    }
}

/// The network of the scheme that a file is served by.
pub(crate) fn network_of(scheme: Scheme, args: &WireArgs) -> Box<dyn Network + '_> {
    match (scheme, &args.device) {
        (Scheme::Roce, _) => network(args),
        (Scheme::Iwarp, None) => Box::new(Iwarp::new(args)),
        (Scheme::Rdma | Scheme::Iwarp, _) => any_network(args),
    }
}

/// Refuses an option.
struct Refused(fn() -> WireError);

impl Network for Refused {
    fn attach(&self, _addresses: &[IpAddr]) -> Result<Wire, WireError> {
        Err((self.0)())
    }

    fn attach_all(&self) -> Result<Wire, WireError> {
        Err((self.0)())
    }

    fn check(&self) -> Result<(), WireError> {
        Err((self.0)())
    }
}

/// What implements a device.
#[derive(Clone, Debug)]
enum Opened {
    Software(Arc<Hca>),
    Nic(Arc<Nic>),
}

/// An HCA on a network.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    opened: Opened,
    addresses: Vec<IpAddr>,
    capture: Option<CaptureFile>,
    /// What `verbs stats` asks.
    #[expect(dead_code, reason = "it is there as long as it is kept")]
    published: Option<Arc<Published>>,
}

/// An HCA could not be put on a network. One sentence without its full stop.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    /// One host, one program per address.
    #[error("{0} (--bind names addresses; `verbs host` shares an address among programs)")]
    InUse(LinkError),
    /// The host's daemon cannot be joined.
    #[error(transparent)]
    Host(#[from] HostError),
    /// Two ends cannot share an address.
    #[error(
        "{0} is the only IPv6 loopback address, and the peer has it; name another address of this host for \
         this end with --bind, or reach the peer at an address of 127.0.0.0/8"
    )]
    SameHost(IpAddr),
    /// All that were tried are taken.
    #[error(
        "UDP port 4791 is taken on every address from {first} to {last}: by as many programs, or by one on \
         all addresses (the kernel's rxe is one); --bind names another address of this host"
    )]
    NoneFree { first: IpAddr, last: IpAddr },
    /// The system does not say which address it sends from.
    #[error("cannot find the way to the peer: {0}")]
    Way(io::Error),
    /// There is no such NIC, or it cannot be used.
    #[error(transparent)]
    Nic(OpenError),
    /// The NIC does not have the addresses that were named.
    #[error(
        "{name} does not have the address {address}; its interface's addresses are what it has"
    )]
    NotThere { name: String, address: IpAddr },
    /// The NIC does not say which addresses it has.
    #[error("cannot ask {name} for its addresses: {error}")]
    Port { name: String, error: Error },
    /// Streams are the system's: what is done with packets cannot be done with them.
    #[error("{0} is about packets of RoCE; --transport iwarp has none that it sees")]
    NotWithStreams(&'static str),
    /// Packets have no port mappers.
    #[error("--port-mapper is for --transport iwarp")]
    OnlyStreams,
    /// The command was not made for streams.
    #[error(
        "--transport iwarp works with rping, pingpong, rds, connect-bench, serve and `copy iwarp://...`; this runs over RoCE \
         only"
    )]
    PacketsOnly,
    /// The system has no sockets.
    #[error("cannot use TCP: {0}")]
    Tcp(io::Error),
    /// The node of a hosted subnet cannot be had.
    #[error(transparent)]
    Subnet(AttachError),
    /// Anything else.
    #[error(transparent)]
    Link(LinkError),
    /// The capture cannot be written.
    #[error(transparent)]
    Capture(#[from] CaptureError),
}

impl Wire {
    /// Puts an HCA on the addresses that the user named, or else where the system sends from when it
    /// talks to `peer`. When that is the peer's own address or a loopback address, the peer is on this
    /// host: then it is the first of 127.0.0.0/8 that is free and not the peer's, which the peer has or
    /// will have soon.
    pub(crate) fn open_towards(
        network: &dyn Network,
        named: &[IpAddr],
        local: IpAddr,
        peer: IpAddr,
    ) -> Result<Self, WireError> {
        if !named.is_empty() {
            return network.attach(named);
        }
        if let Some(wire) = network.join()? {
            return Ok(wire);
        }
        let on_this_host = local == peer || peer.is_loopback();
        match (local, on_this_host) {
            (_, true) if network.shares_addresses() => network.attach(&[local]),
            (_, false) => network.attach(&[local]),
            // There is one ::1, and the peer may be about to take it.
            (IpAddr::V6(_), true) if local == peer => Err(WireError::SameHost(local)),
            (IpAddr::V6(_), true) => network.attach(&[local]),
            (IpAddr::V4(_), true) => Self::open_on_loopback(network, peer),
        }
    }

    /// As [`Wire::open_towards`], from where the system sends to `peer` unless the user named addresses: with
    /// --bind, and `also` with an option of the command's own.
    pub(crate) fn open_for(
        network: &dyn Network,
        bind: &[IpAddr],
        also: Option<IpAddr>,
        peer: SocketAddr,
    ) -> Result<Self, WireError> {
        let named = with(bind, also);
        let local = match named.is_empty() {
            true => sends_from(peer).map_err(WireError::Way)?,
            false => peer.ip(),
        };
        Self::open_towards(network, &named, local, peer.ip())
    }

    /// Several programs may look for an address at the same time: one that finds it taken tries the
    /// next.
    fn open_on_loopback(network: &dyn Network, peer: IpAddr) -> Result<Self, WireError> {
        for address in beside_peer(peer) {
            match network.attach(&[address]) {
                Err(WireError::InUse(_)) => {}
                result => return result,
            }
        }
        let mut tried = beside_peer(peer);
        let (first, last) = (tried.next().unwrap_or(peer), tried.last().unwrap_or(peer));
        Err(WireError::NoneFree { first, last })
    }

    /// From where a program may talk to `peer` that wants an address of its own although programs share them: from where
    /// the system sends, or, if that is the peer's own address or a loopback address, from those of 127.0.0.0/8.
    pub(crate) fn beside(
        local: IpAddr,
        peer: IpAddr,
    ) -> Result<Box<dyn Iterator<Item = IpAddr>>, WireError> {
        match local {
            _ if local != peer && !peer.is_loopback() => Ok(Box::new(iter::once(local))),
            IpAddr::V6(_) => Err(WireError::SameHost(local)),
            IpAddr::V4(_) => Ok(Box::new(beside_peer(peer))),
        }
    }

    /// Opens a device on the HCA. Devices on one HCA share its addresses and nothing else.
    pub(crate) async fn device(&self) -> Result<Device, Error> {
        match &self.opened {
            Opened::Software(hca) if logging::wants_verbs() => {
                let traced = Trace::new(Arc::clone(hca) as Arc<_>);
                Device::open(Arc::new(traced)).await
            }
            Opened::Software(hca) => hca.open().await,
            Opened::Nic(nic) => Device::open(Arc::clone(nic) as Arc<_>).await,
        }
    }

    /// Ends the capture, if there is one: what was on the wire so far is in the file, or it is said why
    /// not.
    pub(crate) fn finish_capture(&self) -> Result<(), WireError> {
        match &self.capture {
            Some(file) => Ok(file.finish()?),
            None => Ok(()),
        }
    }

    /// The addresses that peers can connect to: those of a NIC's link alone need the link's name.
    pub(crate) fn ip_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let is_of_link = |address: IpAddr| match address {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        let on_nic = matches!(self.opened, Opened::Nic(_));
        let usable =
            move |&address: &IpAddr| !on_nic || (nic::is_there(address) && !is_of_link(address));
        self.addresses.iter().copied().filter(usable)
    }

    /// The addresses; the index of each is its GID index.
    pub(crate) fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }
}

/// The addresses that the user named with --bind, and the one that an option of the command's own names.
pub(crate) fn with(bind: &[IpAddr], also: Option<IpAddr>) -> Vec<IpAddr> {
    let also = also.filter(|address| !bind.contains(address));
    bind.iter().copied().chain(also).collect()
}

/// Those that a program may take which talks to `peer` on the same host, in turn.
fn beside_peer(peer: IpAddr) -> impl Iterator<Item = IpAddr> {
    loopback_addresses().filter(move |&address| address != peer)
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
    let indexed = (0..).zip(addresses);
    for (index, &address) in indexed.filter(|&(_, &address)| nic::is_there(address)) {
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

#[cfg(test)]
pub(crate) mod stand_in {
    //! A network within the test: a loopback link whose ports claim addresses.

    use std::collections::BTreeSet;

    use hca_sim::Loopback;
    use verbs_core::sync::Mutex;

    use super::*;

    /// Addresses are only claimed; the GIDs are those of the link's ports.
    #[derive(Default)]
    pub(crate) struct LoopbackNetwork {
        link: Loopback,
        claimed: Mutex<BTreeSet<IpAddr>>,
    }

    impl Network for LoopbackNetwork {
        fn attach(&self, addresses: &[IpAddr]) -> Result<Wire, WireError> {
            let mut claimed = self.claimed.lock();
            if let Some(&address) = addresses.iter().find(|address| claimed.contains(address)) {
                return Err(WireError::InUse(LinkError::InUse { address }));
            }
            claimed.extend(addresses);
            let hca = Hca::on(&self.link).build();
            let address = IpAddr::from(hca.gid());
            Ok(Wire {
                opened: Opened::Software(hca),
                addresses: vec![address],
                capture: None,
                published: None,
            })
        }

        fn attach_all(&self) -> Result<Wire, WireError> {
            self.attach(&[])
        }
    }

    impl LoopbackNetwork {
        /// The addresses that were claimed.
        pub(super) fn claims(&self) -> BTreeSet<IpAddr> {
            self.claimed.lock().clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use clap::Parser;

    use super::stand_in::LoopbackNetwork;
    use super::*;

    /// Goal: a server that waits for a client before it has a device says at once that there will be none. Method: a NIC and
    /// an address that are not there, and what is.
    #[test]
    fn what_is_not_there_is_said_before_a_client_comes() {
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            wire: WireArgs,
        }
        for (line, is_there) in [
            ("verbs --device rdma:nobody_has_it", false),
            ("verbs --bind 192.0.2.77", false),
            ("verbs --bind 127.0.0.9", true),
            ("verbs", true),
        ] {
            let args = Line::parse_from(line.split(' ')).wire;
            let checked = any_network(&args).check();
            assert_eq!(checked.is_ok(), is_there, "{line}: {checked:?}");
        }
    }

    /// Goal: programs on one host find addresses without being told, and leave the server its own.
    #[test]
    fn programs_on_one_host_take_turns_at_loopback_addresses() {
        let network = LoopbackNetwork::default();
        let [one, other] = ["127.0.0.1", "10.0.0.9"].map(|text| text.parse().unwrap());
        for _ in loopback_addresses() {
            Wire::open_towards(&network, &[], one, one).expect("there are more");
        }
        let refused = Wire::open_towards(&network, &[], one, one).expect_err("all are taken");
        assert!(
            refused
                .to_string()
                .contains("from 127.0.0.2 to 127.0.3.255"),
            "{refused}"
        );
        network.attach(&[one]).expect("it was left");
        let away = "192.0.2.1".parse().unwrap();
        Wire::open_towards(&network, &[], other, away).expect("nobody has it");
        let refused = Wire::open_towards(&network, &[other], one, one);
        assert!(matches!(refused, Err(WireError::InUse(_))), "{refused:?}");
        let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
        let refused = Wire::open_towards(&network, &[], v6, v6);
        assert!(
            matches!(refused, Err(WireError::SameHost(_))),
            "{refused:?}"
        );
    }

    /// Goal: also where the system would send from an address that another client has, and from many
    /// threads at once; no thread takes the peer's.
    #[test]
    fn clients_of_any_loopback_address_find_one_of_their_own() {
        let network = LoopbackNetwork::default();
        let [sends_from, peer] = ["127.0.0.1", "127.0.0.21"].map(|text| text.parse().unwrap());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..4 {
                        Wire::open_towards(&network, &[], sends_from, peer)
                            .expect("there are more");
                    }
                });
            }
        });
        assert_eq!(network.claims().len(), 32);
        assert!(!network.claims().contains(&peer));
        network.attach(&[peer, sends_from]).expect("both were left");
        let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
        let refused = Wire::open_towards(&network, &[], v6, v6).expect_err("there is one");
        let text = refused.to_string();
        assert!(
            text.starts_with("::1 is the only IPv6 loopback address"),
            "{text}"
        );
    }
}
