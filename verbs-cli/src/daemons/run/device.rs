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

    /// What programs find of it below /sys.
    pub(super) fn shown(device: Option<&Self>) -> Shown {
        match device {
            None | Some(Self::Roce(_)) => Shown {
                name: "roce0",
                node_type: "1: CA\n",
                link_layer: "Ethernet\n",
                gid_type: "RoCE v2\n",
            },
            Some(Self::Iwarp(_)) => Shown {
                name: "iwarp0",
                node_type: "4: RNIC\n",
                link_layer: "Ethernet\n",
                gid_type: "IB/RoCE v1\n",
            },
            Some(Self::Subnet(_)) => Shown {
                name: "ib0",
                node_type: "1: CA\n",
                link_layer: "InfiniBand\n",
                gid_type: "IB/RoCE v1\n",
            },
        }
    }
}

/// Contents of files that differ by the kind of network.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) name: &'static str,
    pub(super) node_type: &'static str,
    pub(super) link_layer: &'static str,
    pub(super) gid_type: &'static str,
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
