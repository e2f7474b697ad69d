//! The initiator: logs in to targets, and sends them SCSI commands from contexts that may not block.
//!
//! - [`Initiator`] logs in, by the RDMA connection manager or by the InfiniBand one.
//! - [`Session`] takes commands: [`Session::command`] with a routine, legal under NoBlock;
//!   [`Session::run`], [`Session::read`] and others as futures.
//! - [`Disk`] is a logical unit for programs: what waits in an outage goes again when it is over.
//! - A command's scatter list becomes one direct descriptor wherever the boundaries between its elements
//!   lie on pages, by one of three [mechanisms](Mechanism) that never wait.
//! - [`discovery`] finds targets on an InfiniBand subnet.
//! - [`table`] and [`plan`] are what can be decided without a device: who is answered, in what order
//!   commands are sent, which elements one handle can stand for.
//!
//! Everything runs in completions. There is no thread, and no call that waits.

mod address;
mod channel;
mod config;
pub mod discovery;
mod disk;
mod error;
pub mod plan;
mod restore;
mod scsi;
mod session;
mod shared;
pub mod table;

pub use address::{Target, TargetWay};
pub use channel::{Adapter, Command, Data, Formats, Refused};
pub use config::{Event, Mechanism, Options};
pub use disk::Disk;
pub use error::{Completion, Error, Outcome, Violation};
pub use scsi::{Capacity, Inquiry, ScsiError, transfer_cdb};
pub use session::{Initiator, Session};
