//! For the tests of providers and of protocols: a provider without hardware, one that holds commands
//! back until the test lets them go, a table of all verbs, the [matrix of Busy edges](busy), the [conformance
//! suite](conformance), and the replay of fuzz corpora.
//!
//! ```
//! use std::sync::Arc;
//! use verbs_core::testing::{Hold, Null};
//! use verbs_core::{Device, Issued};
//!
//! let hold = Hold::over(Arc::new(Null::default()));
//! let opening = Device::open(hold.clone()).issue(|device| drop(device));
//! assert!(matches!(opening, Issued::Pending(_)));
//! assert!(hold.step());
//! ```

mod any_request;
pub mod busy;
#[cfg(not(verbs_loom))]
pub mod conformance;
mod corpus;
mod hold;
mod null;
mod stage;
mod subject;

pub use any_request::{Answer, AnyFuture, AnyRequest, AnyRoutine};
pub use corpus::Corpus;
pub use hold::Hold;
pub use null::Null;
pub use stage::{GROUP, NotOffered, Nowhere, Nudge, Stage};
pub use subject::{PATIENCE, Subject};
