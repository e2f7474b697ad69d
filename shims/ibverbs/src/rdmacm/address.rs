//! Addresses of ids: binding, and finding the way to a peer.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use verbs_abi::rdmacm::{CmId, event};
use verbs_cm::Route;
use verbs_core::Gid;

use super::endpoint::{Role, Told, What};
use super::id::Id;
use super::manager::manager;
use super::sockaddr::{from_c, path_of};
use super::taken::complete;
use crate::call::{Errno, explain, number};
use crate::device;
use crate::live::look;

/// `rdma_bind_addr`.
pub(crate) unsafe extern "C" fn bind_addr(id: *mut CmId, addr: *mut libc::sockaddr) -> c_int {
    number(|| {
        // SAFETY: what the program gives; it does not destroy the id now.
        let (id, addr) = unsafe { (look::<Id, _>(id)?, from_c(addr)?) };
        bind_as_named(id, addr)?;
        Ok(0)
    })
}

/// Binds an id to the address that the program names. One that names an address, or serves on all of them, has its device
/// there, if it has none yet and the environment does not say where.
pub(super) fn bind_as_named(id: &Id, addr: SocketAddr) -> Result<(), Errno> {
    let ip = addr.ip().to_canonical();
    device::prefer(match ip.is_unspecified() {
        true => Ipv4Addr::LOCALHOST.into(),
        false => ip,
    });
    bind(id, addr)
}

/// Binds an id that is not bound. A wildcard's device is known when a request comes.
///
/// All of 127.0.0.0/8 is this host, so an id may be bound to any address of it; whether the device has that very address
/// matters to a listener only.
pub(super) fn bind(id: &Id, addr: SocketAddr) -> Result<(), Errno> {
    if id.endpoint.state.lock().binding.is_some() {
        return Err(Errno::INVAL);
    }
    let ip = addr.ip().to_canonical();
    let manager = manager()?;
    let own = manager.addresses();
    let is_this_host = ip.is_loopback();
    if !ip.is_unspecified() && !is_this_host {
        // Programs try all addresses of a host.
        check_own(&own, ip, |why| explain(&why))?;
    }
    let bound = manager.with(|inner, _| {
        let mut state = id.endpoint.state.lock();
        let shares = state.options.reuse_address;
        let binding = inner
            .ports
            .bind(id.space, SocketAddr::new(ip, addr.port()), shares)?;
        let mut local = addr;
        local.set_port(binding.port);
        state.local = Some(local);
        state.binding = Some(binding);
        Some(())
    });
    bound.ok_or(Errno(libc::EADDRINUSE))?;
    if !ip.is_unspecified() {
        id.on_device(&manager);
    }
    id.show_addresses();
    Ok(())
}

/// Whether the device has that address; `say` says why not.
pub(super) fn check_own(own: &[IpAddr], ip: IpAddr, say: impl Fn(&str)) -> Result<(), Errno> {
    if own.contains(&ip) {
        return Ok(());
    }
    let own: Vec<_> = own.iter().map(ToString::to_string).collect();
    let own = own.join(", ");
    say(&format!(
        "{ip} is not an address of this process's device, which has {own}; VERBS_DEVICE names another"
    ));
    Err(Errno(libc::EADDRNOTAVAIL))
}

/// `rdma_resolve_addr`. The answer is there at once, whatever the timeout.
pub(crate) unsafe extern "C" fn resolve_addr(
    id: *mut CmId,
    src: *mut libc::sockaddr,
    dst: *mut libc::sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    number(|| {
        // SAFETY: what the program gives; it does not destroy the id now.
        let (id, dst) = unsafe { (look::<Id, _>(id)?, from_c(dst)?) };
        let src = match src.is_null() {
            true => None,
            // SAFETY: as above.
            false => Some(unsafe { from_c(src) }?),
        };
        resolve(id, src, dst)?;
        complete(id)
    })
}

