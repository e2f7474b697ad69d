//! Fuzz targets as plain functions over bytes: `ci/fuzz` runs them, and a test calls them with random bytes. They
//! panic when the machine breaks a promise.

use std::time::Duration;

use verbs_core::Av;
use verbs_core::mad::header::{emit_header, header_of};
use verbs_core::mad::{Address, AttributeId, Class, MadBytes, MadHeader, Method, Status, sa, sm};
use verbs_core::time::Instant;

use crate::config::Config;
use crate::manager::{Output, SubnetManager};

/// Steps at most, so a round ends.
const STEPS_MAX: usize = 4_000;

/// Limits that random nodes and clients reach.
fn small() -> Config {
    Config {
        nodes_max: 12,
        groups_max: 3,
        groups_per_port_max: 2,
        members_max: 4,
        services_max: 3,
        services_per_port_max: 2,
        subscriptions_max: 3,
        subscriptions_per_port_max: 2,
        answer_records_max: 40,
        reports_max: 4,
        ..Config::default()
    }
}

/// A subnet whose nodes and clients send whatever the bytes say: the machine has no more requests in flight than
/// its window, stays within its limits, and does not panic.
pub fn subnet(bytes: &[u8]) {
    let config = small();
    let (window, reports) = (config.window, config.reports_max);
    let mut manager = SubnetManager::new(config, 1);
    let mut source = Source { bytes, at: 0 };
    let mut asked: Vec<(u64, Box<MadBytes>)> = Vec::new();
    let mut now = Instant::ZERO;
    manager.start(now);
    for _ in 0..STEPS_MAX {
        while let Some(output) = manager.poll_output() {
            match output {
                Output::Request { id, mad, .. } => asked.push((id, mad)),
                Output::Respond { payload, .. } => {
                    assert!(payload.len() <= 40 * 176, "no more records than the limit");
                }
                Output::Send { .. } | Output::IsSm(_) => {}
            }
        }
        assert!(asked.len() <= window + reports, "{} requests", asked.len());
        assert!(manager.nodes() <= 12);
        let Some(what) = source.next() else {
            return;
        };
        if what % 8 == 7 {
            let (from, mad) = source.request();
            manager.handle(now, from, &mad);
        } else if asked.is_empty() {
            now = manager.poll_timeout().unwrap_or(now).max(now) + Duration::from_millis(1);
            manager.handle_timeout(now);
        } else {
            let (id, mad) = asked.swap_remove(usize::from(what) % asked.len());
            let answer = (what % 16 != 6).then(|| source.answer(&mad));
            manager.answered(now, id, answer.as_ref());
        }
    }
}

/// The bytes that decide.
struct Source<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Source<'_> {
    fn next(&mut self) -> Option<u8> {
        let byte = self.bytes.get(self.at).copied();
        self.at += 1;
        byte
    }

    /// Fills a part of a datagram.
    fn fill(&mut self, mad: &mut MadBytes, from: usize, len: usize) {
        for place in mad.iter_mut().skip(from).take(len) {
            *place = self.next().unwrap_or(0);
        }
    }

    /// A node's answer; for some attributes with values that are plausible enough to be accepted.
    fn answer(&mut self, question: &MadBytes) -> MadBytes {
        let mut mad = *question;
        let header = MadHeader::parse(header_of(question));
        let status = match self.next() {
            Some(255) => Status::BAD_VALUE,
            _ => Status::OK,
        };
        emit_header(&header.response(status | sm::DIRECTION), &mut mad);
        if header.method == Method::SET {
            return mad;
        }
        match header.attribute {
            AttributeId::NODE_INFO => {
                let [kind, ports, node, local] = [(); 4].map(|()| self.next().unwrap_or(1));
                self.fill(&mut mad, sm::DATA_AT, 40);
                let info = [1, 1, 1 + kind % 2, 1 + ports % 4];
                let place = mad.iter_mut().skip(sm::DATA_AT);
                place.zip(info).for_each(|(to, from)| *to = from);
                // Few nodes, so they are found again from other sides.
                let node_guid = mad.iter_mut().skip(sm::DATA_AT + 12).take(16);
                node_guid.for_each(|byte| *byte = node % 8);
                if let Some(place) = mad.get_mut(sm::DATA_AT + 36) {
                    *place = 1 + local % 5;
                }
            }
            _ => self.fill(&mut mad, sm::DATA_AT, sm::DATA_LEN),
        }
        mad
    }

    /// A client's request, a node's trap, or another manager's message.
    fn request(&mut self) -> (Address, MadBytes) {
        let [class, method, attribute, lid] = [(); 4].map(|()| self.next().unwrap_or(0));
        let classes = [Class::SA, Class::SA, Class::SUBN_LID, Class::SUBN_DIRECTED];
        let methods = [
            Method::GET,
            Method::SET,
            Method::GET_TABLE,
            Method::DELETE,
            Method::TRAP,
            Method::GET_RESP,
        ];
        let attributes = [
            AttributeId::PATH_RECORD,
            AttributeId::MC_MEMBER_RECORD,
            AttributeId::SERVICE_RECORD,
            AttributeId::INFORM_INFO,
            AttributeId::NODE_RECORD,
            AttributeId::PORT_INFO_RECORD,
            AttributeId::LINK_RECORD,
            AttributeId::SM_INFO,
            AttributeId::NOTICE,
        ];
        let of = |number: u8, len: usize| usize::from(number) % len;
        let class = classes.get(of(class, 4)).copied().unwrap_or_default();
        let header = MadHeader {
            base_version: MadHeader::BASE_VERSION,
            class,
            class_version: if class == Class::SA {
                sa::CLASS_VERSION
            } else {
                sm::CLASS_VERSION
            },
            method: methods.get(of(method, 6)).copied().unwrap_or_default(),
            attribute: attributes
                .get(of(attribute, 9))
                .copied()
                .unwrap_or_default(),
            modifier: u32::from(lid % 8),
            ..MadHeader::default()
        };
        let mut mad = [0; 256];
        emit_header(&header, &mut mad);
        self.fill(&mut mad, 36, 160);
        (
            Address::gsi(Av::to_lid(1, verbs_core::Lid(lid.into()))),
            mad,
        )
    }
}
