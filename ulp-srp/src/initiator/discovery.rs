//! Discovery by device management (IBTA vol. 1, chapter 16.3): the I/O unit behind a port, its controllers, and
//! the services for logging in to their targets.

use std::collections::BTreeMap;

use futures::channel::oneshot;
use verbs_cm::Route;
use verbs_cm::wire::ServiceId;
use verbs_core::mad::field::{Field, Run};
use verbs_core::mad::header::{emit_header, header_of};
use verbs_core::mad::{
    Address, AttributeId, Blob, Class, Delivery, MadAgent, MadBytes, MadClient, MadHeader,
    MadService, Method, Retry, TransactionId,
};
use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_core::{Device, Guid, collect, wire_record};

use crate::initiator::address::{Target, TargetWay};
use crate::iu::PortId;

/// Version of the class's formats.
pub const CLASS_VERSION: u8 = 1;
/// The attribute that describes the I/O unit.
pub const IO_UNIT_INFO: AttributeId = AttributeId(0x0010);
/// See [`ControllerProfile`].
pub const IO_CONTROLLER_PROFILE: AttributeId = AttributeId(0x0011);
/// Names and numbers of services, four at a time.
pub const SERVICE_ENTRIES: AttributeId = AttributeId(0x0012);

/// Where the attribute begins in a datagram.
const DATA_AT: usize = 64;
/// Services in one datagram.
const ENTRIES: u8 = 4;
/// Bytes of one: its name, then its number.
const ENTRY_LEN: usize = 48;
const NAME_LEN: usize = 40;
/// The prefix of the names of SRP services; 16 hexadecimal digits of the identifier extension follow.
const PREFIX: &str = "SRP.T10:";

wire_record! {
    /// IOUnitInfo: which slots of the unit have a controller.
    pub struct IoUnitInfo, IoUnitInfoView: 132 bytes {
        /// Changes when anything below does.
        change_id: u16 = (0, 0, 16),
        /// Slots.
        max_controllers: u8 = (2, 0, 8),
        /// Four bits for each slot: 1 where there is a controller.
        slots: Blob<128> = (4, 0, 1024),
    }
}

wire_record! {
    /// IOControllerProfile: what a controller is.
    pub struct ControllerProfile, ControllerProfileView: 128 bytes {
        /// Its GUID.
        guid: Guid = (0, 0, 64),
        /// Vendor.
        vendor_id: u32 = (8, 0, 24),
        /// Device.
        device_id: u32 = (12, 0, 32),
        /// Class of I/O.
        io_class: u16 = (28, 0, 16),
        /// Subclass.
        io_subclass: u16 = (30, 0, 16),
        /// Protocol.
        protocol: u16 = (32, 0, 16),
        /// Its version.
        protocol_version: u16 = (34, 0, 16),
        /// Longest message that it takes.
        send_size: u32 = (44, 0, 32),
        /// Services.
        service_entries: u8 = (54, 0, 8),
        /// Its description, padded with zeros.
        id_string: Blob<64> = (64, 0, 512),
    }
}

impl ControllerProfile {
    /// I/O class of controllers of revision 16a, and of revision 10.
    pub const IO_CLASS: u16 = 0x0100;
    /// See [`ControllerProfile::IO_CLASS`].
    pub const IO_CLASS_REVISION_10: u16 = 0xff00;
    const SUBCLASS: u16 = 0x609e;
    const PROTOCOL: u16 = 0x0108;
    const VERSION: u16 = 1;

    /// The profile of a controller that speaks SRP, with that many services.
    pub fn srp(guid: Guid, service_entries: u8) -> Self {
        Self {
            guid,
            io_class: Self::IO_CLASS,
            io_subclass: Self::SUBCLASS,
            protocol: Self::PROTOCOL,
            protocol_version: Self::VERSION,
            service_entries,
            ..Self::default()
        }
    }

    /// Whether it speaks SRP.
    pub fn is_srp(&self) -> bool {
        matches!(self.io_class, Self::IO_CLASS | Self::IO_CLASS_REVISION_10)
            && self.io_subclass == Self::SUBCLASS
            && self.protocol == Self::PROTOCOL
            && self.protocol_version == Self::VERSION
    }
}

