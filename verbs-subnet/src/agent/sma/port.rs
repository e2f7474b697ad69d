//! One port as the subnet manager sees it: its settings, its state, its tables.

use std::collections::BTreeMap;
use std::time::Duration;

use verbs_core::mad::sm::{
    CapabilityMask, LinkState, LinkWidth, MKeyProtect, PhysState, PortInfo, SlToVl, VlArbitration,
};
use verbs_core::mad::{Bits, Status, TimeCode};
use verbs_core::time::Instant;
use verbs_core::{Gid, Guid, Lid, PKey};

use super::is_unicast;

/// GUIDs in a block.
const BLOCK_GUIDS: usize = 8;

/// The capabilities of a port.
#[derive(Clone, Copy, Debug)]
pub struct PortConfig {
    /// The port's GUID; in a switch only port 0 has one.
    pub guid: Guid,
    /// Widths of its link.
    pub widths: LinkWidth,
    /// Speeds of its link: 1 for 2.5 Gb/s a lane, 2 for 5, 4 for 10.
    pub speeds: u8,
    /// Extended speeds: 1 for 14 Gb/s a lane, 2 for 25, 4 for 50.
    pub speeds_extended: u8,
    /// Largest MTU, by its code (5 for 4096).
    pub mtu: u8,
    /// Virtual lanes, by their code (1 for one, 2 for two, 3 for four, 4 for eight, 5 for 15).
    pub lanes: u8,
    /// Entries of each arbitration table.
    pub arbitration_entries: u8,
    /// Entries of the GUID table.
    pub guids: u8,
}

impl Default for PortConfig {
    /// Four lanes of 10 Gb/s, 4096 bytes, eight virtual lanes.
    fn default() -> Self {
        Self {
            guid: Guid(0),
            widths: LinkWidth::X1.union(LinkWidth::X4),
            speeds: 7,
            speeds_extended: 0,
            mtu: 5,
            lanes: 4,
            arbitration_entries: 8,
            guids: 32,
        }
    }
}

/// Speeds, in Gb/s a lane, by the bits of the two fields.
const SPEEDS: [(u32, u32); 3] = [(1, 2), (2, 5), (4, 10)];
const SPEEDS_EXTENDED: [(u32, u32); 3] = [(1, 14), (2, 25), (4, 50)];

/// A port of a node.
#[derive(Debug)]
pub struct SmaPort {
    info: PortInfo,
    /// Whether it has settings of a node: the port of an adapter, or port 0 of a switch.
    is_end: bool,
    /// Port 0 of a switch, which has no link.
    is_inner: bool,
    pub(super) guids: Vec<Guid>,
    pub(super) pkeys: Vec<PKey>,
    /// By input port; only the tables that were set are kept.
    sl_to_vl: BTreeMap<u8, SlToVl>,
    pub(super) arbitration: BTreeMap<u16, VlArbitration>,
    /// When the protection by the key is lifted.
    pub(super) lease_ends: Option<Instant>,
}

/// The changes that a Set of a port has made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Changed {
    pub(super) lid: bool,
    pub(super) manager: bool,
    pub(super) gids: bool,
    pub(super) reregister: bool,
    pub(super) state: Option<LinkState>,
    pub(super) restart: Option<PhysState>,
}

