//! Addresses of endpoints, and the errors for them.

use std::net::SocketAddr;

use rustix::io::Errno;
use verbs_core::{Attr, Error, Why};

use super::table::Connections;
use crate::convert::error;
use crate::shared::Shared;
use crate::sys::CmId;

pub(super) fn connections(nic: &Shared) -> Result<&Connections, Error> {
    nic.cm.as_ref().ok_or(Error::Unsupported(Attr::Verb))
}

/// An id at that address.
pub(super) fn bound(nic: &Shared, number: u64, local: SocketAddr) -> Result<CmId, Error> {
    let id = CmId::create(&connections(nic)?.channel, number).map_err(error)?;
    id.bind(local).map_err(|errno| unusable(errno, local))?;
    match id.device() {
        Some(name) if name != nic.attr.name => Err(misplaced(Why::OtherDevice)),
        // An id at a wildcard address is on no device yet.
        _ => Ok(id),
    }
}

/// The endpoint does not fit, or its state does not permit the verb.
pub(super) fn misplaced(why: Why) -> Error {
    let attr = Attr::Address;
    Error::Mismatch { attr, why }
}

/// The error for an address at which an endpoint cannot be, or cannot listen.
pub(super) fn unusable(errno: Errno, local: SocketAddr) -> Error {
    match errno {
        Errno::ADDRINUSE => Error::AddrInUse { port: local.port() },
        Errno::ADDRNOTAVAIL | Errno::NODEV => Error::AddrNotAvailable,
        errno => error(errno),
    }
}
