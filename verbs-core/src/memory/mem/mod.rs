//! Registered memory, keys and windows: one of the three modules of this crate that use `unsafe`, with `biased` and
//! `slot`.
//!
//! The path to bytes is key, check under a pin, window:
//!
//! * [`Memory`] owns bytes. Its owner copies in and out; a registration shares it by `Arc`.
//! * [`MrTable`] maps keys to regions. [`MrTable::check`] turns (key, address, length, right) into a
//!   [`Window`], the only thing that reaches a region's bytes.
//! * [`pin()`] makes a window possible: it costs two stores. A thread that takes something away (deregistration,
//!   destroy) does not wait, but leaves a [`grace`] job that runs when all pins that could still see the thing
//!   have been left.
//! * [`TouchWord`] says which threads matter: each object records the threads that ever entered.
//!
//! The soundness is argued at each piece; `loom_` tests model the orderings, and a torture test shows that
//! deregistration needs the process-wide barrier and gets it.

/// Defines a function that returns a value of which each process has one; in a model, each model.
macro_rules! process_wide {
    ($(#[$doc:meta])* $vis:vis fn $name:ident() -> $ty:ty { $init:expr }) => {
        $(#[$doc])*
        #[cfg(not(verbs_loom))]
        $vis fn $name() -> &'static $ty {
            static VALUE: crate::sync::OnceLock<$ty> = crate::sync::OnceLock::new();
            VALUE.get_or_init(|| $init)
        }

        $(#[$doc])*
        #[cfg(verbs_loom)]
        $vis fn $name() -> &'static $ty {
            // Leaked, because loom drops its statics before the main thread's local values.
            crate::sync::lazy_static! {
                static ref VALUE: &'static $ty = Box::leak(Box::new($init));
            }
            &VALUE
        }
    };
}
use process_wide;

pub mod access;
mod bounce;
mod copy;
mod keys;
pub mod memory;
pub mod pages;
mod pins;
pub mod region;
#[cfg(test)]
#[cfg(not(verbs_loom))]
mod tests;
pub mod window;
pub mod word;

pub(crate) use keys::fast;
pub use keys::table;

pub(crate) use pins::barrier;
pub use pins::{grace, pin, touch};

pub use access::{Access, Who, WindowType};
pub use bounce::Bounce;
pub use copy::guard::{Unmapped, catch_faults, faults_are_caught};
pub use fast::{Invalidated, Stopped};
pub use memory::Memory;
pub use pages::{Extent, Layout, PageList, Span};
pub use pin::{Pin, my_number, pin, pin_at_once};
pub use region::{Fault, Keys, Region};
pub use table::MrTable;
pub use touch::{Seen, TouchWord, Touched};
pub use window::Window;
pub use word::Word;