impl SmaPort {
    pub(super) fn new(config: &PortConfig, of_switch: bool, is_external: bool, pkeys: u16) -> Self {
        let is_end = !is_external;
        let is_inner = of_switch && is_end;
        let guids = if is_end { config.guids.max(1) } else { 0 };
        let state = if is_inner {
            LinkState::ACTIVE
        } else {
            LinkState::DOWN
        };
        let phys = if is_inner {
            PhysState::LINK_UP
        } else {
            PhysState::POLLING
        };
        let info = PortInfo {
            gid_prefix: if is_end { Gid::LINK_LOCAL_PREFIX } else { 0 },
            capability_mask: capabilities(config, of_switch, is_end),
            link_width_enabled: config.widths,
            link_width_supported: config.widths,
            link_speed_supported: Bits::truncated(config.speeds.into()),
            link_speed_enabled: Bits::truncated(config.speeds.into()),
            link_speed_ext_supported: Bits::truncated(config.speeds_extended.into()),
            link_speed_ext_enabled: Bits::truncated(config.speeds_extended.into()),
            state,
            phys_state: phys,
            link_down_default: PhysState::POLLING,
            neighbor_mtu: Bits::truncated(config.mtu.into()),
            mtu_cap: Bits::truncated(config.mtu.into()),
            vl_cap: Bits::truncated(config.lanes.into()),
            operational_vls: Bits::truncated(config.lanes.into()),
            vl_arb_high_cap: config.arbitration_entries,
            vl_arb_low_cap: config.arbitration_entries,
            guid_cap: guids,
            response_time: RESPONSE_TIME,
            ..PortInfo::default()
        };
        let mut table = vec![Guid(0); usize::from(guids)];
        if let Some(own) = table.first_mut() {
            *own = config.guid;
        }
        let mut keys = vec![PKey(0); usize::from(pkeys)];
        if let Some(first) = keys.first_mut() {
            *first = PKey::DEFAULT;
        }
        let mut port = Self {
            info,
            is_end,
            is_inner,
            guids: table,
            pkeys: keys,
            sl_to_vl: BTreeMap::new(),
            arbitration: BTreeMap::new(),
            lease_ends: None,
        };
        if is_inner {
            let itself = port.info;
            port.negotiate(&itself);
        }
        port
    }

    /// The full information of a Get, except the number of the port of arrival.
    pub fn info(&self) -> &PortInfo {
        &self.info
    }

    /// The port's own GUID.
    pub fn guid(&self) -> Guid {
        self.guids.first().copied().unwrap_or(Guid(0))
    }

    /// The GID with that index; `None` beyond the table's end and for entries without a GUID.
    pub fn gid(&self, index: u8) -> Option<Gid> {
        let guid = self.guids.get(usize::from(index)).copied();
        let guid = guid.filter(|&guid| guid != Guid(0))?;
        Some(Gid::from_parts(self.info.gid_prefix, guid))
    }

    /// The P_Key table.
    pub fn pkeys(&self) -> &[PKey] {
        &self.pkeys
    }

    /// Rate of the link, in Mb/s; 0 without one.
    pub fn rate_mbps(&self) -> u32 {
        let lanes = match self.info.link_width_active {
            LinkWidth::X1 => 1,
            LinkWidth::X4 => 4,
            LinkWidth::X8 => 8,
            LinkWidth::X12 => 12,
            _ => 0,
        };
        let extended = self.info.link_speed_ext_active.value();
        let (speeds, active) = if extended == 0 {
            (SPEEDS, self.info.link_speed_active.value())
        } else {
            (SPEEDS_EXTENDED, extended)
        };
        let speed = speeds.iter().find(|&&(bit, _)| bit == active);
        speed.map_or(0, |&(bit, gbps)| {
            // The slowest is 2.5 Gb/s.
            let mbps = if extended == 0 && bit == 1 {
                2_500
            } else {
                gbps * 1_000
            };
            mbps * lanes
        })
    }

    /// Negotiates width and speed with the other end, and initialises the port again.
    pub(super) fn train(&mut self, peer: &PortInfo) {
        self.negotiate(peer);
        self.info.state = LinkState::INIT;
        self.info.phys_state = PhysState::LINK_UP;
    }

