//! Addresses of ids: binding, and resolving a peer's address.

pub(in crate::rdmacm) mod ports;
pub(crate) mod sockaddr;

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use verbs_abi::rdmacm::{CmId, event};
use verbs_abi::{AhAttr, shown_av};
use verbs_cm::Route;
use verbs_cm::resolver::Host;
use verbs_cm::sa::{PathQuery, SaError};
use verbs_core::mad::Retry;
use verbs_core::{Av, Gid, LinkLayer};

use crate::call::live::look;
use crate::call::{Errno, explain, log, number};
use crate::device::{self, Preferred};
use crate::rdmacm::address::sockaddr::{from_c, path_of};
use crate::rdmacm::channel::taken::complete;
use crate::rdmacm::connect::streams;
use crate::rdmacm::id::Id;
use crate::rdmacm::manager::endpoint::{Role, Told, What};
use crate::rdmacm::manager::{Manager, manager};

/// How often the administrator is asked again within the program's time.
const ASKS_AGAIN: u32 = 3;

/// `rdma_bind_addr`.
pub(crate) unsafe extern "C" fn bind_addr(id: *mut CmId, addr: *mut libc::sockaddr) -> c_int {
    number(|| {
        // SAFETY: the program passes valid arguments, and does not destroy the id now.
        let (id, addr) = unsafe { (look::<Id, _>(id)?, from_c(addr)?) };
        bind_as_named(id, addr)?;
        Ok(0)
    })
}

/// Binds an id to the address that the program names. If the program names an address, or serves on all of them, that
/// is where the device is made, if it is not made yet and the environment names no address.
pub(in crate::rdmacm) fn bind_as_named(id: &Id, addr: SocketAddr) -> Result<(), Errno> {
    prefer(addr.ip().to_canonical());
    bind(id, addr)
}

fn prefer(ip: IpAddr) {
    device::prefer(match ip.is_unspecified() {
        true => Preferred::Any(Ipv4Addr::LOCALHOST.into()),
        false => Preferred::Only(ip),
    });
}

/// Binds an id that is not bound. A wildcard's device is known when a request arrives.
///
/// All of 127.0.0.0/8 is this host, so an id may be bound to any address of it; only for a listener does it matter
/// whether the device has that very address.
pub(in crate::rdmacm) fn bind(id: &Id, addr: SocketAddr) -> Result<(), Errno> {
    if id.endpoint.is_bound() {
        return Err(Errno::INVAL);
    }
    let ip = addr.ip().to_canonical();
    let manager = manager()?;
    if let Some(binder) = manager.binder() {
        streams::bind(id, binder, addr)?;
        if !ip.is_unspecified() {
            id.on_device(&manager);
        }
        id.show_addresses();
        return Ok(());
    }
    let own = manager.addresses();
    let is_this_host = ip.is_loopback();
    if !ip.is_unspecified() && !is_this_host {
        // Programs try all addresses of a host.
        check_own(&own, ip, |why| explain(&why))?;
    }
    let bound = manager.with(|inner, _| {
        let mut state = id.endpoint.state.lock();
        let shares = state.options.reuse_address;
        let family_only = state.options.is_family_only(addr.ip());
        let named = SocketAddr::new(ip, addr.port());
        let binding = inner
            .kept
            .ports
            .bind(id.space, named, shares, family_only)?;
        let mut local = addr;
        local.set_port(binding.port);
        state.local = Some(local);
        state.binding = Some(binding);
        Some(())
    });
    bound.ok_or(Errno(libc::EADDRINUSE))?;
    if !stands_for_any(&own, ip) {
        id.on_device(&manager);
    }
    id.show_addresses();
    Ok(())
}

/// Whether it stands for every address of the device: a wildcard, or, as in Linux, a loopback address where the device
/// has none. An id that is bound to it has no device until it is connected.
pub(in crate::rdmacm) fn stands_for_any(own: &[IpAddr], ip: IpAddr) -> bool {
    ip.is_unspecified() || ip.is_loopback() && !own.iter().any(IpAddr::is_loopback)
}

