//! What this HCA has beyond the verbs, for [`Device::call`](verbs_core::Device::call).
//!
//! ```
//! use hca_sim::Hca;
//! use hca_sim::extension::PortCounters;
//!
//! let device = Hca::loopback().open().wait()?;
//! assert_eq!(device.call::<PortCounters>(()).wait()?.rnr_naks, 0);
//! # Ok::<(), verbs_core::Error>(())
//! ```

use verbs_core::Extension;
use verbs_core::extension::{AnyOutput, CallExtension};

use crate::link::LinkCounters;
use crate::port::{Driver, Port};

/// Reads the counters of the port.
#[derive(Debug)]
pub struct PortCounters;

/// What the port has counted since the HCA was made, as the requesters behind it saw it. Messages that
/// go through are not counted: that would cost each of them. [`PacketCounters`] counts packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// Attempts that the responder answered with receiver-not-ready.
    pub rnr_naks: u64,
    /// Attempts that nobody answered.
    pub timeouts: u64,
    /// Messages that the responder refused with a NAK other than receiver-not-ready.
    pub remote_errors: u64,
    /// Messages that the requester itself found wrong, or gave up.
    pub local_errors: u64,
    /// Completion queues that lost completions.
    pub cq_overruns: u64,
    /// How often the link went down.
    pub link_downed: u64,
}

impl Extension for PortCounters {
    const NAME: &'static str = "hca_sim.port_counters";
    type Input = ();
    type Output = Counters;
}

/// Reads what the port has counted of packets. Unsupported where messages are placed directly.
#[derive(Debug)]
pub struct PacketCounters;

/// What the port has counted of packets since the HCA was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Packets {
    /// Packets that the machines of the queue pairs have made.
    pub sent: u64,
    /// Packets that came, whatever they were.
    pub received: u64,
    /// Dropped: no packet of the transport, or one of an operation that nobody knows.
    pub malformed: u64,
    /// Dropped: the ICRC is wrong.
    pub bad_icrcs: u64,
    /// Accepted, although the IP identification that the ICRC betrays is not one to be expected.
    pub weak_icrcs: u64,
    /// Dropped: another partition.
    pub bad_pkeys: u64,
    /// Dropped: datagrams with another Q_Key.
    pub bad_qkeys: u64,
    /// Dropped: messages of unreliable services for which there was no receive, or none with room, or
    /// that may not do what they ask for.
    pub dropped: u64,
    /// Dropped: for no queue pair, or from somebody it is not connected to.
    pub strangers: u64,
    /// Congestion notifications.
    pub cnps_received: u64,
    /// Requests that had come before.
    pub duplicates: u64,
    /// Requests before which something was missing.
    pub out_of_sequence: u64,
    /// Answers that told, or showed, that something was missing.
    pub sequence_naks: u64,
    /// What the link itself has counted.
    pub link: LinkCounters,
}

impl Extension for PacketCounters {
    const NAME: &'static str = "hca_sim.packet_counters";
    type Input = ();
    type Output = Packets;
}

fn packets(port: &Port, driver: &Driver) -> Packets {
    let counts = &port.counters;
    Packets {
        sent: counts.packets_sent.get(),
        received: counts.packets_received.get(),
        malformed: counts.malformed.get(),
        bad_icrcs: counts.bad_icrcs.get(),
        weak_icrcs: counts.weak_icrcs.get(),
        bad_pkeys: counts.bad_pkeys.get(),
        bad_qkeys: counts.bad_qkeys.get(),
        dropped: counts.dropped.get(),
        strangers: counts.strangers.get(),
        cnps_received: counts.cnps_received.get(),
        duplicates: counts.duplicates.get(),
        out_of_sequence: counts.out_of_sequence.get(),
        sequence_naks: counts.sequence_naks.get(),
        link: driver.link_counters(),
    }
}

/// Reads the port's `PortInfo.CapabilityMask`, which [`Device::modify_port`](verbs_core::Device::modify_port)
/// changes.
#[derive(Debug)]
pub struct CapabilityMask;

impl Extension for CapabilityMask {
    const NAME: &'static str = "hca_sim.capability_mask";
    type Input = ();
    type Output = u32;
}

/// Answers a call; `None` if there is no such extension.
pub(crate) fn answer(call: &mut CallExtension, port: &Port) -> Option<AnyOutput> {
    let counters = |()| {
        let counts = &port.counters;
        Counters {
            rnr_naks: counts.rnr_naks.get(),
            timeouts: counts.timeouts.get(),
            remote_errors: counts.remote_errors.get(),
            local_errors: counts.local_errors.get(),
            cq_overruns: counts.overruns.get(),
            link_downed: counts.link_downed.get(),
        }
    };
    let mask = |()| port.sheet().capability_mask;
    call.answer::<PortCounters>(counters)
        .or_else(|| call.answer::<CapabilityMask>(mask))
        .or_else(|| {
            let driver = port.driver()?;
            call.answer::<PacketCounters>(|()| packets(port, driver))
        })
}