    fn negotiate(&mut self, peer: &PortInfo) {
        let best = |bits: u32| bits.checked_ilog2().map_or(0, |top| 1 << top);
        let widths = self.info.link_width_enabled & peer.link_width_enabled;
        let width = [LinkWidth::X12, LinkWidth::X8, LinkWidth::X4, LinkWidth::X1]
            .into_iter()
            .find(|&width| widths.contains(width));
        self.info.link_width_active = width.unwrap_or(LinkWidth::empty());
        let speeds = self.info.link_speed_enabled.value() & peer.link_speed_enabled.value();
        self.info.link_speed_active = Bits::truncated(best(speeds));
        let (ours, theirs) = (
            self.info.link_speed_ext_enabled,
            peer.link_speed_ext_enabled,
        );
        self.info.link_speed_ext_active = Bits::truncated(best(ours.value() & theirs.value() & 7));
    }

    pub(super) fn go_down(&mut self, phys: PhysState) {
        self.info.state = LinkState::DOWN;
        self.info.phys_state = phys;
        self.info.link_width_active = LinkWidth::empty();
        self.info.link_speed_active = Bits::default();
        self.info.link_speed_ext_active = Bits::default();
    }

    /// Sets and clears capability bits; returns the mask if it has changed.
    pub(super) fn offer(
        &mut self,
        set: CapabilityMask,
        clear: CapabilityMask,
    ) -> Option<CapabilityMask> {
        let before = self.info.capability_mask;
        self.info.capability_mask.remove(clear);
        self.info.capability_mask.insert(set);
        (self.info.capability_mask != before).then_some(self.info.capability_mask)
    }

    pub(super) fn count_key_violation(&mut self, now: Instant, lease_s: u16) {
        let count = &mut self.info.m_key_violations;
        *count = count.saturating_add(1);
        if lease_s != 0 && self.lease_ends.is_none() {
            self.lease_ends = Some(now + Duration::from_secs(lease_s.into()));
        }
    }

    pub(super) fn count_pkey_violation(&mut self) {
        let count = &mut self.info.pkey_violations;
        *count = count.saturating_add(1);
    }

    pub(super) fn count_qkey_violation(&mut self) {
        let count = &mut self.info.qkey_violations;
        *count = count.saturating_add(1);
    }

    /// The manager with the key has been silent for too long: others may read and write.
    pub(super) fn end_lease(&mut self, now: Instant) {
        if self.lease_ends.is_some_and(|end| end <= now) {
            self.lease_ends = None;
            self.info.m_key_protect = MKeyProtect::WRITES;
        }
    }

    /// Applies a Set of PortInfo, all of it or nothing (IBTA vol. 1, 14.2.5.6).
    ///
    /// # Errors
    /// [`Status::BAD_VALUE`].
    pub(super) fn set(&mut self, asked: &PortInfo) -> Result<Changed, Status> {
        let mut new = self.info;
        let restart = self.set_link(asked, &mut new)?;
        if self.is_end {
            set_end(asked, &mut new)?;
        }
        new.vl_high_limit = asked.vl_high_limit;
        new.vl_stall_count = asked.vl_stall_count;
        new.hoq_life = asked.hoq_life;
        new.local_phy_errors = asked.local_phy_errors;
        new.overrun_errors = asked.overrun_errors;
        if !self.is_end {
            new.enforce_in = asked.enforce_in;
            new.enforce_out = asked.enforce_out;
            new.filter_raw_in = asked.filter_raw_in;
            new.filter_raw_out = asked.filter_raw_out;
        }
        let old = std::mem::replace(&mut self.info, new);
        Ok(Changed {
            lid: (old.lid, old.lmc) != (new.lid, new.lmc),
            manager: (old.sm_lid, old.sm_sl) != (new.sm_lid, new.sm_sl),
            gids: old.gid_prefix != new.gid_prefix,
            reregister: self.is_end && asked.client_reregister,
            state: (old.state != new.state).then_some(new.state),
            restart,
        })
    }