impl IoUnitInfo {
    /// The slots that have a controller, counted from 1.
    pub fn occupied(&self) -> impl Iterator<Item = u8> + '_ {
        (1..=self.max_controllers).filter(|slot| {
            let byte = self.slots.0[usize::from(slot - 1) / 2];
            let bits = if slot % 2 == 1 {
                byte >> 4
            } else {
                byte & 0x0f
            };
            bits == 1
        })
    }
}

/// A controller with its services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoController {
    /// Slot of the I/O unit, counted from 1.
    pub slot: u8,
    /// What it is.
    pub profile: ControllerProfile,
    /// Names and numbers of its services.
    pub services: Vec<(String, ServiceId)>,
}

impl IoController {
    /// The controller's targets, reached by that route.
    pub fn targets(&self, route: &Route) -> Vec<Target> {
        let target = |(name, service): &(String, ServiceId)| {
            let extension = u64::from_str_radix(name.strip_prefix(PREFIX)?, 16).ok()?;
            Some(Target {
                port: PortId {
                    extension,
                    guid: self.profile.guid,
                },
                way: TargetWay::Service {
                    service: *service,
                    route: *route,
                    is_revision_10: self.profile.io_class
                        == ControllerProfile::IO_CLASS_REVISION_10,
                },
            })
        };
        match self.profile.is_srp() {
            true => self.services.iter().filter_map(target).collect(),
            false => Vec::new(),
        }
    }
}

/// The bytes of a service in a datagram.
pub fn emit_service(name: &str, service: ServiceId) -> [u8; ENTRY_LEN] {
    let mut entry = [0; ENTRY_LEN];
    for (to, from) in entry[..NAME_LEN].iter_mut().zip(name.bytes()) {
        *to = from;
    }
    entry[NAME_LEN..].copy_from_slice(&service.0.to_be_bytes());
    entry
}

fn parse_service(entry: &[u8]) -> (String, ServiceId) {
    let (name, number) = entry.split_at(NAME_LEN.min(entry.len()));
    let end = name
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(name.len());
    let number = u64::read(
        number,
        Run {
            byte: 0,
            bit: 0,
            width: 64,
        },
    );
    (
        String::from_utf8_lossy(&name[..end]).into_owned(),
        ServiceId(number),
    )
}

/// Why discovery got no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DiscoveryError {
    /// The port's service for management datagrams could not be opened.
    #[error(transparent)]
    Verb(#[from] verbs_core::Error),
    /// It refused the request.
    #[error("the port's service for management datagrams: {0}")]
    Agent(verbs_core::mad::AgentError),
    /// The port did not answer.
    #[error("the port has no I/O unit, or does not answer")]
    TimedOut,
    /// The port has refused the request with this status.
    #[error("the port refuses: status {0:#06x}")]
    Refused(u16),
}

impl From<verbs_core::mad::AgentError> for DiscoveryError {
    fn from(error: verbs_core::mad::AgentError) -> Self {
        Self::Agent(error)
    }
}

/// Finds what is behind a port: its controllers with their services. Sends one request after the other.
///
/// # Errors
/// [`DiscoveryError`]; a port without an I/O unit does not answer, or refuses.
///
/// # Cancel safety
/// When the future is dropped, no further requests are sent.
pub async fn discover(
    device: &Device,
    port: u8,
    to: Address,
) -> Result<Vec<IoController>, DiscoveryError> {
    let asker = Asker::open(device, port, to).await?;
    let data = asker.ask(IO_UNIT_INFO, 0).await?;
    let unit = match IoUnitInfoView::new(&data) {
        Some(view) => IoUnitInfo::parse(view),
        None => return Ok(Vec::new()),
    };
    let mut controllers = Vec::new();
    for slot in unit.occupied() {
        let data = asker.ask(IO_CONTROLLER_PROFILE, slot.into()).await?;
        let Some(view) = ControllerProfileView::new(&data) else {
            continue;
        };
        let profile = ControllerProfile::parse(view);
        let mut services = Vec::new();
        for begin in (0..profile.service_entries).step_by(ENTRIES.into()) {
            let end = begin
                .saturating_add(ENTRIES - 1)
                .min(profile.service_entries - 1);
            let which = u32::from(slot) << 16 | u32::from(end) << 8 | u32::from(begin);
            let data = asker.ask(SERVICE_ENTRIES, which).await?;
            let count = usize::from(end - begin) + 1;
            services.extend(data.chunks_exact(ENTRY_LEN).take(count).map(parse_service));
        }
        controllers.push(IoController {
            slot,
            profile,
            services,
        });
    }
    Ok(controllers)
}