/// The address of the device for a socket that a program binds to that one: the first one for a wildcard.
pub(crate) fn own_address(named: IpAddr) -> Result<IpAddr, Errno> {
    prefer(named);
    let own = manager()?.addresses();
    if !stands_for_any(&own, named) {
        return check_own(&own, named, |why| explain(&why)).map(|()| named);
    }
    // A socket of IPv6 has the addresses of IPv4 too.
    let of_family = |ip: &&IpAddr| named.is_ipv6() || ip.is_ipv4();
    let first = own.iter().find(of_family).copied();
    first.ok_or(Errno(libc::EADDRNOTAVAIL))
}

/// The address of the device from which that peer is reached.
pub(crate) fn address_for(peer: IpAddr) -> Result<IpAddr, Errno> {
    let peer = peer.to_canonical();
    prefer_for((peer, 0).into());
    let manager = manager()?;
    let (local, remote) = way(&manager.addresses(), peer)?;
    check_route(&manager, local, (remote, 0).into())?;
    Ok(local)
}

/// The way of datagrams from an address of the device.
pub(crate) fn datagram_way(local: IpAddr, remote: IpAddr) -> Result<AhAttr, Errno> {
    let [local, remote] = [local, remote].map(|ip| Gid::from(ip.to_canonical()));
    let route = Route::roce(&manager()?.port(), local, remote);
    let route = route.ok_or(Errno(libc::EADDRNOTAVAIL))?;
    Ok(shown_av(&route.av))
}

/// The longest datagram.
pub(crate) fn datagram_max() -> Result<usize, Errno> {
    Ok(manager()?.port().mtu.bytes() as usize)
}

