//! Service records, each kept as long as its lease.

use std::collections::BTreeMap;
use std::time::Duration;

use verbs_core::mad::Blob;
use verbs_core::mad::sa::{DATA_LEN, SaStatus, ServiceMask, ServiceRecord, ServiceRecordView};
use verbs_core::time::Instant;
use verbs_core::{Gid, Lid, PKey};

use crate::config::Config;
use crate::sa::records::{Found, Records, alike};

/// Fields of a service record except its own numbers: bit of the mask, first byte, bytes.
const FIELDS: [(u32, usize, usize); 5] =
    [(0, 0, 8), (1, 8, 16), (2, 24, 2), (4, 32, 16), (5, 48, 64)];

/// The service's own numbers: first bit of the mask, how many, first byte, bytes of one.
const NUMBERS: [(u32, usize, usize, usize); 4] = [
    (6, 16, 112, 1),
    (22, 8, 128, 2),
    (30, 4, 144, 4),
    (34, 2, 160, 8),
];

/// Service, port, partition: the identity of a record.
type Key = (u64, Gid, u16);

/// All service records.
#[derive(Debug)]
pub(crate) struct Services {
    records: BTreeMap<Key, Service>,
    max: usize,
    per_port_max: usize,
}

/// A record, when its lease ends, and the port that has registered it.
#[derive(Debug)]
struct Service {
    record: ServiceRecord,
    end: Instant,
    from: Lid,
}

impl Services {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            records: BTreeMap::new(),
            max: config.services_max,
            per_port_max: config.services_per_port_max,
        }
    }

    /// Adds a record, or extends its lease.
    pub(crate) fn set(
        &mut self,
        now: Instant,
        from: Lid,
        like: &[u8; DATA_LEN],
        mask: u64,
    ) -> Found {
        let (mut record, mask) = asked(like, mask)?;
        if !mask.contains(ServiceMask::LEASE) || record.lease_seconds == 0 {
            record.lease_seconds = u32::MAX;
        }
        let key = key(&record);
        match self.records.get(&key) {
            Some(known) if known.record.service_key != record.service_key => {
                return Err(SaStatus::Denied);
            }
            None if !self.has_room(from) => return Err(SaStatus::NoResources),
            _ => {}
        }
        let end = match record.lease_seconds {
            u32::MAX => Instant::NEVER,
            seconds => now + Duration::from_secs(seconds.into()),
        };
        self.records.insert(key, Service { record, end, from });
        Ok(Records::one(&emitted(&record)))
    }

    /// Whether a port may register one more record.
    fn has_room(&self, from: Lid) -> bool {
        let own = self.records.values().filter(|known| known.from == from);
        self.records.len() < self.max && own.count() < self.per_port_max
    }

    /// Deletes a record, if the request has its key.
    pub(crate) fn delete(&mut self, like: &[u8; DATA_LEN], mask: u64) -> Found {
        let (record, _) = asked(like, mask)?;
        let key = key(&record);
        let known = &self.records.get(&key).ok_or(SaStatus::NoRecords)?.record;
        if known.service_key != record.service_key {
            return Err(SaStatus::Denied);
        }
        let bytes = emitted(known);
        self.records.remove(&key);
        Ok(Records::one(&bytes))
    }

    pub(crate) fn find(&self, like: &[u8; DATA_LEN], mask: u64) -> Found {
        let mut found = Records::default();
        for Service { record, .. } in self.records.values() {
            let bytes = emitted(record);
            let numbers = NUMBERS.iter().all(|&(first, count, at, len)| {
                (first..).zip(0..count).all(|(bit, number)| {
                    alike(mask, &[(bit, at + number * len, len)], like, &bytes)
                })
            });
            if numbers && alike(mask, &FIELDS, like, &bytes) {
                // The key is known only to its owner.
                let shown = ServiceRecord {
                    service_key: Blob::default(),
                    ..*record
                };
                found.push(&emitted(&shown));
            }
        }
        Ok(found)
    }

    /// Removes records whose leases have ended.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.records.retain(|_, known| known.end > now);
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let ends = self.records.values().map(|known| known.end);
        ends.filter(|&end| end != Instant::NEVER).min()
    }
}

fn key(record: &ServiceRecord) -> Key {
    (record.service_id, record.service_gid, record.pkey.0)
}

/// The record of a request, which must identify it.
fn asked(like: &[u8; DATA_LEN], mask: u64) -> Result<(ServiceRecord, ServiceMask), SaStatus> {
    let view = ServiceRecordView::new(like).ok_or(SaStatus::RequestInvalid)?;
    let mut record = ServiceRecord::parse(view);
    let mask = ServiceMask::from_bits_truncate(mask);
    if !mask.contains(ServiceMask::SERVICE_ID | ServiceMask::SERVICE_GID) {
        return Err(SaStatus::InsufficientComponents);
    }
    if !mask.contains(ServiceMask::PKEY) {
        record.pkey = PKey::DEFAULT;
    }
    if !mask.contains(ServiceMask::SERVICE_KEY) {
        record.service_key = Blob::default();
    }
    Ok((record, mask))
}

fn emitted(record: &ServiceRecord) -> [u8; ServiceRecord::LEN] {
    let mut bytes = [0; ServiceRecord::LEN];
    record.emit(&mut bytes);
    bytes
}
