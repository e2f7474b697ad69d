//! Completion queues and channels.

mod channel;
mod create;
mod event;
mod ex;
mod poll;
mod queue;

pub(crate) use self::channel::{create_comp_channel, destroy_comp_channel};
pub(crate) use self::create::{create_cq, create_cq_ex, destroy_cq, modify_cq, resize_cq};
pub(crate) use self::event::{ack_cq_events, get_cq_event};
pub(crate) use self::poll::{poll_cq, req_notify_cq};
pub(crate) use self::queue::Cq;
