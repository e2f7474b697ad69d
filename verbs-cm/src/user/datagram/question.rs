//! A question which queue pair serves datagrams, at the service's end.

use std::fmt;
use std::net::SocketAddr;

use verbs_core::sync::Arc;
use verbs_core::{QKey, Qp, QpType, Qpn};

use crate::endpoint::Data;
use crate::error::Error;
use crate::event::ResolveId;
use crate::hub::Hub;
use crate::options::blob;
use crate::params::Resolved;
use crate::wire::{IpHeader, SidrReq, SidrStatus};

/// A peer asks which queue pair serves datagrams. Dropping it answers that the service rejects it.
pub struct Question {
    hub: Arc<Hub>,
    /// `None` once it was answered.
    id: Option<ResolveId>,
    peer: SocketAddr,
    private_data: Data,
}

impl Question {
    pub(crate) fn new(
        hub: &Arc<Hub>,
        id: ResolveId,
        peer: SocketAddr,
        ip: Option<IpHeader>,
        req: &SidrReq,
    ) -> Self {
        let start = ip.map_or(0, |_| IpHeader::LEN);
        Self {
            hub: Arc::clone(hub),
            id: Some(id),
            peer,
            private_data: req.private_data.0[start..].to_vec(),
        }
    }

    /// The peer that asks.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// What the peer says along, padded with zeros.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Answers with that queue pair and Q_Key, and up to 136 bytes. Never blocks.
    ///
    /// # Errors
    /// [`Error::QpType`] for a queue pair that is not for datagrams, [`Error::PrivateData`],
    /// [`Error::Machine`].
    pub fn answer(mut self, qp: &Qp, qkey: QKey, private_data: &[u8]) -> Result<(), Error> {
        if qp.qp_type() != QpType::Ud {
            return Err(Error::QpType);
        }
        let resolved = Resolved {
            status: SidrStatus::Valid,
            qpn: qp.qpn(),
            qkey,
            private_data: blob(private_data)?,
        };
        self.say(&resolved)
    }

    /// Rejects it, with up to 136 bytes. Never blocks.
    ///
    /// # Errors
    /// [`Error::PrivateData`], [`Error::Machine`].
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), Error> {
        let private_data = blob(private_data)?;
        self.say(&Resolved {
            private_data,
            ..REJECTED
        })
    }

    fn say(&mut self, resolved: &Resolved) -> Result<(), Error> {
        let Some(id) = self.id.take() else {
            return Ok(());
        };
        let answered = self
            .hub
            .with(|inner, now| inner.cm.answer(now, id, resolved));
        Ok(answered?)
    }
}

const REJECTED: Resolved = Resolved {
    status: SidrStatus::Rejected,
    qpn: Qpn::new(0),
    qkey: QKey(0),
    private_data: verbs_core::mad::Blob([0; 136]),
};

impl Drop for Question {
    fn drop(&mut self) {
        // The peer may have given up.
        let _gone = self.say(&REJECTED);
    }
}

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Question")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}
