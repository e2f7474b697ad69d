//! A port: its addresses, its tables and its counters.
//!
//! [`sma`] and [`pma`] answer subnet and performance management for the ports of a node. They are plain functions over
//! bytes: the receiver of a datagram calls them, and gets the answer.

pub(crate) mod arrivals;
mod calls;
mod driver;
pub(crate) mod features;
pub(crate) mod groups;
mod pollers;
pub(crate) mod ready;
mod route;
pub(crate) mod streams;
pub(crate) mod xrc;

use std::fmt;
use std::net::IpAddr;

use arrayvec::ArrayVec;
use verbs_core::mad::sm::PortInfo;
use verbs_core::mem::MrTable;
use verbs_core::slab_alloc::SlabAlloc;
use verbs_core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use verbs_core::sync::{Arc, Mutex, OnceLock};
use verbs_core::{Attr, Av, Error, Gid, Guid, Lid, Mtu, PKey, PortState, QpAttr, Why};

pub(crate) use driver::{Driver, LinkEvents, sleep};
#[doc(no_inline)]
pub use verbs_subnet::agent::{Arrival, Processed, pma, sma};

use crate::engine::Engine;
use crate::link::{Directory, HubPort, Managed};
use crate::port::features::Features;
use crate::port::groups::Groups;
use crate::port::streams::Streams;
use crate::port::xrc::Xrc;
use crate::qp::QueuePair;
use crate::queue::base::counters::Counters;
use crate::queue::base::removed::Removed;

/// One HCA's port.
pub(crate) struct Port {
    /// Its LID on a loopback link. On others it is only a name for its queue pairs.
    pub(crate) lid: Lid,
    pub(crate) guid: Guid,
    pub(crate) link: Arc<Directory<QueuePair>>,
    pub(crate) mrs: Arc<MrTable>,
    /// Holds the part of each queue pair that every message touches.
    pub(crate) slabs: SlabAlloc,
    pub(crate) engine: Engine,
    pub(crate) counters: Counters,
    /// Taken alone or under the lock of the link; nothing is locked under it.
    settings: Mutex<PortSettings>,
    /// The optional features that it has.
    pub(crate) features: Features,
    /// Drives the machines of messages that are sent as packets. On a loopback link it is made when the first queue
    /// pair needs it.
    driver: OnceLock<Driver>,
    /// The link carries packets, and every message is sent as packets.
    is_wire: bool,
    /// Queue pairs that were made for low latency.
    pub(crate) low_latency: AtomicU32,
    /// A subnet manager configures the port.
    pub(crate) managed: Option<Arc<dyn Managed>>,
    /// The MTU that it has set, by its code.
    neighbor_mtu: AtomicU32,
    pub(crate) groups: Groups<QueuePair>,
    pub(crate) xrc: Xrc,
    /// Where streams carry messages.
    pub(crate) streams: Option<Arc<Streams<QueuePair>>>,
    /// The HCA was removed.
    pub(crate) removed: Removed,
}

/// Entries that a GID table may have.
pub(crate) const GIDS_MAX: usize = 32;

/// Entries that a P_Key table may have.
pub(crate) const PKEYS_MAX: usize = 128;

/// A GID table.
pub(crate) type Gids = ArrayVec<Gid, GIDS_MAX>;

/// The GID table of a port with those addresses.
pub(crate) fn gids(addresses: &[IpAddr]) -> Gids {
    addresses
        .iter()
        .take(GIDS_MAX)
        .map(|&addr| addr.into())
        .collect()
}

/// The part of a port that management changes.
#[derive(Clone, Debug)]
pub(crate) struct PortSettings {
    /// The GID table. On a loopback link the port has one GID; on a wire, one for each address.
    pub(crate) gids: Gids,
    /// The P_Key table; of one entry where the port is not managed.
    pub(crate) pkeys: ArrayVec<PKey, PKEYS_MAX>,
    pub(crate) state: PortState,
    /// `PortInfo.CapabilityMask`, as clients have set it.
    pub(crate) capability_mask: u32,
    /// The attributes that the subnet manager has set, if one manages the port.
    pub(crate) info: Option<PortInfo>,
}

