//! Alternate paths of connections: loaded at both ends, and moved to (IBTA vol. 1, 17.2.8).

use std::rc::Rc;

use verbs_core::{AltPath, Attr, Error, MigState, QpAttr};

use crate::Ppm;
use crate::run::rc::state::Session;

/// Loads another path of a connection at both ends, between the hosts' other addresses or the same ones, and perhaps moves one
/// end to it; or moves an end to a path that was loaded before.
pub(super) async fn migrate(session: &mut Session, index: usize, end: usize) {
    let loads = session.draw.chance(Ppm::percent(60));
    let other = session.draw.below(2) as u16;
    let moves = session.draw.chance(Ppm::percent(50));
    // Of runs that are compared, one has messages that are placed directly, and so one path.
    if session.world.transcript.is_some() {
        return;
    }
    let Some([a, b]) = paths(session, index).await else {
        return;
    };
    // While one end has moved and the other not yet, another path would take away the one on which it is to follow.
    if loads && a.gid_index == b.gid_index {
        for at in [0, 1] {
            let way = session.way(at, a.gid_index ^ other);
            let path = AltPath::new(way, 0, session.conns[index].attrs.timeout);
            change(session, index, at, QpAttr::load_path(path)).await;
        }
    }
    if moves {
        let both = paths(session, index).await;
        let armed = both.is_some_and(|both| both.iter().all(|path| path.state == MigState::Armed));
        if change(session, index, end, QpAttr::migrate()).await && !armed {
            // The other end drops what comes from a path that it has not armed.
            session.conns[index].parted = true;
        }
    }
}

/// What an end has at a moment.
struct Current {
    gid_index: u16,
    state: MigState,
}

/// Both ends of a connection, while it works and messages are packets: only those have paths.
async fn paths(session: &Session, index: usize) -> Option<[Current; 2]> {
    let of = async |end: usize| {
        let world = Rc::clone(&session.world);
        let qp = session.conns[index].qps[end].as_ref()?;
        let info = world
            .verb(&session.ends[end].lease, qp.query())
            .await
            .ok()?;
        Some(Current {
            gid_index: info.attr.av?.global?.sgid_index,
            state: info.attr.path_mig_state.unwrap_or_default(),
        })
    };
    Some([of(0).await?, of(1).await?])
}

/// Modifies an end of the connection, which may have failed, or not be armed.
async fn change(session: &Session, index: usize, end: usize, attr: QpAttr) -> bool {
    let world = Rc::clone(&session.world);
    let Some(qp) = &session.conns[index].qps[end] else {
        return false;
    };
    let legal = |error: &Error| match error {
        Error::Transition(_) => true,
        Error::Mismatch { attr, .. } => [Attr::PathMigState, Attr::AltPath].contains(attr),
        _ => false,
    };
    let lease = &session.ends[end].lease;
    world.verb_or(lease, qp.modify(attr), legal).await.is_ok()
}
