//! RDMA for Rust programs: connections, messages and remote memory as futures.
//!
//! ```
//! use verbs::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! verbs::block_on(async {
//!     let (a, b) = verbs::sim::pair().await?; // no hardware, no root
//!     let mut hello = a.buf().await;
//!     hello.fill_from(b"hello");
//!     a.send(hello).await?;
//!     let message = b.recv().await?.ok_or("closed")?;
//!     println!("{}", String::from_utf8_lossy(&message));
//!     Ok(())
//! })
//! # }
//! ```
//!
//! # RDMA in five nouns
//!
//! ```text
//!          this program                              the peer
//!   ┌──────────────────────┐                ┌──────────────────────┐
//!   │  memory: Buf         │                │  memory: Region      │
//!   │    │                 │                │    ^                 │
//!   │    │ work request    │  WRITE, READ   │    │                 │
//!   │    v                 │  ┌─────────────┼────┘                 │
//!   │  queue pair ─────────┼──┴─────────────┼─>queue pair          │
//!   │    │                 │  messages      │    │                 │
//!   │    v                 │                │    v                 │
//!   │  completion queue    │                │  completion queue    │
//!   └──────────────────────┘                └──────────────────────┘
//! ```
//!
//! * A **memory region** is memory that the adapter may reach: it is registered first. A [`Buf`] is a piece of one.
//! * A **queue pair** is one end of a connection: a queue of what is to be sent and one of buffers for what arrives. A
//!   [`Connection`] has one, and keeps its buffers for arrivals filled.
//! * A **work request** is an entry of such a queue: send this, write that to the peer. The adapter carries it out while the
//!   program goes on. [`Connection::send`] makes one.
//! * A **completion queue** tells what is done. An awaited operation takes its completion from there.
//! * A **key** lets a peer read and write a region without its owner's program: no code runs there, and no message arrives. A
//!   [`Token`] holds the key, the address and the length; the owner sends it to whom it trusts.
//!
//! # Three doors
//!
//! * **Programs** use what is on this page. An [`Endpoint`] has buffers and makes [`Connection`]s; a connection sends
//!   and receives a [`Buf`], and reads and writes the peer's memory by a [`Token`] of a [`Region`]. [`guide`] says what
//!   there is to know of buffers, dropped futures, closing and drivers. Tests use module `sim`; programs on one machine
//!   use `Endpoint::udp_any`, those on several `Endpoint::udp`.
//! * **Protocols and drivers** that want the verbs themselves find them in [`control`]: objects, requests with
//!   completion routines, events; with [`wr`] and [`wc`] for queues, and [`cm`] for connections of their own.
//! * **Authors of providers** find the trait and its contract in [`provider`].
//!
//! # Features
//!
//! | feature | what it adds |
//! |---|---|
//! | `sim` (default) | the software HCA within a process: module `sim` |
//! | `udp` (default) | the software HCA over UDP, as RoCEv2: `Endpoint::udp` |
//! | `iwarp` (default) | the software RNIC over TCP, as iWARP: `Endpoint::iwarp` |
//! | `subnet` (default) | simulated InfiniBand subnets with their manager: `sim::Carrier::Subnet` |
//! | `simulator` (default) | virtual time, and networks with faults that a seed decides: `sim::Sim` |
//! | `rdma` (default) | RDMA NICs of this host: `Endpoint::rdma`; needs nothing to build, and rdma-core when one is opened |
//! | `testing` | the conformance suite for providers: `provider::testing` |
//! | `tokio` | streams with `tokio`'s traits: `tokio::TokioStream` |
//! | `publish` | `publish`: connections that `verbs connections` shows |
//! | `serde` | [`Token`] and statistics ([`ConnectionStats`], [`Usage`], [`QpStats`], counters) as values of serde |
//!
//! Features only add. Each builds alone. With `default-features = false` there is no provider: a program passes one in by
//! [`Endpoint::on`], and the crate is verbs-core, verbs-cm and verbs-io.
//!
//! # Statistics
//!
//! Plain structs, without a registry of metrics: [`Connection::stats`] says what has happened on a connection,
//! [`control::Qp::stats`] on a queue pair, `sim::Hca::counters` on a software HCA, and [`Endpoint::usage`] what the
//! endpoint's buffers do. Counts are totals since the object was created; a monitor takes differences.
#![forbid(unsafe_code)]

pub mod control;
pub mod guide;
#[cfg(feature = "iwarp")]
mod iwarp;
pub mod prelude;
#[cfg(feature = "publish")]
mod published;
#[cfg(feature = "rdma")]
mod rdma;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(feature = "tokio")]
pub mod tokio;
#[cfg(feature = "udp")]
mod udp;

use std::future::Future;

#[cfg(feature = "publish")]
pub use published::{Published, publish};
pub use verbs_core::{Access, QpStats};
pub use verbs_io::{
    Answer, BadAddress, Buf, Cause, Connecting, Connection, ConnectionStats, Driver, Ended,
    Endpoint, Error, Failed, Incoming, Listener, ListenerStats, Listening, Opening, Operation,
    Pool, RdmaStream, Region, Token, Usage, Word,
};

/// Runs a future on this thread, which sleeps while it waits. For programs that have no runtime; any other executor
/// does as well.
///
/// ```
/// assert_eq!(verbs::block_on(async { 7 }), 7);
/// ```
///
/// # Panics
/// If the thread is in such a call already.
pub fn block_on<F: Future>(future: F) -> F::Output {
    futures::executor::block_on(future)
}

/// What the package's page shows compiles, and runs.
#[cfg(all(doctest, feature = "sim"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// The futures of operations, each by the name of its operation.
pub mod op {
    #[doc(inline)]
    pub use verbs_io::{Accept, op::*};
}

/// Work requests, for queues that a program posts to by itself.
pub mod wr {
    #[doc(no_inline)]
    pub use verbs_core::wr::*;
}

/// Completions, of completion queues that a program polls by itself.
pub mod wc {
    #[doc(no_inline)]
    pub use verbs_core::wc::*;
}

/// The connection manager, for queue pairs of a program's own.
pub mod cm {
    #[doc(no_inline)]
    pub use verbs_cm::*;
}

/// What a provider implements: see [`verbs_core::provider`].
pub mod provider {
    #[doc(no_inline)]
    pub use verbs_core::provider::*;
    #[doc(no_inline)]
    pub use verbs_core::queue::{RawCq, RawRecvQueue, RawSendQueue};
    /// The conformance suite, and a provider without hardware.
    #[cfg(feature = "testing")]
    #[doc(no_inline)]
    pub use verbs_core::testing;
}
