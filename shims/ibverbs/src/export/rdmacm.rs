//! The functions of librdmacm.

use crate::call::{Errno, set_errno};
use crate::rdmacm;

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

/// Sockets over RDMA, which this library does not have: programs that are linked against them start, and are told so.
unsafe extern "C" fn no_sockets() -> isize {
    set_errno(Errno(libc::ENOSYS));
    -1
}

crate::export::export! {
    "RDMACM_1.0" {
        "raccept" = no_sockets,
        "rbind" = no_sockets,
        "rclose" = no_sockets,
        "rconnect" = no_sockets,
        "rfcntl" = no_sockets,
        "rgetpeername" = no_sockets,
        "rgetsockname" = no_sockets,
        "rgetsockopt" = no_sockets,
        "riomap" = no_sockets,
        "riounmap" = no_sockets,
        "riowrite" = no_sockets,
        "rlisten" = no_sockets,
        "rpoll" = no_sockets,
        "rread" = no_sockets,
        "rreadv" = no_sockets,
        "rrecv" = no_sockets,
        "rrecvfrom" = no_sockets,
        "rrecvmsg" = no_sockets,
        "rselect" = no_sockets,
        "rsend" = no_sockets,
        "rsendmsg" = no_sockets,
        "rsendto" = no_sockets,
        "rsetsockopt" = no_sockets,
        "rshutdown" = no_sockets,
        "rsocket" = no_sockets,
        "rwrite" = no_sockets,
        "rwritev" = no_sockets,
    }
}
