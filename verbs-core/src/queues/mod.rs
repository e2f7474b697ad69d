//! Queues and what is in them: completions, work requests; who may use them.

pub mod channel;
pub mod cq;
pub mod queue;
pub mod shared;
pub mod srq;
pub mod thread_domain;
pub mod wc;
pub mod wr;
