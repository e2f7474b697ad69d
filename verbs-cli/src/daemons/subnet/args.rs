//! Arguments of `verbs subnet`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};

pub(crate) const ABOUT: &str = "\
Host a simulated InfiniBand subnet: switches and adapters that a subnet manager configures.

TOPOLOGY is a file in the format of ibsim, or the output of ibnetdiscover. Programs that use libibumad \
(OpenSM, ibnetdiscover, perfquery, ...) take part unmodified when they load the libibumad.so.3 that comes \
with this program; each stands on the node that VERBS_HOST or SIM_HOST names, by default the first \
adapter. The subnet lives as long as this program.";

pub(crate) const EXAMPLES: &str = "\
Examples:
  verbs subnet net.topo                          host what the file describes
  verbs subnet --tree 1024                       host a fat tree of 128 switches and 1,024 adapters
  verbs subnet net.topo --sm                     and manage it: nothing else needed
  verbs subnet net.topo --sm --pcap net.pcapng   with all packets on all links, for Wireshark
  verbs subnet --status                          how the hosted subnet is
  verbs subnet --status --json                   the same for programs
  verbs subnet --unplug Sw1:3                    pull the cable at port 3 of Sw1
  verbs subnet --plug Sw1:3                      and put it back

Environment:
  VERBS_SUBNET  the socket, for this program and for the library; by default verbs-subnet in
                $XDG_RUNTIME_DIR, or verbs-subnet-UID in the folder for temporary files
  VERBS_HOST    names of nodes, with commas, that are the adapters of the host a program runs on

Exit codes:
  0  done
  1  a file or the socket could not be used
  2  the arguments or the topology are wrong
  5  there is no hosted subnet, or it says no";

/// `verbs subnet`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("what").required(true).args(["topology", "tree", "status", "plug", "unplug"]))]
pub(crate) struct SubnetArgs {
    /// The subnet: a file in the format of ibsim and ibnetdiscover
    #[arg(value_name = "TOPOLOGY")]
    pub(crate) topology: Option<PathBuf>,
    /// A fat tree with so many adapters: 64, 256 or 1024
    #[arg(long, value_name = "ADAPTERS")]
    pub(crate) tree: Option<usize>,
    /// Manage the subnet with the built-in manager, at the first adapter
    #[arg(long, conflicts_with_all = ["status", "plug", "unplug"])]
    pub(crate) sm: bool,
    /// Priority of the built-in manager, 0 to 15: of two managers the one with more leads
    #[arg(
        long,
        value_name = "PRIORITY",
        requires = "sm",
        default_value_t = 0,
        value_parser = clap::value_parser!(u8).range(..16)
    )]
    pub(crate) sm_priority: u8,
    /// Write all packets on all links to a file for Wireshark, each link's as those of the port that they leave; from their
    /// local route headers on (link type 197, ERF, as ibdump writes them)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["status", "plug", "unplug"])]
    pub(crate) pcap: Option<PathBuf>,
    /// The socket that the subnet is hosted at
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Say how the hosted subnet is
    #[arg(long)]
    pub(crate) status: bool,
    /// Say it as JSON
    #[arg(long, requires = "status")]
    pub(crate) json: bool,
    /// Pull the cable out of a port
    #[arg(long, value_name = "NODE:PORT", value_parser = port)]
    pub(crate) unplug: Option<PortArg>,
    /// Put the cable of a port back
    #[arg(long, value_name = "NODE:PORT", value_parser = port)]
    pub(crate) plug: Option<PortArg>,
}

/// A port of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortArg {
    pub(crate) node: String,
    pub(crate) port: u8,
}

/// `Sw1:3`: names may have colons, port numbers have none.
fn port(text: &str) -> Result<PortArg, String> {
    let wanted = "a port is NODE:PORT, such as Sw1:3";
    let (node, port) = text.rsplit_once(':').ok_or(wanted)?;
    let port = port.parse().map_err(|_| wanted)?;
    if node.is_empty() || port == 0 {
        return Err(wanted.into());
    }
    Ok(PortArg {
        node: node.to_owned(),
        port,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_named_by_node_and_number() {
        let parsed = port("leaf 1:a:17").expect("a port");
        assert_eq!((parsed.node.as_str(), parsed.port), ("leaf 1:a", 17));
        for wrong in ["Sw1", "Sw1:", "Sw1:0", "Sw1:256", ":1", "Sw1:x"] {
            assert!(port(wrong).is_err(), "{wrong}");
        }
    }
}
