//! The performance management agent: the counters of a node's ports (IBTA vol. 1, 16.1).

use verbs_core::mad::header::{emit_header, header_of};
use verbs_core::mad::pm::{
    self, ALL_PORTS, PmCapabilities, PortCounters, PortCountersExtended, PortCountersExtendedView,
    PortCountersView,
};
use verbs_core::mad::{
    AttributeId, Bits, Class, ClassPortInfo, MadBytes, MadHeader, Method, Status, TimeCode,
};

use crate::agent::{Arrival, Processed};

/// The counters of one port, in full width. At 64 bits they never wrap around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounts {
    /// Errors on the lanes.
    pub symbol_errors: u64,
    /// Links that recovered.
    pub link_recoveries: u64,
    /// Links that went down.
    pub link_downed: u64,
    /// Damaged packets received.
    pub rcv_errors: u64,
    /// Packets that a switch could not forward.
    pub rcv_relay_errors: u64,
    /// Packets discarded on transmission.
    pub xmit_discards: u64,
    /// Packets of other partitions discarded on transmission.
    pub xmit_constraints: u64,
    /// Packets of other partitions received.
    pub rcv_constraints: u64,
    /// Datagrams for queue pair 1 that were dropped.
    pub qp1_dropped: u64,
    /// Datagrams on virtual lane 15 that were dropped.
    pub vl15_dropped: u64,
    /// Words of four bytes sent.
    pub xmit_data: u64,
    /// Words of four bytes received.
    pub rcv_data: u64,
    /// Packets sent.
    pub xmit_packets: u64,
    /// Packets received.
    pub rcv_packets: u64,
    /// Packets sent to a group; the others were sent to one port.
    pub multicast_xmit_packets: u64,
    /// Packets received that were sent to a group.
    pub multicast_rcv_packets: u64,
}

/// The largest number of a field, or the number.
fn narrow<T: TryFrom<u64>>(value: u64, max: T) -> T {
    T::try_from(value).unwrap_or(max)
}

impl PortCounts {
    fn add(&mut self, other: &Self) {
        self.each(other, |mine, theirs| *mine = mine.saturating_add(theirs));
    }

    /// Calls `apply` with each counter of both.
    fn each(&mut self, other: &Self, mut apply: impl FnMut(&mut u64, u64)) {
        let mut pair = |mine: &mut u64, theirs: u64| apply(mine, theirs);
        pair(&mut self.symbol_errors, other.symbol_errors);
        pair(&mut self.link_recoveries, other.link_recoveries);
        pair(&mut self.link_downed, other.link_downed);
        pair(&mut self.rcv_errors, other.rcv_errors);
        pair(&mut self.rcv_relay_errors, other.rcv_relay_errors);
        pair(&mut self.xmit_discards, other.xmit_discards);
        pair(&mut self.xmit_constraints, other.xmit_constraints);
        pair(&mut self.rcv_constraints, other.rcv_constraints);
        pair(&mut self.qp1_dropped, other.qp1_dropped);
        pair(&mut self.vl15_dropped, other.vl15_dropped);
        pair(&mut self.xmit_data, other.xmit_data);
        pair(&mut self.rcv_data, other.rcv_data);
        pair(&mut self.xmit_packets, other.xmit_packets);
        pair(&mut self.rcv_packets, other.rcv_packets);
        pair(
            &mut self.multicast_xmit_packets,
            other.multicast_xmit_packets,
        );
        pair(&mut self.multicast_rcv_packets, other.multicast_rcv_packets);
    }

