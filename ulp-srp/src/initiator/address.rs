//! The target of a login, and the route to it.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use verbs_cm::Route;
use verbs_cm::wire::ServiceId;
use verbs_core::Guid;

use crate::initiator::error::Error;
use crate::iu::PortId;

/// A port of a target.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The port's name. Targets refuse logins that ask for another one.
    pub port: PortId,
    /// How it is reached.
    pub way: TargetWay,
}

/// How a port of a target is reached.
#[derive(Clone, Debug, PartialEq)]
pub enum TargetWay {
    /// By the RDMA connection manager, at an IP address.
    Address(SocketAddr),
    /// By the InfiniBand connection manager, at a service of an I/O controller.
    Service {
        /// The service.
        service: ServiceId,
        /// The route to it.
        route: Route,
        /// The controller is of revision 10 (I/O class 0xff00), where the parts of names have another order.
        is_revision_10: bool,
    },
}

impl Target {
    /// A target at an IP address.
    pub const fn at(addr: SocketAddr, port: PortId) -> Self {
        Self {
            port,
            way: TargetWay::Address(addr),
        }
    }
}

/// Reads `10.0.0.2:5555`, for a target whose name is all zeros, or the login string of Linux' tools:
/// `id_ext=505400fffe770002,ioc_guid=505400fffe770002,dest=10.0.0.2:5555`. Other keys in it are ignored.
impl FromStr for Target {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || Error::NoTarget(text.to_owned());
        if let Ok(addr) = text.parse() {
            return Ok(Self::at(addr, PortId::default()));
        }
        let (mut extension, mut guid, mut dest) = (None, None, None);
        for part in text.split(',') {
            let (key, value) = part.trim().split_once('=').ok_or_else(wrong)?;
            let number = || u64::from_str_radix(value.trim_start_matches("0x"), 16);
            match key {
                "id_ext" => extension = Some(number().map_err(|_| wrong())?),
                "ioc_guid" => guid = Some(number().map_err(|_| wrong())?),
                "dest" => dest = Some(value.parse().map_err(|_| wrong())?),
                _ => {}
            }
        }
        let (Some(extension), Some(guid), Some(dest)) = (extension, guid, dest) else {
            return Err(wrong());
        };
        let guid = Guid(guid);
        Ok(Self::at(dest, PortId { extension, guid }))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.way {
            TargetWay::Address(addr) => write!(f, "{addr}"),
            TargetWay::Service { service, route, .. } => {
                write!(f, "service {:#018x} at {}", service.0, route.remote_gid)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_from_addresses_and_login_strings() {
        let plain: Target = "[fd77::2]:5555".parse().unwrap();
        assert_eq!(plain.port, PortId::default());
        assert_eq!(plain.to_string(), "[fd77::2]:5555");
        let login =
            "id_ext=505400fffe770002,ioc_guid=505400fffe770003,dest=10.77.0.2:5555,queue_size=16";
        let login: Target = login.parse().unwrap();
        assert_eq!(login.port.to_string(), "505400fffe770002505400fffe770003");
        assert_eq!(
            login.way,
            TargetWay::Address("10.77.0.2:5555".parse().unwrap())
        );
        for wrong in [
            "",
            "10.0.0.2",
            "id_ext=1,dest=10.0.0.2:1",
            "id_ext=x,ioc_guid=1,dest=10.0.0.2:1",
        ] {
            assert!(wrong.parse::<Target>().is_err(), "{wrong}");
        }
    }
}
