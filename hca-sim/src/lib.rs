//! A software HCA: a provider for [`verbs_core`] that needs no hardware, no kernel module and no root.
//!
//! An [`Hca`] is a provider with one port on a [`Loopback`] link. Applications hold a
//! [`Device`](verbs_core::Device) that is open on it, and their own queues: post and poll never pass
//! through the HCA.
//!
//! * Control: [`Hca`] takes commands apart; queue pairs, completion queues and the link change their own state. With a
//!   [`CommandConfig`](command::CommandConfig), commands take time, as they do on hardware.
//! * Data: the poster of a work request carries out the whole message on its own thread: its own checks, the
//!   responder's checks, the copy, both completions. What cannot be completed at once waits in the queue pair's
//!   machine, which is driven on by any thread that has a reason to.
//!
//! ```
//! use futures::executor::block_on;
//! use hca_sim::Hca;
//! use verbs_core::{Access, Memory, QpInit, Recv, Send, Wc};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # block_on(async {
//! let dev = Hca::loopback().open().await?;
//! let pd = dev.alloc_pd().await?;
//! let mut cq = dev.create_cq(256).await?;
//! let mr = pd.register(Memory::alloc(1 << 20)?, Access::LOCAL_WRITE).await?;
//! let mut ours = pd.create_qp(QpInit::rc(&cq, &cq)).await?;
//! let mut theirs = pd.create_qp(QpInit::rc(&cq, &cq)).await?;
//! hca_sim::connect(&mut ours, &mut theirs).await?;
//! mr.write(0, b"over the fabric")?;
//! theirs.post_recv(Recv::new(1).into(mr.slice(4096..8192)))?;
//! ours.post_send(Send::new(7).from(mr.slice(0..15)).signaled())?;
//! cq.ready().await?;
//! for wc in cq.poll(&mut [Wc::default(); 16]) {
//!     println!("{} {}", wc.wr_id, wc.status);
//! }
//! let mut arrived = [0; 15];
//! mr.read(4096, &mut arrived)?;
//! assert_eq!(&arrived, b"over the fabric");
//! # Ok(())
//! # })
//! # }
//! ```
#![deny(unsafe_code)]

mod direct;
mod effects;
mod hca;
pub mod link;
pub mod port;
mod post;
mod qp;
mod queue;
mod transport;

pub use hca::adopt::{Adopted, adopt};
pub use hca::builder::Builder;
pub use hca::connect::{connect, connect_with};
pub use hca::limits::Limits;
pub use hca::{Hca, connected_qps};
pub use hca::{command, extension};
pub use link::{Loopback, Udp};
pub use transport::congestion::{Dcqcn, ReactionPoint};
#[doc(no_inline)]
pub use verbs_link::port_space;
pub(crate) use verbs_link::rng;
#[doc(no_inline)]
pub use verbs_link::stream::{self, Tcp};
#[doc(no_inline)]
pub use verbs_link::{time as clock, time as engine};
#[doc(no_inline)]
pub use verbs_wire as wire;
