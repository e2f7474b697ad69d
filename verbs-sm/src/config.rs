//! The configuration and limits of a manager.

use std::time::Duration;

use verbs_core::mad::sm::MKeyProtect;
use verbs_core::mad::{Bits, Retry, TimeCode};
use verbs_core::{Gid, Mtu, PKey, QKey};

/// How a manager manages, and its limits. Each limit states the reason for its default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The manager with the higher priority becomes master; at equal priority, the one at the lower GUID. 0 by
    /// default, so any other manager with a configured priority takes over.
    pub priority: Bits<4>,
    /// Key that managers of one subnet share; 1 by default, as in other managers. A request to the administrator
    /// that carries it is trusted: it sees each member of a group, and joins and leaves for other ports. With the
    /// default key, every node of the subnet can claim this trust.
    pub sm_key: u64,
    /// Key that ports require for management; 0, none, by default.
    pub m_key: u64,
    /// What it protects.
    pub m_key_protect: MKeyProtect,
    /// Seconds until a port whose manager is silent drops its key.
    pub m_key_lease_s: u16,
    /// Upper half of all GIDs.
    pub gid_prefix: u64,
    /// Partitions; every port is a full member of all. The first is written first.
    pub partitions: Vec<Partition>,
    /// The time between two checks for changes: 10 s by default.
    pub sweep_interval: Duration,
    /// The time between two polls of the master by a standby manager: 2 s by default.
    pub poll_interval: Duration,
    /// Unanswered polls after which a master is considered dead; 3 by default.
    pub poll_misses: u32,
    /// How long to wait for an answer, and how often to repeat a request: 200 ms, two retries.
    pub retry: Retry,
    /// Requests in flight at a time. 32 by default: a node answers within microseconds, and a switch port's queue
    /// has room for more.
    pub window: usize,
    /// The longest time that a packet takes through the subnet, as reported in paths.
    pub packet_lifetime: TimeCode,
    /// The longest time that a node's answer takes, as set in ports.
    pub subnet_timeout: TimeCode,
    /// Largest MTU of links and paths.
    pub mtu_max: Mtu,
    /// Virtual lanes that ports use at most, by the code of port information; 1 for one.
    pub vls_max: Bits<4>,
    /// Whether tables from service levels to lanes are written: with one lane there is nothing to map.
    pub maps_service_levels: bool,

    /// Nodes; further ones are not managed. 12,288 by default: a quarter of all LIDs.
    pub nodes_max: usize,
    /// Multicast groups. 1,024 by default, as many as a switch's table has by default.
    pub groups_max: usize,
    /// Multicast groups that exist because one port has created them. 256 by default, a quarter of all: twice the
    /// number that an IPoIB interface of this project joins, and no port uses up the groups of all others.
    pub groups_per_port_max: usize,
    /// Members of all groups together. 65,536 by default: each takes about 100 bytes.
    pub members_max: usize,
    /// Service records. 4,096 by default: each takes 200 bytes.
    pub services_max: usize,
    /// Service records that one port has registered. 128 by default: enough for some programs with some services
    /// each, while a record whose lease never ends takes no room from others.
    pub services_per_port_max: usize,
    /// Subscriptions to events. 4,096 by default.
    pub subscriptions_max: usize,
    /// Subscriptions of one port. 64 by default: the architecture defines 16 traps.
    pub subscriptions_per_port_max: usize,
    /// Records in an answer. 16,384 by default, which is a megabyte of paths.
    pub answer_records_max: usize,
    /// Requests to the administrator that are handled between two answers of nodes; further ones are dropped, and
    /// their senders repeat them. 1,024 by default.
    pub reports_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            priority: Bits::default(),
            sm_key: 1,
            m_key: 0,
            m_key_protect: MKeyProtect::WRITES,
            m_key_lease_s: 0,
            gid_prefix: Gid::LINK_LOCAL_PREFIX,
            partitions: vec![Partition::default()],
            sweep_interval: Duration::from_secs(10),
            poll_interval: Duration::from_secs(2),
            poll_misses: 3,
            retry: Retry {
                timeout: Duration::from_millis(200),
                retries: 2,
            },
            window: 32,
            packet_lifetime: TimeCode::new(18),
            subnet_timeout: TimeCode::new(18),
            mtu_max: Mtu::B4096,
            vls_max: Bits::truncated(1),
            maps_service_levels: false,
            nodes_max: 12_288,
            groups_max: 1_024,
            groups_per_port_max: 256,
            members_max: 65_536,
            services_max: 4_096,
            services_per_port_max: 128,
            subscriptions_max: 4_096,
            subscriptions_per_port_max: 64,
            answer_records_max: 16_384,
            reports_max: 1_024,
        }
    }
}

/// A partition, with the broadcast group of its IP interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its key; the bit of full members is added.
    pub pkey: PKey,
    /// Whether IP over InfiniBand has a broadcast group here.
    pub ipoib: bool,
    /// The group's Q_Key.
    pub qkey: QKey,
    /// The group's MTU.
    pub mtu: Mtu,
    /// The group's rate, by its code.
    pub rate: Bits<6>,
}

impl Default for Partition {
    /// The default partition, with a group of MTU 2048 and 10 Gb/s.
    fn default() -> Self {
        Self {
            pkey: PKey::DEFAULT,
            ipoib: true,
            qkey: QKey(0xb1b),
            mtu: Mtu::B2048,
            rate: Bits::truncated(3),
        }
    }
}

impl Partition {
    /// The key of a full member.
    pub const fn full(&self) -> PKey {
        PKey(self.pkey.0 | 0x8000)
    }

    /// The broadcast group's GID (RFC 4391, 4): link-local, of IPv4, the last 32 bits all ones.
    pub fn broadcast(&self) -> Gid {
        let [high, low] = self.full().0.to_be_bytes();
        Gid([
            0xff, 0x12, 0x40, 0x1b, high, low, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff,
        ])
    }
}

/// The code of an MTU.
pub(crate) const fn mtu_code(mtu: Mtu) -> u32 {
    mtu.shift() - 7
}
