//! The initiator: logs in to targets, and sends them SCSI commands from contexts that may not block.
//!
//! - [`Initiator`] logs in, by the RDMA connection manager or by the InfiniBand one.
//! - [`Session`] takes commands: [`Session::command`] with a routine, legal under NoBlock;
//!   [`Session::run`], [`Session::read`] and others as futures.
//! - [`Disk`] is a logical unit for programs: requests that wait in an outage are sent again when it is over.
//! - A command's scatter list becomes one direct descriptor where all boundaries between its elements are page
//!   boundaries, by one of three [mechanisms](Mechanism) that never wait.
//! - [`discovery`] finds targets on an InfiniBand subnet.
//! - [`table`] and [`plan`] decide everything that needs no device: which request an answer belongs to, in what
//!   order commands are sent, which elements one handle can cover.
//!
//! Everything runs in completions: there is no thread, and no call waits.

mod address;
mod channel;
mod config;
pub mod discovery;
mod disk;
mod error;
mod restore;
mod scsi;
mod session;
mod shared;

pub use channel::{plan, table};

pub use address::{Target, TargetWay};
pub use channel::{Adapter, Command, Data, Formats, Refused};
pub use config::{Event, Mechanism, Options};
pub use disk::Disk;
pub use error::{Completion, Error, Outcome, Violation};
pub use scsi::{Capacity, Inquiry, ScsiError, transfer_cdb};
pub use session::{Initiator, Session};
