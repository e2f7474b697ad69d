//! Membership in multicast groups.

use std::fmt;
use std::time::Duration;

use verbs_core::mad::sa::{JoinState, McMemberMask, McMemberRecord, Selector};
use verbs_core::mad::{Bits, Method, TimeCode};
use verbs_core::sync::Arc;
use verbs_core::wr::Datagram;
use verbs_core::{Av, Gid, GlobalRoute, Lid, Mtu, PKey, QKey, Qpn};

use crate::error::Error;
use crate::sa::held::{Change, Hold, Key, Terms};
use crate::sa::record::Question;
use crate::sa::{SaClient, SaError};
use crate::step::Step;

/// How to join a group: as what, and what it must be like. Without more than the group a join takes one
/// that exists as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Join {
    record: McMemberRecord,
    mask: McMemberMask,
}

impl Join {
    /// As a full member, which sends, receives, and keeps the group alive.
    pub fn full(mgid: Gid) -> Self {
        Self::as_member(mgid, JoinState::FULL_MEMBER)
    }

    /// As one that sends and receives, and does not keep the group alive.
    pub fn non_member(mgid: Gid) -> Self {
        Self::as_member(mgid, JoinState::NON_MEMBER)
    }

    /// As one that only sends.
    pub fn send_only(mgid: Gid) -> Self {
        Self::as_member(mgid, JoinState::SEND_ONLY_NON_MEMBER)
    }

    /// As a member of that kind.
    pub fn as_member(mgid: Gid, join_state: JoinState) -> Self {
        Self {
            record: McMemberRecord {
                mgid,
                join_state,
                ..McMemberRecord::default()
            },
            mask: McMemberMask::JOIN,
        }
    }

    /// Makes the group where there is none, with these; a member that joins one that exists has to agree.
    #[must_use]
    pub fn create(mut self, qkey: QKey, pkey: PKey) -> Self {
        self.record.qkey = qkey;
        self.record.pkey = pkey;
        self.mask |= McMemberMask::CREATE;
        self
    }

    /// The group's partition, without which the administrator takes the default one's.
    #[must_use]
    pub fn pkey(mut self, pkey: PKey) -> Self {
        self.record.pkey = pkey;
        self.mask |= McMemberMask::PKEY;
        self
    }

    /// All that a group has from another one, as those of an IP interface have from the broadcast
    /// group: Q_Key, partition, MTU, rate, lifetime, and the fields of the route.
    #[must_use]
    pub fn like(mut self, group: &McMemberRecord) -> Self {
        self.record = McMemberRecord {
            mgid: self.record.mgid,
            join_state: self.record.join_state,
            port_gid: self.record.port_gid,
            mtu_selector: Selector::Exactly,
            rate_selector: Selector::Exactly,
            packet_lifetime_selector: Selector::Exactly,
            mlid: Lid(0),
            scope: Bits::default(),
            proxy_join: false,
            ..*group
        };
        self.mask |= McMemberMask::CREATE
            | McMemberMask::MTU_SELECTOR
            | McMemberMask::MTU
            | McMemberMask::RATE_SELECTOR
            | McMemberMask::RATE
            | McMemberMask::PACKET_LIFETIME_SELECTOR
            | McMemberMask::PACKET_LIFETIME
            | McMemberMask::HOP_LIMIT;
        self
    }

    /// The group's MTU.
    #[must_use]
    pub fn mtu(mut self, how: Selector, mtu: Mtu) -> Self {
        self.record.mtu_selector = how;
        self.record.mtu = Bits::saturating(mtu.shift() - 7);
        self.mask |= McMemberMask::MTU_SELECTOR | McMemberMask::MTU;
        self
    }

    /// The group's rate, by its code.
    #[must_use]
    pub fn rate(mut self, how: Selector, rate: Bits<6>) -> Self {
        self.record.rate_selector = how;
        self.record.rate = rate;
        self.mask |= McMemberMask::RATE_SELECTOR | McMemberMask::RATE;
        self
    }

    /// Service level, flow label, traffic class and hop limit.
    #[must_use]
    pub fn route(
        mut self,
        sl: Bits<4>,
        flow_label: Bits<20>,
        traffic_class: u8,
        hop_limit: u8,
    ) -> Self {
        self.record.sl = sl;
        self.record.flow_label = flow_label;
        self.record.traffic_class = traffic_class;
        self.record.hop_limit = hop_limit;
        self.mask |= McMemberMask::SL
            | McMemberMask::FLOW_LABEL
            | McMemberMask::TRAFFIC_CLASS
            | McMemberMask::HOP_LIMIT;
        self
    }

