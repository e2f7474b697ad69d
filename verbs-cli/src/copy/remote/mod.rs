//! Copies between hosts: the ends are those of a copy within one process, but each in a process of its
//! own. They find each other over TCP, or by the connection manager; [`message`] is the protocol over
//! either. Over iWARP the connection manager connects the ends as well ([`streams`]).

mod control;
mod drive;
mod fetch;
mod managed;
mod message;
mod root;
mod serve;
mod streams;
#[cfg(test)]
mod tests;

use verbs_core::sync::Arc;
use verbs_core::{Av, Device, Gid, Path};

use super::endpoint::Endpoint;
use super::error::{CopyError, End};
use crate::address::same_family;
use crate::wire::{self, PORT, Wire};

use self::message::Identity;

pub(crate) use self::fetch::run as fetch;
pub(crate) use self::message::{Cause, Message};
pub(crate) use self::serve::run as serve;

/// A device on the wire and which of its GIDs is used.
struct Seat {
    device: Arc<Device>,
    index: u16,
    gid: Gid,
}

impl Seat {
    /// Opens a device on the wire; its GID fits the peer's, and is that of `wanted` if it can be.
    async fn take(
        end: End,
        wire: &Wire,
        wanted: std::net::IpAddr,
        peer: Option<Gid>,
    ) -> Result<Self, CopyError> {
        let failed = |doing| move |error| CopyError::Verb { end, doing, error };
        let device = wire.device().await.map_err(failed("open the device"))?;
        let query = failed("query the GIDs");
        let towards = peer.unwrap_or(Gid::from(wanted));
        let found = wire::gid_towards(&device, wire.addresses(), wanted, towards).await;
        let (index, gid) = match (found.map_err(query)?, peer) {
            (Some(found), _) => found,
            (None, Some(peer)) => return Err(CopyError::NoRoute { peer }),
            (None, None) => {
                let gid = device.query_gid(PORT, 0).await;
                (0, gid.map_err(failed("query the GIDs"))?)
            }
        };
        let device = Arc::new(device);
        Ok(Self { device, index, gid })
    }
}

/// How an end is reached, with a new packet sequence number.
fn identify(endpoint: &Endpoint, gid: Gid) -> Result<Identity, CopyError> {
    let psn = wire::draw_psn().map_err(CopyError::Random)?;
    Ok(Identity {
        gid,
        qpn: endpoint.qpn(),
        psn,
        mtu: endpoint.mtu(),
    })
}

/// Connects an end to its peer: it receives from it.
async fn connect(
    endpoint: &Endpoint,
    index: u16,
    ours: &Identity,
    theirs: &Identity,
) -> Result<(), CopyError> {
    if !same_family(ours.gid, theirs.gid) {
        return Err(CopyError::NoRoute { peer: theirs.gid });
    }
    let path = Path {
        av: Av::to_gid(PORT, index, theirs.gid),
        dest_qpn: theirs.qpn,
        rq_psn: theirs.psn,
        mtu: ours.mtu.min(theirs.mtu),
    };
    endpoint.receive_from(&path).await
}
