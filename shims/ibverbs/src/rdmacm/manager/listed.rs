//! What this process tells `verbs connections`: its connections, made by address or by the program itself.

use std::io;

use hca_sim::link::published::{self, Published};
use hca_sim::{Hca, connected_qps};
use verbs_cm::machine::State;
use verbs_cm::{ConnId, ConnectionInfo, ConnectionState, HostServices, Listed};
use verbs_core::Provider;
use verbs_core::process::variable;
use verbs_core::sync::Arc;

use super::{Inner, existing};
use crate::device::PORT;

/// Set to anything, by `verbs run`: other programs of the user may ask. It takes a thread.
const VARIABLE: &str = "VERBS_CONNECTIONS";

/// Answers those who ask, as long as what is returned is kept; `None` if nobody wants that, or it cannot be.
pub(crate) fn publish(hca: &Arc<Hca>) -> Option<Arc<Published>> {
    variable(VARIABLE).filter(|value| !value.is_empty())?;
    let hca = Arc::downgrade(hca);
    let say = move || {
        let all = hca.upgrade().map_or_else(Vec::new, |hca| {
            let managed = connections();
            verbs_cm::listed_with([(hca.query_provider(PORT), connected_qps(&hca))], &managed)
        });
        serde_json::to_vec(&all).map_err(io::Error::other)
    };
    published::publish(Listed::PUBLISHED, say).map(Arc::new)
}

/// The connections that messages have made and that are there. Those over TCP the device knows itself.
fn connections() -> Vec<ConnectionInfo> {
    existing().map_or_else(Vec::new, |manager| manager.driver.look(established))
}

fn established(inner: &Inner) -> Vec<ConnectionInfo> {
    let is_there = |conn: &ConnId| inner.cm.state(*conn) == Some(State::Established);
    let all = inner.kept.conns.iter().filter(|(conn, _)| is_there(conn));
    let known = all.filter_map(|(&conn, endpoint)| {
        let state = endpoint.state.lock();
        Some(ConnectionInfo {
            local: state.local,
            remote: state.remote?,
            qpn: inner.cm.qpn(conn),
            remote_qpn: inner.cm.remote_qpn(conn),
            state: ConnectionState::Established,
            transport: None,
            is_offloaded: false,
            host: HostServices::default(),
        })
    });
    known.collect()
}
