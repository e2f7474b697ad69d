//! Arguments of every command that puts a device on a network.

use std::env;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use hca_rdma::{Nic, OpenError, RdmaCore};
use hca_sim::link::PerMille;
use verbs_core::sync::Arc;

use super::congestion::Congestion;

/// An RDMA NIC, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NicName(pub(crate) String);

impl FromStr for NicName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix("rdma:") {
            Some(name) if !name.is_empty() => Ok(Self(name.into())),
            _ => Err("a NIC is named rdma:NAME, such as rdma:mlx5_0; `ibv_devices` lists names"),
        }
    }
}

impl NicName {
    /// Opens it.
    pub(crate) fn open(&self) -> Result<Arc<Nic>, OpenError> {
        RdmaCore::load()?.open(&self.0)
    }

    /// The one that was named, or that the environment names. For C programs the variable may have an address.
    pub(crate) fn wanted(named: Option<&Self>) -> Option<Self> {
        let variable = || env::var("VERBS_DEVICE").ok()?.parse().ok();
        named.cloned().or_else(variable)
    }
}

/// What carries the messages of the software HCA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Transport {
    /// RoCEv2: packets over UDP.
    #[default]
    Roce,
    /// iWARP: streams over TCP.
    Iwarp,
}

/// How a command gets to a network.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct WireArgs {
    /// An RDMA NIC of this host instead of the software HCA, through the system's rdma-core: rdma:NAME, such as
    /// rdma:mlx5_0. VERBS_DEVICE names one as well
    #[arg(long, value_name = "rdma:NAME", conflicts_with_all = ["pcap", "loss", "dcqcn"])]
    pub(crate) device: Option<NicName>,
    /// What carries messages: roce, packets over UDP; or iwarp, streams over TCP
    #[arg(
        long,
        value_enum,
        default_value_t,
        value_name = "TRANSPORT",
        conflicts_with = "device"
    )]
    pub(crate) transport: Transport,
    /// An address of this host to have on the wire, its index is its GID index; may be repeated.
    /// Default: when connecting, the one that the system would send from (or a free one of
    /// 127.0.0.0/8 towards a program on this host that has it); when serving, the one that the
    /// client connected to
    #[arg(long, value_name = "ADDR")]
    pub(crate) bind: Vec<IpAddr>,
    /// Write all packets to a file for Wireshark, from their IP headers on (link type 101, raw IP: tools
    /// that expect Ethernet headers find no packets in it)
    #[arg(long, value_name = "FILE")]
    pub(crate) pcap: Option<PathBuf>,
    /// Lose that share of the packets that come: 2%, 0.2%, or a number of thousandths
    #[arg(long, value_name = "SHARE")]
    pub(crate) loss: Option<PerMille>,
    /// Which ones: the same number draws the same places
    #[arg(long, value_name = "N", default_value_t = 0, requires = "loss")]
    pub(crate) seed: u64,
    /// How connections react to congestion notifications: off; or parameters of DCQCN to set, such as
    /// line-rate=1gbit,ai-rate=1mbit. There are line-rate, min-rate, ai-rate, hai-rate (kbit, mbit, gbit), threshold, time-reset,
    /// alpha-period, cut-period (us, ms), byte-reset (k, m, g) and g-shift. Default: those of the paper, at 10 Gbit/s
    #[arg(long, value_name = "off|NAME=VALUE,..")]
    pub(crate) dcqcn: Option<Congestion>,
    /// With --transport iwarp: ask the port mapper of the peer's host before connecting, and answer those of peers when serving
    /// (UDP port 3935). RNICs of Linux whose TCP is their own are found by theirs, iwpmd
    #[arg(long)]
    pub(crate) port_mapper: bool,
}

impl WireArgs {
    /// One of the options that were given, if any.
    pub(crate) fn given(&self) -> Option<&'static str> {
        match self {
            Self {
                device: Some(_), ..
            } => Some("--device"),
            Self {
                transport: Transport::Iwarp,
                ..
            } => Some("--transport"),
            Self { bind, .. } if !bind.is_empty() => Some("--bind"),
            Self { pcap: Some(_), .. } => Some("--pcap"),
            Self { loss: Some(_), .. } => Some("--loss"),
            Self { dcqcn: Some(_), .. } => Some("--dcqcn"),
            Self {
                port_mapper: true, ..
            } => Some("--port-mapper"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nic_is_named_with_its_kind() {
        assert_eq!("rdma:rxe0".parse(), Ok(NicName("rxe0".into())));
        for wrong in ["rxe0", "rdma:", "10.0.0.1", "RDMA:rxe0"] {
            let error = wrong.parse::<NicName>().expect_err(wrong);
            assert!(error.contains("rdma:NAME"), "{error}");
        }
        let named = NicName("mlx5_0".into());
        assert_eq!(NicName::wanted(Some(&named)), Some(named));
    }
}
