//! Awaitable operations over RDMA verbs.
//!
//! ```no_run
//! # async fn example(device: verbs_core::Device) -> Result<(), verbs_io::Error> {
//! use verbs_io::Endpoint;
//!
//! let net = Endpoint::on(device).open().await?;
//! let conn = net.connect("10.0.0.2:7471").await?;
//! let mut buf = conn.buf().await;
//! buf.fill_from(b"hello");
//! conn.send(buf).await?;
//! while let Some(message) = conn.recv().await? {
//!     println!("{} bytes", message.len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Programs name crate `verbs`, which has all of this; what is between a provider and the programs, such as an upper
//! layer protocol, names this crate.
//!
//! # Ownership
//!
//! ```text
//! Endpoint ── buffers, two completion queues, slots of operations: one lane
//!    ├── Connection      messages; the peer's memory, with a Token
//!    ├── Listener        a stream of Connections that peers have asked for
//!    └── Region          memory that peers reach, which gives out Tokens
//! Buf                    a piece of registered memory: its holder's alone, until it is given to an operation
//! ```
//!
//! An operation takes a [`Buf`] and gives it back when it has completed, in an error too. A future that is dropped
//! leaves its buffer with the operation until the device is done with it: nothing is freed that a device may reach, and
//! nothing is lost.
//!
//! # Progress
//!
//! A task that polls an operation takes the completions of all, and posts what waited for room. While all tasks sleep, the
//! completion queues' event handlers do: no task has to be spawned, no thread runs, and no operation waits for
//! another future to be polled. Wakers are called under no lock.
//!
//! # What it does not do
//!
//! It opens no device: a provider does. Datagrams, shared receive queues and memory windows are those of
//! [`verbs_core`].
#![deny(unsafe_code)]

#[expect(
    unsafe_code,
    reason = "slices of registered memory that only their holder reaches: argued at its head"
)]
mod buf;
mod connect;
mod connection;
mod endpoint;
mod error;
mod lane;
mod link;
pub mod op;
mod region;
mod stream;

pub(crate) use connect::name;
pub(crate) use lane::core;

pub use buf::Buf;
pub use connect::Connecting;
pub use connect::listen::{Accept, Answer, Incoming, Listener, ListenerStats, Listening};
pub use connection::Connection;
pub use endpoint::{Driver, Endpoint, Opening, Pool, Usage};
pub use error::{BadAddress, Cause, Error, Failed, Operation};
pub use link::ConnectionStats;
pub use region::{Region, Token, Word};
pub use stream::RdmaStream;
pub use verbs_cm::Ended;
