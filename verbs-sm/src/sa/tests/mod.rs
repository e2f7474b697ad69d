//! Goal: the administrator answers and refuses according to the specification (IBTA vol. 1, chapter 15), whatever
//! the requester. Method: datagrams of clients in a small subnet, the time as an argument, without a manager.

mod events;
mod groups;
mod limits;
mod nodes;
mod paths;
mod services;

use std::time::Duration;

use verbs_core::mad::header::emit_header;
use verbs_core::mad::sa::{self as wire, put_record};
use verbs_core::mad::sm::PortInfo;
use verbs_core::{Av, Gid, PKey};

use super::*;
use crate::config::Partition;
use crate::fabric::End;
use crate::testing::{self, Plan};

/// The result of a request: records of a table, or the one of a Get, in bytes.
type Answer = Result<Vec<Vec<u8>>, SaStatus>;

/// An administrator with a subnet, and clients at the adapters: their LIDs are 11 to 14. Two switches, 1 and
/// 2; 11 and 12 are at the first, 13 and 14 at the second.
struct Desk {
    plan: Plan,
    tables: Tables,
    sa: Administrator,
    now: Instant,
    between: (End, End),
}

const CLIENTS: [u16; 4] = [11, 12, 13, 14];

/// A second partition, in which 11 and 13 are full members, and 12 is a limited one.
const OTHER: PKey = PKey(0x8123);

fn config() -> Config {
    let other = Partition {
        pkey: OTHER,
        ipoib: false,
        ..Partition::default()
    };
    Config {
        partitions: vec![Partition::default(), other],
        ..Config::default()
    }
}

impl Desk {
    fn new(config: &Config) -> Self {
        let mut plan = Plan::default();
        plan.switch(1);
        plan.switch(2);
        let between = plan.link(1, 2);
        for (host, at) in [(11, 1), (12, 1), (13, 2), (14, 2)] {
            let end = plan.host(host, at);
            let own = match host {
                11 | 13 => &[PKey::DEFAULT, OTHER][..],
                12 => &[PKey::DEFAULT, PKey(OTHER.0 & 0x7fff)],
                _ => &[PKey::DEFAULT],
            };
            plan.partitions(end, own);
        }
        let tables = testing::tables(&plan.fabric);
        Self {
            plan,
            tables,
            sa: Administrator::new(config),
            now: Instant::ZERO,
            between,
        }
    }

    /// The first GID of a client, or of a switch's port 0.
    fn gid(&self, lid: u16) -> Gid {
        let (end, _) = self.plan.fabric.by_lid(Lid(lid)).expect("a port");
        testing::gid(&self.plan.fabric, end)
    }

    /// Changes both ends of the link of a client.
    fn change(&mut self, lid: u16, change: impl Fn(&mut PortInfo)) {
        let (end, _) = self.plan.fabric.by_lid(Lid(lid)).expect("a port");
        let other = self.plan.fabric.links[&end];
        self.plan.change((end, other), change);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.sa.expire(self.now);
    }

    /// Takes a client out of the subnet.
    fn unplug(&mut self, lid: u16) {
        let (end, _) = self.plan.fabric.by_lid(Lid(lid)).expect("a port");
        self.plan.fabric.nodes.remove(&end.0);
        membership::keep_members(&mut self.sa, &self.plan.fabric);
    }

    fn ask<const N: usize>(
        &mut self,
        from: u16,
        (method, attribute): (Method, AttributeId),
        record: &[u8; N],
        mask: u64,
    ) -> Answer {
        self.ask_with_key(0, from, (method, attribute), record, mask)
    }

    fn ask_with_key<const N: usize>(
        &mut self,
        sm_key: u64,
        from: u16,
        (method, attribute): (Method, AttributeId),
        record: &[u8; N],
        mask: u64,
    ) -> Answer {
        let mut mad = [0; 256];
        let header = MadHeader {
            base_version: MadHeader::BASE_VERSION,
            class: verbs_core::mad::Class::SA,
            class_version: CLASS_VERSION,
            method,
            attribute,
            ..MadHeader::default()
        };
        emit_header(&header, &mut mad);
        let sa = SaHeader {
            sm_key,
            component_mask: mask,
            ..SaHeader::default()
        };
        sa.put(&mut mad);
        put_record(&mut mad, record);
        let from = Address::gsi(Av::to_lid(1, Lid(from)));
        let fabric = &self.plan.fabric;
        match self.sa.handle(self.now, fabric, &self.tables, &from, &mad) {
            Reply::None => panic!("no answer"),
            Reply::One(mad) => {
                assert_eq!(SaHeader::of(&mad).sm_key, 0, "the key is told to no client");
                let status = header_of(&mad).status();
                match SaStatus::from_code((status.bits() >> 8) as u8) {
                    Some(status) => Err(status),
                    None => Ok(vec![wire::record(&mad).to_vec()]),
                }
            }
            Reply::Table { template, payload } => {
                let sa = SaHeader::of(&template);
                assert_eq!(sa.sm_key, 0, "the key is told to no client");
                let records = wire::records(&payload, sa.attribute_offset, N);
                Ok(records.map(<[u8]>::to_vec).collect())
            }
        }
    }
}