/// Checks that the device has that address; `say` reports why not.
pub(in crate::rdmacm) fn check_own(
    own: &[IpAddr],
    ip: IpAddr,
    say: impl Fn(&str),
) -> Result<(), Errno> {
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

/// `rdma_resolve_addr`. The answer is available at once, whatever the timeout.
pub(crate) unsafe extern "C" fn resolve_addr(
    id: *mut CmId,
    src: *mut libc::sockaddr,
    dst: *mut libc::sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    number(|| {
        // SAFETY: the program passes valid arguments, and does not destroy the id now.
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

pub(in crate::rdmacm) fn resolve(
    id: &Id,
    src: Option<SocketAddr>,
    dst: SocketAddr,
) -> Result<(), Errno> {
    {
        let state = id.endpoint.state.lock();
        if state.role != Role::Idle || state.remote.is_some() {
            return Err(Errno::INVAL);
        }
    }
    let is_bound = id.endpoint.is_bound();
    if !is_bound && src.is_none_or(|src| src.ip().is_unspecified()) {
        prefer_for(dst);
    }
    let manager = manager()?;
    match src {
        Some(src) if !is_bound => bind(id, src)?,
        _ if !is_bound => bind(id, any(dst))?,
        _ => {}
    }
    let own = manager.addresses();
    let bound = id.endpoint.state.lock().local.map(|local| local.ip());
    let bound = bound.filter(|ip| own.contains(&ip.to_canonical()));
    let found = way(&own, dst.ip().to_canonical()).and_then(|(local, remote)| {
        let from = bound.unwrap_or(local);
        let mut to = dst;
        to.set_ip(remote);
        // Only an id that is bound to such an address means the groups of this host alone.
        if remote.is_multicast() && bound.is_none() && local.is_loopback() {
            return Err(no_route(local, remote));
        }
        check_route(&manager, from.to_canonical(), to)?;
        Ok((from, remote))
    });
    let told = match found {
        Err(errno) => Told::of(event::ADDR_ERROR, -errno.0),
        Ok((local, remote)) => {
            let mut state = id.endpoint.state.lock();
            let port = state.local.map_or(0, |local| local.port());
            state.local = Some(SocketAddr::new(local, port));
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

/// The address of the device and the address of the peer. A wildcard means this device, as for TCP; so does a loopback
/// address where the device has none.
fn way(own: &[IpAddr], remote: IpAddr) -> Result<(IpAddr, IpAddr), Errno> {
    let same_family = |ip: &&IpAddr| ip.is_ipv4() == remote.is_ipv4();
    let mut candidates = own.iter().filter(same_family);
    let first = *candidates.next().ok_or(Errno(libc::ENETUNREACH))?;
    if stands_for_any(own, remote) {
        return Ok((first, first));
    }
    // Packets that stay on this host have only the host's own loopback addresses as source.
    if remote.is_loopback() && !own.contains(&remote) && !first.is_loopback() {
        return Err(Errno(libc::ENETUNREACH));
    }
    let local = if own.contains(&remote) { remote } else { first };
    Ok((local, remote))
}

/// A program looks for that peer first: if the device is not made yet and the environment names no address, it gets the one
/// from which the host sends there. Peers on this host are reached from everywhere; their own addresses are left to them.
fn prefer_for(peer: SocketAddr) {
    let ip = peer.ip().to_canonical();
    if ip.is_unspecified() || ip.is_loopback() {
        return;
    }
    let any = any(SocketAddr::new(ip, 0));
    let Ok(socket) = UdpSocket::bind(any) else {
        return;
    };
    // Asks for the route, and sends nothing.
    let from = socket
        .connect(SocketAddr::new(ip, ANY_PORT))
        .and_then(|()| socket.local_addr());
    match from.map(|from| from.ip()) {
        Ok(from) if from != ip && !from.is_loopback() => {
            device::prefer(Preferred::Only(from));
        }
        _ => {}
    }
}

/// The port number does not matter for a route.
const ANY_PORT: u16 = 4791;

/// Checks that the host has a route from that address of the device.
fn check_route(manager: &Manager, local: IpAddr, mut remote: SocketAddr) -> Result<(), Errno> {
    let needs_scope = |addr: &SocketAddr| match addr {
        SocketAddr::V4(_) => false,
        SocketAddr::V6(addr) => addr.ip().is_unicast_link_local(),
    };
    // A subnet's routes are its manager's; an address of a link means nothing without the link, which the device has.
    if manager.port().link_layer == LinkLayer::InfiniBand || needs_scope(&remote) {
        return Ok(());
    }
    remote.set_port(ANY_PORT);
    let Ok(socket) = UdpSocket::bind((local, 0)) else {
        // It is no address of the host's, but of a network that is simulated.
        return Ok(());
    };
    match socket.connect(remote) {
        Ok(()) => Ok(()),
        Err(_) => Err(no_route(local, remote.ip())),
    }
}

fn no_route(local: IpAddr, remote: IpAddr) -> Errno {
    log(&format!(
        "this host has no route to {remote} from {local}, which is the address of this process's device; VERBS_DEVICE names \
         another one, and `verbs host` shares one among programs"
    ));
    Errno(libc::ENETUNREACH)
}

/// `rdma_resolve_route`. RoCE has no routes to query, so the answer is available at once; on a subnet its administrator
/// is asked.
pub(crate) unsafe extern "C" fn resolve_route(id: *mut CmId, timeout_ms: c_int) -> c_int {
    number(|| {
        // SAFETY: the program does not destroy it now.
        let id = unsafe { look::<Id, _>(id) }?;
        find_route(id, timeout_ms)?;
        complete(id)
    })
}

pub(in crate::rdmacm) fn find_route(id: &Id, timeout_ms: c_int) -> Result<(), Errno> {
    let manager = manager()?;
    let port = manager.port();
    let path = {
        let mut state = id.endpoint.state.lock();
        let (Some(local), Some(remote), Role::Idle) = (state.local, state.remote, state.role)
        else {
            return Err(Errno::INVAL);
        };
        let gids = [local, remote].map(|addr| Gid::from(addr.ip().to_canonical()));
        if manager.binder().is_some() {
            // TCP's routes are the system's.
            state.route = Some(streams::route(gids));
            drop(state);
            id.show_addresses();
            id.endpoint
                .tell(What::Told(Told::of(event::ROUTE_RESOLVED, 0)));
            return Ok(());
        }
        if port.link_layer == LinkLayer::InfiniBand {
            drop(state);
            return ask_for_path(id, &manager, gids, timeout_ms);
        }
        let mut route = Route::roce(&port, gids[0], gids[1]).ok_or(Errno(libc::EADDRNOTAVAIL))?;
        if let Some(global) = &mut route.av.global {
            global.traffic_class = state.options.tos;
        }
        let of_route = Host::path_mtu(local.ip(), remote.ip());
        route.mtu = of_route.map_or(route.mtu, |mtu| mtu.min(route.mtu));
        state.route = Some(route);
        path_of(&route, port.lid)
    };
    id.show_addresses();
    id.show_path(path);
    id.endpoint
        .tell(What::Told(Told::of(event::ROUTE_RESOLVED, 0)));
    Ok(())
}

/// Asks the subnet's administrator for the path between two ports; the answer is an event of the id.
fn ask_for_path(
    id: &Id,
    manager: &Manager,
    [local, remote]: [Gid; 2],
    timeout_ms: c_int,
) -> Result<(), Errno> {
    let port = manager.port();
    let endpoint = Arc::clone(&id.endpoint);
    if port.gid_index(remote).is_some() {
        let itself = Route {
            av: Av::to_lid(port.number, port.lid),
            local_gid: local,
            remote_gid: remote,
            mtu: port.mtu,
            is_subnet_local: true,
            ..Route::default()
        };
        endpoint.tell(What::Routed(Ok(itself)));
        return Ok(());
    }
    let timeout = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0));
    let retry = Retry {
        timeout: timeout / (1 + ASKS_AGAIN),
        retries: ASKS_AGAIN,
    };
    let client = manager.administrator()?.with_retry(retry);
    let query = PathQuery::to_gid(remote).from_gid(local);
    client.path(query).issue(move |found| {
        let route = match found {
            Ok(record) => Route::from_record(&port, &record, 0).ok_or(libc::EINVAL),
            Err(error) => {
                explain(&error);
                // The numbers that Linux has for a refusal, and for no answer.
                Err(match error {
                    verbs_cm::Error::Sa(SaError::Refused(_)) => libc::EINVAL,
                    _ => libc::ETIMEDOUT,
                })
            }
        };
        endpoint.tell(What::Routed(route));
    });
    Ok(())
}

/// `rdma_get_src_port`, in network byte order.
pub(crate) unsafe extern "C" fn get_src_port(id: *mut CmId) -> u16 {
    // SAFETY: the program does not destroy it now.
    let id = unsafe { look::<Id, _>(id) };
    let port = id.map(|id| id.endpoint.state.lock().local.map_or(0, |addr| addr.port()));
    port.unwrap_or(0).to_be()
}

/// `rdma_get_dst_port`, in network byte order.
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
        for (own, named, any) in [
            (net, "127.0.0.1", true),
            (net, "::1", true),
            (net, "192.0.2.1", false),
            (here, "127.0.0.1", false),
            (here, "0.0.0.0", true),
        ] {
            assert_eq!(stands_for_any(&[own], ip(named)), any, "{own} {named}");
        }
        assert_eq!(way(&[net], here), Ok((net, net)));
        assert_eq!(
            way(&[net, here], ip("127.0.0.9")),
            Err(Errno(libc::ENETUNREACH))
        );
        assert_eq!(way(&[here], ip("fd77::1")), Err(Errno(libc::ENETUNREACH)));
    }
}
