//! The structures of librdmacm that programs share with the library.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

use crate::abi::{AhAttr, CompChannel, Context, Cq, Pd, Qp, Srq};

/// `rdma_event_channel`.
#[repr(C)]
pub(crate) struct EventChannel {
    pub(crate) fd: c_int,
}

/// `sockaddr_storage`, as bytes.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct Storage(pub(crate) [u8; 128]);

/// `rdma_addr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Addr {
    pub(crate) src: Storage,
    pub(crate) dst: Storage,
    pub(crate) sgid: [u64; 2],
    pub(crate) dgid: [u64; 2],
    /// In the network's order, as in all of `rdma_ib_addr` and [`PathRec`].
    pub(crate) pkey: u16,
}

/// `ibv_sa_path_rec`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct PathRec {
    pub(crate) dgid: [u64; 2],
    pub(crate) sgid: [u64; 2],
    pub(crate) dlid: u16,
    pub(crate) slid: u16,
    pub(crate) raw_traffic: c_int,
    pub(crate) flow_label: u32,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) reversible: c_int,
    pub(crate) numb_path: u8,
    pub(crate) pkey: u16,
    pub(crate) sl: u8,
    pub(crate) mtu_selector: u8,
    pub(crate) mtu: u8,
    pub(crate) rate_selector: u8,
    pub(crate) rate: u8,
    pub(crate) packet_life_time_selector: u8,
    pub(crate) packet_life_time: u8,
    pub(crate) preference: u8,
}

/// `rdma_route`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Route {
    pub(crate) addr: Addr,
    pub(crate) path_rec: *mut PathRec,
    pub(crate) num_paths: c_int,
}

/// `rdma_cm_id`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CmId {
    pub(crate) verbs: *mut Context,
    pub(crate) channel: *mut EventChannel,
    pub(crate) context: *mut c_void,
    pub(crate) qp: *mut Qp,
    pub(crate) route: Route,
    pub(crate) ps: c_uint,
    pub(crate) port_num: u8,
    pub(crate) event: *mut CmEvent,
    pub(crate) send_cq_channel: *mut CompChannel,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq_channel: *mut CompChannel,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut Srq,
    pub(crate) pd: *mut Pd,
    pub(crate) qp_type: c_uint,
}

/// `rdma_conn_param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ConnParam {
    pub(crate) private_data: *const c_void,
    pub(crate) private_data_len: u8,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: u8,
    pub(crate) qp_num: u32,
}

/// `rdma_ud_param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UdParam {
    pub(crate) private_data: *const c_void,
    pub(crate) private_data_len: u8,
    pub(crate) ah_attr: AhAttr,
    pub(crate) qp_num: u32,
    pub(crate) qkey: u32,
}

/// The parameters of an event.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union Param {
    pub(crate) conn: ConnParam,
    pub(crate) ud: UdParam,
}

/// `rdma_cm_event`.
#[repr(C)]
pub(crate) struct CmEvent {
    pub(crate) id: *mut CmId,
    pub(crate) listen_id: *mut CmId,
    pub(crate) event: c_uint,
    pub(crate) status: c_int,
    pub(crate) param: Param,
}

/// `rdma_addrinfo`.
#[repr(C)]
pub(crate) struct AddrInfo {
    pub(crate) flags: c_int,
    pub(crate) family: c_int,
    pub(crate) qp_type: c_int,
    pub(crate) port_space: c_int,
    pub(crate) src_len: u32,
    pub(crate) dst_len: u32,
    pub(crate) src_addr: *mut libc::sockaddr,
    pub(crate) dst_addr: *mut libc::sockaddr,
    pub(crate) src_canonname: *mut c_char,
    pub(crate) dst_canonname: *mut c_char,
    pub(crate) route_len: usize,
    pub(crate) route: *mut c_void,
    pub(crate) connect_len: usize,
    pub(crate) connect: *mut c_void,
    pub(crate) next: *mut AddrInfo,
}

/// `rdma_cm_join_mc_attr_ex`.
#[repr(C)]
pub(crate) struct JoinMcAttrEx {
    pub(crate) comp_mask: u32,
    pub(crate) join_flags: u32,
    pub(crate) addr: *mut libc::sockaddr,
}