    fn narrow(&self, port: u8) -> PortCounters {
        PortCounters {
            port,
            symbol_errors: narrow(self.symbol_errors, u16::MAX),
            link_recoveries: narrow(self.link_recoveries, u8::MAX),
            link_downed: narrow(self.link_downed, u8::MAX),
            rcv_errors: narrow(self.rcv_errors, u16::MAX),
            rcv_relay_errors: narrow(self.rcv_relay_errors, u16::MAX),
            xmit_discards: narrow(self.xmit_discards, u16::MAX),
            xmit_constraints: narrow(self.xmit_constraints, u8::MAX),
            rcv_constraints: narrow(self.rcv_constraints, u8::MAX),
            qp1_dropped: narrow(self.qp1_dropped, u16::MAX),
            vl15_dropped: narrow(self.vl15_dropped, u16::MAX),
            xmit_data: narrow(self.xmit_data, u32::MAX),
            rcv_data: narrow(self.rcv_data, u32::MAX),
            xmit_packets: narrow(self.xmit_packets, u32::MAX),
            rcv_packets: narrow(self.rcv_packets, u32::MAX),
            integrity_errors: Bits::default(),
            ..PortCounters::default()
        }
    }

    fn extended(&self, port: u8) -> PortCountersExtended {
        PortCountersExtended {
            port,
            xmit_data: self.xmit_data,
            rcv_data: self.rcv_data,
            xmit_packets: self.xmit_packets,
            rcv_packets: self.rcv_packets,
            unicast_xmit_packets: self
                .xmit_packets
                .saturating_sub(self.multicast_xmit_packets),
            unicast_rcv_packets: self.rcv_packets.saturating_sub(self.multicast_rcv_packets),
            multicast_xmit_packets: self.multicast_xmit_packets,
            multicast_rcv_packets: self.multicast_rcv_packets,
            ..PortCountersExtended::default()
        }
    }

    /// Writes the counters that are selected.
    fn set_narrow(&mut self, asked: &PortCounters) {
        let fields: [(&mut u64, u64); 16] = [
            (&mut self.symbol_errors, asked.symbol_errors.into()),
            (&mut self.link_recoveries, asked.link_recoveries.into()),
            (&mut self.link_downed, asked.link_downed.into()),
            (&mut self.rcv_errors, asked.rcv_errors.into()),
            (&mut 0, 0),
            (&mut self.rcv_relay_errors, asked.rcv_relay_errors.into()),
            (&mut self.xmit_discards, asked.xmit_discards.into()),
            (&mut self.xmit_constraints, asked.xmit_constraints.into()),
            (&mut self.rcv_constraints, asked.rcv_constraints.into()),
            (&mut 0, 0),
            (&mut 0, 0),
            (&mut self.vl15_dropped, asked.vl15_dropped.into()),
            (&mut self.xmit_data, asked.xmit_data.into()),
            (&mut self.rcv_data, asked.rcv_data.into()),
            (&mut self.xmit_packets, asked.xmit_packets.into()),
            (&mut self.rcv_packets, asked.rcv_packets.into()),
        ];
        for (bit, (own, asked_value)) in fields.into_iter().enumerate() {
            if asked.select >> bit & 1 == 1 {
                *own = asked_value;
            }
        }
    }

    fn set_extended(&mut self, asked: &PortCountersExtended) {
        let fields: [(&mut u64, u64); 8] = [
            (&mut self.xmit_data, asked.xmit_data),
            (&mut self.rcv_data, asked.rcv_data),
            (&mut self.xmit_packets, asked.xmit_packets),
            (&mut self.rcv_packets, asked.rcv_packets),
            // Unicast packets are those that are not multicast.
            (&mut 0, 0),
            (&mut 0, 0),
            (
                &mut self.multicast_xmit_packets,
                asked.multicast_xmit_packets,
            ),
            (&mut self.multicast_rcv_packets, asked.multicast_rcv_packets),
        ];
        for (bit, (own, asked_value)) in fields.into_iter().enumerate() {
            if asked.select >> bit & 1 == 1 {
                *own = asked_value;
            }
        }
    }
}

/// The agent of one node.
#[derive(Debug)]
pub struct Pma {
    /// By port number; port 0 of an adapter is not used.
    ports: Vec<PortCounts>,
    /// The lowest port number.
    first: u8,
}

