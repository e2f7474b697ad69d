//! Path migration of a connected queue pair (IBTA vol. 1, 17.2.8).
//!
//! Both ends have loaded an alternate path and are in REARM. Each says so in its packets, whose BTH does not have
//! the bit "migrated", and is armed by the first such packet of the other. An armed end moves when its client says so
//! (a modify), when the requester's retries are used up, or when its peer has moved: a packet with the bit set comes by
//! the alternate path. What moved goes back by the path that it came from when that was armed in turn.
//!
//! What the peer has sent by the old path before it learned of the move is taken; its answer leaves by the new one,
//! which tells the peer. A peer that has moved while this end is not armed is not followed: its packets are dropped,
//! and an event says so once.

use verbs_core::sync::Arc;
use verbs_core::sync::atomic::Ordering::AcqRel;
use verbs_core::{AltPath, Attr, DeviceCap, Error, EventType, MigState, QpAttr, Why};

use crate::effects::{Effect, Effects};
use crate::link::Route;
use crate::qp::QueuePair;
use crate::qp::stats;
use crate::qp::worker::packet_qp::PacketQp;
use crate::queue::base::events::QpEvents;
use crate::transport::{Incoming, Told};
use crate::wire::BthFlags;

/// What the BTH of a queue pair's packets says of its migration.
pub(super) fn flags(attr: &QpAttr, qp: &QueuePair) -> BthFlags {
    let is_migrated = matches!(attr.path_mig_state, None | Some(MigState::Migrated));
    let mut flags = BthFlags::empty();
    flags.set(BthFlags::MIGRATED, is_migrated && qp.port.is_wire());
    flags
}

/// Whether a modify moves a queue pair with those attributes to its alternate path.
pub(in crate::qp) fn is_asked_for(attr: &QpAttr, change: &QpAttr) -> bool {
    attr.path_mig_state == Some(MigState::Armed)
        && change.path_mig_state == Some(MigState::Migrated)
}

/// The alternate path becomes the one in use, and the other way round.
pub(in crate::qp) fn swap_paths(attr: &mut QpAttr) {
    let (Some(alt), Some(av)) = (attr.alt_path, attr.av) else {
        return;
    };
    let (pkey_index, timeout) = (attr.pkey_index.unwrap_or(0), attr.timeout.unwrap_or(0));
    attr.alt_path = Some(AltPath::new(av, pkey_index, timeout));
    attr.av = Some(alt.av());
    attr.pkey_index = Some(alt.pkey_index);
    attr.timeout = Some(alt.timeout);
    attr.path_mig_state = Some(MigState::Migrated);
}

/// Whether a modify may name what it names of path migration.
///
/// # Errors
/// [`Error::NoCapability`], [`Error::Mismatch`], and those of the path.
pub(in crate::qp) fn check_migration(qp: &QueuePair, change: &QpAttr) -> Result<(), Error> {
    if change.alt_path.is_none() && change.path_mig_state.is_none() {
        return Ok(());
    }
    let attr = qp.control.lock().attr();
    let (state, alt) = (
        attr.path_mig_state.unwrap_or_default(),
        change.alt_path.or(attr.alt_path),
    );
    let wanted = change.path_mig_state.unwrap_or(state);
    if alt.is_none() && (state, wanted) == (MigState::Migrated, MigState::Migrated) {
        // Programs of libibverbs say so of the only path that there is.
        return Ok(());
    }
    let asked = match change.alt_path {
        Some(_) => Attr::AltPath,
        None => Attr::PathMigState,
    };
    qp.port.features.require(DeviceCap::AUTO_PATH_MIG, asked)?;
    if let Some(alt) = change.alt_path {
        check_alternate(qp, &alt)?;
    }
    let refused = match (state, wanted) {
        _ if change.path_mig_state.is_none() => None,
        (_, MigState::Rearm) => alt.is_none().then_some((Attr::AltPath, Why::Missing)),
        // The device arms, when the peer has.
        (_, MigState::Armed) | (MigState::Rearm, MigState::Migrated) => {
            Some((Attr::PathMigState, Why::State))
        }
        (_, MigState::Migrated) => None,
    };
    refused.map_or(Ok(()), |(attr, why)| Err(Error::Mismatch { attr, why }))
}

