//! Datagrams of the protocol itself: pings and their answers, and probes that ask a peer whether it knows this life.

use super::Machine;
use super::message::{Incoming, Outgoing};
use crate::payload::Payload;
use crate::wire::{Extension, Extensions, PING_PORT, PROBE_PORT};

/// Answers to pings that may wait for transmission; more pings are left unanswered.
pub const PONGS_MAX: usize = 64;

/// The handshake probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Probe {
    /// None is under way.
    #[default]
    None,
    /// It is queued until the peer has acknowledged it.
    Queued,
    /// The peer has it, and owes the answer.
    Taken,
}

/// What the peer says beside its messages.
pub(super) fn heard(machine: &mut Machine, extensions: &Extensions) {
    for extension in extensions.iter() {
        if let Extension::Generation(generation) = extension {
            peer_lives(machine, generation);
        }
    }
}

fn peer_lives(machine: &mut Machine, generation: u32) {
    let known = machine.peer_generation.replace(generation);
    if known == Some(generation) {
        return;
    }
    if known.is_some() {
        machine.counts.peer_restarts += 1;
        machine.receive.restart();
    }
    probe(machine);
}

/// Asks a peer that has begun a life whether it knows this one. Linux does so where connections have several paths,
/// over TCP; to a Linux that does not announce its life, as over InfiniBand, no probe is sent: it takes them amiss.
fn probe(machine: &mut Machine) {
    // One that is queued goes to the peer's new life.
    if std::mem::replace(&mut machine.probe, Probe::Queued) == Probe::Queued {
        return;
    }
    machine.transmit.push(Outgoing {
        source: PROBE_PORT,
        destination: PING_PORT,
        payload: Payload::default(),
        ack_required: true,
        extensions: introduction(machine),
        rdma: None,
    });
}

/// What probes and their answers say: paths, and the number of this life.
fn introduction(machine: &Machine) -> Extensions {
    let mut extensions = Extensions::one(Extension::Paths(1));
    // Both take eight bytes.
    let _fits = extensions.push(Extension::Generation(machine.terms.generation));
    extensions
}

/// Pings are answered here, and answers to probes end here; all else is for sockets.
#[inline]
pub(super) fn receive_message(machine: &mut Machine, incoming: Incoming) -> Option<Incoming> {
    if incoming.destination != PING_PORT && incoming.source != PING_PORT {
        return Some(incoming);
    }
    receive_own(machine, incoming)
}

fn receive_own(machine: &mut Machine, incoming: Incoming) -> Option<Incoming> {
    if (incoming.source, incoming.destination) == (PING_PORT, PROBE_PORT) {
        let asked = std::mem::take(&mut machine.probe);
        machine.counts.probes += u64::from(asked != Probe::None);
        machine.transmit.peer_knows();
        return None;
    }
    if incoming.destination != PING_PORT {
        return Some(incoming);
    }
    if incoming.source == PING_PORT {
        return None;
    }
    if machine.pongs >= PONGS_MAX {
        machine.counts.pings_dropped += 1;
        return None;
    }
    machine.pongs += 1;
    let is_probe = incoming.source == PROBE_PORT;
    let extensions = match is_probe {
        true => introduction(machine),
        false => Extensions::default(),
    };
    machine.transmit.push(Outgoing {
        source: PING_PORT,
        destination: incoming.source,
        payload: Payload::default(),
        ack_required: is_probe || machine.pongs * 2 > PONGS_MAX,
        extensions,
        rdma: None,
    });
    None
}
