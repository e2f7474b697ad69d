//! Questions for paths.

use verbs_core::mad::Bits;
use verbs_core::mad::sa::{PathMask, PathRecord, SaStatus, Selector};
use verbs_core::{Gid, Lid, Mtu, PKey};

use crate::error::Error;
use crate::sa::{SaClient, SaError};
use crate::step::Step;
use crate::wire::ServiceId;

/// What is asked of a path. It starts at this port unless it says where, and it is one that answers can
/// come back on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathQuery {
    record: PathRecord,
    mask: PathMask,
}

impl PathQuery {
    /// To the port with that GID.
    pub fn to_gid(gid: Gid) -> Self {
        let mut query = Self::new(PathMask::DGID);
        query.record.dgid = gid;
        query
    }

    /// To the port with that LID.
    pub fn to_lid(lid: Lid) -> Self {
        let mut query = Self::new(PathMask::DLID);
        query.record.dlid = lid;
        query
    }

    /// To a port that has registered that service. Where the administrator cannot tell by service, its
    /// record is looked up first.
    pub fn to_service(id: ServiceId) -> Self {
        let mut query = Self::new(PathMask::SERVICE_ID);
        query.record.service_id = id.0;
        query
    }

    /// From the port with that GID.
    #[must_use]
    pub fn from_gid(mut self, gid: Gid) -> Self {
        self.record.sgid = gid;
        self.mask |= PathMask::SGID;
        self
    }

    /// From the port with that LID.
    #[must_use]
    pub fn from_lid(mut self, lid: Lid) -> Self {
        self.record.slid = lid;
        self.mask |= PathMask::SLID;
        self
    }

    /// In that partition.
    #[must_use]
    pub fn pkey(mut self, pkey: PKey) -> Self {
        self.record.pkey = pkey;
        self.mask |= PathMask::PKEY;
        self
    }

    /// On that service level.
    #[must_use]
    pub fn sl(mut self, sl: Bits<4>) -> Self {
        self.record.sl = sl;
        self.mask |= PathMask::SL;
        self
    }

    /// For that traffic class.
    #[must_use]
    pub fn traffic_class(mut self, traffic_class: u8) -> Self {
        self.record.traffic_class = traffic_class;
        self.mask |= PathMask::TRAFFIC_CLASS;
        self
    }

    /// With an MTU like that.
    #[must_use]
    pub fn mtu(mut self, how: Selector, mtu: Mtu) -> Self {
        self.record.mtu_selector = how;
        self.record.mtu = Bits::saturating(mtu.shift() - 7);
        self.mask |= PathMask::MTU_SELECTOR | PathMask::MTU;
        self
    }

    /// With a rate like that, by its code.
    #[must_use]
    pub fn rate(mut self, how: Selector, rate: Bits<6>) -> Self {
        self.record.rate_selector = how;
        self.record.rate = rate;
        self.mask |= PathMask::RATE_SELECTOR | PathMask::RATE;
        self
    }

    /// The record and the components that are asked with.
    pub fn parts(&self) -> (PathRecord, PathMask) {
        (self.record, self.mask)
    }

    fn new(destination: PathMask) -> Self {
        Self {
            record: PathRecord {
                reversible: true,
                path_count: Bits::truncated(1),
                ..PathRecord::default()
            },
            mask: destination | PathMask::REVERSIBLE | PathMask::PATH_COUNT,
        }
    }

    /// The query with the source filled in.
    fn complete(mut self, client: &SaClient) -> Result<Self, Error> {
        if !self.mask.intersects(PathMask::SGID | PathMask::SLID) {
            self = self.from_gid(client.gid()?);
        }
        Ok(self)
    }
}

impl SaClient {
    /// A path.
    ///
    /// # Errors
    /// [`Error::Sa`], among them `Refused(NoRecords)` where there is none; [`Error::Verb`].
    pub fn path(&self, query: PathQuery) -> Step<PathRecord> {
        let client = self.clone();
        Step::new(async move {
            let (mut record, mut mask) = query.complete(&client)?.parts();
            if mask.contains(PathMask::SERVICE_ID) {
                let found = client.find_service(ServiceId(record.service_id)).await?;
                let refused = SaError::Refused(SaStatus::NoRecords);
                let at = found.first().ok_or(refused)?;
                record.dgid = at.service_gid;
                record.service_id = 0;
                mask.remove(PathMask::SERVICE_ID);
                mask.insert(PathMask::DGID);
            }
            client.get(&record, mask).await
        })
    }

    /// All paths, up to `most` of them (127 at most).
    ///
    /// # Errors
    /// [`Error::Sa`], [`Error::Verb`].
    pub fn paths(&self, query: PathQuery, most: u8) -> Step<Vec<PathRecord>> {
        let client = self.clone();
        Step::new(async move {
            let (mut record, mask) = query.complete(&client)?.parts();
            record.path_count = Bits::saturating(most.into());
            client.table(&record, mask).await
        })
    }
}
