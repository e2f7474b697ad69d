//! Protection domains and memory.

mod dm;
mod domain;
mod maps;
mod mr;
mod mw;

pub(crate) use self::dm::{alloc_dm, free_dm, reg_dm_mr};
pub(crate) use self::domain::{
    Pd, alloc_parent_domain, alloc_pd, alloc_td, dealloc_pd, dealloc_td,
};
pub(crate) use self::mr::{
    advise_mr, dereg_mr, reg_dmabuf_mr, reg_mr, reg_mr_iova, reg_mr_iova2, rereg_mr,
};
pub(crate) use self::mw::{Mw, alloc_mw, dealloc_mw};
