//! Devices on a wire: the one place that knows how a software HCA gets to a network.

mod args;
mod nic;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use hca_rdma::{Nic, OpenError};
use hca_sim::clock::Clock;
use hca_sim::link::pcap::{LinkType, PcapWriter};
use hca_sim::link::{Captured, Faults, Faulty, LinkError, PacketLink};
use hca_sim::{Builder, Hca, Udp};
use rustix::rand::{GetRandomFlags, getrandom};
use verbs_core::sync::Arc;
use verbs_core::{Device, Error, Gid, Psn};

use crate::address::same_family;
use crate::capture::CaptureFile;
use crate::net::sends_from;

pub(crate) use self::args::{NicName, WireArgs};
pub(crate) use self::nic::NicNetwork;

/// The only port of a software HCA.
pub(crate) const PORT: u8 = 1;

/// Addresses of 127.0.0.0/8 that are tried for a program which talks to another on the same host, from
/// 127.0.0.2 on: as many such programs can run at a time. 127.0.0.1 is left to servers.
const LOOPBACK_ADDRESSES_MAX: u16 = 1022;

/// Opens devices on a network.
pub(crate) trait Network: Sync {
    /// Puts an HCA on these addresses of this host; the index of each is its GID index.
    ///
    /// # Errors
    /// [`WireError::InUse`] if another program has one of the addresses.
    fn attach(&self, addresses: &[IpAddr]) -> Result<Wire, WireError>;

    /// Puts an HCA on all addresses of this host's interfaces.
    fn attach_all(&self) -> Result<Wire, WireError>;
}

/// RoCEv2 over UDP sockets, with what the options put around them.
#[derive(Debug)]
pub(crate) struct Roce<'a> {
    args: &'a WireArgs,
}

impl<'a> Roce<'a> {
    pub(crate) fn new(args: &'a WireArgs) -> Self {
        Self { args }
    }

    /// Who names a NIC does not get a software HCA.
    fn check_device(&self) -> Result<(), WireError> {
        match self.args.device {
            Some(_) => Err(WireError::NeedsManager),
            None => Ok(()),
        }
    }

    /// Puts the faults around a link that were asked for.
    fn over(&self, link: impl PacketLink + 'static) -> Builder {
        let Some(loss) = self.args.loss else {
            return Hca::over(link);
        };
        let faults = Faults {
            loss,
            ..Faults::NONE
        };
        Hca::over(Faulty::new(link, self.args.seed).receiving(faults))
    }

    /// Puts a capture around a link. It sees what the network carried, faults come after.
    fn capture(&self, link: Udp, path: &Path) -> Result<(Builder, CaptureFile), WireError> {
        let failed = |error| WireError::Capture {
            path: path.into(),
            error,
        };
        let file = CaptureFile::create(path).map_err(failed)?;
        let pcap = PcapWriter::new(file.clone(), LinkType::RawIp).map_err(failed)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        // A clock before 1970 has times that no capture can say.
        let epoch = now.unwrap_or_default();
        let link = Captured::new(link, pcap, Clock::wall(), epoch);
        Ok((self.over(link), file))
    }
}

impl Network for Roce<'_> {
    fn attach(&self, addresses: &[IpAddr]) -> Result<Wire, WireError> {
        self.check_device()?;
        let link = Udp::bind(addresses).map_err(refused)?;
        self.wire(link, addresses)
    }

    fn attach_all(&self) -> Result<Wire, WireError> {
        self.check_device()?;
        let link = Udp::bind_interfaces().map_err(refused)?;
        self.wire(link, &[])
    }
}

fn refused(error: LinkError) -> WireError {
    match error {
        LinkError::InUse { .. } => WireError::InUse(error),
        error => WireError::Link(error),
    }
}

impl Roce<'_> {
    fn wire(&self, link: Udp, addresses: &[IpAddr]) -> Result<Wire, WireError> {
        let (builder, capture) = match &self.args.pcap {
            Some(path) => self
                .capture(link, path)
                .map(|(builder, file)| (builder, Some((path.clone(), file))))?,
            None => (self.over(link), None),
        };
        Ok(Wire {
            opened: Opened::Software(builder.name("roce0").build()),
            addresses: addresses.to_vec(),
            capture,
        })
    }
}

/// The network that the options name: a NIC's, or the software HCA's.
pub(crate) fn network(args: &WireArgs) -> Box<dyn Network + '_> {
    match NicName::wanted(args.device.as_ref()) {
        Some(name) => Box::new(NicNetwork::new(name, &args.bind)),
        None => Box::new(Roce::new(args)),
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
    capture: Option<(PathBuf, CaptureFile)>,
}

/// An HCA could not be put on a network. One sentence without its full stop.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    /// One host, one program per address.
    #[error("{0} (--bind names addresses)")]
    InUse(LinkError),
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
    /// Connections are made with messages that no NIC lets a program send.
    #[error(
        "--device works with copy, serve, pingpong and devinfo; this command connects by messages of the connection \
         manager, which a NIC does not let programs send"
    )]
    NeedsManager,
    /// Anything else.
    #[error(transparent)]
    Link(LinkError),
    /// The capture cannot be written.
    #[error("cannot write the capture {}: {error}", path.display())]
    Capture { path: PathBuf, error: io::Error },
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
        let on_this_host = local == peer || peer.is_loopback();
        match (local, on_this_host) {
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

    /// Several programs may look for an address at the same time: whoever finds one taken tries the
    /// next.
    fn open_on_loopback(network: &dyn Network, peer: IpAddr) -> Result<Self, WireError> {
        let others = (0..LOOPBACK_ADDRESSES_MAX).map(loopback_address);
        for address in others.filter(|&address| address != peer) {
            match network.attach(&[address]) {
                Err(WireError::InUse(_)) => {}
                result => return result,
            }
        }
        Err(WireError::NoneFree {
            first: loopback_address(0),
            last: loopback_address(LOOPBACK_ADDRESSES_MAX - 1),
        })
    }

    /// Opens a device on the HCA. Devices on one HCA share its addresses and nothing else.
    pub(crate) async fn device(&self) -> Result<Device, Error> {
        match &self.opened {
            Opened::Software(hca) => hca.open().await,
            Opened::Nic(nic) => Device::open(Arc::clone(nic) as Arc<_>).await,
        }
    }

    /// Ends the capture, if there is one: what was on the wire so far is in the file, or it is said why
    /// not.
    pub(crate) fn finish_capture(&self) -> Result<(), WireError> {
        let Some((path, file)) = &self.capture else {
            return Ok(());
        };
        let path = path.clone();
        file.finish()
            .map_err(|error| WireError::Capture { path, error })
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

/// The addresses of 127.0.0.0/8 in turn, from 127.0.0.2 on.
fn loopback_address(index: u16) -> IpAddr {
    let [high, low] = (index + 2).to_be_bytes();
    Ipv4Addr::new(127, 0, high, low).into()
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

    use super::stand_in::LoopbackNetwork;
    use super::*;

    /// Goal: programs on one host find addresses without being told, and leave the server its own.
    #[test]
    fn programs_on_one_host_take_turns_at_loopback_addresses() {
        let network = LoopbackNetwork::default();
        let [one, other] = ["127.0.0.1", "10.0.0.9"].map(|text| text.parse().unwrap());
        for _ in 0..LOOPBACK_ADDRESSES_MAX {
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
    /// threads at once; nobody takes the peer's.
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
