//! Where the device is: from the environment, and the HCA made for it.

use std::ffi::CString;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV6, UdpSocket};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hca_sim::clock::Clock;
use hca_sim::link::fabric::socket::default_path;
use hca_sim::link::fabric::{AttachError, RemotePort};
use hca_sim::link::host::{self, HostError};
use hca_sim::link::pcap::{LinkType, PcapNgWriter};
use hca_sim::link::published::Published;
use hca_sim::link::{Captured, Faults, Faulty, LinkError, PacketLink, PerMille, Remarks};
use hca_sim::{Builder, Hca, Tcp, Udp};
use verbs_core::filter::Trace;
use verbs_core::process::variable;
use verbs_core::sync::Arc;
use verbs_core::{Device, Error, PortState};

use super::{PORT, Preferred};
use crate::call::tell;
use crate::rdmacm;

/// An HCA, and its clock.
#[derive(Clone)]
pub(crate) struct Made {
    pub(crate) hca: Arc<Hca>,
    pub(crate) clock: Clock,
    pub(crate) network: Network,
    /// How long peers of connections by address may be silent, if that is set.
    pub(crate) keepalive: Option<Duration>,
    /// What `verbs connections` asks.
    pub(super) published: Option<Arc<Published>>,
}

impl Made {
    /// A device on the HCA. Each verb is told of, if the user wants that.
    pub(crate) fn opened(&self) -> Result<Device, Error> {
        if !tell::wants_verbs() {
            return self.hca.open().wait();
        }
        let traced = Trace::new(Arc::clone(&self.hca) as Arc<_>);
        Device::open(Arc::new(traced)).wait()
    }
}

/// The kind of network that the device is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    Roce,
    /// TCP.
    Iwarp,
    /// A subnet that `verbs subnet` hosts.
    InfiniBand,
}

impl Network {
    /// The name of the device.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Roce => "roce0",
            Self::Iwarp => "iwarp0",
            Self::InfiniBand => "ib0",
        }
    }
}

/// The port of a node that has several, if none is named.
const FIRST_PORT: u8 = 1;

/// How long a subnet's manager may take to configure a port.
const MANAGER_WAIT: Duration = Duration::from_secs(5);

/// How many seconds peers of connections by address may be silent.
const KEEPALIVE: &str = "VERBS_KEEPALIVE";

/// Whether ports of peers are asked for at their port mappers.
const PORT_MAPPER: &str = "VERBS_PORT_MAPPER";

/// The environment's settings for the device.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    at: At,
    /// How many packets of a thousand are lost on arrival, and the seed that selects them.
    loss: Option<u16>,
    seed: u64,
    pcap: Option<PathBuf>,
    /// How long peers of connections by address may be silent.
    keepalive: Option<Duration>,
    port_mapper: bool,
}

/// Where the device is.
#[derive(Debug, PartialEq, Eq)]
enum At {
    /// RoCE v2 at that address; at a free one of 127.0.0.0/8 if none is named.
    Roce(Option<IpAddr>),
    /// iWARP at that address; at 127.0.0.1, which programs share, if none is named.
    Iwarp(Option<IpAddr>),
    /// That port of a node of the hosted subnet.
    Node(String, u8),
    /// Within this process: queue pairs of the device reach each other, and nothing else.
    Loopback,
}

impl Default for At {
    fn default() -> Self {
        Self::Roce(None)
    }
}

impl FromStr for At {
    type Err = ();

    fn from_str(value: &str) -> Result<Self, ()> {
        let address = |text: &str| address_of(text).map(Some).ok_or(());
        if let Some(text) = value.strip_prefix("roce:") {
            return address(text).map(Self::Roce);
        }
        match value {
            "iwarp" => return Ok(Self::Iwarp(None)),
            "loopback" => return Ok(Self::Loopback),
            _ => {}
        }
        if let Some(text) = value.strip_prefix("iwarp:") {
            return address(text).map(Self::Iwarp);
        }
        let Some(node) = value.strip_prefix("subnet:") else {
            return address(value).map(Self::Roce);
        };
        let (name, port) = match node.rsplit_once(':') {
            Some((name, port)) => (name, port.parse().map_err(|_| ())?),
            None => (node, FIRST_PORT),
        };
        let is_named = !name.is_empty() && port != 0;
        is_named
            .then(|| Self::Node(name.to_owned(), port))
            .ok_or(())
    }
}

