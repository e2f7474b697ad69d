//! InfiniBand's own routing: the local and global route headers, and the frame that a link carries.

pub mod frame;
pub mod grh;
pub mod lrh;
pub mod vcrc;
