//! Get and Set of each attribute.

use verbs_core::mad::header::header_of;
use verbs_core::mad::sm::{
    self, DATA_LEN, GuidBlock, GuidBlockView, MulticastBlock, MulticastBlockView, NodeInfo,
    PKeyBlock, PKeyBlockView, PortInfo, PortInfoView, SlToVl, SlToVlView, SwitchInfo,
    SwitchInfoView, VlArbitration, VlArbitrationView,
};
use verbs_core::mad::{AttributeId, MadBytes, MadHeader, Method, Status};
use verbs_core::{Guid, PKey};

use crate::agent::Arrival;

use super::port::Changed;
use super::{Sma, SmaChange, SmaPort};

/// An attribute's bytes.
type Data = [u8; DATA_LEN];

/// The largest count of notices that an answer can report.
const NOTICES_MAX: u16 = 0x7fff;

/// P_Keys in a block.
const BLOCK_PKEYS: usize = 32;

/// Writes a record to the front of an attribute.
macro_rules! data_of {
    ($record:expr, $repr:ident) => {{
        let mut bytes = [0; $repr::LEN];
        $record.emit(&mut bytes);
        let mut data: Data = [0; DATA_LEN];
        for (to, from) in data.iter_mut().zip(bytes) {
            *to = from;
        }
        data
    }};
}

/// Reads the record at the front of an attribute.
macro_rules! record_of {
    ($data:expr, $repr:ident, $view:ident) => {
        $view::new($data).map_or_else($repr::default, $repr::parse)
    };
}

impl Sma {
    /// The attribute after the request has been applied.
    pub(super) fn attribute(
        &mut self,
        arrival: Arrival,
        header: &MadHeader,
        data: &Data,
    ) -> Result<Data, Status> {
        let (modifier, is_set) = (header.modifier, header.method == Method::SET);
        match header.attribute {
            AttributeId::NODE_DESCRIPTION if !is_set => Ok(self.description.0),
            AttributeId::NODE_INFO if !is_set => {
                Ok(data_of!(self.node_info(arrival.port), NodeInfo))
            }
            AttributeId::SWITCH_INFO => self.switch_info(is_set, data),
            AttributeId::PORT_INFO => self.port_info(arrival, modifier, is_set, data),
            AttributeId::GUID_INFO => self.guid_info(arrival, modifier, is_set, data),
            AttributeId::PKEY_TABLE => self.pkey_table(arrival, modifier, is_set, data),
            AttributeId::SL_TO_VL => self.sl_to_vl(arrival, modifier, is_set, data),
            AttributeId::VL_ARBITRATION => self.vl_arbitration(arrival, modifier, is_set, data),
            AttributeId::LINEAR_FORWARDING => self.linear_forwarding(modifier, is_set, data),
            AttributeId::MULTICAST_FORWARDING => self.multicast_forwarding(modifier, is_set, data),
            AttributeId::NOTICE => Ok(self.notice(is_set)),
            _ => Err(Status::BAD_METHOD_ATTRIBUTE),
        }
    }

    /// IBTA vol. 1, 13.4.10: the first notice that the manager has not yet acknowledged, and their number; zeros
    /// if there is none. A Set removes the notice.
    fn notice(&mut self, is_set: bool) -> Data {
        let count = u16::try_from(self.traps.len()).unwrap_or(NOTICES_MAX);
        let Some(mut data) = self.traps.first(is_set) else {
            return [0; DATA_LEN];
        };
        // Toggle bit 0, then the count.
        if let Some(place) = data.get_mut(8..).and_then(<[u8]>::first_chunk_mut) {
            *place = count.min(NOTICES_MAX).to_be_bytes();
        }
        data
    }

    fn switch_info(&mut self, is_set: bool, data: &Data) -> Result<Data, Status> {
        let switch = self.switch.as_mut().ok_or(Status::BAD_METHOD_ATTRIBUTE)?;
        if is_set {
            switch.set(&record_of!(data, SwitchInfo, SwitchInfoView))?;
        }
        Ok(data_of!(switch.info, SwitchInfo))
    }

