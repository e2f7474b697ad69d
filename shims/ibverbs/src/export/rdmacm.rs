//! The functions of librdmacm.

use crate::{rdmacm, rsocket};

crate::export::export! {
    "RDMACM_1.0" {
        "rdma_accept" = rdmacm::accept,
        "rdma_ack_cm_event" = rdmacm::ack_cm_event,
        "rdma_bind_addr" = rdmacm::bind_addr,
        "rdma_connect" = rdmacm::connect,
        "rdma_create_ep" = rdmacm::create_ep,
        "rdma_create_event_channel" = rdmacm::create_event_channel,
        "rdma_create_id" = rdmacm::create_id,
        "rdma_create_qp" = rdmacm::create_qp,
        "rdma_create_qp_ex" = rdmacm::create_qp_ex,
        "rdma_create_srq" = rdmacm::create_srq,
        "rdma_create_srq_ex" = rdmacm::create_srq_ex,
        "rdma_destroy_ep" = rdmacm::destroy_ep,
        "rdma_destroy_event_channel" = rdmacm::destroy_event_channel,
        "rdma_destroy_id" = rdmacm::destroy_id,
        "rdma_destroy_qp" = rdmacm::destroy_qp,
        "rdma_destroy_srq" = rdmacm::destroy_srq,
        "rdma_disconnect" = rdmacm::disconnect,
        "rdma_event_str" = rdmacm::event_str,
        "rdma_free_devices" = rdmacm::free_devices,
        "rdma_freeaddrinfo" = rdmacm::freeaddrinfo,
        "rdma_get_cm_event" = rdmacm::get_cm_event,
        "rdma_get_devices" = rdmacm::get_devices,
        "rdma_get_dst_port" = rdmacm::get_dst_port,
        "rdma_get_request" = rdmacm::get_request,
        "rdma_get_src_port" = rdmacm::get_src_port,
        "rdma_getaddrinfo" = rdmacm::getaddrinfo,
        "rdma_join_multicast" = rdmacm::join_multicast,
        "rdma_leave_multicast" = rdmacm::leave_multicast,
        "rdma_listen" = rdmacm::listen,
        "rdma_migrate_id" = rdmacm::migrate_id,
        "rdma_notify" = rdmacm::notify,
        "rdma_reject" = rdmacm::reject,
        "rdma_resolve_addr" = rdmacm::resolve_addr,
        "rdma_resolve_route" = rdmacm::resolve_route,
        "rdma_set_option" = rdmacm::set_option,
    }
    "RDMACM_1.1" {
        "rdma_join_multicast_ex" = rdmacm::join_multicast_ex,
    }
    "RDMACM_1.2" {
        "rdma_establish" = rdmacm::establish,
        "rdma_init_qp_attr" = rdmacm::init_qp_attr,
    }
    "RDMACM_1.3" {
        "rdma_get_remote_ece" = rdmacm::get_remote_ece,
        "rdma_reject_ece" = rdmacm::reject_ece,
        "rdma_set_local_ece" = rdmacm::set_local_ece,
    }
}

crate::export::export! {
    "RDMACM_1.0" {
        "raccept" = rsocket::raccept,
        "rbind" = rsocket::rbind,
        "rclose" = rsocket::rclose,
        "rconnect" = rsocket::rconnect,
        "rfcntl" = rsocket::rfcntl,
        "rgetpeername" = rsocket::rgetpeername,
        "rgetsockname" = rsocket::rgetsockname,
        "rgetsockopt" = rsocket::rgetsockopt,
        "riomap" = rsocket::riomap,
        "riounmap" = rsocket::riounmap,
        "riowrite" = rsocket::riowrite,
        "rlisten" = rsocket::rlisten,
        "rpoll" = rsocket::rpoll,
        "rread" = rsocket::rread,
        "rreadv" = rsocket::rreadv,
        "rrecv" = rsocket::rrecv,
        "rrecvfrom" = rsocket::rrecvfrom,
        "rrecvmsg" = rsocket::rrecvmsg,
        "rselect" = rsocket::rselect,
        "rsend" = rsocket::rsend,
        "rsendmsg" = rsocket::rsendmsg,
        "rsendto" = rsocket::rsendto,
        "rsetsockopt" = rsocket::rsetsockopt,
        "rshutdown" = rsocket::rshutdown,
        "rsocket" = rsocket::rsocket,
        "rwrite" = rsocket::rwrite,
        "rwritev" = rsocket::rwritev,
    }
}
