//! Arguments of `verbs ipoib`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use ulp_ipoib::Mode;
use verbs_core::PKey;

pub(crate) const ABOUT: &str = "\
IP over a simulated InfiniBand subnet, with interfaces of the system.

`up` puts an adapter of the subnet that `verbs subnet` hosts, an IP interface on it, and a TUN device in \
front of that, so that ping, iperf3 and ssh cross the subnet. The link is up when a subnet manager has \
brought the port up and let it into the broadcast group. It ends when it is interrupted: the subnet \
administrator hears that its groups are left, and the neighbours that its connections are ended. Needs CAP_NET_ADMIN in its network namespace, for \
the TUN device.";

pub(crate) const EXAMPLES: &str = "\
Examples, with a subnet and a manager in service:
  ip netns add a; ip netns add b
  ip netns exec a verbs ipoib up --port HcaA --address 10.0.0.1/24
  ip netns exec b verbs ipoib up --port HcaB --address 10.0.0.2/24
  ip netns exec a ping 10.0.0.2

  verbs ipoib up --port HcaA --mode cm --address 10.0.0.1/24 --address fd00::1/64
  verbs ipoib up --port HcaA --address 10.0.0.1/24 --child 0x8001=10.1.0.1/24

Environment:
  VERBS_SUBNET  the subnet's socket, unless --subnet names one

Exit codes:
  0  done
  1  the capture could not be written
  2  the arguments are wrong
  5  the subnet, the port or the TUN device could not be had";

/// `verbs ipoib`.
#[derive(Args, Debug)]
pub(crate) struct IpoibArgs {
    #[command(subcommand)]
    pub(crate) command: IpoibCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum IpoibCommand {
    /// Bring an interface up, until the program is ended
    Up(UpArgs),
    /// Carry packets between two TUN devices and nothing else: what interfaces are compared with
    #[command(hide = true)]
    Forward(ForwardArgs),
}

#[derive(Args, Debug)]
pub(crate) struct UpArgs {
    /// The socket that the subnet is hosted at
    #[arg(long, value_name = "SOCKET")]
    pub(crate) subnet: Option<PathBuf>,
    /// The node of the topology that the adapter stands at, and which of its ports
    #[arg(long, value_name = "NODE[:PORT]", value_parser = place)]
    pub(crate) port: Place,
    /// An address, with the length of its prefix; may be repeated
    #[arg(long, value_name = "ADDR/LEN", value_parser = cidr, required = true)]
    pub(crate) address: Vec<Cidr>,
    /// Datagrams, or connections to neighbours who take them (an MTU of 65520)
    #[arg(long, value_name = "MODE", default_value = "ud")]
    pub(crate) mode: ModeArg,
    /// The partition
    #[arg(long, value_name = "PKEY", value_parser = pkey, default_value = "0xffff")]
    pub(crate) pkey: PKey,
    /// One more interface of the port, in another partition; may be repeated
    #[arg(long, value_name = "PKEY=ADDR/LEN", value_parser = child)]
    pub(crate) child: Vec<Child>,
    /// Who gets packets for others than neighbours; one of each family
    #[arg(long, value_name = "ADDR")]
    pub(crate) router: Vec<IpAddr>,
    /// A multicast group to take packets of, whether a program has joined it or not; may be repeated
    #[arg(long, value_name = "ADDR")]
    pub(crate) group: Vec<IpAddr>,
    /// Name of the TUN device; children have their partition behind it
    #[arg(long, value_name = "NAME", default_value = "ib0")]
    pub(crate) name: String,
    /// Write all packets of the port to a file for Wireshark, from their local route headers on (link type 197, ERF, as ibdump writes them)
    #[arg(long, value_name = "FILE")]
    pub(crate) pcap: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct ForwardArgs {
    /// Names of the devices
    #[arg(num_args = 2, value_names = ["ONE", "OTHER"])]
    pub(crate) names: Vec<String>,
    /// Their MTU
    #[arg(long, default_value_t = 65_520)]
    pub(crate) mtu: u16,
}

/// How packets for one neighbour are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModeArg {
    /// As datagrams
    Ud,
    /// Over connections
    Cm,
}

impl From<ModeArg> for Mode {
    fn from(mode: ModeArg) -> Self {
        match mode {
            ModeArg::Ud => Self::Datagram,
            ModeArg::Cm => Self::Connected,
        }
    }
}

/// An address and the length of its prefix.
pub(crate) type Cidr = (IpAddr, u8);

/// A port of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) node: String,
    pub(crate) port: u8,
}

/// An interface in another partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Child {
    pub(crate) pkey: PKey,
    pub(crate) address: Cidr,
}

fn cidr(text: &str) -> Result<Cidr, String> {
    let wanted = "an address is ADDR/LEN, such as 10.0.0.1/24";
    let (addr, len) = text.split_once('/').ok_or(wanted)?;
    let addr: IpAddr = addr.parse().map_err(|_| wanted)?;
    let len: u8 = len.parse().map_err(|_| wanted)?;
    let most = if addr.is_ipv4() { 32 } else { 128 };
    match len <= most {
        true => Ok((addr, len)),
        false => Err(wanted.into()),
    }
}

fn pkey(text: &str) -> Result<PKey, String> {
    let wanted = "a partition is a number of 16 bits, such as 0x8001";
    let digits = text.strip_prefix("0x").ok_or(wanted)?;
    let number = u16::from_str_radix(digits, 16).map_err(|_| wanted)?;
    match number & 0x7fff {
        0 => Err(wanted.into()),
        _ => Ok(PKey(number)),
    }
}

fn child(text: &str) -> Result<Child, String> {
    let wanted = "a child is PKEY=ADDR/LEN, such as 0x8001=10.1.0.1/24";
    let (key, address) = text.split_once('=').ok_or(wanted)?;
    Ok(Child {
        pkey: pkey(key)?,
        address: cidr(address)?,
    })
}

/// `HcaA`, or `HcaA:2`.
pub(crate) fn place(text: &str) -> Result<Place, String> {
    let numbered = text.rsplit_once(':');
    let numbered = numbered.and_then(|(node, port)| Some((node, port.parse().ok()?)));
    let (node, port) = numbered.unwrap_or((text, 1));
    if node.is_empty() || port == 0 {
        return Err("a port is NODE or NODE:PORT, such as HcaA:2".into());
    }
    Ok(Place {
        node: node.to_owned(),
        port,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_is_read_or_refused() {
        let found = place("HcaA:2").expect("a port");
        assert_eq!((found.node.as_str(), found.port), ("HcaA", 2));
        assert_eq!(place("Hca A").expect("a port").port, 1);
        assert!(place("HcaA:0").is_err() && place("").is_err());
        assert_eq!(cidr("10.0.0.1/24"), Ok(([10, 0, 0, 1].into(), 24)));
        for wrong in ["10.0.0.1", "10.0.0.1/33", "x/8", "fd00::1/129"] {
            assert!(cidr(wrong).is_err(), "{wrong}");
        }
        assert_eq!(pkey("0x8001"), Ok(PKey(0x8001)));
        assert!(pkey("8001").is_err() && pkey("0x8000").is_err() && pkey("0x18001").is_err());
        let found = child("0x8001=10.1.0.1/24").expect("a child");
        assert_eq!(found.address, ([10, 1, 0, 1].into(), 24));
    }
}