pub(super) fn resolve(id: &Id, src: Option<SocketAddr>, dst: SocketAddr) -> Result<(), Errno> {
    {
        let state = id.endpoint.state.lock();
        if state.role != Role::Idle || state.remote.is_some() {
            return Err(Errno::INVAL);
        }
    }
    let manager = manager()?;
    let is_bound = id.endpoint.state.lock().binding.is_some();
    match src {
        Some(src) if !is_bound => bind(id, src)?,
        _ if !is_bound => bind(id, any(dst))?,
        _ => {}
    }
    let own = manager.addresses();
    let told = match way(&own, dst.ip().to_canonical()) {
        Err(errno) => Told::of(event::ADDR_ERROR, -errno.0),
        Ok((local, remote)) => {
            let mut state = id.endpoint.state.lock();
            let port = state.local.map_or(0, |local| local.port());
            let bound = state
                .local
                .map(|local| local.ip())
                .filter(|ip| own.contains(&ip.to_canonical()));
            state.local = Some(SocketAddr::new(bound.unwrap_or(local), port));
            state.remote = Some(SocketAddr::new(remote, dst.port()));
            drop(state);
            id.on_device(&manager);
            id.show_addresses();
            Told::of(event::ADDR_RESOLVED, 0)
        }
    };
    id.endpoint.tell(What::Told(told));
    Ok(())
}

/// The wildcard of the same family.
fn any(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

/// From which address of the device to which of the peer. A wildcard means this device, as for TCP.
fn way(own: &[IpAddr], remote: IpAddr) -> Result<(IpAddr, IpAddr), Errno> {
    let same_family = |ip: &&IpAddr| ip.is_ipv4() == remote.is_ipv4();
    let mut candidates = own.iter().filter(same_family);
    let first = *candidates.next().ok_or(Errno(libc::ENETUNREACH))?;
    if remote.is_unspecified() {
        return Ok((first, first));
    }
    // Packets for this host alone leave from its own addresses only.
    if remote.is_loopback() && !own.contains(&remote) && !first.is_loopback() {
        return Err(Errno(libc::ENETUNREACH));
    }
    let local = if own.contains(&remote) { remote } else { first };
    Ok((local, remote))
}

/// `rdma_resolve_route`. RoCE has no routes to ask for, so the answer is there at once.
pub(crate) unsafe extern "C" fn resolve_route(id: *mut CmId, _timeout_ms: c_int) -> c_int {
    number(|| {
        // SAFETY: the program does not destroy it now.
        let id = unsafe { look::<Id, _>(id) }?;
        find_route(id)?;
        complete(id)
    })
}

pub(super) fn find_route(id: &Id) -> Result<(), Errno> {
    let manager = manager()?;
    let port = manager.port();
    let path = {
        let mut state = id.endpoint.state.lock();
        let (Some(local), Some(remote), Role::Idle) = (state.local, state.remote, state.role)
        else {
            return Err(Errno::INVAL);
        };
        let gids = [local, remote].map(|addr| Gid::from(addr.ip().to_canonical()));
        let mut route = Route::roce(&port, gids[0], gids[1]).ok_or(Errno(libc::EADDRNOTAVAIL))?;
        if let Some(global) = &mut route.av.global {
            global.traffic_class = state.options.tos;
        }
        state.route = Some(route);
        path_of(&route)
    };
    id.show_addresses();
    id.show_path(path);
    id.endpoint
        .tell(What::Told(Told::of(event::ROUTE_RESOLVED, 0)));
    Ok(())
}

/// `rdma_get_src_port`, in the network's order.
pub(crate) unsafe extern "C" fn get_src_port(id: *mut CmId) -> u16 {
    // SAFETY: the program does not destroy it now.
    let id = unsafe { look::<Id, _>(id) };
    let port = id.map(|id| id.endpoint.state.lock().local.map_or(0, |addr| addr.port()));
    port.unwrap_or(0).to_be()
}

/// `rdma_get_dst_port`, in the network's order.
pub(crate) unsafe extern "C" fn get_dst_port(id: *mut CmId) -> u16 {
    // SAFETY: the program does not destroy it now.
    let id = unsafe { look::<Id, _>(id) };
    let port = id.map(|id| {
        id.endpoint
            .state
            .lock()
            .remote
            .map_or(0, |addr| addr.port())
    });
    port.unwrap_or(0).to_be()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_from_an_address_of_the_family() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let (here, net) = (ip("127.0.0.2"), ip("192.0.2.1"));
        assert_eq!(way(&[here], ip("127.0.0.9")), Ok((here, ip("127.0.0.9"))));
        assert_eq!(way(&[here], ip("0.0.0.0")), Ok((here, here)));
        assert_eq!(way(&[net], net), Ok((net, net)));
        assert_eq!(way(&[net], here), Err(Errno(libc::ENETUNREACH)));
        assert_eq!(way(&[here], ip("fd77::1")), Err(Errno(libc::ENETUNREACH)));
    }
}
