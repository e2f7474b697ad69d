//! Links around links: the trait of wrappers, one that writes captures, one that damages.

mod around;
mod captured;
mod faulty;
mod remarks;

pub use around::Wrap;
pub use captured::Captured;
pub use faulty::{FaultCounters, Faults, Faulty, NotPerMille, PerMille};
pub use remarks::Remarks;