    /// The part about the link.
    fn set_link(&self, asked: &PortInfo, new: &mut PortInfo) -> Result<Option<PhysState>, Status> {
        let old = &self.info;
        if asked.link_width_enabled == LinkWidth::ALL_SUPPORTED {
            new.link_width_enabled = old.link_width_supported;
        } else if !asked.link_width_enabled.is_empty() {
            new.link_width_enabled = within(asked.link_width_enabled, old.link_width_supported)?;
        }
        match asked.link_speed_enabled.value() {
            0 => {}
            15 => new.link_speed_enabled = old.link_speed_supported,
            some if some & !old.link_speed_supported.value() != 0 => {
                return Err(Status::BAD_VALUE);
            }
            _ => new.link_speed_enabled = asked.link_speed_enabled,
        }
        match asked.link_speed_ext_enabled.value() {
            0 => {}
            30 => new.link_speed_ext_enabled = Bits::default(),
            31 => {
                let all = old.link_speed_ext_supported.value();
                new.link_speed_ext_enabled = Bits::truncated(all);
            }
            some if some & !old.link_speed_ext_supported.value() != 0 => {
                return Err(Status::BAD_VALUE);
            }
            _ => new.link_speed_ext_enabled = asked.link_speed_ext_enabled,
        }
        if asked.neighbor_mtu > old.mtu_cap || asked.operational_vls > old.vl_cap {
            return Err(Status::BAD_VALUE);
        }
        if asked.neighbor_mtu.value() != 0 {
            new.neighbor_mtu = asked.neighbor_mtu;
        }
        if asked.operational_vls.value() != 0 {
            new.operational_vls = asked.operational_vls;
        }
        match asked.link_down_default {
            PhysState::NO_CHANGE => {}
            PhysState::SLEEP | PhysState::POLLING => {
                new.link_down_default = asked.link_down_default;
            }
            _ => return Err(Status::BAD_VALUE),
        }
        self.set_state(asked, new)
    }

    /// IBTA vol. 1, 7.2: how a manager may change the state. Returns the state from which the link restarts.
    fn set_state(&self, asked: &PortInfo, new: &mut PortInfo) -> Result<Option<PhysState>, Status> {
        let phys = match asked.phys_state {
            PhysState::NO_CHANGE => None,
            PhysState::SLEEP | PhysState::POLLING | PhysState::DISABLED => Some(asked.phys_state),
            _ => return Err(Status::BAD_VALUE),
        };
        if self.is_inner {
            return Ok(None);
        }
        match (self.info.state, asked.state) {
            (_, LinkState::NO_CHANGE) => Ok(phys),
            (_, LinkState::DOWN) => Ok(Some(phys.unwrap_or(new.link_down_default))),
            (LinkState::INIT | LinkState::ARMED, LinkState::ARMED)
            | (LinkState::ARMED | LinkState::ACTIVE, LinkState::ACTIVE) => {
                new.state = asked.state;
                Ok(phys)
            }
            _ => Err(Status::BAD_VALUE),
        }
    }

    /// The lanes of packets from that port.
    pub(super) fn sl_to_vl(&self, input: u8) -> SlToVl {
        let lanes = lanes_of(self.info.operational_vls.value());
        self.sl_to_vl
            .get(&input)
            .copied()
            .unwrap_or_else(|| SlToVl {
                vls: std::array::from_fn(|sl| {
                    let sl = u32::try_from(sl).unwrap_or(0);
                    Bits::truncated(sl % lanes)
                }),
            })
    }

    pub(super) fn set_sl_to_vl(&mut self, input: u8, table: SlToVl) {
        self.sl_to_vl.insert(input, table);
    }

    pub(super) fn lane(&self, input: u8, sl: u8) -> u8 {
        let table = self.sl_to_vl(input).vls;
        table.get(usize::from(sl)).map_or(15, |vl| vl.byte())
    }

    pub(super) fn passes_partition(&self, key: PKey, is_incoming: bool) -> bool {
        let enforces = if is_incoming {
            self.info.enforce_in
        } else {
            self.info.enforce_out
        };
        !enforces || self.is_member(key)
    }