impl PortSettings {
    /// The partition of a port that has one.
    pub(crate) fn pkey(&self) -> PKey {
        self.pkeys.first().copied().unwrap_or(PKey(0))
    }
}

impl Port {
    /// A port in service, in the default partition.
    pub(crate) fn new(
        (lid, guid): (Lid, Guid),
        gids: Gids,
        link: Arc<Directory<QueuePair>>,
        mrs: Arc<MrTable>,
        engine: Engine,
        driver: Option<Driver>,
    ) -> Self {
        let settings = PortSettings {
            gids,
            pkeys: [PKey::DEFAULT].into_iter().collect(),
            state: PortState::Active,
            capability_mask: 0,
            info: None,
        };
        Self {
            lid,
            guid,
            link,
            mrs,
            slabs: SlabAlloc::default(),
            engine,
            counters: Counters::default(),
            settings: Mutex::new(settings),
            features: Features::default(),
            is_wire: driver.is_some(),
            low_latency: AtomicU32::new(0),
            managed: None,
            neighbor_mtu: AtomicU32::new(0),
            driver: driver.map_or_else(OnceLock::new, OnceLock::from),
            groups: Groups::default(),
            xrc: Xrc::default(),
            streams: None,
            removed: Removed::default(),
        }
    }

    /// The driver of messages that are sent as packets, if there is one.
    pub(crate) fn driver(&self) -> Option<&Driver> {
        self.driver.get()
    }

    /// Something that connections over packets depend on has changed.
    pub(crate) fn connections_changed(&self) {
        if let Some(driver) = self.driver() {
            driver.change();
        }
    }

    /// Whether the link carries packets, so that every message is sent as packets.
    pub(crate) fn is_wire(&self) -> bool {
        self.is_wire
    }

    /// The driver, made now if there is none: on a loopback link.
    pub(crate) fn need_driver(self: &Arc<Self>) -> &Driver {
        let mut is_new = false;
        let driver = self.driver.get_or_init(|| {
            is_new = true;
            Driver::new(Box::new(HubPort::new(Arc::clone(&self.link), self.lid)))
        });
        if is_new {
            driver.set_down(self.settings().state != PortState::Active);
            driver.start(self, None);
        }
        driver
    }

    /// Whether packets are addressed by GIDs alone, because there are no LIDs.
    pub(crate) fn is_roce(&self) -> bool {
        self.is_wire && self.managed.is_none() && self.streams.is_none()
    }

    /// The largest path MTU.
    pub(crate) fn mtu(&self) -> Mtu {
        let of_link = self.driver().map_or(Mtu::B4096, Driver::mtu);
        Mtu::from_code(self.neighbor_mtu.load(Relaxed)).unwrap_or(of_link)
    }

    /// Takes over what the subnet manager has set, and `state`, whose every change the link reports. Returns the state
    /// before and after; `None` if the port is not managed.
    pub(crate) fn follow_manager(
        &self,
        state: Option<PortState>,
    ) -> Option<(PortState, PortState)> {
        let now = self.managed.as_ref()?.tables();
        self.change(|settings| {
            let before = settings.state;
            let state = state.unwrap_or(before);
            settings.state = state;
            settings.gids = now.gids.iter().copied().take(GIDS_MAX).collect();
            settings.pkeys = now.pkeys.iter().copied().take(PKEYS_MAX).collect();
            settings.capability_mask = now.info.capability_mask.bits();
            settings.info = Some(now.info);
            self.neighbor_mtu
                .store(now.info.neighbor_mtu.value(), Relaxed);
            Some((before, state))
        })
    }

    /// The partition with that index.
    pub(crate) fn pkey(&self, index: u16) -> Option<PKey> {
        self.settings.lock().pkeys.get(usize::from(index)).copied()
    }

    /// Entries of the P_Key table.
    pub(crate) fn pkey_count(&self) -> u32 {
        self.settings.lock().pkeys.len() as u32
    }

    /// The index of a partition that a packet with that key may come from.
    pub(crate) fn pkey_index(&self, key: PKey) -> Option<u16> {
        let settings = self.settings.lock();
        let found = settings.pkeys.iter().position(|own| own.matches(key));
        found.and_then(|index| u16::try_from(index).ok())
    }

