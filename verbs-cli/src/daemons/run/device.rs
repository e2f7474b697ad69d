//! The device that a program gets, as the library reads it from `VERBS_DEVICE`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Where the device is: an address of this host for RoCE or iWARP, or a node of a hosted subnet.
#[derive(Clone, Debug)]
pub(super) enum Device {
    Roce(Address),
    /// An address that other programs may have too; without one, the library's choice.
    Iwarp(Option<Address>),
    /// A node, and its port if one is named.
    Subnet(String),
}

/// An address of this host, as the user has written it: one of a link may name its interface, as `fe80::1%eth0`.
#[derive(Clone, Debug)]
pub(super) struct Address {
    text: String,
    pub(super) ip: IpAddr,
}

impl Address {
    fn of(text: &str) -> Option<Self> {
        let (address, interface) = match text.split_once('%') {
            None => (text, None),
            Some((address, interface)) => (address, Some(interface)),
        };
        let ip = address.parse().ok()?;
        let is_right = match (ip, interface) {
            (_, None) => true,
            (IpAddr::V6(address), Some(name)) => {
                address.is_unicast_link_local() && !name.is_empty()
            }
            (IpAddr::V4(_), Some(_)) => false,
        };
        let text = text.to_owned();
        is_right.then_some(Self { text, ip })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Device {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WANTED: &str = "want an address of this host, iwarp:ADDR, or subnet:NODE";
        let address = |text: &str| Address::of(text).ok_or(WANTED);
        match text.split_once(':') {
            None if text == "iwarp" => Ok(Self::Iwarp(None)),
            Some(("roce", rest)) => address(rest).map(Self::Roce),
            Some(("iwarp", rest)) => address(rest).map(|address| Self::Iwarp(Some(address))),
            Some(("subnet", "")) => Err(WANTED),
            Some(("subnet", node)) => Ok(Self::Subnet(node.to_owned())),
            // An address of IPv6 has colons as well.
            _ => address(text).map(Self::Roce),
        }
    }
}

impl Device {
    /// The value of `VERBS_DEVICE`.
    pub(super) fn variable(&self) -> String {
        match self {
            Self::Roce(address) => address.to_string(),
            Self::Iwarp(None) => "iwarp".into(),
            Self::Iwarp(Some(address)) => format!("iwarp:{address}"),
            Self::Subnet(node) => format!("subnet:{node}"),
        }
    }

    /// What programs find of it below /sys; of one that is not named, if programs share an address.
    pub(super) fn shown(device: Option<&Self>, is_shared: bool) -> Shown {
        let roce = Shown {
            name: "roce0",
            node_type: "1: CA",
            link_layer: "Ethernet",
            gid_type: "RoCE v2",
            address: None,
        };
        match device {
            // The daemon's, or the first one that the library tries.
            None => Shown {
                address: Some([127, 0, 0, if is_shared { 1 } else { 2 }].into()),
                ..roce
            },
            Some(Self::Roce(address)) => Shown {
                address: Some(address.ip),
                ..roce
            },
            Some(Self::Iwarp(address)) => Shown {
                name: "iwarp0",
                node_type: "4: RNIC",
                gid_type: "IB/RoCE v1",
                address: (address.as_ref()).map_or(Some([127, 0, 0, 1].into()), |at| Some(at.ip)),
                ..roce
            },
            Some(Self::Subnet(_)) => Shown {
                name: "ib0",
                link_layer: "InfiniBand",
                gid_type: "IB/RoCE v1",
                ..roce
            },
        }
    }
}

/// What files of the device say before it is made. The library replaces them by what its calls say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    pub(super) name: &'static str,
    pub(super) node_type: &'static str,
    pub(super) link_layer: &'static str,
    pub(super) gid_type: &'static str,
    /// The address that the device will probably have.
    pub(super) address: Option<IpAddr>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_the_library_reads() {
        for text in [
            "10.0.0.1",
            "fd00::1",
            "fe80::1%eth0",
            "iwarp",
            "iwarp:10.0.0.1",
            "subnet:HcaA:2",
        ] {
            assert_eq!(text.parse::<Device>().expect("a device").variable(), text);
        }
        let device = "roce:10.0.0.1".parse::<Device>().expect("a device");
        assert_eq!(device.variable(), "10.0.0.1");
        for wrong in [
            "",
            "here",
            "iwarp:",
            "iwarp:x",
            "subnet:",
            "rdma:mlx5_0",
            "fe80::1%",
            "fd00::1%eth0",
            "10.0.0.1%eth0",
        ] {
            assert!(wrong.parse::<Device>().is_err(), "{wrong}");
        }
    }
}
