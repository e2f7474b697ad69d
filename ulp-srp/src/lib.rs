//! SCSI RDMA Protocol (T10 SRP revision 16a): initiator and target.

#![forbid(unsafe_code)]

pub mod initiator;
pub mod iu;
pub mod lun;
pub mod scsi;
pub mod target;
