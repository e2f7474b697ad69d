//! Registered memory, keys and windows: one of the three modules of this crate that use `unsafe`, with `biased` and
//! `slot`.
//!
//! The way to bytes is key, check under a pin, window:
//!
//! * [`Memory`] owns bytes. Its owner copies in and out; a registration shares it by `Arc`.
//! * [`MrTable`] maps keys to regions. [`MrTable::check`] turns (key, address, length, right) into a
//!   [`Window`], the only thing that reaches a region's bytes.
//! * [`pin()`] makes a window possible: it costs two stores, and whoever takes something away
//!   (deregistration, destroy) waits for nobody but leaves a [`grace`] job that runs when all pins
//!   that could still see the thing have been left.
//! * [`TouchWord`] says who has to be asked: each object remembers which threads ever got in.
//!
//! What is sound and why is argued at each piece; `loom_` tests model the orderings, and a torture
//! test shows that deregistration needs the process-wide barrier and gets it.

/// Defines a function that gives a value of which the process has one; in a model, the model.
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
pub(crate) mod barrier;
mod bind;
mod bounce;
mod copy;
mod entry;
mod fast;
pub mod grace;
#[cfg(all(test, verbs_loom))]
mod loom_tests;
pub mod memory;
mod owner;
pub mod pages;
pub mod pin;
pub mod region;
pub mod table;
#[cfg(test)]
#[cfg(not(verbs_loom))]
mod tests;
pub mod touch;
pub mod window;

pub use access::{Access, Who, WindowType};
pub use bounce::Bounce;
pub use fast::{Invalidated, Stopped};
pub use memory::Memory;
pub use pages::{Extent, Layout, PageList, Span};
pub use pin::{Pin, my_number, pin, pin_at_once};
pub use region::{Fault, Keys, Region};
pub use table::MrTable;
pub use touch::{Seen, TouchWord, Touched};
pub use window::Window;
