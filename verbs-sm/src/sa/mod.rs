//! The administrator: answers queries about the subnet, and keeps records for clients.

mod events;
mod groups;
pub(crate) mod membership;
mod nodes;
mod paths;
mod records;
mod services;
#[cfg(test)]
mod tests;

use verbs_core::Lid;
use verbs_core::mad::header::{emit_header, header_of};
use verbs_core::mad::sa::{CLASS_VERSION, DATA_AT, SaHeader, SaStatus, record};
use verbs_core::mad::{
    Address, AttributeId, ClassPortInfo, MadBytes, MadHeader, Method, Status, TimeCode,
};
use verbs_core::time::Instant;

use crate::config::Config;
use crate::fabric::Fabric;
use crate::tables::Tables;

use events::Events;
use groups::Groups;
use records::{Found, Records};
use services::Services;

/// The supported capabilities of the class: optional records (links), multicast.
const CAPABILITIES: u16 = 0x0300;

/// The longest time that an answer takes: 1.07 s.
const RESPONSE_TIME: TimeCode = TimeCode::new(18);

/// The administrator's tables.
#[derive(Debug)]
pub(crate) struct Administrator {
    pub(crate) config: Config,
    pub(crate) groups: Groups,
    services: Services,
    events: Events,
}

/// The reply to a request.
pub(crate) enum Reply {
    /// None: it is not a request.
    None,
    /// A datagram.
    One(Box<MadBytes>),
    /// A table.
    Table {
        template: Box<MadBytes>,
        payload: Vec<u8>,
    },
}

/// The context of one request.
#[derive(Clone, Copy)]
pub(crate) struct Scene<'a> {
    pub(crate) fabric: &'a Fabric,
    pub(crate) tables: &'a Tables,
    /// The requester.
    pub(crate) from: Lid,
    /// Whether the requester has shown the key of the subnet's managers.
    pub(crate) is_trusted: bool,
}

