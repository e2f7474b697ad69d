//! Numbers that nobody outside can guess.

use verbs_core::Seed;
use verbs_core::seed::Draws;

/// Such a number, from the system.
pub(super) fn system_entropy() -> u64 {
    Draws::new(Seed::from_system()).draw()
}
