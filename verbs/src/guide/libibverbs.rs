//! Coming from libibverbs and librdmacm.
//!
//! The names of objects, attributes, flags and statuses are those of `verbs.h`. What differs is ownership: the
//! compiler keeps memory registered while the device may reach it, a queue has one user at a time, and nothing blocks but
//! calls named `wait`.
//!
//! | C | awaitable | by the verbs ([`control`](crate::control)) |
//! |---|---|---|
//! | `ibv_open_device` | [`Endpoint::udp`](crate::prelude::UdpEndpoint::udp), [`sim::Network::host`](crate::sim::Network::host) | `hca.open().await` |
//! | `ibv_alloc_pd` | the endpoint's own | [`Device::alloc_pd`](verbs_core::Device::alloc_pd) |
//! | `ibv_reg_mr` of buffers | [`Endpoint::buf`](crate::Endpoint::buf) | [`Pd::register`](verbs_core::Pd::register) |
//! | `ibv_reg_mr` for a peer | [`Endpoint::region`](crate::Endpoint::region), [`Region::token`](crate::Region::token) | the same with `Access::REMOTE_WRITE` and others |
//! | `ibv_create_cq`, `ibv_create_comp_channel` | the endpoint's own | [`Device::create_cq`](verbs_core::Device::create_cq), [`CompletionChannel`](verbs_core::CompletionChannel) |
//! | `ibv_create_qp`, `rdma_create_qp` | the connection's own | [`Pd::create_qp`](verbs_core::Pd::create_qp) with [`QpInit`](verbs_core::QpInit) |
//! | `rdma_resolve_addr`, `rdma_resolve_route`, `rdma_connect` | [`Endpoint::connect`](crate::Endpoint::connect) | [`cm::connect`](verbs_cm::connect()) |
//! | `rdma_listen`, `rdma_get_request`, `rdma_accept` | [`Endpoint::listen`](crate::Endpoint::listen), [`Listening::screen`](crate::Listening::screen) | [`cm::listen`](verbs_cm::listen()) |
//! | `ibv_post_send`, `IBV_WR_SEND` | [`Connection::send`](crate::Connection::send) | [`SendQueue::post`](verbs_core::SendQueue::post) |
//! | `IBV_WR_RDMA_WRITE`, `IBV_WR_RDMA_READ` | [`write`](crate::Connection::write), [`read`](crate::Connection::read) with a [`Token`](crate::Token) | [`Write`](verbs_core::Write), [`Read`](verbs_core::Read) |
//! | `IBV_WR_ATOMIC_CMP_AND_SWP`, `_FETCH_AND_ADD` | [`compare_swap`](crate::Connection::compare_swap), [`fetch_add`](crate::Connection::fetch_add) | [`Atomic`](verbs_core::Atomic) |
//! | a list of `ibv_send_wr` | [`Connection::batch`](crate::Connection::batch) | [`SendQueue::post_batch`](verbs_core::SendQueue::post_batch) |
//! | `ibv_post_recv` | done by the connection; [`window`](crate::Opening::window) of them | [`RecvQueue::post`](verbs_core::RecvQueue::post) |
//! | `ibv_poll_cq` | awaiting the operation | [`Cq::poll`](verbs_core::Cq::poll) |
//! | `ibv_req_notify_cq`, `ibv_get_cq_event` | done by the endpoint | [`Cq::arm`](verbs_core::Cq::arm), [`Cq::ready`](verbs_core::Cq::ready) |
//! | `wc.status` | [`Error::Broken`](crate::Error::Broken) with the [`Cause`](crate::Cause) | [`Wc`](verbs_core::Wc)`::status` |
//! | `rdma_disconnect` | [`Connection::close`](crate::Connection::close) | [`cm::Connection::disconnect`](verbs_cm::Connection::disconnect) |
//! | `RDMA_CM_EVENT_DISCONNECTED` | `recv` yields `None`; [`closed`](crate::Connection::closed) | [`cm::Connection::closed`](verbs_cm::Connection::closed) |
//! | `EBUSY` of a destroy | none: drop what is to go | [`Refused`](verbs_core::Refused) with the handle, and what holds it |
//!
//! Three habits to leave behind:
//!
//! * *Signalling every nth send.* A send queue of the verbs frees its entries by a later signaled completion, here as
//!   there. The awaitable operations do that by themselves.
//! * *Polling one queue for both directions and telling completions apart by `wr_id`.* The connection does.
//! * *Draining before a destroy.* A queue pair's destroy flushes what is posted, and completes when no handler runs for
//!   it any longer.