/// `rdma_cm_event_type`.
pub(crate) mod event {
    pub(crate) const ADDR_RESOLVED: u32 = 0;
    pub(crate) const ADDR_ERROR: u32 = 1;
    pub(crate) const ROUTE_RESOLVED: u32 = 2;
    pub(crate) const CONNECT_REQUEST: u32 = 4;
    pub(crate) const CONNECT_RESPONSE: u32 = 5;
    pub(crate) const CONNECT_ERROR: u32 = 6;
    pub(crate) const UNREACHABLE: u32 = 7;
    pub(crate) const REJECTED: u32 = 8;
    pub(crate) const ESTABLISHED: u32 = 9;
    pub(crate) const DISCONNECTED: u32 = 10;
    pub(crate) const MULTICAST_JOIN: u32 = 12;
    pub(crate) const MULTICAST_ERROR: u32 = 13;
    pub(crate) const TIMEWAIT_EXIT: u32 = 15;
}

/// Events by their numbers.
const EVENTS: [&std::ffi::CStr; 16] = [
    c"RDMA_CM_EVENT_ADDR_RESOLVED",
    c"RDMA_CM_EVENT_ADDR_ERROR",
    c"RDMA_CM_EVENT_ROUTE_RESOLVED",
    c"RDMA_CM_EVENT_ROUTE_ERROR",
    c"RDMA_CM_EVENT_CONNECT_REQUEST",
    c"RDMA_CM_EVENT_CONNECT_RESPONSE",
    c"RDMA_CM_EVENT_CONNECT_ERROR",
    c"RDMA_CM_EVENT_UNREACHABLE",
    c"RDMA_CM_EVENT_REJECTED",
    c"RDMA_CM_EVENT_ESTABLISHED",
    c"RDMA_CM_EVENT_DISCONNECTED",
    c"RDMA_CM_EVENT_DEVICE_REMOVAL",
    c"RDMA_CM_EVENT_MULTICAST_JOIN",
    c"RDMA_CM_EVENT_MULTICAST_ERROR",
    c"RDMA_CM_EVENT_ADDR_CHANGE",
    c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
];

/// `rdma_event_str`.
pub(crate) extern "C" fn event_str(event: c_uint) -> *const c_char {
    EVENTS
        .get(event as usize)
        .unwrap_or(&c"UNKNOWN EVENT")
        .as_ptr()
}

impl Default for Storage {
    fn default() -> Self {
        Self([0; 128])
    }
}

impl CmId {
    /// One that is on no device yet.
    pub(super) fn new(
        channel: *mut EventChannel,
        context: *mut c_void,
        ps: u32,
        qp_type: u32,
    ) -> Self {
        Self {
            verbs: null_mut(),
            channel,
            context,
            qp: null_mut(),
            route: Route {
                addr: Addr {
                    src: Storage::default(),
                    dst: Storage::default(),
                    sgid: [0; 2],
                    dgid: [0; 2],
                    pkey: 0,
                },
                path_rec: null_mut(),
                num_paths: 0,
            },
            ps,
            port_num: 0,
            event: null_mut(),
            send_cq_channel: null_mut(),
            send_cq: null_mut(),
            recv_cq_channel: null_mut(),
            recv_cq: null_mut(),
            srq: null_mut(),
            pd: null_mut(),
            qp_type,
        }
    }
}

/// Sizes and places, as programs were compiled with them.
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<EventChannel>() == 4);
    assert!(
        size_of::<Addr>() == 296 && offset_of!(Addr, dst) == 128 && offset_of!(Addr, sgid) == 256
    );
    assert!(size_of::<PathRec>() == 64 && offset_of!(PathRec, pkey) == 54);
    assert!(offset_of!(PathRec, flow_label) == 40 && offset_of!(PathRec, reversible) == 48);
    assert!(offset_of!(PathRec, preference) == 63);
    assert!(size_of::<Route>() == 312 && offset_of!(Route, path_rec) == 296);
    assert!(
        size_of::<CmId>() == 416 && offset_of!(CmId, route) == 32 && offset_of!(CmId, ps) == 344
    );
    assert!(offset_of!(CmId, port_num) == 348 && offset_of!(CmId, event) == 352);
    assert!(offset_of!(CmId, send_cq) == 368 && offset_of!(CmId, srq) == 392);
    assert!(offset_of!(CmId, pd) == 400 && offset_of!(CmId, qp_type) == 408);
    assert!(size_of::<ConnParam>() == 24 && offset_of!(ConnParam, qp_num) == 16);
    assert!(size_of::<UdParam>() == 56 && offset_of!(UdParam, ah_attr) == 16);
    assert!(offset_of!(UdParam, qp_num) == 48 && offset_of!(UdParam, qkey) == 52);
    assert!(size_of::<CmEvent>() == 80 && offset_of!(CmEvent, event) == 16);
    assert!(offset_of!(CmEvent, param) == 24);
    assert!(size_of::<AddrInfo>() == 96 && offset_of!(AddrInfo, route_len) == 56);
    assert!(offset_of!(AddrInfo, next) == 88);
};
