//! Filters: providers that stand in front of a provider and look at what goes by, as filter drivers
//! do.
//!
//! A filter has three tools. It may *refuse* a command, which then goes no further. It may let a
//! command [through a frame](crate::AnyCommand::through) and see the result on its way back, or make
//! a failure of it; frames unwind innermost first. It may [pend](crate::AnyCommand::pend) a command
//! and pass it on later, or complete it after requests of its own, made
//! [on behalf of](crate::Request::on_behalf_of) the same origin.
//!
//! Filters stack in any order: `Trace::new(Arc::new(Fault::new(hca)))`.

mod fault;
mod rename;
mod trace;

#[cfg(all(test, not(verbs_loom)))]
mod tests;

pub use fault::{Fault, FaultAction, Until};
pub use rename::Rename;
pub use trace::Trace;
