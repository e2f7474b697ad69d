//! Queue pairs.

pub(crate) mod ah;
mod attr;
mod building;
mod create;
mod mcast;
mod pair;
mod post;
mod stream;
mod wr;

pub(crate) use self::attr::{
    modify, modify_lent, modify_qp, query_ece, query_qp, query_qp_data_in_order, set_ece,
};
pub(crate) use self::create::{create_qp, create_qp_ex, destroy_qp, open_qp};
pub(crate) use self::mcast::{attach_mcast, detach_mcast};
pub(crate) use self::pair::Qp;
pub(crate) use self::post::{bind_mw, post_recv, post_send};
pub(crate) use self::stream::{Stream, accept, connect, show_connected};
pub(crate) use self::wr::qp_to_qp_ex;