/// An address. One of a link may name its interface, as `fe80::1%eth0`, which has to have the address.
fn address_of(text: &str) -> Option<IpAddr> {
    let Some((text, interface)) = text.split_once('%') else {
        return text.parse().ok();
    };
    let address: Ipv6Addr = text.parse().ok()?;
    let name = CString::new(interface).ok()?;
    // SAFETY: a C string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    let there = SocketAddrV6::new(address, 0, 0, index);
    let has_it = address.is_unicast_link_local() && UdpSocket::bind(there).is_ok();
    (index != 0 && has_it).then_some(address.into())
}

/// The device cannot be made. One sentence without its full stop.
#[derive(Debug)]
pub(super) enum PlaceError {
    Variable {
        name: &'static str,
        value: String,
        wanted: &'static str,
    },
    Link(LinkError),
    Host(HostError),
    Subnet(AttachError),
    Tcp(std::io::Error),
    /// That variable is for RoCE alone.
    NotRoce(&'static str),
    /// That variable is for iWARP alone.
    NotIwarp(&'static str),
    /// That variable is about packets, which that network has not.
    NoPackets(&'static str, &'static str),
    Capture(PathBuf, std::io::Error),
}

impl std::fmt::Display for PlaceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Variable {
                name,
                value,
                wanted,
            } => write!(f, "{name}={value:?} is not {wanted}; there is no device"),
            Self::Link(error @ LinkError::InUse { .. }) => write!(
                f,
                "there is no device: {error}; `verbs host` shares an address among programs"
            ),
            Self::Link(error) => write!(f, "there is no device: {error}"),
            Self::Host(error) => write!(f, "there is no device: {error}"),
            Self::Subnet(error) => write!(f, "there is no device: {error}"),
            Self::Tcp(error) => write!(f, "there is no device: {error}"),
            Self::NotRoce(name) => write!(
                f,
                "{name} is for devices for RoCE, and VERBS_DEVICE names another one; there is no device"
            ),
            Self::NotIwarp(name) => write!(
                f,
                "{name} is for devices for iWARP, such as VERBS_DEVICE=iwarp; there is no device"
            ),
            Self::NoPackets(name, network) => write!(
                f,
                "{name} is about packets, and {network} has none; there is no device"
            ),
            Self::Capture(path, error) => {
                write!(f, "cannot write the capture {}: {error}", path.display())
            }
        }
    }
}

