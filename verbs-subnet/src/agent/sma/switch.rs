//! The forwarding tables of a switch.

use std::collections::BTreeMap;

use verbs_core::Lid;
use verbs_core::mad::Status;
use verbs_core::mad::sm::{ForwardingBlock, MulticastBlock, SwitchInfo};

/// The port number that means that packets are dropped.
pub const DISCARD: u8 = 0xff;

/// LIDs in a block of the linear table.
const BLOCK_LIDS: usize = 64;
/// LIDs in a block of the multicast table.
const BLOCK_MLIDS: u16 = 32;
/// The first multicast LID.
const MLID_FIRST: u16 = 0xc000;

/// The sizes of a switch's tables.
#[derive(Clone, Copy, Debug)]
pub struct SwitchConfig {
    /// Entries of the linear forwarding table; 48 k LIDs by default, all that exist.
    pub linear_cap: u16,
    /// Entries of the multicast forwarding table; 1024 by default.
    pub multicast_cap: u16,
    /// Entries of the P_Key table of each external port; 32 by default, 0 for no enforcement.
    pub enforcement_cap: u16,
}

impl Default for SwitchConfig {
    fn default() -> Self {
        Self {
            linear_cap: 0xbfff,
            multicast_cap: 1024,
            enforcement_cap: 32,
        }
    }
}

/// The part of an agent that switches have.
#[derive(Debug)]
pub(super) struct Switch {
    pub(super) info: SwitchInfo,
    /// By LID; grows as blocks are written.
    linear: Vec<u8>,
    /// Ports by multicast LID, 16 at a time; only entries that were written.
    multicast: BTreeMap<(u16, u8), u16>,
}

impl Switch {
    pub(super) fn new(config: SwitchConfig) -> Self {
        let enforces = config.enforcement_cap > 0;
        let info = SwitchInfo {
            linear_cap: config.linear_cap,
            multicast_cap: config.multicast_cap,
            enforcement_cap: config.enforcement_cap,
            inbound_enforcement: enforces,
            outbound_enforcement: enforces,
            default_multicast_primary: DISCARD,
            default_multicast_other: DISCARD,
            multicast_top: 0,
            ..SwitchInfo::default()
        };
        Self {
            info,
            linear: Vec::new(),
            multicast: BTreeMap::new(),
        }
    }

    /// Applies a Set of SwitchInfo.
    ///
    /// # Errors
    /// [`Status::BAD_VALUE`] if the table is not that long.
    pub(super) fn set(&mut self, asked: &SwitchInfo) -> Result<(), Status> {
        if asked.linear_top > self.info.linear_cap {
            return Err(Status::BAD_VALUE);
        }
        self.info.linear_top = asked.linear_top;
        self.info.life_time = asked.life_time;
        self.info.default_port = asked.default_port;
        self.info.default_multicast_primary = asked.default_multicast_primary;
        self.info.default_multicast_other = asked.default_multicast_other;
        self.info.multicast_top = asked.multicast_top;
        // Writing a one clears it.
        self.info.port_state_change &= !asked.port_state_change;
        Ok(())
    }

    /// The offset of that block.
    fn block(&self, block: u32) -> Result<usize, Status> {
        let start = usize::try_from(block).ok();
        let start = start.and_then(|block| block.checked_mul(BLOCK_LIDS));
        start
            .filter(|&start| start <= usize::from(self.info.linear_cap))
            .ok_or(Status::BAD_VALUE)
    }

    pub(super) fn linear_block(&self, block: u32) -> Result<ForwardingBlock, Status> {
        let start = self.block(block)?;
        let mut ports = [DISCARD; BLOCK_LIDS];
        for (to, &from) in ports.iter_mut().zip(self.linear.iter().skip(start)) {
            *to = from;
        }
        Ok(ForwardingBlock { 0: ports })
    }

    pub(super) fn set_linear_block(&mut self, block: u32, ports: &[u8]) -> Result<(), Status> {
        let start = self.block(block)?;
        if self.linear.len() < start + BLOCK_LIDS {
            self.linear.resize(start + BLOCK_LIDS, DISCARD);
        }
        for (to, &from) in self.linear.iter_mut().skip(start).zip(ports) {
            *to = from;
        }
        Ok(())
    }

    /// The first multicast LID of a block, and the 16 ports that a modifier selects.
    fn multicast_block_at(&self, modifier: u32, ports: u8) -> Result<(u16, u8), Status> {
        let block = u16::try_from(modifier & 0x1ff).unwrap_or(u16::MAX);
        let position = u8::try_from(modifier >> 28).unwrap_or(u8::MAX);
        let first = block * BLOCK_MLIDS;
        if first >= self.info.multicast_cap || position > ports / 16 {
            return Err(Status::BAD_VALUE);
        }
        Ok((MLID_FIRST + first, position))
    }

    pub(super) fn multicast_block(
        &self,
        modifier: u32,
        ports: u8,
    ) -> Result<MulticastBlock, Status> {
        let (first, position) = self.multicast_block_at(modifier, ports)?;
        let mut block = MulticastBlock::default();
        for (mask, mlid) in block.masks.iter_mut().zip(first..) {
            *mask = self.multicast.get(&(mlid, position)).copied().unwrap_or(0);
        }
        Ok(block)
    }

    pub(super) fn set_multicast_block(
        &mut self,
        modifier: u32,
        ports: u8,
        block: &MulticastBlock,
    ) -> Result<(), Status> {
        let (first, position) = self.multicast_block_at(modifier, ports)?;
        for (&mask, mlid) in block.masks.iter().zip(first..) {
            if mask == 0 {
                self.multicast.remove(&(mlid, position));
            } else {
                self.multicast.insert((mlid, position), mask);
            }
        }
        Ok(())
    }

    pub(super) fn forward(&self, dlid: Lid) -> Option<u8> {
        if dlid.0 > self.info.linear_top {
            return None;
        }
        let port = self.linear.get(usize::from(dlid.0)).copied();
        port.filter(|&port| port != DISCARD)
    }

    pub(super) fn forwards_multicast(&self, mlid: Lid, port: u8) -> bool {
        let mask = self.multicast.get(&(mlid.0, port / 16));
        mask.is_some_and(|mask| mask >> (port % 16) & 1 == 1)
    }
}