    /// The port of a request. Adapters answer for the port of arrival, whatever number the request has.
    fn addressed(&mut self, arrival: Arrival, number: u8) -> Result<(u8, &mut SmaPort), Status> {
        let number = match number {
            0 if self.switch.is_none() => arrival.port,
            number => number,
        };
        self.port_mut(number)
            .map(|port| (number, port))
            .ok_or(Status::BAD_VALUE)
    }

    fn port_info(
        &mut self,
        arrival: Arrival,
        modifier: u32,
        is_set: bool,
        data: &Data,
    ) -> Result<Data, Status> {
        let [number, ..] = modifier.to_le_bytes();
        let (number, port) = self.addressed(arrival, number)?;
        if is_set {
            let asked = record_of!(data, PortInfo, PortInfoView);
            let changed = port.set(&asked)?;
            self.tell(number, changed);
        }
        let (_, port) = self.addressed(arrival, number)?;
        let info = PortInfo {
            local_port: arrival.port,
            ..*port.info()
        };
        Ok(data_of!(info, PortInfo))
    }

    /// Writes the current state of the port into an answer about it: a link that a Set has restarted may be up
    /// again. Error answers are unchanged.
    pub fn refresh(&mut self, arrival: Arrival, reply: &mut MadBytes) {
        let header = MadHeader::parse(header_of(reply));
        let is_fine = header.status.difference(sm::DIRECTION) == Status::OK;
        if is_fine && header.attribute == AttributeId::PORT_INFO {
            let shown = sm::attribute(reply);
            let key = shown.first_chunk().copied().unwrap_or([0; 8]);
            let data = self.port_info(arrival, header.modifier, false, &[0; DATA_LEN]);
            if let Ok(mut data) = data {
                // Whether the key may be shown has already been decided.
                for (to, from) in data.iter_mut().zip(key) {
                    *to = from;
                }
                sm::put_attribute(reply, &data);
            }
        }
    }

    /// Reports the changes of a Set to the node's owner.
    fn tell(&mut self, number: u8, changed: Changed) {
        if changed.gids {
            self.event(number, SmaChange::Gids);
        }
        if changed.lid {
            self.event(number, SmaChange::Lid);
        }
        if changed.manager {
            self.event(number, SmaChange::SubnetManager);
        }
        if changed.reregister {
            self.event(number, SmaChange::Reregister);
        }
        if let Some(state) = changed.state {
            self.event(number, SmaChange::State(state));
        }
        if let Some(phys) = changed.restart {
            self.event(number, SmaChange::Restart(phys));
        }
    }

    fn guid_info(
        &mut self,
        arrival: Arrival,
        block: u32,
        is_set: bool,
        data: &Data,
    ) -> Result<Data, Status> {
        let (number, port) = self.addressed(arrival, 0)?;
        let (start, guids) = port.guid_block(block).ok_or(Status::BAD_VALUE)?;
        let mut is_new = false;
        if is_set {
            let asked = record_of!(data, GuidBlock, GuidBlockView);
            for (index, (own, asked)) in (start..).zip(guids.iter_mut().zip(asked.guids)) {
                // The first entry is fixed: the port's own GUID.
                if index != 0 && *own != asked {
                    *own = asked;
                    is_new = true;
                }
            }
        }
        let mut shown = GuidBlock {
            guids: [Guid(0); 8],
        };
        for (to, from) in shown.guids.iter_mut().zip(guids) {
            *to = *from;
        }
        if is_new {
            self.event(number, SmaChange::Gids);
        }
        Ok(data_of!(shown, GuidBlock))
    }