impl Pma {
    /// A node with physical ports 1 to `ports`, and port 0 if it is a switch.
    pub fn new(ports: u8, is_switch: bool) -> Self {
        Self {
            ports: vec![PortCounts::default(); usize::from(ports) + 1],
            first: u8::from(!is_switch),
        }
    }

    /// The counters of a port; `None` if there is no such port.
    pub fn counts(&self, port: u8) -> Option<&PortCounts> {
        let is_there = port >= self.first;
        is_there
            .then(|| self.ports.get(usize::from(port)))
            .flatten()
    }

    /// The same, mutable.
    pub fn counts_mut(&mut self, port: u8) -> Option<&mut PortCounts> {
        let is_there = port >= self.first;
        is_there
            .then(|| self.ports.get_mut(usize::from(port)))
            .flatten()
    }

    /// Answers a datagram of performance management. May be called from a routine.
    pub fn process(&mut self, _arrival: Arrival, mad: &MadBytes) -> Processed {
        let header = MadHeader::parse(header_of(mad));
        let ours = matches!(header.method, Method::GET | Method::SET);
        if header.class != Class::PERF || !ours {
            return Processed::NotMine;
        }
        if header.base_version != MadHeader::BASE_VERSION {
            return Processed::Consumed;
        }
        let mut reply = Box::new(*mad);
        let status = self.attribute(&header, mad, &mut reply);
        let status = status.err().unwrap_or(Status::OK);
        emit_header(&header.response(status), &mut reply);
        Processed::Reply(reply)
    }

    fn attribute(
        &mut self,
        header: &MadHeader,
        mad: &MadBytes,
        reply: &mut MadBytes,
    ) -> Result<(), Status> {
        if header.class_version != pm::CLASS_VERSION {
            return Err(Status::BAD_VERSION);
        }
        let is_set = header.method == Method::SET;
        let data = pm::attribute(mad);
        match header.attribute {
            AttributeId::CLASS_PORT_INFO if !is_set => {
                let mut bytes = [0; ClassPortInfo::LEN];
                class_port_info().emit(&mut bytes);
                pm::put_attribute(reply, &bytes);
            }
            AttributeId::PORT_COUNTERS => {
                let view = PortCountersView::new(data);
                let asked = view.map_or_else(PortCounters::default, PortCounters::parse);
                if is_set {
                    self.write(asked.port, |counts| counts.set_narrow(&asked))?;
                }
                let mut bytes = [0; PortCounters::LEN];
                let shown = PortCounters {
                    select: asked.select,
                    ..self.sum(asked.port)?.narrow(asked.port)
                };
                shown.emit(&mut bytes);
                pm::put_attribute(reply, &bytes);
            }
            AttributeId::PORT_COUNTERS_EXTENDED => {
                let view = PortCountersExtendedView::new(data);
                let asked = view.map_or_else(Default::default, PortCountersExtended::parse);
                if is_set {
                    self.write(asked.port, |counts| counts.set_extended(&asked))?;
                }
                let mut bytes = [0; PortCountersExtended::LEN];
                let shown = PortCountersExtended {
                    select: asked.select,
                    ..self.sum(asked.port)?.extended(asked.port)
                };
                shown.emit(&mut bytes);
                pm::put_attribute(reply, &bytes);
            }
            _ => return Err(Status::BAD_METHOD_ATTRIBUTE),
        }
        Ok(())
    }

    /// The counters of a port, or the sums over all ports.
    fn sum(&self, port: u8) -> Result<PortCounts, Status> {
        if port == ALL_PORTS {
            let mut sum = PortCounts::default();
            for counts in &self.ports {
                sum.add(counts);
            }
            return Ok(sum);
        }
        self.counts(port).copied().ok_or(Status::BAD_VALUE)
    }

    fn write(&mut self, port: u8, write: impl Fn(&mut PortCounts)) -> Result<(), Status> {
        if port == ALL_PORTS {
            self.ports.iter_mut().for_each(write);
            return Ok(());
        }
        self.counts_mut(port).map(write).ok_or(Status::BAD_VALUE)
    }
}

