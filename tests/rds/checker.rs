//! Tells whether what arrived is what was sent: exactly once, and in order for each pair of sockets. It sees only
//! what programs see.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

/// The sending and the receiving socket.
type Flow = (SocketAddr, SocketAddr);

/// What is wrong with a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// It came before.
    Doubled,
    /// Others of its flow, sent before it, have not come.
    Skipped,
    /// Its bytes are not those that were sent.
    Damaged,
    /// It never came.
    Lost,
}

/// The flows, each with the next number that is due and how many were sent.
#[derive(Default)]
pub(crate) struct Checker {
    flows: BTreeMap<Flow, (u64, u64)>,
    pub(crate) wrong: Vec<(Flow, Wrong)>,
}

impl Checker {
    /// The payload of the next datagram of a flow, of at least 8 bytes.
    pub(crate) fn send(&mut self, flow: Flow, len: usize) -> Vec<u8> {
        let (_, sent) = self.flows.entry(flow).or_default();
        let payload = payload(*sent, len);
        *sent += 1;
        payload
    }

    /// A datagram has come.
    pub(crate) fn receive(&mut self, flow: Flow, bytes: &[u8]) {
        let (due, _) = self.flows.entry(flow).or_default();
        let number = bytes
            .first_chunk()
            .map(|number| u64::from_be_bytes(*number));
        let wrong = match number {
            Some(number) if bytes == payload(number, bytes.len()) => {
                let wrong = match number.cmp(due) {
                    std::cmp::Ordering::Less => Some(Wrong::Doubled),
                    std::cmp::Ordering::Equal => None,
                    std::cmp::Ordering::Greater => Some(Wrong::Skipped),
                };
                *due = (*due).max(number + 1);
                wrong
            }
            _ => Some(Wrong::Damaged),
        };
        self.wrong.extend(wrong.map(|wrong| (flow, wrong)));
    }

    /// Whether all that was sent has come.
    pub(crate) fn is_complete(&self) -> bool {
        self.flows.values().all(|(due, sent)| due >= sent)
    }

    /// Datagrams that came.
    pub(crate) fn received(&self) -> u64 {
        self.flows.values().map(|(due, _)| due).sum()
    }

    /// All that is wrong, when nothing comes any longer.
    pub(crate) fn finish(mut self) -> Vec<(Flow, Wrong)> {
        let lost = self.flows.iter().filter(|(_, (due, sent))| due < sent);
        self.wrong
            .extend(lost.map(|(flow, _)| (*flow, Wrong::Lost)));
        self.wrong
    }
}

impl fmt::Debug for Checker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(&self.flows).finish()
    }
}

fn payload(number: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![(number % 251) as u8; len.max(8)];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// Goal: the checker sees each kind of defect. Method: defects injected between sender and receiver.
#[test]
fn injected_defects_are_seen() {
    let flow = ("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
    let seen = |inject: fn(&mut Vec<Vec<u8>>)| {
        let mut checker = Checker::default();
        let mut wire: Vec<Vec<u8>> = (0..4).map(|_| checker.send(flow, 20)).collect();
        inject(&mut wire);
        wire.iter().for_each(|bytes| checker.receive(flow, bytes));
        let wrong = checker.finish();
        wrong
            .into_iter()
            .map(|(_, wrong)| wrong)
            .collect::<Vec<_>>()
    };
    assert_eq!(seen(|_| ()), []);
    assert_eq!(
        seen(|wire| wire.insert(2, wire[1].clone())),
        [Wrong::Doubled]
    );
    assert_eq!(seen(|wire| drop(wire.remove(1))), [Wrong::Skipped]);
    assert_eq!(
        seen(|wire| wire.swap(1, 2)),
        [Wrong::Skipped, Wrong::Doubled]
    );
    assert_eq!(seen(|wire| drop(wire.pop())), [Wrong::Lost]);
    assert_eq!(seen(|wire| wire[3][12] ^= 1), [Wrong::Damaged, Wrong::Lost]);
}
