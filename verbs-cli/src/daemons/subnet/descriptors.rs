//! How many clients the limit of open files leaves room for.

use hca_sim::link::fabric::HostLimits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for everything but clients and managers.
const OWN: usize = 32;

/// Managers at a time whose files are watched.
const MANAGERS_MAX: usize = 64;

/// Descriptors that a client takes at most: its connection, and a file that is on its way to it or came from it.
const OF_CLIENT: usize = 2;

/// Raises the process's limit of open files as far as it may. Returns what it is then.
pub(crate) fn raise_limit() -> u64 {
    let before = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: before.maximum,
        maximum: before.maximum,
    };
    // What cannot be raised is enough for fewer clients.
    let raised = setrlimit(Resource::Nofile, most);
    let limit = if raised.is_ok() { most } else { before };
    limit.current.unwrap_or(u64::MAX)
}

/// What a host may keep open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptors {
    pub(super) clients_max: usize,
    pub(super) operators_max: usize,
    pub(super) managers_max: usize,
}

impl Descriptors {
    /// Raises the process's limit of open files as far as it may, and shares out what there is, so that there is a
    /// descriptor for every client that is let in.
    pub(super) fn claim() -> Self {
        let limit = usize::try_from(raise_limit());
        Self::of(limit.unwrap_or(usize::MAX))
    }

    /// What so many descriptors are enough for.
    fn of(limit: usize) -> Self {
        let HostLimits {
            clients_max,
            operators_max,
            ..
        } = HostLimits::default();
        let managers = MANAGERS_MAX.min(limit / 8).max(1);
        let operators = operators_max.min(limit / 16).max(1);
        let left = limit.saturating_sub(OWN + managers + operators);
        Self {
            clients_max: clients_max.min(left / OF_CLIENT).max(1),
            operators_max: operators,
            managers_max: managers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is let in never needs more descriptors than there are. Method: all usual limits, and small ones.
    #[test]
    fn there_is_a_descriptor_for_everybody() {
        for limit in [64, 100, 128, 256, 1024, 4096, 1 << 20, usize::MAX] {
            let shared = Descriptors::of(limit);
            let Descriptors {
                clients_max,
                operators_max,
                managers_max,
            } = shared;
            let needed = OWN + clients_max * OF_CLIENT + operators_max + managers_max;
            assert!(needed <= limit, "{limit}: {shared:?}");
            assert!(
                clients_max >= limit.min(4096 * 4) / 8,
                "{limit}: {shared:?}"
            );
        }
        assert_eq!(Descriptors::of(1 << 20).clients_max, 4096);
    }
}