fn class_port_info() -> ClassPortInfo {
    let offers = PmCapabilities::ALL_PORT_SELECT | PmCapabilities::EXTENDED_WIDTH;
    ClassPortInfo {
        base_version: MadHeader::BASE_VERSION,
        class_version: pm::CLASS_VERSION,
        capability_mask: offers.bits(),
        // An answer is immediate; 0.5 ms is more than it takes.
        response_time: TimeCode::new(7),
        ..ClassPortInfo::default()
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use verbs_core::Lid;
    use verbs_core::time::Instant;

    use super::*;

    fn ask(
        pma: &mut Pma,
        method: Method,
        attribute: AttributeId,
        data: &[u8],
    ) -> (Status, MadBytes) {
        let mut mad = [0; 256];
        let header = MadHeader {
            base_version: 1,
            class: Class::PERF,
            class_version: pm::CLASS_VERSION,
            method,
            attribute,
            ..MadHeader::default()
        };
        emit_header(&header, &mut mad);
        for (to, from) in mad.iter_mut().skip(pm::DATA_AT).zip(data) {
            *to = *from;
        }
        let arrival = Arrival {
            port: 1,
            slid: Lid(1),
            now: Instant::ZERO,
        };
        match pma.process(arrival, &mad) {
            Processed::Reply(reply) => (header_of(&reply).status(), *reply),
            other => panic!("no answer but {other:?}"),
        }
    }

    /// Goal: counters count, stay at their largest value where they are narrow, are summed over all ports and
    /// cleared one by one. Method: numbers that are just too large.
    #[test]
    fn counters_are_shown_added_and_cleared() {
        let mut pma = Pma::new(2, true);
        let counts = pma.counts_mut(2).expect("a port");
        (counts.link_downed, counts.xmit_data, counts.rcv_packets) = (300, 1 << 32, 10);
        counts.multicast_rcv_packets = 4;
        pma.counts_mut(1).expect("a port").rcv_packets = 5;
        let narrow = |mad: &MadBytes| {
            PortCounters::parse(PortCountersView::new(pm::attribute(mad)).expect("long enough"))
        };
        let (status, mad) = ask(&mut pma, Method::GET, AttributeId::PORT_COUNTERS, &[0, 2]);
        let shown = narrow(&mad);
        assert_eq!(
            (status, shown.port, shown.link_downed),
            (Status::OK, 2, u8::MAX)
        );
        assert_eq!((shown.xmit_data, shown.rcv_packets), (u32::MAX, 10));
        let wide = AttributeId::PORT_COUNTERS_EXTENDED;
        let (_, mad) = ask(&mut pma, Method::GET, wide, &[0, ALL_PORTS]);
        let view = PortCountersExtendedView::new(pm::attribute(&mad)).expect("long enough");
        let all = PortCountersExtended::parse(view);
        assert_eq!((all.xmit_data, all.rcv_packets), (1 << 32, 15));
        assert_eq!(
            (all.unicast_rcv_packets, all.multicast_rcv_packets),
            (11, 4)
        );
        // Bit 2 is the links that went down.
        let (_, mad) = ask(
            &mut pma,
            Method::SET,
            AttributeId::PORT_COUNTERS,
            &[0, 2, 0, 4],
        );
        assert_eq!(
            (narrow(&mad).link_downed, narrow(&mad).rcv_packets),
            (0, 10)
        );
        ask(&mut pma, Method::SET, wide, &[0, ALL_PORTS, 0xff, 0xff]);
        assert_eq!(pma.counts(1), Some(&PortCounts::default()));
        let (status, _) = ask(&mut pma, Method::GET, AttributeId::PORT_COUNTERS, &[0, 3]);
        assert_eq!(status, Status::BAD_VALUE);
        let (status, _) = ask(&mut pma, Method::SET, AttributeId::CLASS_PORT_INFO, &[]);
        assert_eq!(status, Status::BAD_METHOD_ATTRIBUTE);
    }
}