    /// Whether that is one of its own addresses.
    pub(crate) fn has_address(&self, addr: IpAddr) -> bool {
        self.settings.lock().gids.contains(&Gid::from(addr))
    }

    pub(crate) fn settings(&self) -> PortSettings {
        self.settings.lock().clone()
    }

    /// The GID with that index.
    pub(crate) fn gid(&self, index: u16) -> Option<Gid> {
        self.settings.lock().gids.get(usize::from(index)).copied()
    }

    /// The port has 2^n LIDs.
    pub(crate) fn lmc(&self) -> u8 {
        let settings = self.settings.lock();
        settings.info.as_ref().map_or(0, |info| info.lmc.byte())
    }

    /// Entries of the GID table.
    pub(crate) fn gid_count(&self) -> u32 {
        self.settings.lock().gids.len() as u32
    }

    /// Changes the tables or the state; `change` says whether that made a difference.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut PortSettings) -> T) -> T {
        change(&mut self.settings.lock())
    }

    /// Whether messages can pass between here and that port in both directions: both in service, in one partition.
    pub(crate) fn reaches(&self, other: &Self) -> bool {
        // One after the other: it may be the same port.
        let in_service = |port: &Self| {
            let settings = port.settings.lock();
            (settings.state == PortState::Active).then(|| settings.pkey())
        };
        let (here, there) = (in_service(self), in_service(other));
        here.zip(there)
            .is_some_and(|(here, there)| here.matches(there))
    }

    /// Whether a queue pair's attributes name what this port has and can reach.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Mismatch`], [`Error::NoCapability`].
    pub(crate) fn check_path(&self, attr: &QpAttr) -> Result<(), Error> {
        if let Some(access) = attr.access {
            self.features.check(access)?;
        }
        let last = self.pkey_count().saturating_sub(1);
        if let Some(index) = attr.pkey_index.map(u32::from)
            && index > last
        {
            let (attr, got, max) = (Attr::PkeyIndex, index, last);
            return Err(Error::Invalid { attr, got, max });
        }
        let Some(av) = &attr.av else { return Ok(()) };
        let sgid_index = av.global.map_or(0, |global| global.sgid_index);
        let Some(sgid) = self.gid(sgid_index) else {
            return Err(Error::Invalid {
                attr: Attr::GidIndex,
                got: u32::from(sgid_index),
                max: self.gid_count().saturating_sub(1),
            });
        };
        let Some(driver) = self.driver().filter(|_| self.is_wire) else {
            return Ok(());
        };
        let why = match self.managed {
            Some(_) => refuses_way(av),
            None => refuses_roce(sgid, av),
        };
        if let Some(why) = why {
            let attr = Attr::Av;
            return Err(Error::Mismatch { attr, why });
        }
        let (got, max) = (attr.path_mtu.unwrap_or(Mtu::B256), driver.mtu());
        if got > max {
            let (got, max) = (got.bytes(), max.bytes());
            let attr = Attr::PathMtu;
            return Err(Error::Invalid { attr, got, max });
        }
        Ok(())
    }
}

/// The reason why RoCE refuses an address vector: the GID is the address there, and there are no LIDs (IBTA annex
/// A17.3).
fn refuses_roce(sgid: Gid, av: &Av) -> Option<Why> {
    let Some(global) = &av.global else {
        return Some(Why::Missing);
    };
    let (src, dst) = (IpAddr::from(sgid), IpAddr::from(global.dgid));
    if dst.is_multicast() {
        return Some(Why::Multicast);
    }
    (src.is_ipv4() != dst.is_ipv4() || dst.is_unspecified()).then_some(Why::Unreachable)
}

/// The reason why a subnet refuses an address vector: it must end at a LID, or at a GID whose LID the link knows.
fn refuses_way(av: &Av) -> Option<Why> {
    let is_group = av.dlid.is_multicast();
    if is_group || av.global.is_some_and(|global| global.dgid.is_multicast()) {
        return Some(Why::Multicast);
    }
    (av.dlid == Lid(0) && av.global.is_none()).then_some(Why::Missing)
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port")
            .field("lid", &self.lid)
            .field("settings", &self.settings())
            .finish_non_exhaustive()
    }
}
