//! Arguments of `verbs rping`, by the letters of the program that it can talk to.

use std::net::{IpAddr, SocketAddr};

use clap::Args;

use crate::connecting::ConnectArgs;
use crate::wire::WireArgs;

pub(crate) const ABOUT: &str = "\
Ping over RDMA READs and WRITEs, between ends that meet through the connection manager.

Does what rping of librdmacm does, with the same messages, so that either end can be that program on Linux \
with a RoCE v2 device. For each ping the client announces a buffer, which the server READs; then another, \
into which the server WRITEs the same bytes. No privileges are needed.";

pub(crate) const EXAMPLES: &str = "\
Examples, each in two terminals:
  verbs rping -s -a 127.0.0.1 -v                serve
  verbs rping -c -a 127.0.0.1 -v -C 3           three pings, from a free address of 127.0.0.0/8
  verbs rping -c -a 127.0.0.1 -C 1000 --json    how long pings take, for programs

  rping -s -v                                   Linux serves
  verbs rping -c -a 192.0.2.1 -V -C 10 -S 1024  ten pings of 1 KiB, checked

  verbs rping -s -P                             serve client after client on all addresses
  rping -c -a 192.0.2.2 -v -C 3                 three pings from Linux

Exit codes:
  0  done
  1  the peer could not be reached, or the address could not be had
  2  the arguments are wrong
  3  a ping came back damaged (with -V)
  5  a verb or a message failed, or the peer has gone";

/// The program's limits: 64 KiB with the zero behind its text, and room for what a ping begins with.
const SIZE_MAX: i64 = 65535;
const SIZE_MIN: i64 = 23;

#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("role").required(true).args(["server", "client"]))]
pub(crate) struct RpingArgs {
    /// Be the server
    #[arg(short, long)]
    pub(crate) server: bool,
    /// Be the client
    #[arg(short, long, requires = "address")]
    pub(crate) client: bool,
    /// Address to connect to, or to serve on; a server's default is all
    #[arg(short, long, value_name = "ADDR")]
    pub(crate) address: Option<IpAddr>,
    /// Port number to connect to, or to serve on
    #[arg(short, long, value_name = "N", default_value_t = 7174)]
    pub(crate) port: u16,
    /// Address to connect from
    #[arg(short = 'I', long, value_name = "ADDR")]
    pub(crate) interface: Option<IpAddr>,
    /// Bytes of a ping
    #[arg(short = 'S', long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(SIZE_MIN..=SIZE_MAX))]
    pub(crate) size: u32,
    /// Pings; without it, for ever
    #[arg(short = 'C', long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// Print the pings
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Check that what comes back is what was sent
    #[arg(short = 'V', long)]
    pub(crate) validate: bool,
    /// Print what the pings took as JSON, and nothing else
    #[arg(long, requires = "client", conflicts_with = "verbose")]
    pub(crate) json: bool,
    /// Serve client after client
    #[arg(short = 'P', long, requires = "server")]
    pub(crate) persistent: bool,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
    #[command(flatten)]
    pub(crate) wire: WireArgs,
}

impl RpingArgs {
    /// Whom to connect to.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        let address = self.address.filter(|_| self.client)?;
        Some(SocketAddr::new(address, self.port))
    }
}