impl Administrator {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            config: config.clone(),
            groups: Groups::new(config),
            services: Services::new(config),
            events: Events::new(config),
        }
    }

    /// Handles a request: it is answered or dropped, whatever its sender.
    pub(crate) fn handle(
        &mut self,
        now: Instant,
        fabric: &Fabric,
        tables: &Tables,
        from: &Address,
        mad: &MadBytes,
    ) -> Reply {
        let header = MadHeader::parse(header_of(mad));
        let sa = SaHeader::of(mad);
        if header.method.is_response() {
            return Reply::None;
        }
        if header.class_version != CLASS_VERSION {
            return refuse(mad, Status::BAD_VERSION);
        }
        let scene = Scene {
            fabric,
            tables,
            from: from.av.dlid,
            is_trusted: sa.sm_key != 0 && sa.sm_key == self.config.sm_key,
        };
        let found = match self.find_or_change(now, scene, from, mad) {
            Ok(found) => found,
            Err(status) => return refuse(mad, status),
        };
        let max = self.config.answer_records_max;
        let found = found.and_then(|found| match found.len() {
            count if count > max => Err(SaStatus::NoResources),
            _ => Ok(found),
        });
        match found {
            Ok(found) => answer(mad, &header, found),
            Err(status) => refuse(mad, status.into()),
        }
    }

    /// Looks records up, adds or removes one; the outer error is of a request that is none of these.
    fn find_or_change(
        &mut self,
        now: Instant,
        scene: Scene<'_>,
        from: &Address,
        mad: &MadBytes,
    ) -> Result<Found, Status> {
        let (bytes, mask) = (record(mad), SaHeader::of(mad).component_mask);
        let header = MadHeader::parse(header_of(mad));
        let reads = matches!(header.method, Method::GET | Method::GET_TABLE);
        let found = match (header.attribute, header.method) {
            (AttributeId::CLASS_PORT_INFO, Method::GET) => Ok(class_port_info()),
            (AttributeId::NODE_RECORD, _) if reads => nodes::nodes(scene, bytes, mask),
            (AttributeId::PORT_INFO_RECORD, _) if reads => nodes::ports(scene, bytes, mask),
            (AttributeId::LINK_RECORD, _) if reads => nodes::links(scene, bytes, mask),
            (AttributeId::PATH_RECORD, _) if reads => paths::paths(self, scene, bytes, mask),
            (AttributeId::MC_MEMBER_RECORD, _) if reads => {
                membership::find_groups(&self.groups, scene, bytes, mask)
            }
            (AttributeId::MC_MEMBER_RECORD, Method::SET) => {
                membership::join(self, scene, bytes, mask)
            }
            (AttributeId::MC_MEMBER_RECORD, Method::DELETE) => {
                membership::leave(self, scene, bytes, mask)
            }
            (AttributeId::SERVICE_RECORD, _) if reads => self.services.find(bytes, mask),
            (AttributeId::SERVICE_RECORD, Method::SET) => {
                self.services.set(now, scene.from, bytes, mask)
            }
            (AttributeId::SERVICE_RECORD, Method::DELETE) => self.services.delete(bytes, mask),
            (AttributeId::INFORM_INFO, Method::SET) => self.events.subscribe(from, bytes),
            (
                AttributeId::CLASS_PORT_INFO
                | AttributeId::NODE_RECORD
                | AttributeId::PORT_INFO_RECORD
                | AttributeId::LINK_RECORD
                | AttributeId::PATH_RECORD
                | AttributeId::MC_MEMBER_RECORD
                | AttributeId::SERVICE_RECORD
                | AttributeId::INFORM_INFO,
                _,
            ) => return Err(Status::BAD_METHOD_ATTRIBUTE),
            _ if reads || matches!(header.method, Method::SET | Method::DELETE) => {
                return Err(Status::BAD_METHOD_ATTRIBUTE);
            }
            _ => return Err(Status::BAD_METHOD),
        };
        Ok(found)
    }

    /// Removes records whose leases have ended.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.services.expire(now);
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.services.poll_timeout()
    }

    /// The next report to a subscriber, with its number, for [`reported`](Self::reported).
    pub(crate) fn poll_report(&mut self) -> Option<(u64, Address, Box<MadBytes>)> {
        self.events.poll_report()
    }

    /// Whether a report was answered.
    pub(crate) fn reported(&mut self, number: u64, was_heard: bool) {
        self.events.reported(number, was_heard);
    }

    /// Reports the changes between two sweeps.
    pub(crate) fn compare(&mut self, before: &Fabric, now: &Fabric) {
        self.events.compare(before, now);
    }
}

/// A response with the records found.
fn answer(mad: &MadBytes, header: &MadHeader, found: Records) -> Reply {
    let is_table = header.method == Method::GET_TABLE;
    if !is_table && found.count != 1 {
        let status = match found.count {
            0 => SaStatus::NoRecords,
            _ => SaStatus::TooManyRecords,
        };
        return refuse(mad, status.into());
    }
    let mut response = Box::new(*mad);
    emit_header(&header.response(Status::OK), &mut response);
    SaHeader {
        sm_key: 0,
        attribute_offset: u16::try_from(found.step / 8).unwrap_or(0),
        ..SaHeader::of(mad)
    }
    .put(&mut response);
    let data = response.get_mut(DATA_AT..).unwrap_or_default();
    data.fill(0);
    if is_table {
        let (template, payload) = (response, found.bytes);
        return Reply::Table { template, payload };
    }
    for (to, from) in data.iter_mut().zip(&found.bytes) {
        *to = *from;
    }
    Reply::One(response)
}

/// A response with the reason for a refusal, and the request's data.
fn refuse(mad: &MadBytes, status: Status) -> Reply {
    let header = MadHeader::parse(header_of(mad));
    let mut response = Box::new(*mad);
    emit_header(&header.response(status), &mut response);
    let sa = SaHeader {
        sm_key: 0,
        ..SaHeader::of(mad)
    };
    sa.put(&mut response);
    Reply::One(response)
}

fn class_port_info() -> Records {
    let info = ClassPortInfo {
        base_version: MadHeader::BASE_VERSION,
        class_version: CLASS_VERSION,
        capability_mask: CAPABILITIES,
        response_time: RESPONSE_TIME,
        ..ClassPortInfo::default()
    };
    let mut bytes = [0; ClassPortInfo::LEN];
    info.emit(&mut bytes);
    Records::one(&bytes)
}
