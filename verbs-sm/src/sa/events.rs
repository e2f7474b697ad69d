//! Subscriptions, and reports to subscribers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use verbs_core::mad::header::emit_header;
use verbs_core::mad::sa::{
    CLASS_VERSION, DATA_LEN, InformInfo, InformInfoView, SaStatus, put_record,
};
use verbs_core::mad::sm::{Notice, TrapNumber};
use verbs_core::mad::{Address, AttributeId, Class, MadBytes, MadHeader, Method};
use verbs_core::{Gid, Lid, Qpn};

use crate::config::Config;
use crate::fabric::{Fabric, port_gid};
use crate::sa::records::{Found, Records};

/// Consecutive unanswered reports after which a subscriber is considered gone.
const MISSES_MAX: u32 = 3;

/// All of something, in a subscription.
const ANY_TRAP: u16 = 0xffff;
const ANY_PRODUCER: u32 = 0x00ff_ffff;

/// The subscriber's LID, the event.
type Key = (Lid, u16);

/// Reports to send.
type Outbox = VecDeque<(u64, Address, Box<MadBytes>)>;

#[derive(Debug)]
struct Subscriber {
    to: Address,
    producer: u32,
    misses: u32,
}

/// All subscriptions.
#[derive(Debug)]
pub(crate) struct Events {
    subscribers: BTreeMap<Key, Subscriber>,
    outbox: Outbox,
    /// Reports that wait for an answer.
    waiting: BTreeMap<u64, Key>,
    next: u64,
    max: usize,
    per_port_max: usize,
    reports_max: usize,
}

impl Events {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            subscribers: BTreeMap::new(),
            outbox: Outbox::new(),
            waiting: BTreeMap::new(),
            next: 0,
            max: config.subscriptions_max,
            per_port_max: config.subscriptions_per_port_max,
            reports_max: config.reports_max,
        }
    }

    /// Begins or ends a subscription.
    pub(crate) fn subscribe(&mut self, from: &Address, like: &[u8; DATA_LEN]) -> Found {
        let view = InformInfoView::new(like).ok_or(SaStatus::RequestInvalid)?;
        let asked = InformInfo::parse(view);
        let key = (from.av.dlid, asked.trap_number);
        match asked.subscribe {
            1 => {
                if !self.subscribers.contains_key(&key) && !self.has_room(key.0) {
                    return Err(SaStatus::NoResources);
                }
                let to = Address {
                    qpn: Qpn::new(1),
                    ..*from
                };
                let producer = asked.producer_type;
                self.subscribers.insert(
                    key,
                    Subscriber {
                        to,
                        producer,
                        misses: 0,
                    },
                );
            }
            0 => {
                self.subscribers
                    .remove(&key)
                    .ok_or(SaStatus::RequestInvalid)?;
            }
            _ => return Err(SaStatus::RequestInvalid),
        }
        let mut bytes = [0; InformInfo::LEN];
        asked.emit(&mut bytes);
        Ok(Records::one(&bytes))
    }

    /// Whether a port may subscribe to one more event.
    fn has_room(&self, from: Lid) -> bool {
        let own = self.subscribers.range((from, 0)..=(from, u16::MAX));
        self.subscribers.len() < self.max && own.count() < self.per_port_max
    }

    /// Reports an event about a GID to its subscribers.
    pub(crate) fn about_gid(&mut self, fabric: &Fabric, trap: TrapNumber, gid: Gid) {
        let own = fabric.own.and_then(|end| fabric.port(end));
        let lid = own.map_or(Lid(0), |port| port.info.lid);
        let notice = Notice {
            issuer_gid: own.map(port_gid).unwrap_or_default(),
            ..Notice::about_gid(trap, lid, gid)
        };
        let wants = |(key, subscriber): &(&Key, &Subscriber)| {
            (key.1 == trap.0 || key.1 == ANY_TRAP)
                && (subscriber.producer == Notice::MANAGER || subscriber.producer == ANY_PRODUCER)
        };
        let wanting = self.subscribers.iter().filter(wants);
        let wanting: Vec<_> = wanting
            .map(|(&key, subscriber)| (key, subscriber.to))
            .collect();
        for (key, to) in wanting {
            if self.outbox.len() + self.waiting.len() >= self.reports_max {
                return;
            }
            let mut mad = Box::new([0; 256]);
            let header = MadHeader {
                base_version: MadHeader::BASE_VERSION,
                class: Class::SA,
                class_version: CLASS_VERSION,
                method: Method::REPORT,
                attribute: AttributeId::NOTICE,
                ..MadHeader::default()
            };
            emit_header(&header, &mut mad);
            let mut bytes = [0; Notice::LEN];
            notice.emit(&mut bytes);
            put_record(&mut mad, &bytes);
            let number = self.next;
            self.next += 1;
            self.waiting.insert(number, key);
            self.outbox.push_back((number, to, mad));
        }
    }

    /// Reports what has come into service since, and what has disappeared.
    pub(crate) fn compare(&mut self, before: &Fabric, now: &Fabric) {
        let gids = |fabric: &Fabric| -> BTreeSet<Gid> {
            fabric.end_ports().map(|(_, port)| port_gid(port)).collect()
        };
        let (before, present) = (gids(before), gids(now));
        // A port that has disappeared cannot be notified; its subscriptions end when it does not answer.
        for &gid in before.difference(&present) {
            self.about_gid(now, TrapNumber::GID_OUT_OF_SERVICE, gid);
        }
        for &gid in present.difference(&before) {
            self.about_gid(now, TrapNumber::GID_IN_SERVICE, gid);
        }
    }

    pub(crate) fn poll_report(&mut self) -> Option<(u64, Address, Box<MadBytes>)> {
        self.outbox.pop_front()
    }

    pub(crate) fn reported(&mut self, number: u64, was_heard: bool) {
        let Some(key) = self.waiting.remove(&number) else {
            return;
        };
        let Some(subscriber) = self.subscribers.get_mut(&key) else {
            return;
        };
        subscriber.misses = if was_heard { 0 } else { subscriber.misses + 1 };
        if subscriber.misses >= MISSES_MAX {
            self.subscribers.remove(&key);
        }
    }
}