impl PlaceError {
    pub(super) fn errno(&self) -> i32 {
        match self {
            Self::Variable { .. } | Self::NotRoce(_) | Self::NotIwarp(_) | Self::NoPackets(..) => {
                libc::EINVAL
            }
            Self::Tcp(error) => error.raw_os_error().unwrap_or(libc::EIO),
            Self::Link(LinkError::InUse { .. } | LinkError::NoneFree) => libc::EADDRINUSE,
            Self::Link(_) | Self::Host(_) | Self::Subnet(_) => libc::ENODEV,
            Self::Capture(_, error) => error.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

impl Place {
    pub(super) fn of_environment() -> Result<Self, PlaceError> {
        let text = |name| variable(name)?.into_string().ok();
        Self::of(|name| text(name).filter(|value| !value.is_empty()))
    }

    fn of(variable: impl Fn(&'static str) -> Option<String>) -> Result<Self, PlaceError> {
        fn parsed<T: FromStr>(
            name: &'static str,
            value: Option<String>,
            wanted: &'static str,
        ) -> Result<Option<T>, PlaceError> {
            let Some(value) = value else { return Ok(None) };
            match value.parse() {
                Ok(parsed) => Ok(Some(parsed)),
                Err(_) => Err(PlaceError::Variable {
                    name,
                    value,
                    wanted,
                }),
            }
        }
        let name = "VERBS_DEVICE";
        let wanted =
            "an address of this host, such as 127.0.0.2, iwarp:ADDRESS, subnet:NODE, or loopback";
        let at = parsed(name, variable(name), wanted)?.unwrap_or_default();
        let name = "VERBS_LOSS";
        let wanted = "a share such as 2%, or a number of thousandths from 0 to 1000";
        let loss = parsed::<PerMille>(name, variable(name), wanted)?.map(PerMille::get);
        let name = "VERBS_SEED";
        let seed = parsed(name, variable(name), "a number")?.unwrap_or(0);
        let pcap = variable("VERBS_PCAP").map(PathBuf::from);
        let wanted = "a number of seconds from 1 to 86400";
        let (name, value) = (KEEPALIVE, variable(KEEPALIVE));
        let seconds = parsed::<u64>(name, value.clone(), wanted)?;
        if let (Some(value), Some(0 | 86_401..)) = (value, seconds) {
            return Err(PlaceError::Variable {
                name,
                value,
                wanted,
            });
        }
        Ok(Self {
            at,
            loss,
            seed,
            pcap,
            keepalive: seconds.map(Duration::from_secs),
            port_mapper: variable(PORT_MAPPER).is_some(),
        })
    }

    /// The HCA; at `preferred`, if the environment names no address and it is free.
    pub(super) fn hca(self, preferred: Option<Preferred>) -> Result<Made, PlaceError> {
        if self.keepalive.is_some() && !matches!(self.at, At::Roce(_)) {
            return Err(PlaceError::NotRoce(KEEPALIVE));
        }
        if self.port_mapper && !matches!(self.at, At::Iwarp(_)) {
            return Err(PlaceError::NotIwarp(PORT_MAPPER));
        }
        let keepalive = self.keepalive;
        let made = self.made(preferred)?;
        Ok(Made {
            keepalive,
            published: rdmacm::publish(&made.hca),
            ..made
        })
    }

    fn made(self, preferred: Option<Preferred>) -> Result<Made, PlaceError> {
        match &self.at {
            At::Roce(address) => self.roce(*address, preferred),
            At::Iwarp(address) => self.iwarp(address.or(preferred.map(Preferred::address))),
            At::Loopback => {
                self.without_packets("the loopback link")?;
                Ok(built(Hca::loopback(), Clock::wall(), Network::InfiniBand))
            }
            At::Node(node, port) => {
                let link = RemotePort::attach(&default_path(), node, *port);
                let link = link.map_err(PlaceError::Subnet)?;
                let made = self.over(link, Network::InfiniBand)?;
                wait_for_manager(&made);
                Ok(made)
            }
        }
    }

    /// At the host's daemon, if that has the address which the environment or the program names.
    fn roce(
        &self,
        address: Option<IpAddr>,
        preferred: Option<Preferred>,
    ) -> Result<Made, PlaceError> {
        let named = match (address, preferred) {
            (None, Some(Preferred::Only(named))) => Some(named),
            (address, _) => address,
        };
        if let Some(link) = host::join(named.as_slice()).map_err(PlaceError::Host)? {
            return self.over(link, Network::Roce);
        }
        let link = match address {
            Some(address) => Udp::bind(&[address]).map_err(PlaceError::Link)?,
            None => match preferred.map(|preferred| Udp::bind(&[preferred.address()])) {
                Some(Ok(link)) => link,
                _ => Udp::bind_loopback().map_err(PlaceError::Link)?,
            },
        };
        self.over(link, Network::Roce)
    }

    fn iwarp(&self, address: Option<IpAddr>) -> Result<Made, PlaceError> {
        self.without_packets("iWARP")?;
        let address = address.unwrap_or(Ipv4Addr::LOCALHOST.into());
        let mut link = Tcp::on(&[address]).map_err(PlaceError::Tcp)?;
        if self.port_mapper {
            link = link.with_port_mapper();
        }
        let builder = Hca::over_streams(link);
        Ok(built(builder, Clock::wall(), Network::Iwarp))
    }

    /// Refuses what is done with packets.
    fn without_packets(&self, network: &'static str) -> Result<(), PlaceError> {
        let given = [
            (self.loss.is_some(), "VERBS_LOSS"),
            (self.pcap.is_some(), "VERBS_PCAP"),
        ];
        match given.into_iter().find(|(is_given, _)| *is_given) {
            Some((_, name)) => Err(PlaceError::NoPackets(name, network)),
            None => Ok(()),
        }
    }

    fn over(&self, link: impl PacketLink + 'static, network: Network) -> Result<Made, PlaceError> {
        let clock = Clock::wall();
        let builder = match &self.pcap {
            None => self.faulty(link, None),
            Some(path) => {
                let failed = |error| PlaceError::Capture(path.clone(), error);
                let link_type = match network {
                    Network::InfiniBand => LinkType::InfiniBand,
                    Network::Roce | Network::Iwarp => LinkType::RawIp,
                };
                // Each packet is written at once: programs end without informing their libraries.
                let mut options = File::options();
                // Others have no business with what is transferred.
                let options = options.write(true).create(true).truncate(true).mode(0o600);
                let file = options.open(path).map_err(failed)?;
                let pcap = PcapNgWriter::with_interface(file, network.name(), link_type);
                let pcap = pcap.map_err(failed)?;
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                let epoch = now.unwrap_or_default();
                let link = Captured::new(link, pcap, clock.clone(), epoch);
                let remarks = link.remarks();
                self.faulty(link, Some(remarks))
            }
        };
        Ok(built(builder, clock, network))
    }

    /// Loses packets as asked for, and tells a capture which.
    fn faulty(&self, link: impl PacketLink + 'static, remarks: Option<Remarks>) -> Builder {
        let Some(loss) = self.loss else {
            return Hca::over(link);
        };
        let faults = Faults {
            loss,
            ..Faults::NONE
        };
        let faulty = Faulty::new(link, self.seed).receiving(faults);
        Hca::over(faulty.telling(remarks))
    }
}

fn built(builder: Builder, clock: Clock, network: Network) -> Made {
    let hca = builder.name(network.name()).clock(clock.clone()).build();
    Made {
        hca,
        clock,
        network,
        keepalive: None,
        published: None,
    }
}

/// Waits until the subnet manager has configured the port, whose link has just come up. Most programs look at its state
/// once. A manager takes milliseconds where it gets a processor; a subnet may have none, so the wait ends.
fn wait_for_manager(made: &Made) {
    let begun = Instant::now();
    let Ok(device) = made.hca.open().wait() else {
        return;
    };
    let is_active = || {
        let port = device.query_port(PORT).wait();
        port.is_ok_and(|port| port.state == PortState::Active)
    };
    while !is_active() && begun.elapsed() < MANAGER_WAIT {
        std::thread::sleep(Duration::from_millis(2));
    }
    let _ = device.close().wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&'static str, &str)]) -> Result<Place, String> {
        let found = |name| pairs.iter().find(|(other, _)| *other == name);
        let place = Place::of(|name| found(name).map(|(_, value)| (*value).to_owned()));
        place.map_err(|error| error.to_string())
    }

    #[test]
    fn the_environment_says_where_the_device_is() {
        assert_eq!(of(&[]), Ok(Place::default()));
        let place = of(&[
            ("VERBS_DEVICE", "127.0.0.9"),
            ("VERBS_LOSS", "10"),
            ("VERBS_SEED", "7"),
            ("VERBS_PCAP", "x.pcap"),
            ("VERBS_KEEPALIVE", "10"),
        ]);
        assert_eq!(
            place,
            Ok(Place {
                at: At::Roce(Some(Ipv4Addr::new(127, 0, 0, 9).into())),
                loss: Some(10),
                seed: 7,
                pcap: Some("x.pcap".into()),
                keepalive: Some(Duration::from_secs(10)),
                port_mapper: false,
            })
        );
    }

    #[test]
    fn it_names_the_kind_of_network() {
        let at = |value| of(&[("VERBS_DEVICE", value)]).expect("it is right").at;
        let here = Ipv4Addr::new(10, 0, 0, 1).into();
        assert_eq!(at("roce:10.0.0.1"), At::Roce(Some(here)));
        assert_eq!(at("iwarp"), At::Iwarp(None));
        assert_eq!(at("iwarp:10.0.0.1"), At::Iwarp(Some(here)));
        assert_eq!(at("loopback"), At::Loopback);
        assert_eq!(at("subnet:HcaA"), At::Node("HcaA".into(), 1));
        assert_eq!(at("subnet:HcaA:2"), At::Node("HcaA".into(), 2));
        // An address that no interface has, and interfaces of addresses that need none.
        for wrong in [
            "fe80::1%lo",
            "fe80::1%nowhere",
            "fe80::1%",
            "::1%lo",
            "127.0.0.1%lo",
        ] {
            assert!(of(&[("VERBS_DEVICE", wrong)]).is_err(), "{wrong}");
        }
        for wrong in ["iwarp:", "subnet:", "subnet:HcaA:0", "subnet:HcaA:x", "ib"] {
            assert!(of(&[("VERBS_DEVICE", wrong)]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_network_without_packets_loses_and_records_none() {
        for (device, variable) in [
            ("iwarp", "VERBS_LOSS"),
            ("loopback", "VERBS_PCAP"),
            ("subnet:HcaA", "VERBS_KEEPALIVE"),
            ("127.0.0.1", "VERBS_PORT_MAPPER"),
        ] {
            let place = of(&[("VERBS_DEVICE", device), (variable, "1")]).expect("it is right");
            let refused = place.hca(None).map(drop).expect_err("it is refused");
            assert_eq!(refused.errno(), libc::EINVAL);
            assert!(refused.to_string().starts_with(variable), "{refused}");
        }
    }

    #[test]
    fn what_it_says_wrong_is_said() {
        let wrong = [
            ("VERBS_DEVICE", "here", "an address of this host"),
            ("VERBS_LOSS", "1001", "a share such as 2%"),
            ("VERBS_SEED", "-1", "a number"),
            (
                "VERBS_KEEPALIVE",
                "0",
                "a number of seconds from 1 to 86400",
            ),
            ("VERBS_KEEPALIVE", "1h", "a number of seconds"),
        ];
        for (name, value, wanted) in wrong {
            let text = of(&[(name, value)]).expect_err("it is wrong");
            assert!(
                text.starts_with(&format!("{name}={value:?} is not {wanted}")),
                "{text}"
            );
        }
    }
}