/// The waiting callers, by transaction.
#[derive(Default)]
struct Waiting(Mutex<BTreeMap<TransactionId, oneshot::Sender<Option<MadBytes>>>>);

impl MadClient for Waiting {
    fn deliver(&self, delivery: Delivery) {
        let (tid, answer) = match delivery {
            Delivery::Response { tid, mad, .. } => (tid, Some(mad)),
            Delivery::TimedOut { tid, .. } | Delivery::TransferFailed { tid, .. } => (tid, None),
            _ => return,
        };
        let told = self.0.lock().remove(&tid);
        if let Some(tell) = told {
            // The caller may have been dropped.
            let _ = tell.send(answer);
        }
    }
}

/// Asks one port.
struct Asker {
    agent: MadAgent,
    waiting: Arc<Waiting>,
    to: Address,
}

impl Asker {
    async fn open(device: &Device, port: u8, to: Address) -> Result<Self, DiscoveryError> {
        let service = MadService::of(device, port).await?;
        let waiting = Arc::new(Waiting::default());
        let client: Weak<dyn MadClient> = Arc::<Waiting>::downgrade(&waiting);
        let agent = service.register(Class::DEV_MGT, CLASS_VERSION, &[], client)?;
        Ok(Self { agent, waiting, to })
    }

    /// The data of an attribute.
    async fn ask(&self, attribute: AttributeId, modifier: u32) -> Result<Vec<u8>, DiscoveryError> {
        let header = MadHeader {
            base_version: MadHeader::BASE_VERSION,
            class: Class::DEV_MGT,
            class_version: CLASS_VERSION,
            method: Method::GET,
            attribute,
            modifier,
            ..MadHeader::default()
        };
        let mut mad = [0; 256];
        emit_header(&header, &mut mad);
        let (tell, told) = oneshot::channel();
        // An answer on another thread finds the lock taken; an answer on this thread is handled after its
        // release.
        collect(|| {
            let mut waiting = self.waiting.0.lock();
            let tid = self.agent.request(self.to, &mad, Retry::default())?;
            waiting.insert(tid, tell);
            Ok::<_, DiscoveryError>(())
        })?;
        let answer = told.await.ok().flatten().ok_or(DiscoveryError::TimedOut)?;
        let header = MadHeader::parse(header_of(&answer));
        match header.status.bits() {
            0 => Ok(answer[DATA_AT..].to_vec()),
            status => Err(DiscoveryError::Refused(status)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_nibbles() {
        let mut info = IoUnitInfo {
            max_controllers: 5,
            ..IoUnitInfo::default()
        };
        info.slots.0[..3].copy_from_slice(&[0x10, 0x01, 0x1f]);
        assert_eq!(info.occupied().collect::<Vec<_>>(), [1, 4, 5]);
    }

    #[test]
    fn services_name_their_targets() {
        let entry = emit_service("SRP.T10:505400FFFE770002", ServiceId(7));
        assert_eq!(entry.len(), 48);
        let service = parse_service(&entry);
        assert_eq!(service, ("SRP.T10:505400FFFE770002".into(), ServiceId(7)));
        let controller = IoController {
            slot: 1,
            profile: ControllerProfile::srp(Guid(3), 2),
            services: vec![service, ("iSER".into(), ServiceId(8))],
        };
        let targets = controller.targets(&Route::default());
        assert_eq!(targets.len(), 1);
        assert_eq!(targets[0].port.extension, 0x5054_00ff_fe77_0002);
        assert_eq!(targets[0].port.guid, Guid(3));
        let profile = ControllerProfile {
            protocol: 1,
            ..controller.profile
        };
        let other = IoController {
            profile,
            ..controller
        };
        assert!(other.targets(&Route::default()).is_empty());
    }
}
