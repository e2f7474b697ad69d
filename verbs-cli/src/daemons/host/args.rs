//! What `verbs host` takes.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;

pub(crate) const ABOUT: &str = "\
Share addresses of this host among processes.

One program at a time has UDP port 4791 of an address. While this runs it is the one, and other programs of the same user \
share its addresses: verbs pingpong, rping, copy and serve, and programs under verbs run, join it by themselves. Each has \
queue pair numbers of its own, and port numbers are the host's. When a program ends, however it ends, its peers are told. \
Programs find the daemon where VERBS_HOST_SOCKET says, or else in the user's runtime directory. No privileges are needed.";

pub(crate) const EXAMPLES: &str = "\
Examples, in three terminals:
  verbs host --bind 127.0.0.1                   share 127.0.0.1
  verbs pingpong rc                             wait for a client there
  verbs pingpong rc 127.0.0.1                   be one, on the same address

  verbs host                                    share all addresses of this host's interfaces
  verbs host --socket /run/verbs --bind 192.0.2.1
  VERBS_HOST_SOCKET=/run/verbs verbs serve DIR  programs that find it there

Exit codes:
  1  an address or the socket could not be had, or there is no daemon to ask
  2  the arguments are wrong
  7  another daemon listens there already
INT and TERM end it. Errors are one sentence on stderr.";

/// Arguments of `verbs host`.
#[derive(Args, Debug)]
pub(crate) struct HostArgs {
    /// An address of this host to share; default: all of its interfaces
    #[arg(long, value_name = "ADDR")]
    pub(crate) bind: Vec<IpAddr>,
    /// Where programs find the daemon; default: VERBS_HOST_SOCKET, or else verbs-host in the runtime directory
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Log lines for clients that come and go
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// End so many seconds after the last program has gone
    #[arg(long, value_name = "SECONDS")]
    pub(crate) linger: Option<u64>,
    /// This is the daemon itself, of the keeper with that process number
    #[arg(long, hide = true, value_name = "PID")]
    pub(crate) kept_by: Option<u32>,
}