fn check_alternate(qp: &QueuePair, alt: &AltPath) -> Result<(), Error> {
    let path = QpAttr {
        av: Some(alt.av()),
        pkey_index: Some(alt.pkey_index),
        ..QpAttr::default()
    };
    qp.port.check_path(&path).map_err(|error| match error {
        Error::Mismatch {
            attr: Attr::Av,
            why,
        } => Error::Mismatch {
            attr: Attr::AltPath,
            why,
        },
        error => error,
    })
}

/// Whether a packet comes from the peer of a queue pair with two paths, and what follows from what it says.
pub(super) fn is_from_either(
    qp: &Arc<QueuePair>,
    exchange: &mut PacketQp,
    packet: &Incoming<'_>,
    effects: &mut Effects,
) -> bool {
    let state = exchange.path.as_ref().and_then(|path| path.migration);
    let has_moved = packet.head.bth().flags.contains(BthFlags::MIGRATED);
    let came_by =
        |route: &Option<Route>| route.as_ref().is_some_and(|route| came_by(route, packet));
    if !came_by(&exchange.alt_route) || came_by(&exchange.route) {
        if state == Some(MigState::Rearm) && !has_moved && came_by(&exchange.route) {
            arm(qp, exchange);
        }
        let is_peer = |route: &Route| qp.port.is_peer(route, packet);
        return exchange.route.as_ref().is_some_and(is_peer);
    }
    match (has_moved, state) {
        // Sent before this end moved, or before the peer knew.
        (false, _) => true,
        (true, Some(MigState::Armed)) => {
            migrate(qp, exchange, effects);
            true
        }
        (true, _) => {
            if !std::mem::replace(&mut exchange.refused_migration, true) {
                effects.add(Effect::Raise(qp.events(), EventType::PathMigErr));
            }
            false
        }
    }
}

/// Tells the client of a move that its modify has made, outside of locks.
pub(in crate::qp) fn tell_migrated(qp: &QueuePair, change: &QpAttr) {
    let may_have = change.path_mig_state == Some(MigState::Migrated);
    if may_have && std::mem::take(&mut qp.control.lock().tell_migrated) {
        qp.raise(EventType::PathMig);
    }
}

/// The peer has an alternate path, too.
fn arm(qp: &QueuePair, exchange: &mut PacketQp) {
    if let Some(attr) = &mut qp.control.lock().attr
        && attr.path_mig_state == Some(MigState::Rearm)
    {
        attr.path_mig_state = Some(MigState::Armed);
    }
    qp.changes.fetch_add(1, AcqRel);
    qp.follow(exchange);
}

/// Goes on by the alternate path, if it is armed still.
pub(super) fn migrate(qp: &Arc<QueuePair>, exchange: &mut PacketQp, effects: &mut Effects) {
    {
        let mut control = qp.control.lock();
        let Some(attr) = control
            .attr
            .as_mut()
            .filter(|attr| attr.path_mig_state == Some(MigState::Armed))
        else {
            return;
        };
        swap_paths(attr);
    }
    qp.changes.fetch_add(1, AcqRel);
    qp.follow(exchange);
    stats::record(qp, Told::MIGRATED, effects);
    effects.add(Effect::Raise(qp.events(), EventType::PathMig));
}

/// Whether a packet came by exactly the path that the queue pair's own take in the other direction.
fn came_by(route: &Route, packet: &Incoming<'_>) -> bool {
    match (route.local, packet.local) {
        (Some(own), Some(came)) if own.dlid.0 != 0 => {
            (own.dlid, own.slid) == (came.slid, came.dlid)
        }
        _ => (route.dst, route.src) == (packet.src, packet.dst),
    }
}
