//! What a queue pair has counted.

use std::net::{IpAddr, SocketAddr};

use verbs_core::{Av, ConnectedQp, Gid, Lid, QpAttr, QpState, QpStats};

use crate::effects::Effects;
use crate::qp::QueuePair;
use crate::queue::base::counters::Count;
use crate::transport::{Facts, Told};

/// The counts of a queue pair: of what is also told to the log, so that messages without an incident cost nothing.
#[derive(Debug, Default)]
pub(crate) struct QpCounts {
    timeouts: Count,
    rnr_naks: Count,
    sequence_naks: Count,
    receives_missing: Count,
    refused: Count,
    cnps: Count,
    migrations: Count,
    failures: Count,
}

/// Counts these facts, and leaves them for the log. Each flag stands for one event: a turn handles one packet, or
/// one timer.
#[cold]
pub(crate) fn record(qp: &QueuePair, facts: impl Into<Facts>, effects: &mut Effects) {
    let (facts, counts) = (facts.into(), &qp.counts);
    for (flag, count) in [
        (Told::TIMEOUT, &counts.timeouts),
        (Told::RNR_NAK, &counts.rnr_naks),
        (Told::SEQUENCE, &counts.sequence_naks),
        (Told::NO_RECEIVE, &counts.receives_missing),
        (Told::REFUSED, &counts.refused),
        (Told::CNP, &counts.cnps),
        (Told::MIGRATED, &counts.migrations),
    ] {
        if facts.told.contains(flag) {
            count.up();
        }
    }
    if facts.gave_up.is_some() {
        counts.failures.up();
    }
    effects.few().told.push((qp.qpn, facts));
}

/// The statistics for its client.
pub(crate) fn stats(qp: &QueuePair) -> QpStats {
    let mut stats = QpStats::default();
    let counts = &qp.counts;
    stats.timeouts = counts.timeouts.get();
    stats.rnr_naks = counts.rnr_naks.get();
    stats.sequence_naks = counts.sequence_naks.get();
    stats.receives_missing = counts.receives_missing.get();
    stats.refused = counts.refused.get();
    stats.cnps = counts.cnps.get();
    stats.migrations = counts.migrations.get();
    stats.failures = counts.failures.get();
    if let Some(exchange) = qp.worker.exchange() {
        let exchange = exchange.lock();
        stats.round_trip = exchange.round_trip();
        stats.rate = exchange.rate();
    }
    stats
}

/// It with its peer, as its client sees it; `None` if it has none.
pub(crate) fn connected(qp: &QueuePair) -> Option<ConnectedQp> {
    let state = qp.state();
    if matches!(state, QpState::Reset | QpState::Init) {
        return None;
    }
    let attr = qp.control.lock().attr();
    let ends = match &qp.port.streams {
        Some(_) => stream_ends(qp)?,
        None => packet_ends(qp, &attr)?,
    };
    Some(ConnectedQp {
        qpn: qp.qpn,
        qp_type: qp.qp_type,
        state,
        local: ends.local,
        remote: ends.remote,
        remote_lid: ends.remote_lid,
        remote_qpn: attr.dest_qpn,
        stats: stats(qp),
    })
}

/// Where both ends of a connection are.
struct Ends {
    local: Option<SocketAddr>,
    remote: Option<SocketAddr>,
    remote_lid: Option<Lid>,
}

fn stream_ends(qp: &QueuePair) -> Option<Ends> {
    let [local, remote] = qp.worker.exchange()?.lock().stream_ends()?;
    Some(Ends {
        local: Some(local),
        remote: Some(remote),
        remote_lid: None,
    })
}

fn packet_ends(qp: &QueuePair, attr: &QpAttr) -> Option<Ends> {
    let Av { global, dlid, .. } = attr.av?;
    let at = |gid: Gid| SocketAddr::new(IpAddr::from(gid).to_canonical(), 0);
    Some(Ends {
        local: global.and_then(|global| qp.port.gid(global.sgid_index).map(at)),
        remote: global.map(|global| at(global.dgid)),
        remote_lid: Some(dlid).filter(|&lid| lid != Lid(0)),
    })
}
