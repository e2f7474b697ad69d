//! The structures of librdmacm.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ptr::null_mut;

use crate::{AhAttr, CompChannel, Context, Cq, Pd, Qp, Srq};

/// `rdma_event_channel`.
#[repr(C)]
pub struct EventChannel {
    pub fd: c_int,
}

/// `sockaddr_storage`, as bytes.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct Storage(pub [u8; 128]);

/// `rdma_addr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Addr {
    pub src: Storage,
    pub dst: Storage,
    pub sgid: [u64; 2],
    pub dgid: [u64; 2],
    /// In network byte order, as in all of `rdma_ib_addr` and [`PathRec`].
    pub pkey: u16,
}

/// `ibv_sa_path_rec`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct PathRec {
    pub dgid: [u64; 2],
    pub sgid: [u64; 2],
    pub dlid: u16,
    pub slid: u16,
    pub raw_traffic: c_int,
    pub flow_label: u32,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub reversible: c_int,
    pub numb_path: u8,
    pub pkey: u16,
    pub sl: u8,
    pub mtu_selector: u8,
    pub mtu: u8,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub preference: u8,
}

/// `rdma_route`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Route {
    pub addr: Addr,
    pub path_rec: *mut PathRec,
    pub num_paths: c_int,
}

/// `rdma_cm_id`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CmId {
    pub verbs: *mut Context,
    pub channel: *mut EventChannel,
    pub context: *mut c_void,
    pub qp: *mut Qp,
    pub route: Route,
    pub ps: c_uint,
    pub port_num: u8,
    pub event: *mut CmEvent,
    pub send_cq_channel: *mut CompChannel,
    pub send_cq: *mut Cq,
    pub recv_cq_channel: *mut CompChannel,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub pd: *mut Pd,
    pub qp_type: c_uint,
}

/// `rdma_conn_param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ConnParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

/// `rdma_ud_param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UdParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub ah_attr: AhAttr,
    pub qp_num: u32,
    pub qkey: u32,
}

/// The parameters of an event.
#[repr(C)]
#[derive(Clone, Copy)]
pub union Param {
    pub conn: ConnParam,
    pub ud: UdParam,
}

/// `rdma_cm_event`.
#[repr(C)]
pub struct CmEvent {
    pub id: *mut CmId,
    pub listen_id: *mut CmId,
    pub event: c_uint,
    pub status: c_int,
    pub param: Param,
}

/// `rdma_addrinfo`.
#[repr(C)]
pub struct AddrInfo {
    pub flags: c_int,
    pub family: c_int,
    pub qp_type: c_int,
    pub port_space: c_int,
    pub src_len: u32,
    pub dst_len: u32,
    pub src_addr: *mut libc::sockaddr,
    pub dst_addr: *mut libc::sockaddr,
    pub src_canonname: *mut c_char,
    pub dst_canonname: *mut c_char,
    pub route_len: usize,
    pub route: *mut c_void,
    pub connect_len: usize,
    pub connect: *mut c_void,
    pub next: *mut AddrInfo,
}

/// `rdma_cm_join_mc_attr_ex`.
#[repr(C)]
pub struct JoinMcAttrEx {
    pub comp_mask: u32,
    pub join_flags: u32,
    pub addr: *mut libc::sockaddr,
}

/// `rdma_cm_event_type`.
pub mod event {
    pub const ADDR_RESOLVED: u32 = 0;
    pub const ADDR_ERROR: u32 = 1;
    pub const ROUTE_RESOLVED: u32 = 2;
    pub const ROUTE_ERROR: u32 = 3;
    pub const CONNECT_REQUEST: u32 = 4;
    pub const CONNECT_RESPONSE: u32 = 5;
    pub const CONNECT_ERROR: u32 = 6;
    pub const UNREACHABLE: u32 = 7;
    pub const REJECTED: u32 = 8;
    pub const ESTABLISHED: u32 = 9;
    pub const DISCONNECTED: u32 = 10;
    pub const DEVICE_REMOVAL: u32 = 11;
    pub const MULTICAST_JOIN: u32 = 12;
    pub const MULTICAST_ERROR: u32 = 13;
    pub const TIMEWAIT_EXIT: u32 = 15;
}

impl Default for Storage {
    fn default() -> Self {
        Self([0; 128])
    }
}

impl Storage {
    /// The structure for that address.
    pub fn of(addr: SocketAddr) -> Self {
        let mut storage = Self::default();
        let mut put =
            |at: usize, bytes: &[u8]| storage.0[at..at + bytes.len()].copy_from_slice(bytes);
        put(2, &addr.port().to_be_bytes());
        match addr {
            SocketAddr::V4(v4) => {
                put(0, &(libc::AF_INET as u16).to_ne_bytes());
                put(4, &v4.ip().octets());
            }
            SocketAddr::V6(v6) => {
                put(0, &(libc::AF_INET6 as u16).to_ne_bytes());
                put(8, &v6.ip().octets());
                put(24, &v6.scope_id().to_ne_bytes());
            }
        }
        storage
    }

    /// The address, if it is an IP address.
    pub fn addr(&self) -> Option<SocketAddr> {
        let [f0, f1, p0, p1, a, b, c, d, ref rest @ ..] = self.0;
        let port = u16::from_be_bytes([p0, p1]);
        match c_int::from(u16::from_ne_bytes([f0, f1])) {
            libc::AF_INET => Some((Ipv4Addr::new(a, b, c, d), port).into()),
            libc::AF_INET6 => {
                let (ip, rest) = rest.split_first_chunk::<16>()?;
                let scope = u32::from_ne_bytes(*rest.first_chunk::<4>()?);
                Some(SocketAddrV6::new(Ipv6Addr::from(*ip), port, 0, scope).into())
            }
            _ => None,
        }
    }
}

impl CmId {
    /// An id that is on no device yet.
    pub fn new(channel: *mut EventChannel, context: *mut c_void, ps: u32, qp_type: u32) -> Self {
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

/// Sizes and offsets, as programs were compiled with them.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_go_there_and_back() {
        for text in ["127.0.0.9:7174", "[fd77::2]:18515"] {
            let addr: SocketAddr = text.parse().expect("an address");
            assert_eq!(Storage::of(addr).addr(), Some(addr));
        }
        let mut ib = Storage::default();
        ib.0[..2].copy_from_slice(&27_u16.to_ne_bytes());
        assert_eq!((ib.addr(), Storage::default().addr()), (None, None));
    }
}
