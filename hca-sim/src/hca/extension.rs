//! The extensions of this HCA beyond the verbs, for [`Device::call`](verbs_core::Device::call).
//!
//! ```
//! use hca_sim::Hca;
//! use hca_sim::extension::PortCounters;
//!
//! let device = Hca::loopback().open().wait()?;
//! assert_eq!(device.call::<PortCounters>(()).wait()?.rnr_naks, 0);
//! # Ok::<(), verbs_core::Error>(())
//! ```

use verbs_core::extension::{AnyOutput, ByteExtension, CallExtension, ExtensionInfo};
use verbs_core::stats::{ConnectedQps, QpStatistics};
use verbs_core::{ConnectedQp, Extension, QpStats};

use crate::link::LinkCounters;
use crate::port::{Driver, Port};
use crate::qp::stats::{connected, stats};

pub use crate::post::send::barrier::Barrier;

/// Reads the counters of the port.
#[derive(Debug)]
pub struct PortCounters;

/// The port's counters since the HCA was made, as the requesters behind it saw it. Messages that succeed are not
/// counted: counting would cost time for each. [`PacketCounters`] counts packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct Counters {
    /// Attempts that the responder answered with receiver-not-ready.
    pub rnr_naks: u64,
    /// Attempts that were not answered.
    pub timeouts: u64,
    /// Messages that the responder refused with a NAK other than receiver-not-ready.
    pub remote_errors: u64,
    /// Messages in which the requester itself found an error, or which it gave up.
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

/// Reads the port's packet counters. Unsupported where messages are placed directly.
#[derive(Debug)]
pub struct PacketCounters;

/// The port's packet counters since the HCA was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct Packets {
    /// Packets that the machines of the queue pairs have made.
    pub sent: u64,
    /// Packets that arrived, whatever they were.
    pub received: u64,
    /// Dropped: not a packet of the transport, or a packet of an unknown operation.
    pub malformed: u64,
    /// Dropped: the ICRC is wrong.
    pub bad_icrcs: u64,
    /// Accepted, although the IP identification that the ICRC implies is unexpected.
    pub weak_icrcs: u64,
    /// Dropped: another partition.
    pub bad_pkeys: u64,
    /// Dropped: datagrams with another Q_Key.
    pub bad_qkeys: u64,
    /// Dropped: messages of unreliable services that found no receive, found one that was too small, or asked for
    /// something that they may not do.
    pub dropped: u64,
    /// Dropped: for no queue pair, or from a sender that the queue pair is not connected to.
    pub strangers: u64,
    /// Congestion notifications that arrived.
    pub cnps_received: u64,
    /// Congestion notifications that were sent, because packets arrived marked.
    pub cnps_sent: u64,
    /// Congestion notifications that slowed a queue pair down.
    pub rate_cuts: u64,
    /// The rate to which the last of them slowed its queue pair, in bytes per second; 0 if there was none.
    pub rate: u64,
    /// Requests that had arrived before.
    pub duplicates: u64,
    /// Requests that arrived after a gap.
    pub out_of_sequence: u64,
    /// Answers that reported, or showed, that something was missing.
    pub sequence_naks: u64,
    /// Requests and answers that arrived early and were kept until the ones before them had arrived.
    pub kept_early: u64,
    /// Requests sent again before the local ACK timeout, because the answer took longer than others did.
    pub probes: u64,
    /// The counters of the link itself.
    pub link: LinkCounters,
}

impl Extension for PacketCounters {
    const NAME: &'static str = "hca_sim.packet_counters";
    type Input = ();
    type Output = Packets;
}

/// All that an HCA has counted since it was made: [`Hca::counters`](crate::Hca::counters).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct HcaCounters {
    /// Of the port.
    pub port: Counters,
    /// Of packets; `None` where messages are placed directly, so that there are none.
    pub packets: Option<Packets>,
    /// Of streams; `None` where there are none.
    pub streams: Option<StreamCounters>,
}

/// What an HCA has counted of its streams (iWARP).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct StreamCounters {
    /// Connections of peers that were closed before they had asked for anything: they said nothing for too long, broke off,
    /// or gave way to newer ones.
    pub refused: u64,
    /// How often a listener has taken no connections for 100 ms, because the system had no descriptors or memory.
    pub rests: u64,
}

