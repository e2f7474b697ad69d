//! Addresses by name, and ids that are made complete: `rdma_getaddrinfo`, `rdma_create_ep`.

use std::ffi::{c_char, c_int, c_void};
use std::net::SocketAddr;
use std::ptr::null_mut;

use verbs_abi::rdmacm::{AddrInfo, CmId};
use verbs_abi::{Pd, QpInitAttr};

use crate::call::live::look;
use crate::call::{Errno, number};
use crate::rdmacm::address::sockaddr::{from_c, to_c};
use crate::rdmacm::address::{bind_as_named, find_route, resolve};
use crate::rdmacm::channel::taken::complete;
use crate::rdmacm::id::life;
use crate::rdmacm::id::{self, Id, RC, UD};
use crate::rdmacm::qp;

/// `RAI_PASSIVE`, `RAI_NUMERICHOST`, `RAI_NOROUTE`, `RAI_FAMILY`.
const PASSIVE: c_int = 1;
const NUMERIC_HOST: c_int = 2;
const FAMILY: c_int = 8;
const KNOWN: c_int = 15;

/// `RDMA_PS_TCP` and `RDMA_PS_UDP`.
const PS_TCP: c_int = 0x106;
const PS_UDP: c_int = 0x111;

/// The time for the path of an endpoint, as in librdmacm.
const TIMEOUT_MS: c_int = 2000;

/// The result of `rdma_getaddrinfo`, as one piece of memory that `rdma_freeaddrinfo` frees.
#[repr(C)]
struct Info {
    shown: AddrInfo,
    src: verbs_abi::rdmacm::Storage,
    dst: verbs_abi::rdmacm::Storage,
}

/// `rdma_getaddrinfo`: a negative number, as of `getaddrinfo`, or -1 with `errno`.
pub(crate) unsafe extern "C" fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const AddrInfo,
    to: *mut *mut AddrInfo,
) -> c_int {
    number(|| {
        // SAFETY: the program passes valid arguments.
        let (hints, to) = unsafe { (hints.as_ref(), to.as_mut().ok_or(Errno::INVAL)?) };
        if node.is_null() && service.is_null() && hints.is_none() {
            return Err(Errno::INVAL);
        }
        let flags = hints.map_or(0, |hints| hints.flags);
        if flags & !KNOWN != 0 {
            return Err(Errno::INVAL);
        }
        let (qp_type, port_space) = kind(hints)?;
        let mut named = None;
        if !node.is_null() || !service.is_null() {
            // SAFETY: C strings, or NULL.
            match unsafe { look_up(node, service, hints, flags) } {
                Ok(addr) => named = Some(addr),
                // Those are negative.
                Err(code) => return Ok(code),
            }
        }
        let given = |addr: *mut libc::sockaddr| match addr.is_null() {
            true => Ok(None),
            // SAFETY: the hints' own addresses.
            false => unsafe { from_c(addr) }.map(Some),
        };
        let (mut src, mut dst) = match hints {
            Some(hints) => (given(hints.src_addr)?, given(hints.dst_addr)?),
            None => (None, None),
        };
        if flags & PASSIVE != 0 {
            src = named.or(src);
        } else {
            dst = named.or(dst);
        }
        *to = publish(flags, qp_type, port_space, src, dst);
        Ok(0)
    })
}

/// The requested type of queue pair and port space.
fn kind(hints: Option<&AddrInfo>) -> Result<(c_int, c_int), Errno> {
    let (qp_type, port_space) = hints.map_or((0, 0), |hints| (hints.qp_type, hints.port_space));
    let (rc, ud) = (RC as c_int, UD as c_int);
    match (qp_type, port_space) {
        (0, 0) => Ok((rc, PS_TCP)),
        (0, PS_UDP) => Ok((ud, PS_UDP)),
        (0, space) => Ok((rc, space)),
        (qp_type, 0) if qp_type == ud => Ok((ud, PS_UDP)),
        (qp_type, 0) => Ok((qp_type, PS_TCP)),
        both => Ok(both),
    }
}

/// # Safety
/// C strings, or NULL.
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&AddrInfo>,
    flags: c_int,
) -> Result<SocketAddr, c_int> {
    // SAFETY: plain numbers and pointers, for which 0 is valid.
    let mut wanted: libc::addrinfo = unsafe { std::mem::zeroed() };
    wanted.ai_socktype = libc::SOCK_STREAM;
    if flags & PASSIVE != 0 {
        wanted.ai_flags |= libc::AI_PASSIVE;
    }
    if flags & NUMERIC_HOST != 0 {
        wanted.ai_flags |= libc::AI_NUMERICHOST;
    }
    if let Some(hints) = hints.filter(|hints| flags & FAMILY != 0 || hints.family != 0) {
        wanted.ai_family = hints.family;
    }
    let mut found = null_mut();
    // SAFETY: guaranteed by the caller; the list is freed once.
    unsafe {
        let code = libc::getaddrinfo(node, service, &raw const wanted, &raw mut found);
        if code != 0 {
            return Err(code);
        }
        let first = from_c((*found).ai_addr);
        libc::freeaddrinfo(found);
        first.map_err(|_| libc::EAI_FAMILY)
    }
}

