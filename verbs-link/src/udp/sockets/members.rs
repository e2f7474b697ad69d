//! Sockets of the multicast groups that a link has joined.
//!
//! A socket that is bound to an address does not receive what is sent to a group, so each group has a socket of its
//! own, bound to the group. Several processes of one machine may join one group.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::sockopt::{
    set_ip_add_membership_with_ifindex, set_ipv6_add_membership, set_socket_reuseaddr,
};
use verbs_core::sync::Arc;

use super::endpoint::Endpoint;
use crate::udp::interfaces::Interfaces;

/// The groups that a link has joined.
#[derive(Debug, Default)]
pub(in crate::udp) struct Members(Vec<Member>);

#[derive(Debug)]
struct Member {
    endpoint: Endpoint,
    /// How often it was joined.
    count: u32,
}

impl Members {
    /// Joins a group on the interfaces of those of the link's addresses that are of its family. Returns whether there
    /// is another socket now.
    pub(in crate::udp) fn join(
        &mut self,
        group: IpAddr,
        addresses: &[IpAddr],
        interfaces: &Interfaces,
    ) -> io::Result<bool> {
        if let Some(member) = self.find(group) {
            member.count += 1;
            return Ok(false);
        }
        let of_family = |address: &&IpAddr| address.is_ipv4() == group.is_ipv4();
        let mut indices: Vec<u32> = addresses
            .iter()
            .filter(of_family)
            .map(|&address| interfaces.index(address))
            .collect();
        indices.sort_unstable();
        indices.dedup();
        let Some(&first) = indices.first() else {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        };
        let endpoint = Endpoint::bind_group(group, first)?;
        for index in indices {
            enter(endpoint.socket(), group, index)?;
        }
        self.0.push(Member { endpoint, count: 1 });
        Ok(true)
    }

    /// Leaves it. Returns whether there is one socket fewer now.
    pub(in crate::udp) fn leave(&mut self, group: IpAddr) -> bool {
        let Some(member) = self.find(group) else {
            return false;
        };
        member.count -= 1;
        let last = member.count == 0;
        // The membership ends with its socket.
        self.0.retain(|member| member.count != 0);
        last
    }

    fn find(&mut self, group: IpAddr) -> Option<&mut Member> {
        let own = |member: &&mut Member| member.endpoint.address == group;
        self.0.iter_mut().find(own)
    }

    pub(in crate::udp) fn len(&self) -> usize {
        self.0.len()
    }

    pub(in crate::udp) fn get_mut(&mut self, index: usize) -> Option<&mut Endpoint> {
        self.0.get_mut(index).map(|member| &mut member.endpoint)
    }

    pub(in crate::udp) fn sockets(&self) -> impl Iterator<Item = &Arc<OwnedFd>> {
        self.0.iter().map(|member| member.endpoint.socket())
    }
}

/// Lets several sockets of the machine be bound to one group.
pub(in crate::udp) fn share(socket: &OwnedFd) -> io::Result<()> {
    Ok(set_socket_reuseaddr(socket, true)?)
}

fn enter(socket: &OwnedFd, group: IpAddr, index: u32) -> io::Result<()> {
    match group {
        IpAddr::V4(group) => {
            let any = std::net::Ipv4Addr::UNSPECIFIED;
            set_ip_add_membership_with_ifindex(socket.as_fd(), &group, &any, index)?;
        }
        IpAddr::V6(group) => set_ipv6_add_membership(socket.as_fd(), &group, index)?,
    }
    Ok(())
}
