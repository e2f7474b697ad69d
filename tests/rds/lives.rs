//! Tells what arrives of nodes that forget everything: what may be lost or come again is lost or comes again, and nothing
//! else. It sees only what programs see.
//!
//! When a node begins a new life, all that it had not sent is gone, up to what was not acknowledged. What it had received
//! without a program having taken it is gone too; the caller hands that in as received. What its peers had no acknowledgement
//! for comes again.

use std::collections::BTreeMap;
use std::net::SocketAddr;

/// The sending and the receiving socket.
pub(crate) type Flow = (SocketAddr, SocketAddr);

/// What is wrong with a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// It came before, to the same life of the receiver, or was acknowledged by an earlier one.
    Doubled,
    /// Others of its flow, sent before it, have not come.
    Skipped,
    /// It is of a life of the sender before one that was heard of.
    Old,
    /// Its bytes are not those that were sent.
    Damaged,
    /// It never came.
    Lost,
}

/// What one life of a sender has sent in a flow.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    sent: u64,
    /// All numbers below have come.
    reached: u64,
    /// The next number for the receiver's life, once it has had one.
    due: Option<u64>,
    /// The lowest number that a new life of the receiver may be sent.
    floor: u64,
}

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Lives {
    /// The life of each sender, and for each of its past lives how many of all its datagrams may be lost.
    lives: BTreeMap<SocketAddr, (u32, Vec<u64>)>,
    flows: BTreeMap<(Flow, u32), Sent>,
    pub(crate) wrong: Vec<(Flow, Wrong)>,
    pub(crate) received: u64,
}

impl Lives {
    /// The payload of the next datagram of a flow; it counts when the caller says that it was [`sent`](Self::sent).
    pub(crate) fn next(&mut self, flow: Flow, len: usize) -> Vec<u8> {
        let life = self.life(flow.0);
        let sent = self.flows.entry((flow, life)).or_default().sent;
        payload(life, sent, len)
    }

    pub(crate) fn sent(&mut self, flow: Flow) {
        let life = self.life(flow.0);
        self.flows.entry((flow, life)).or_default().sent += 1;
    }

    pub(crate) fn receive(&mut self, flow: Flow, bytes: &[u8]) {
        self.received += 1;
        let wrong = self.check(flow, bytes);
        self.wrong.extend(wrong.map(|wrong| (flow, wrong)));
    }

    fn check(&mut self, flow: Flow, bytes: &[u8]) -> Option<Wrong> {
        let (life, number) = numbers(bytes).filter(|(life, number)| {
            let whole = payload(*life, *number, bytes.len());
            bytes == whole
        })?;
        let later = (flow, life + 1)..=(flow, u32::MAX);
        let is_old = self.flows.range(later).any(|(_, sent)| sent.due.is_some());
        let Some(sent) = self.flows.get_mut(&(flow, life)) else {
            return Some(Wrong::Damaged);
        };
        let allowed = match sent.due {
            Some(due) => due..=due,
            None => sent.floor..=sent.reached,
        };
        sent.due = Some(sent.due.unwrap_or(0).max(number + 1));
        sent.reached = sent.reached.max(number + 1);
        match number {
            _ if is_old => Some(Wrong::Old),
            _ if number >= sent.sent => Some(Wrong::Damaged),
            _ if number < *allowed.start() => Some(Wrong::Doubled),
            _ if number > *allowed.end() => Some(Wrong::Skipped),
            _ => None,
        }
    }

    /// The node of that socket begins a new life. All that it had for programs was handed in. `unacked`: datagrams of a
    /// socket that are not acknowledged.
    pub(crate) fn restarts(&mut self, at: SocketAddr, unacked: impl Fn(SocketAddr) -> u64) {
        for (((from, to), _), sent) in &mut self.flows {
            if *to == at {
                sent.due = None;
                sent.floor = sent.reached.saturating_sub(unacked(*from));
            }
        }
        let (life, lost) = self.lives.entry(at).or_default();
        *life += 1;
        lost.push(unacked(at));
    }

    fn life(&mut self, from: SocketAddr) -> u32 {
        self.lives.entry(from).or_default().0
    }

    /// Whether all that the lives of today have sent has come.
    pub(crate) fn is_complete(&self) -> bool {
        self.missing().next().is_none()
    }

