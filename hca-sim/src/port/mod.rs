//! A port: its addresses, its tables, and what it counts.
//!
//! [`sma`] and [`pma`] answer subnet and performance management for the ports of a node. They are
//! plain functions over bytes: whoever receives a datagram calls them, and has the answer.

mod arrivals;
mod calls;
mod driver;
pub(crate) mod features;
pub(crate) mod groups;
mod pollers;
mod route;
pub(crate) mod xrc;

use std::fmt;
use std::net::IpAddr;

use arrayvec::ArrayVec;
use verbs_core::mad::sm::PortInfo;
use verbs_core::mem::MrTable;
use verbs_core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use verbs_core::sync::{Arc, Mutex, OnceLock};
use verbs_core::yard::Yard;
use verbs_core::{Attr, Av, Error, Gid, Guid, Lid, Mtu, PKey, PortState, QpAttr, Why};

pub(crate) use driver::{Driver, LinkEvents};
#[doc(no_inline)]
pub use verbs_subnet::agent::{Arrival, Processed, pma, sma};

use crate::engine::Engine;
use crate::link::{Directory, HubPort, Managed};
use crate::port::features::Features;
use crate::port::groups::Groups;
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
    /// Where what each message touches of a queue pair lies.
    pub(crate) yard: Yard,
    pub(crate) engine: Engine,
    pub(crate) counters: Counters,
    /// Taken alone or under the lock of the link; nothing is locked under it.
    sheet: Mutex<Sheet>,
    /// What it has of the optional features.
    pub(crate) features: Features,
    /// What drives the machines of messages that go as packets. On a loopback link it is made when the
    /// first queue pair needs it.
    driver: OnceLock<Driver>,
    /// The link carries packets, and every message goes as packets.
    is_wire: bool,
    /// A subnet manager configures the port.
    pub(crate) managed: Option<Arc<dyn Managed>>,
    /// The MTU that it has set, by its code.
    neighbor_mtu: AtomicU32,
    pub(crate) groups: Groups<QueuePair>,
    pub(crate) xrc: Xrc,
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

/// What management changes.
#[derive(Clone, Debug)]
pub(crate) struct Sheet {
    /// The GID table. On a loopback link the port has one GID; on a wire, one for each address.
    pub(crate) gids: Gids,
    /// The P_Key table; of one entry where nobody manages the port.
    pub(crate) pkeys: ArrayVec<PKey, PKEYS_MAX>,
    pub(crate) state: PortState,
    /// `PortInfo.CapabilityMask`, as clients have set it.
    pub(crate) capability_mask: u32,
    /// What the subnet manager has set, if one manages the port.
    pub(crate) info: Option<PortInfo>,
}

impl Sheet {
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
        let sheet = Sheet {
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
            yard: Yard::default(),
            engine,
            counters: Counters::default(),
            sheet: Mutex::new(sheet),
            features: Features::default(),
            is_wire: driver.is_some(),
            managed: None,
            neighbor_mtu: AtomicU32::new(0),
            driver: driver.map_or_else(OnceLock::new, OnceLock::from),
            groups: Groups::default(),
            xrc: Xrc::default(),
            removed: Removed::default(),
        }
    }

    /// What drives the machines of messages that go as packets, if there are any.
    pub(crate) fn driver(&self) -> Option<&Driver> {
        self.driver.get()
    }

    /// Whether the link carries packets, so that every message goes as packets.
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
            driver.set_down(self.sheet().state != PortState::Active);
            driver.start(self, None);
        }
        driver
    }

    /// Whether packets go by GIDs alone, as there are no LIDs.
    pub(crate) fn is_roce(&self) -> bool {
        self.is_wire && self.managed.is_none()
    }

    /// The largest path MTU.
    pub(crate) fn mtu(&self) -> Mtu {
        let of_link = self.driver().map_or(Mtu::B4096, Driver::mtu);
        Mtu::from_code(self.neighbor_mtu.load(Relaxed)).unwrap_or(of_link)
    }

    /// Takes over what the subnet manager has set, and that state, of which each change is told. What the
    /// state was and is; `None` if nobody manages the port.
    pub(crate) fn follow_manager(
        &self,
        state: Option<PortState>,
    ) -> Option<(PortState, PortState)> {
        let now = self.managed.as_ref()?.sheet();
        self.change(|sheet| {
            let before = sheet.state;
            let state = state.unwrap_or(before);
            sheet.state = state;
            sheet.gids = now.gids.iter().copied().take(GIDS_MAX).collect();
            sheet.pkeys = now.pkeys.iter().copied().take(PKEYS_MAX).collect();
            sheet.capability_mask = now.info.capability_mask.bits();
            sheet.info = Some(now.info);
            self.neighbor_mtu
                .store(now.info.neighbor_mtu.value(), Relaxed);
            Some((before, state))
        })
    }

    /// The partition with that index.
    pub(crate) fn pkey(&self, index: u16) -> Option<PKey> {
        self.sheet.lock().pkeys.get(usize::from(index)).copied()
    }

    /// Entries of the P_Key table.
    pub(crate) fn pkey_count(&self) -> u32 {
        self.sheet.lock().pkeys.len() as u32
    }

    /// The index of a partition that a packet with that key may come from.
    pub(crate) fn pkey_index(&self, key: PKey) -> Option<u16> {
        let sheet = self.sheet.lock();
        let found = sheet.pkeys.iter().position(|own| own.matches(key));
        found.and_then(|index| u16::try_from(index).ok())
    }

    /// Whether that is one of its own addresses.
    pub(crate) fn has_address(&self, addr: IpAddr) -> bool {
        self.sheet.lock().gids.contains(&Gid::from(addr))
    }

    pub(crate) fn sheet(&self) -> Sheet {
        self.sheet.lock().clone()
    }

    /// The GID with that index.
    pub(crate) fn gid(&self, index: u16) -> Option<Gid> {
        self.sheet.lock().gids.get(usize::from(index)).copied()
    }

    /// The port has 2^n LIDs.
    pub(crate) fn lmc(&self) -> u8 {
        let sheet = self.sheet.lock();
        sheet.info.as_ref().map_or(0, |info| info.lmc.byte())
    }

    /// Entries of the GID table.
    pub(crate) fn gid_count(&self) -> u32 {
        self.sheet.lock().gids.len() as u32
    }

    /// Changes the tables or the state; whether that made a difference is for `change` to say.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Sheet) -> T) -> T {
        change(&mut self.sheet.lock())
    }

    /// Whether messages can go from here to that port and back: both in service, in one partition.
    pub(crate) fn reaches(&self, other: &Self) -> bool {
        let (here, there) = (self.sheet(), other.sheet());
        here.state == PortState::Active
            && there.state == PortState::Active
            && here.pkey().matches(there.pkey())
    }

    /// Whether a queue pair's attributes name what this port has and can reach.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Mismatch`], [`Error::Unsupported`].
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

/// What is wrong with a way on RoCE, where the GID is the address: there are no LIDs (IBTA annex A17.3).
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

/// What is wrong with a way through a subnet: it ends at a LID, or at a GID whose LID the link knows.
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
            .field("sheet", &self.sheet())
            .finish_non_exhaustive()
    }
}
