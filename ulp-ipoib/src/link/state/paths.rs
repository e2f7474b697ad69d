//! Paths to other ports: requested from the administrator, kept by GID.

use verbs_cm::Route;
use verbs_core::time::Instant;
use verbs_core::{Ah, Gid};

use super::State;
use super::action::Action;
use crate::config::REFUSAL_PAUSE;
use crate::link::entry::path::Path;

impl State {
    /// Whether there is a path to that port. If not, or if it may have changed, requests it from the
    /// administrator.
    pub(in crate::link) fn has_path(&mut self, gid: Gid, now: Instant) -> bool {
        let ready = match self.paths.get_mut(&gid) {
            Some(Path::Ready { is_stale, .. }) => {
                if !std::mem::take(is_stale) {
                    return true;
                }
                // It stays in use until the administrator has answered again.
                true
            }
            Some(Path::Asked) => return false,
            Some(Path::Refused(until)) if *until > now => return false,
            Some(Path::Refused(_)) | None => {
                self.paths.insert(gid, Path::Asked);
                false
            }
        };
        self.counters.paths_asked += 1;
        self.actions.push(Action::FindPath(gid));
        ready
    }

    /// The administrator has answered. Returns an object to drop under no lock.
    pub(in crate::link) fn path_found(
        &mut self,
        gid: Gid,
        found: Option<(Ah, Route)>,
        now: Instant,
    ) -> Option<Path> {
        let is_there = found.is_some();
        let path = match (found, self.paths.get(&gid)) {
            (Some((ah, route)), _) => Path::Ready {
                ah,
                route,
                is_stale: false,
            },
            // The earlier path stays in use; it is requested again at the next change.
            (None, Some(Path::Ready { .. })) => return None,
            (None, _) => Path::Refused(now + REFUSAL_PAUSE),
        };
        let old = self.paths.insert(gid, path);
        self.path_changed(gid, is_there, now);
        old
    }

    /// Every path may have changed.
    pub(in crate::link) fn paths_stale(&mut self) {
        for path in self.paths.values_mut() {
            if let Path::Ready { is_stale, .. } = path {
                *is_stale = true;
            }
        }
    }
}
