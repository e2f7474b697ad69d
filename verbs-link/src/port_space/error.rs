//! Why a port number cannot be had.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

use verbs_core::{Attr, Error, Why};

/// What uses a port number already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortUser {
    /// An endpoint or a reservation of the same port space.
    Endpoint,
    /// A socket of this host, of this process or another one.
    Socket,
}

impl fmt::Display for PortUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Endpoint => "another endpoint of this device",
            Self::Socket => "a TCP socket of this host",
        })
    }
}

/// Why a port number cannot be had or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    // --- the caller ---
    /// The number is in use at that address, or at one of those that a wildcard stands for. Nothing is bound.
    #[error("TCP port {} of {} is in use by {by}", addr.port(), addr.ip())]
    AddrInUse {
        /// The address that is in use: of a wildcard, the one that conflicted.
        addr: SocketAddr,
        /// What uses it.
        by: PortUser,
    },
    /// The address is none of the device's, or the host does not have it.
    #[error("cannot bind TCP port {} of {}: not an address of this device", addr.port(), addr.ip())]
    AddrNotAvailable {
        /// The address.
        addr: SocketAddr,
    },
    /// The host's policy keeps that number from this process.
    #[error("TCP port {} of {} needs CAP_NET_BIND_SERVICE", addr.port(), addr.ip())]
    Denied {
        /// The address.
        addr: SocketAddr,
    },
    /// The host has no route to the peer from an address of the device.
    #[error("no address of this device reaches {}", remote.ip())]
    NoRoute {
        /// The peer.
        remote: SocketAddr,
    },
    /// The port is only reserved, or listens, or has no socket left.
    #[error("TCP port {} of {} cannot {what}: {why}", addr.port(), addr.ip())]
    State {
        /// The bound address.
        addr: SocketAddr,
        /// What was asked for.
        what: &'static str,
        /// What stands against it.
        why: &'static str,
    },

    // --- a limit ---
    /// The host's ephemeral range has no free number at that address.
    #[error("no TCP port of {ip} is free (see net.ipv4.ip_local_port_range)")]
    NoFreePort {
        /// The address.
        ip: IpAddr,
    },
    /// No number was found that is free on all addresses that a wildcard stands for. Nothing is bound.
    #[error(
        "no TCP port is free on all {addresses} addresses of {ip}: {rounds} numbers tried, the last in use at {last}"
    )]
    NoCommonPort {
        /// The wildcard.
        ip: IpAddr,
        /// Addresses that it stands for.
        addresses: usize,
        /// Numbers that were tried.
        rounds: usize,
        /// The last conflict.
        last: SocketAddr,
    },
    /// Too many port numbers are held.
    #[error("{max} TCP ports are bound or reserved already")]
    TooMany {
        /// The limit.
        max: usize,
    },

    // --- the system ---
    /// A system call failed for a reason of its own.
    #[error("{call} of TCP port {} of {} failed: {error}", addr.port(), addr.ip())]
    System {
        /// The call.
        call: &'static str,
        /// The address that it was made for.
        addr: SocketAddr,
        /// What the system says.
        error: io::Error,
    },
}

impl PortError {
    /// From the system's error at a call for an address.
    pub(super) fn of(call: &'static str, addr: SocketAddr, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::AddrInUse if addr.port() == 0 => Self::NoFreePort { ip: addr.ip() },
            io::ErrorKind::AddrInUse => Self::AddrInUse {
                addr,
                by: PortUser::Socket,
            },
            io::ErrorKind::AddrNotAvailable => Self::AddrNotAvailable { addr },
            io::ErrorKind::PermissionDenied => Self::Denied { addr },
            _ => Self::System { call, addr, error },
        }
    }

    /// The address in use, if that is what is wrong.
    pub fn in_use(&self) -> Option<SocketAddr> {
        match self {
            Self::AddrInUse { addr, .. } => Some(*addr),
            _ => None,
        }
    }
}

/// What calls of a stream say of it.
impl From<PortError> for io::Error {
    fn from(error: PortError) -> Self {
        let kind = match error {
            PortError::System { error, .. } => return error,
            PortError::AddrInUse { .. }
            | PortError::NoFreePort { .. }
            | PortError::NoCommonPort { .. } => io::ErrorKind::AddrInUse,
            PortError::AddrNotAvailable { .. } => io::ErrorKind::AddrNotAvailable,
            PortError::Denied { .. } => io::ErrorKind::PermissionDenied,
            PortError::NoRoute { .. } => io::ErrorKind::NetworkUnreachable,
            PortError::State { .. } => io::ErrorKind::InvalidInput,
            PortError::TooMany { .. } => io::ErrorKind::QuotaExceeded,
        };
        Self::new(kind, error)
    }
}

/// What the verbs of a provider say of it; the address is in their arguments.
impl From<&PortError> for Error {
    fn from(error: &PortError) -> Self {
        match error {
            PortError::AddrInUse { addr, .. } => Self::AddrInUse { port: addr.port() },
            PortError::NoFreePort { .. } | PortError::NoCommonPort { .. } => {
                Self::AddrInUse { port: 0 }
            }
            PortError::AddrNotAvailable { .. } => Self::AddrNotAvailable,
            PortError::Denied { .. } => Self::Os {
                errno: libc::EACCES,
            },
            PortError::NoRoute { .. } => Self::Mismatch {
                attr: Attr::Address,
                why: Why::Unreachable,
            },
            PortError::State { .. } => Self::Mismatch {
                attr: Attr::Address,
                why: Why::State,
            },
            PortError::TooMany { max } => Self::Exhausted {
                attr: Attr::MaxTcpPort,
                max: u32::try_from(*max).unwrap_or(u32::MAX),
            },
            PortError::System { error, .. } => match error.raw_os_error() {
                Some(errno) => Self::Os { errno },
                None => Self::DeviceFailed,
            },
        }
    }
}