impl HcaCounters {
    pub(crate) fn of(port: &Port) -> Self {
        Self {
            port: counters(port),
            packets: port.driver().map(|driver| packets(port, driver)),
            streams: port.streams.as_ref().map(|streams| StreamCounters {
                refused: streams.refused.get(),
                rests: streams.rests.get(),
            }),
        }
    }
}

fn counters(port: &Port) -> Counters {
    let counts = &port.counters;
    Counters {
        rnr_naks: counts.rnr_naks.get(),
        timeouts: counts.timeouts.get(),
        remote_errors: counts.remote_errors.get(),
        local_errors: counts.local_errors.get(),
        cq_overruns: counts.overruns.get(),
        link_downed: counts.link_downed.get(),
    }
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
        cnps_sent: counts.cnps_sent.get(),
        rate_cuts: counts.rate_cuts.get(),
        rate: counts.rate.get(),
        duplicates: counts.duplicates.get(),
        out_of_sequence: counts.out_of_sequence.get(),
        sequence_naks: counts.sequence_naks.get(),
        kept_early: counts.kept_early.get(),
        probes: counts.probes.get(),
        link: driver.link_counters(),
    }
}

/// The queue pairs that have a peer, each looked at under no lock but its own.
pub(crate) fn connected_qps(port: &Port) -> Vec<ConnectedQp> {
    let here: Vec<_> = port.link.lock().at(port.lid).cloned().collect();
    here.iter().filter_map(|qp| connected(qp)).collect()
}

/// The extensions of this HCA, with packets and without.
pub(crate) const EXTENSIONS: &[ExtensionInfo] = &[
    ExtensionInfo::call::<PortCounters>(),
    ExtensionInfo::call::<CapabilityMask>(),
    ExtensionInfo::work_request::<Barrier>(),
    ExtensionInfo::call::<QpStatistics>(),
    ExtensionInfo::call::<ConnectedQps>(),
    ExtensionInfo::call::<PacketCounters>(),
];

/// How many of them there are where messages are placed directly, so that there are no packets to count.
const WITHOUT_PACKETS: usize = 5;

/// The extensions of an HCA with that port.
pub(crate) fn listed(port: &Port) -> &'static [ExtensionInfo] {
    match port.driver() {
        Some(_) => EXTENSIONS,
        None => &EXTENSIONS[..WITHOUT_PACKETS],
    }
}

impl ByteExtension for PortCounters {
    /// Takes no bytes.
    fn decode(input: &[u8]) -> Option<()> {
        input.is_empty().then_some(())
    }

    /// The six counters in the order of [`Counters`], each of 8 bytes, the least significant first.
    fn encode(output: Counters) -> Vec<u8> {
        let Counters {
            rnr_naks,
            timeouts,
            remote_errors,
            local_errors,
            cq_overruns,
            link_downed,
        } = output;
        let all = [
            rnr_naks,
            timeouts,
            remote_errors,
            local_errors,
            cq_overruns,
            link_downed,
        ];
        all.into_iter().flat_map(u64::to_le_bytes).collect()
    }
}

impl ByteExtension for CapabilityMask {
    /// Takes no bytes.
    fn decode(input: &[u8]) -> Option<()> {
        input.is_empty().then_some(())
    }

    /// 4 bytes, the least significant first.
    fn encode(output: u32) -> Vec<u8> {
        output.to_le_bytes().into()
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
    let qp_stats = |qpn| {
        let qp = port.link.lock().of(port.lid, qpn);
        qp.map_or_else(QpStats::default, |qp| stats(&qp))
    };
    let mask = |()| port.settings().capability_mask;
    call.answer_bytes::<PortCounters>(|()| counters(port))
        .or_else(|| call.answer::<QpStatistics>(qp_stats))
        .or_else(|| call.answer::<ConnectedQps>(|()| connected_qps(port)))
        .or_else(|| call.answer_bytes::<CapabilityMask>(mask))
        .or_else(|| {
            let driver = port.driver()?;
            call.answer::<PacketCounters>(|()| packets(port, driver))
        })
}