    /// Whether the port may receive packets of that partition.
    pub fn is_member(&self, key: PKey) -> bool {
        let is_set = |own: &PKey| own.0 & 0x7fff != 0;
        let mut keys = self.pkeys.iter().filter(|key| is_set(key));
        keys.any(|own| own.matches(key))
    }

    /// The GUIDs of a block, and their offset; `None` beyond the table's end.
    pub(super) fn guid_block(&mut self, block: u32) -> Option<(usize, &mut [Guid])> {
        let start = usize::try_from(block).ok()?.checked_mul(BLOCK_GUIDS)?;
        let end = (start + BLOCK_GUIDS).min(self.guids.len());
        self.guids
            .get_mut(start..end)
            .filter(|part| !part.is_empty())
            .map(|part| (start, part))
    }
}

/// The capabilities of a port; the external ports of a switch have none.
fn capabilities(config: &PortConfig, of_switch: bool, is_end: bool) -> CapabilityMask {
    if !is_end {
        return CapabilityMask::empty();
    }
    let mut mask = CapabilityMask::TRAP
        | CapabilityMask::SL_MAPPING
        | CapabilityMask::SYSTEM_IMAGE_GUID
        | CapabilityMask::CAPABILITY_MASK_NOTICE
        | CapabilityMask::OTHER_CHANGES_NOTICE;
    mask.set(CapabilityMask::VENDOR_CLASS, !of_switch);
    mask.set(CapabilityMask::CONNECTION_MANAGEMENT, !of_switch);
    mask.set(CapabilityMask::CLIENT_REREGISTRATION, !of_switch);
    mask.set(EXTENDED_SPEEDS, config.speeds_extended != 0);
    mask
}

/// The part of a Set about an end port: its identity and its manager.
fn set_end(asked: &PortInfo, new: &mut PortInfo) -> Result<(), Status> {
    let lid_ok = asked.lid == Lid(0) || is_unicast(asked.lid);
    // The port has the LIDs from this one on that differ only in the low LMC bits (IBTA vol. 1, 4.1.3).
    let is_base = asked.lid.0 & ((1 << asked.lmc.value()) - 1) == 0;
    let sm_ok = asked.sm_lid == Lid(0) || is_unicast(asked.sm_lid);
    if !lid_ok || !is_base || !sm_ok {
        return Err(Status::BAD_VALUE);
    }
    new.m_key = asked.m_key;
    new.m_key_lease_s = asked.m_key_lease_s;
    new.m_key_protect = asked.m_key_protect;
    new.gid_prefix = asked.gid_prefix;
    new.lid = asked.lid;
    new.lmc = asked.lmc;
    new.sm_lid = asked.sm_lid;
    new.sm_sl = asked.sm_sl;
    new.subnet_timeout = asked.subnet_timeout;
    new.init_type_reply = asked.init_type_reply;
    // Violation counters are writable, usually with zero.
    new.m_key_violations = asked.m_key_violations;
    new.pkey_violations = asked.pkey_violations;
    new.qkey_violations = asked.qkey_violations;
    Ok(())
}

fn within(asked: LinkWidth, supported: LinkWidth) -> Result<LinkWidth, Status> {
    if supported.contains(asked) {
        Ok(asked)
    } else {
        Err(Status::BAD_VALUE)
    }
}

/// Virtual lanes for data, by their code.
const fn lanes_of(code: u32) -> u32 {
    match code {
        0 | 1 => 1,
        2 => 2,
        3 => 4,
        4 => 8,
        _ => 15,
    }
}

/// Extended speeds are offered.
const EXTENDED_SPEEDS: CapabilityMask = CapabilityMask::from_bits_retain(1 << 14);

/// An answer is immediate; 0.5 ms is more than it takes.
const RESPONSE_TIME: TimeCode = TimeCode::new(7);