    /// Joins for the port's address that this is, instead of its first.
    #[must_use]
    pub fn port_gid(mut self, gid: Gid) -> Self {
        self.record.port_gid = gid;
        self
    }

    /// The record and the components that are asked with.
    pub fn parts(&self) -> (McMemberRecord, McMemberMask) {
        (self.record, self.mask)
    }
}

impl SaClient {
    /// Joins a group. The port has joined when this completes; switches are told in the meantime, so that
    /// the first packets may still miss some members. Attach the queue pair that is to receive
    /// ([`Qp::attach_mcast`](verbs_core::Qp::attach_mcast)) with the group's GID and LID.
    ///
    /// # Errors
    /// [`Error::Sa`], among them `Refused(RequestInvalid)` or `Refused(NoRecords)` where the group does
    /// not exist and the join does not say how to make it; [`Error::Verb`].
    ///
    /// # Cancel safety
    /// A step that is dropped leaves the group, if the administrator has heard of it already.
    pub fn join(&self, join: Join) -> Step<Group> {
        let client = self.clone();
        Step::new(async move {
            let Join { mut record, mask } = join;
            if record.port_gid == Gid::default() {
                record.port_gid = client.gid()?;
            }
            let leaving = McMemberMask::MGID | McMemberMask::PORT_GID | McMemberMask::JOIN_STATE;
            let terms = Terms {
                key: Key::Group(record.mgid, record.port_gid, record.join_state.bits()),
                set: Question::new(Method::SET, &record, mask),
                undo: Question::new(Method::DELETE, &record, leaving),
                period: None,
            };
            let hold = Hold::take(Arc::clone(&client.core), terms, client.retry).await?;
            Ok(Group {
                hold,
                port: client.port(),
            })
        })
    }
}

/// Membership in a multicast group. Dropping it leaves the group.
///
/// It survives another subnet manager, another LID and the request to register again: the port joins
/// again by itself, and says so ([`Group::on_change`], [`Group::changed`]). A member that joins what another here
/// has joined already shares its membership, and the port leaves with the last.
pub struct Group {
    hold: Hold,
    port: u8,
}

impl Group {
    /// The group as the administrator has it now.
    pub fn record(&self) -> McMemberRecord {
        self.hold.record().unwrap_or_default()
    }

    /// The group's GID.
    pub fn mgid(&self) -> Gid {
        self.record().mgid
    }

    /// The group's LID.
    pub fn mlid(&self) -> Lid {
        self.record().mlid
    }

    /// The group's MTU; `None` where the administrator says none that there is.
    pub fn mtu(&self) -> Option<Mtu> {
        Mtu::from_code(self.record().mtu.value())
    }

    /// How long a packet is on its way at most.
    pub fn packet_lifetime(&self) -> Duration {
        TimeCode::new(self.record().packet_lifetime.byte()).duration()
    }

    /// Where packets for the group go.
    pub fn av(&self) -> Av {
        let record = self.record();
        Av {
            global: Some(GlobalRoute {
                dgid: record.mgid,
                sgid_index: 0,
                flow_label: record.flow_label.value(),
                hop_limit: record.hop_limit,
                traffic_class: record.traffic_class,
            }),
            dlid: record.mlid,
            sl: record.sl.byte(),
            src_path_bits: 0,
            port: self.port,
        }
    }

    /// Where datagrams for the group go: [`Send::to`](verbs_core::Send::to).
    pub fn datagram(&self) -> Datagram {
        Datagram::new(self.av(), Qpn::MULTICAST, self.record().qkey)
    }

    /// Has every change told, under NoBlock. Replaces an earlier handler.
    pub fn on_change(&mut self, handler: impl Fn(&Change) + Send + Sync + 'static) {
        self.hold.on_change(Arc::new(handler));
    }

    /// The latest change that was not asked for, once there is one.
    ///
    /// # Cancel safety
    /// A future that is dropped takes no change with it.
    pub async fn changed(&mut self) -> Change {
        self.hold.changed().await
    }

    /// Leaves the group. It goes on when the step is dropped after its beginning.
    ///
    /// # Errors
    /// [`Error::Sa`], [`Error::Verb`]: the administrator may think that the port is a member still.
    pub fn leave(self) -> Step<()> {
        Step::new(self.hold.leave())
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("record", &self.record())
            .finish_non_exhaustive()
    }
}

impl SaClient {
    /// The first of the port's GIDs.
    pub(super) fn gid(&self) -> Result<Gid, Error> {
        let port = self.core.service.port();
        let first = port.gids.first().map(|&(_, gid)| gid);
        first.ok_or(Error::Sa(SaError::NoAdministrator(port.number)))
    }
}
