//! Services that ports offer, by number.

use std::fmt;
use std::time::Duration;

use verbs_core::Gid;
use verbs_core::mad::sa::{ServiceMask, ServiceRecord};
use verbs_core::mad::{Blob, Method};
use verbs_core::sync::Arc;

use crate::sa::SaClient;
use crate::sa::held::{Change, Hold, Key, Terms};
use crate::sa::record::Question;
use crate::step::Step;
use crate::wire::ServiceId;

/// A lease without an end.
pub const FOR_EVER: u32 = u32::MAX;

impl SaClient {
    /// A record of a service of this port, in the default partition, for ever; what the service itself
    /// has to say goes into its data.
    ///
    /// # Errors
    /// [`Error::Sa`](crate::Error::Sa) for a port without a GID.
    pub fn service_record(&self, id: ServiceId) -> Result<ServiceRecord, crate::Error> {
        Ok(ServiceRecord {
            service_id: id.0,
            service_gid: self.gid()?,
            lease_seconds: FOR_EVER,
            ..ServiceRecord::default()
        })
    }

    /// Registers a service, so that others find where it is. With a lease of less than
    /// [`FOR_EVER`] it is renewed at half time, as long as the registration lives.
    ///
    /// # Errors
    /// [`Error::Sa`](crate::Error::Sa), [`Error::Verb`](crate::Error::Verb).
    ///
    /// # Cancel safety
    /// A step that is dropped takes the record back, if the administrator has heard of it already.
    pub fn register_service(&self, record: ServiceRecord) -> Step<ServiceRegistration> {
        let client = self.clone();
        Step::new(async move {
            let identity = ServiceMask::SERVICE_ID | ServiceMask::SERVICE_GID | ServiceMask::PKEY;
            let mut mask = identity
                | ServiceMask::LEASE
                | ServiceMask::NAME
                | ServiceMask::DATA8
                | ServiceMask::DATA16
                | ServiceMask::DATA32
                | ServiceMask::DATA64;
            let mut undo_mask = identity;
            if record.service_key != Blob::default() {
                mask |= ServiceMask::SERVICE_KEY;
                undo_mask |= ServiceMask::SERVICE_KEY;
            }
            let lease = Duration::from_secs(record.lease_seconds.into());
            let terms = Terms {
                key: Key::Service(record.service_id, record.service_gid, record.pkey.0),
                set: Question::new(Method::SET, &record, mask),
                undo: Question::new(Method::DELETE, &record, undo_mask),
                period: (record.lease_seconds != FOR_EVER).then_some(lease),
            };
            let hold = Hold::take(Arc::clone(&client.core), terms, client.retry).await?;
            Ok(ServiceRegistration { hold })
        })
    }

    /// The records of a service, wherever it is.
    ///
    /// # Errors
    /// [`Error::Sa`](crate::Error::Sa), [`Error::Verb`](crate::Error::Verb).
    pub fn find_service(&self, id: ServiceId) -> Step<Vec<ServiceRecord>> {
        let record = ServiceRecord {
            service_id: id.0,
            ..ServiceRecord::default()
        };
        self.table(&record, ServiceMask::SERVICE_ID)
    }
}

/// A service that the administrator knows of. Dropping it takes the record back.
pub struct ServiceRegistration {
    hold: Hold,
}

impl ServiceRegistration {
    /// The record as the administrator has it.
    pub fn record(&self) -> ServiceRecord {
        self.hold.record().unwrap_or_default()
    }

    /// Where the service is.
    pub fn gid(&self) -> Gid {
        self.record().service_gid
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

    /// Takes the record back. It goes on when the step is dropped after its beginning.
    ///
    /// # Errors
    /// [`Error::Sa`](crate::Error::Sa), [`Error::Verb`](crate::Error::Verb).
    pub fn end(self) -> Step<()> {
        Step::new(self.hold.leave())
    }
}

impl fmt::Debug for ServiceRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceRegistration")
            .field("record", &self.record())
            .finish_non_exhaustive()
    }
}
