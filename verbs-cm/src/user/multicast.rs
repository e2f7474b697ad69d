//! Multicast groups, by IP address.

use std::net::IpAddr;

use verbs_core::wr::Datagram;
use verbs_core::{Av, Gid, Lid, Mcast, QKey, Qp, QpType, Qpn};

use crate::datagram::UDP_QKEY;
use crate::error::Error;
use crate::manager::Manager;
use crate::resolver::addresses;

/// Membership of a queue pair in a multicast group. Dropping it leaves the group.
#[derive(Debug)]
pub struct Membership {
    attached: Mcast,
    datagram: Datagram,
}

impl Membership {
    /// Where datagrams for the group go: [`Send::to`](verbs_core::Send::to).
    pub fn datagram(&self) -> Datagram {
        self.datagram
    }

    /// The group's GID.
    pub fn mgid(&self) -> Gid {
        self.attached.mgid()
    }

    /// Leaves the group.
    ///
    /// # Errors
    /// [`Error::Verb`], when the device has gone.
    pub async fn leave(self) -> Result<(), Error> {
        let left = self.attached.detach().await;
        left.map_err(|refused| Error::Verb(refused.error))
    }
}

impl Manager {
    /// Joins a group with a queue pair for datagrams, which gets what is sent to the group with the
    /// [Q_Key](UDP_QKEY) that `rdma_cm` uses. The group's address is its GID, as RoCEv2 has it; the
    /// provider tells the network.
    ///
    /// # Errors
    /// [`Error::QpType`], [`Error::NoRoute`] for an address that is no group's or of a family that the
    /// port has no address of, [`Error::Verb`] where the device has no multicast.
    pub async fn join(&self, qp: &Qp, group: IpAddr) -> Result<Membership, Error> {
        self.join_with(qp, group, UDP_QKEY).await
    }

    /// As [`Manager::join`], with another Q_Key to send with.
    ///
    /// # Errors
    /// As there.
    pub async fn join_with(&self, qp: &Qp, group: IpAddr, qkey: QKey) -> Result<Membership, Error> {
        if qp.qp_type() != QpType::Ud {
            return Err(Error::QpType);
        }
        let hub = self.by_messages().await?;
        let port = hub.port();
        let from = addresses(&port, group)
            .next()
            .filter(|_| group.is_multicast());
        let from = Gid::from(from.ok_or(Error::NoRoute(group))?);
        let index = port.gids.iter().find(|(_, gid)| *gid == from);
        let index = index.map_or(0, |&(index, _)| index);
        let mgid = Gid::from(group);
        let attached = qp.attach_mcast(mgid, Lid(0)).await?;
        let av = Av::to_gid(port.number, index, mgid);
        Ok(Membership {
            attached,
            datagram: Datagram::new(av, Qpn::MULTICAST, qkey),
        })
    }
}