    fn missing(&self) -> impl Iterator<Item = Flow> {
        let today = self.flows.iter().filter(|((flow, life), sent)| {
            let now = self.lives.get(&flow.0).map_or(0, |lives| lives.0);
            *life == now && sent.reached < sent.sent
        });
        today.map(|((flow, _), _)| *flow)
    }

    /// All that is wrong, when nothing comes any longer.
    pub(crate) fn finish(mut self) -> Vec<(Flow, Wrong)> {
        let missing: Vec<Flow> = self.missing().collect();
        self.wrong
            .extend(missing.into_iter().map(|flow| (flow, Wrong::Lost)));
        for (from, (_, may_be_lost)) in &self.lives {
            for (life, most) in (0..).zip(may_be_lost) {
                let of_it = self.flows.iter();
                let of_it = of_it.filter(|((flow, of), _)| flow.0 == *from && *of == life);
                let lost: u64 = of_it.map(|(_, sent)| sent.sent - sent.reached).sum();
                if lost > *most {
                    self.wrong.push(((*from, *from), Wrong::Lost));
                }
            }
        }
        self.wrong
    }
}

fn payload(life: u32, number: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![(number % 251) as u8; len.max(12)];
    bytes[..4].copy_from_slice(&life.to_be_bytes());
    bytes[4..12].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn numbers(bytes: &[u8]) -> Option<(u32, u64)> {
    let (life, rest) = bytes.split_first_chunk()?;
    Some((
        u32::from_be_bytes(*life),
        u64::from_be_bytes(*rest.first_chunk()?),
    ))
}

/// A flow of six datagrams.
fn six(flow: Flow) -> (Lives, Vec<Vec<u8>>) {
    let mut lives = Lives::default();
    let send = |_| {
        let bytes = lives.next(flow, 20);
        lives.sent(flow);
        bytes
    };
    let wire = (0..6).map(send).collect();
    (lives, wire)
}

/// What is wrong at the end.
fn of(lives: Lives) -> Vec<Wrong> {
    lives.finish().into_iter().map(|(_, wrong)| wrong).collect()
}

/// Goal: the checker sees what must not be, and lets pass what may be. Method: each kind of either, without a network.
#[test]
fn planted_defects_are_seen() {
    let flow: Flow = ("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
    let run = |act: fn(&mut Lives, Flow, &[Vec<u8>])| {
        let (mut lives, wire) = six(flow);
        act(&mut lives, flow, &wire);
        of(lives)
    };
    fn take(lives: &mut Lives, flow: Flow, wire: &[Vec<u8>]) {
        wire.iter().for_each(|bytes| lives.receive(flow, bytes));
    }
    assert_eq!(run(take), []);
    assert_eq!(run(|l, f, w| take(l, f, &w[..5])), [Wrong::Lost]);
    // The receiver starts again: what was not acknowledged comes again, or does not; no more than that, and no less.
    let again = |first: usize| {
        let (mut lives, wire) = six(flow);
        take(&mut lives, flow, &wire[..4]);
        lives.restarts(flow.1, |_| 4);
        take(&mut lives, flow, &wire[first..]);
        of(lives)
    };
    assert_eq!(again(2), []);
    assert_eq!(again(4), []);
    assert_eq!(again(0), []);
    assert_eq!(again(5), [Wrong::Skipped]);
    let acknowledged = run(|l, f, w| {
        take(l, f, w);
        l.restarts(f.1, |_| 1);
        take(l, f, &w[4..]);
    });
    assert_eq!(acknowledged, [Wrong::Doubled]);
    // The sender starts again: what was not acknowledged may be lost.
    let lost = |unacked: u64| {
        let (mut lives, wire) = six(flow);
        take(&mut lives, flow, &wire[..4]);
        lives.restarts(flow.0, |_| unacked);
        of(lives)
    };
    assert_eq!(lost(2), []);
    assert_eq!(lost(1), [Wrong::Lost]);
    let old = run(|l, f, w| {
        take(l, f, &w[..5]);
        l.restarts(f.0, |_| 1);
        let new = l.next(f, 20);
        l.sent(f);
        l.receive(f, &new);
        l.receive(f, &w[5]);
    });
    assert_eq!(old, [Wrong::Old]);
}
