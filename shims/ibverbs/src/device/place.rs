//! Where the device is: what the environment says, and the HCA made of it.

use std::env;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use hca_sim::clock::Clock;
use hca_sim::link::pcap::{LinkType, PcapWriter};
use hca_sim::link::{Captured, Faults, Faulty, LinkError, PacketLink};
use hca_sim::{Builder, Hca, Udp};
use verbs_core::sync::Arc;

/// The name of the device.
pub(super) const NAME: &str = "roce0";

/// An HCA, and its clock.
#[derive(Clone)]
pub(crate) struct Made {
    pub(crate) hca: Arc<Hca>,
    pub(crate) clock: Clock,
}

/// Addresses of 127.0.0.0/8 that are tried, from 127.0.0.2 on: 127.0.0.1 is left to programs that name it.
const LOOPBACK_ADDRESSES_MAX: u16 = 1022;

/// What the environment says of the device.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// The address that it has; a free one of 127.0.0.0/8 if none is named.
    address: Option<IpAddr>,
    /// Packets of a thousand that are lost on arrival, and which.
    loss: Option<u16>,
    seed: u64,
    pcap: Option<PathBuf>,
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
    NoneFree,
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
            Self::Link(error) => write!(f, "there is no device: {error}"),
            Self::NoneFree => write!(
                f,
                "there is no device: UDP port 4791 is taken on every address from {} to {}; VERBS_DEVICE names \
                 another address of this host",
                loopback_address(0),
                loopback_address(LOOPBACK_ADDRESSES_MAX - 1)
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
            Self::Variable { .. } => libc::EINVAL,
            Self::Link(LinkError::InUse { .. }) | Self::NoneFree => libc::EADDRINUSE,
            Self::Link(_) => libc::ENODEV,
            Self::Capture(_, error) => error.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

impl Place {
    pub(super) fn of_environment() -> Result<Self, PlaceError> {
        Self::of(|name| env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn of(variable: impl Fn(&'static str) -> Option<String>) -> Result<Self, PlaceError> {
        fn parsed<T: std::str::FromStr>(
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
        let address = parsed(
            name,
            variable(name),
            "an address of this host, such as 127.0.0.2",
        )?;
        let (name, wanted) = ("VERBS_LOSS", "a number from 0 to 1000");
        let loss = parsed(name, variable(name), wanted)?;
        if let Some(loss @ 1001..) = loss {
            let value = loss.to_string();
            return Err(PlaceError::Variable {
                name,
                value,
                wanted,
            });
        }
        let name = "VERBS_SEED";
        let seed = parsed(name, variable(name), "a number")?.unwrap_or(0);
        let pcap = variable("VERBS_PCAP").map(PathBuf::from);
        Ok(Self {
            address,
            loss,
            seed,
            pcap,
        })
    }

    /// The HCA; at `preferred`, if the environment does not say where and it is free.
    pub(super) fn hca(self, preferred: Option<IpAddr>) -> Result<Made, PlaceError> {
        let clock = Clock::wall();
        let link = match self.address {
            Some(address) => Udp::bind(&[address]).map_err(PlaceError::Link)?,
            None => match preferred.map(|address| Udp::bind(&[address])) {
                Some(Ok(link)) => link,
                _ => on_loopback()?,
            },
        };
        let builder = match &self.pcap {
            None => self.faulty(link),
            Some(path) => {
                let failed = |error| PlaceError::Capture(path.clone(), error);
                // Each packet is written at once: programs end without telling their libraries.
                let file = File::create(path).map_err(failed)?;
                let pcap = PcapWriter::new(file, LinkType::RawIp).map_err(failed)?;
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                let epoch = now.unwrap_or_default();
                self.faulty(Captured::new(link, pcap, clock.clone(), epoch))
            }
        };
        let hca = builder.name(NAME).clock(clock.clone()).build();
        Ok(Made { hca, clock })
    }

    fn faulty(&self, link: impl PacketLink + 'static) -> Builder {
        let Some(loss) = self.loss else {
            return Hca::over(link);
        };
        let faults = Faults {
            loss,
            ..Faults::NONE
        };
        Hca::over(Faulty::new(link, self.seed).receiving(faults))
    }
}

/// The first free address: several programs may look at the same time.
fn on_loopback() -> Result<Udp, PlaceError> {
    for index in 0..LOOPBACK_ADDRESSES_MAX {
        match Udp::bind(&[loopback_address(index)]) {
            Err(LinkError::InUse { .. }) => {}
            bound => return bound.map_err(PlaceError::Link),
        }
    }
    Err(PlaceError::NoneFree)
}

/// The addresses of 127.0.0.0/8 in turn, from 127.0.0.2 on.
fn loopback_address(index: u16) -> IpAddr {
    let [high, low] = (index + 2).to_be_bytes();
    Ipv4Addr::new(127, 0, high, low).into()
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
        ]);
        assert_eq!(
            place,
            Ok(Place {
                address: Some(Ipv4Addr::new(127, 0, 0, 9).into()),
                loss: Some(10),
                seed: 7,
                pcap: Some("x.pcap".into())
            })
        );
    }

    #[test]
    fn what_it_says_wrong_is_said() {
        let wrong = [
            ("VERBS_DEVICE", "here", "an address of this host"),
            ("VERBS_LOSS", "1001", "a number from 0 to 1000"),
            ("VERBS_SEED", "-1", "a number"),
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