fn publish(
    flags: c_int,
    qp_type: c_int,
    port_space: c_int,
    src: Option<SocketAddr>,
    dst: Option<SocketAddr>,
) -> *mut AddrInfo {
    let [(src_at, src_len), (dst_at, dst_len)] =
        [src, dst].map(|addr| addr.map_or(Default::default(), to_c));
    let family = match src.or(dst) {
        Some(SocketAddr::V6(_)) => libc::AF_INET6,
        _ => libc::AF_INET,
    };
    let shown = AddrInfo {
        flags,
        family,
        qp_type,
        port_space,
        src_len: src_len as u32,
        dst_len: dst_len as u32,
        src_addr: null_mut(),
        dst_addr: null_mut(),
        src_canonname: null_mut(),
        dst_canonname: null_mut(),
        route_len: 0,
        route: null_mut(),
        connect_len: 0,
        connect: null_mut(),
        next: null_mut(),
    };
    let info = Box::into_raw(Box::new(Info {
        shown,
        src: src_at,
        dst: dst_at,
    }));
    // SAFETY: made just now.
    unsafe {
        if src.is_some() {
            (*info).shown.src_addr = (&raw mut (*info).src).cast();
        }
        if dst.is_some() {
            (*info).shown.dst_addr = (&raw mut (*info).dst).cast();
        }
    }
    info.cast()
}

/// `rdma_freeaddrinfo`.
pub(crate) unsafe extern "C" fn freeaddrinfo(info: *mut AddrInfo) {
    if !info.is_null() {
        // SAFETY: from getaddrinfo, freed once.
        drop(unsafe { Box::from_raw(info.cast::<Info>()) });
    }
}

/// `rdma_create_ep`: a synchronous id that is bound, or has resolved the peer's address, with a queue pair if `init`
/// describes one. A listener's queue pair is made for each request.
pub(crate) unsafe extern "C" fn create_ep(
    to: *mut *mut CmId,
    info: *mut AddrInfo,
    pd: *mut Pd,
    init: *mut QpInitAttr,
) -> c_int {
    number(|| {
        // SAFETY: the program passes valid arguments.
        let (to, info) = unsafe {
            (
                to.as_mut().ok_or(Errno::INVAL)?,
                info.as_ref().ok_or(Errno::INVAL)?,
            )
        };
        let (space, qp_type) = (
            info.port_space.cast_unsigned(),
            info.qp_type.cast_unsigned(),
        );
        let at = id::create(null_mut(), null_mut::<c_void>(), space, Some(qp_type))?;
        // SAFETY: made just now; the program passes valid arguments.
        let prepared = unsafe { prepare(at, info, pd, init) };
        if let Err(errno) = prepared {
            let _ = life::destroy(at);
            return Err(errno);
        }
        *to = at;
        Ok(0)
    })
}

/// # Safety
/// The id exists, and the program passes valid arguments.
unsafe fn prepare(
    at: *mut CmId,
    info: &AddrInfo,
    pd: *mut Pd,
    init: *mut QpInitAttr,
) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let id = look::<Id, _>(at)?;
        let src = match info.src_addr.is_null() {
            true => None,
            false => Some(from_c(info.src_addr)?),
        };
        if info.flags & PASSIVE != 0 {
            bind_as_named(id, src.ok_or(Errno::INVAL)?)?;
            *id.template.lock() = init.as_ref().map(|init| QpInitAttr {
                qp_type: info.qp_type.cast_unsigned(),
                ..*init
            });
            if !pd.is_null() {
                id.change(|shown| shown.pd = pd);
            }
            return Ok(());
        }
        resolve(id, src, from_c(info.dst_addr)?)?;
        complete(id)?;
        find_route(id, TIMEOUT_MS)?;
        complete(id)?;
        let Some(init) = init.as_mut() else {
            return Ok(());
        };
        init.qp_type = info.qp_type.cast_unsigned();
        if qp::create_qp(at, pd, init) != 0 {
            return Err(Errno(
                std::io::Error::last_os_error()
                    .raw_os_error()
                    .unwrap_or(libc::EIO),
            ));
        }
        Ok(())
    }
}
