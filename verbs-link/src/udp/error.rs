//! Why there is no link over UDP.

use std::io;
use std::net::IpAddr;

use verbs_wire::ROCE_PORT;

/// Addresses that one link may have: as many sockets, all of which are polled together.
pub const ADDRESSES_MAX: usize = 64;

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// There are no addresses to use.
    #[error("no address to use: give some, or bring up an interface that has one")]
    NoAddress,
    /// There are more addresses than a link may have.
    #[error("{got} addresses, and {ADDRESSES_MAX} are possible: give fewer")]
    TooMany {
        /// How many there are.
        got: usize,
    },
    /// The port is taken already.
    #[error(
        "UDP port {ROCE_PORT} of {address} is taken: another process, another link of this one, or \
         the kernel's rxe owns it; use another address (each of 127.0.0.0/8 is one), or stop the other"
    )]
    InUse {
        /// The address.
        address: IpAddr,
    },
    /// The port is taken on every address that programs take by themselves.
    #[error(
        "UDP port {ROCE_PORT} is taken on every address of 127.0.0.0/8 that is tried: stop a program, or name an address"
    )]
    NoneFree,
    /// No interface has that address.
    #[error("{address} is not an address of this machine: see `ip address`")]
    NotOurs {
        /// The address.
        address: IpAddr,
    },
    /// Packets are sent with headers other than those that their ICRCs cover, so no peer would take them.
    #[error(
        "packets from {address} leave with identification {identification} \
         (DF {dont_fragment}, {header_words} header words), and only 0 (DF true, 5 words) can be \
         covered by an ICRC; this kernel's sockets cannot carry RoCEv2 over IPv4, use IPv6"
    )]
    Identification {
        /// The packets' source address.
        address: IpAddr,
        /// The identification that a packet had.
        identification: u16,
        /// Whether its header had DF set.
        dont_fragment: bool,
        /// Words of its header.
        header_words: u8,
    },
    /// The kernel does not report the machine's interfaces.
    #[error("cannot ask the kernel for the machine's interfaces (a route socket): {0}")]
    Interfaces(io::Error),
    /// The system refuses a socket, or an option of it.
    #[error("no socket on UDP port {ROCE_PORT} of {address}: {error}")]
    Socket {
        /// The address.
        address: IpAddr,
        /// The system's error.
        error: io::Error,
    },
}
