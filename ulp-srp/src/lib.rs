//! SCSI RDMA Protocol (T10 SRP revision 16a): initiator and target.
//!
//! An [`initiator::Initiator`] logs in to a target and gives a [`initiator::Session`]; a [`initiator::Disk`] on
//! it reads and writes blocks, across outages. A [`target::Target`] exports logical units ([`lun`]) and serves
//! the initiators that log in. Both run in completions, have no thread of their own, and name only `verbs-core`
//! and `verbs-cm`: they run on any provider of verbs.
//!
//! [`iu`] reads and writes information units, [`scsi`] commands and sense data; both are stateless formats.
//!
//! The crate has no SCSI layer above a disk: no partitions, file systems or multipath. Read [`initiator`] or
//! [`target`] next; `verbs srp` of `verbs-cli` shows both as programs.
//!
//! ```no_run
//! # async fn example(device: std::sync::Arc<verbs_core::Device>) -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//!
//! use ulp_srp::lun::MemoryUnit;
//! use ulp_srp::target::{Target, TargetConfig};
//!
//! // A disk of 64 MiB in memory, for all initiators that log in.
//! let config = TargetConfig::new("0000000000000001505400fffe770001".parse()?);
//! let target = Target::open(device, config).await?;
//! target.export(0, Arc::new(MemoryUnit::new(64 << 20, 512)?)).await?;
//! println!("listening on {}", target.listen("0.0.0.0:5555").await?);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

pub mod initiator;
pub mod iu;
pub mod lun;
pub mod scsi;
pub mod target;