    fn pkey_table(
        &mut self,
        arrival: Arrival,
        modifier: u32,
        is_set: bool,
        data: &Data,
    ) -> Result<Data, Status> {
        let is_switch = self.switch.is_some();
        let number = u8::try_from(modifier >> 16).map_err(|_| Status::BAD_VALUE)?;
        let number = if is_switch { number } else { 0 };
        let start = usize::try_from(modifier & 0xffff)
            .map_or(usize::MAX, |block| block.saturating_mul(BLOCK_PKEYS));
        let (number, port) = self.addressed(arrival, number)?;
        let end = port.pkeys.len().min(start.saturating_add(BLOCK_PKEYS));
        let keys = port.pkeys.get_mut(start..end);
        let keys = keys.filter(|keys| !keys.is_empty());
        let keys = keys.ok_or(Status::BAD_VALUE)?;
        let mut is_new = false;
        if is_set {
            let asked = record_of!(data, PKeyBlock, PKeyBlockView);
            for (own, asked) in keys.iter_mut().zip(asked.keys) {
                is_new |= *own != asked;
                *own = asked;
            }
        }
        let mut shown = PKeyBlock {
            keys: [PKey(0); BLOCK_PKEYS],
        };
        for (to, from) in shown.keys.iter_mut().zip(keys) {
            *to = *from;
        }
        if is_new {
            self.event(number, SmaChange::PKeys);
        }
        Ok(data_of!(shown, PKeyBlock))
    }

    fn sl_to_vl(
        &mut self,
        arrival: Arrival,
        modifier: u32,
        is_set: bool,
        data: &Data,
    ) -> Result<Data, Status> {
        let [output, input, ..] = modifier.to_le_bytes();
        let (input, output) = match self.switch {
            Some(_) => (input, output),
            None => (0, 0),
        };
        if self.switch.is_some() && input > self.info.ports {
            return Err(Status::BAD_VALUE);
        }
        let (_, port) = self.addressed(arrival, output)?;
        if is_set {
            port.set_sl_to_vl(input, record_of!(data, SlToVl, SlToVlView));
        }
        Ok(data_of!(port.sl_to_vl(input), SlToVl))
    }

    fn vl_arbitration(
        &mut self,
        arrival: Arrival,
        modifier: u32,
        is_set: bool,
        data: &Data,
    ) -> Result<Data, Status> {
        let [a, b, c, d] = modifier.to_be_bytes();
        let (part, number) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        let number = u8::try_from(number).map_err(|_| Status::BAD_VALUE)?;
        let number = if self.switch.is_some() { number } else { 0 };
        let (_, port) = self.addressed(arrival, number)?;
        let (low, high) = (port.info().vl_arb_low_cap, port.info().vl_arb_high_cap);
        let is_there = match part {
            1 => low > 0,
            2 => low > 32,
            3 => high > 0,
            4 => high > 32,
            _ => false,
        };
        if !is_there {
            return Err(Status::BAD_VALUE);
        }
        if is_set {
            let table = record_of!(data, VlArbitration, VlArbitrationView);
            port.arbitration.insert(part, table);
        }
        let table = port.arbitration.get(&part).copied().unwrap_or_default();
        Ok(data_of!(table, VlArbitration))
    }

    fn linear_forwarding(&mut self, block: u32, is_set: bool, data: &Data) -> Result<Data, Status> {
        let switch = self.switch.as_mut().ok_or(Status::BAD_METHOD_ATTRIBUTE)?;
        if is_set {
            switch.set_linear_block(block, data)?;
        }
        switch.linear_block(block).map(|block| block.0)
    }

    fn multicast_forwarding(
        &mut self,
        modifier: u32,
        is_set: bool,
        data: &Data,
    ) -> Result<Data, Status> {
        let ports = self.info.ports;
        let switch = self.switch.as_mut().ok_or(Status::BAD_METHOD_ATTRIBUTE)?;
        if is_set {
            let block = record_of!(data, MulticastBlock, MulticastBlockView);
            switch.set_multicast_block(modifier, ports, &block)?;
        }
        let block = switch.multicast_block(modifier, ports)?;
        Ok(data_of!(block, MulticastBlock))
    }
}
