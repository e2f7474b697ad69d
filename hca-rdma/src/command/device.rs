//! Queries of the device.

use verbs_core::device::{QueryGid, QueryPkey};
use verbs_core::{Attr, Av, Error, Gid, LinkLayer, PKey, PortAttr};

use super::limit::at_most;
use crate::convert::{self, error};
use crate::shared::Shared;

/// Entries of a GID table that are searched for addresses.
const GIDS_SEARCHED: u16 = 64;

/// `IBV_GID_TYPE_ROCE_V1`.
const ROCE_V1: u32 = 1;

pub(super) fn check_port(nic: &Shared, port: u8) -> Result<(), Error> {
    let (attr, max) = (Attr::Port, u32::from(nic.attr.phys_port_cnt));
    match port {
        0 => Err(Error::Invalid { attr, got: 0, max }),
        port => at_most(attr, port.into(), max),
    }
}

pub(super) fn check_av(nic: &Shared, av: &Av) -> Result<(), Error> {
    check_port(nic, av.port)?;
    convert::av_out(av).map(drop)
}

pub(super) fn query_port(nic: &Shared, number: u8) -> Result<PortAttr, Error> {
    let mut attr = port(nic, number)?;
    attr.gid = own_gid(nic, number, &attr);
    Ok(attr)
}

/// A port's attributes without its own address.
fn port(nic: &Shared, number: u8) -> Result<PortAttr, Error> {
    let attr = nic.context.query_port(number).map_err(error)?;
    Ok(convert::port(&attr))
}

/// A port's own address: the first of its table on InfiniBand. On Ethernet that is a link-local one, which few peers
/// have a route to: there it is the first IPv4 address, if there is one.
fn own_gid(nic: &Shared, port: u8, attr: &PortAttr) -> Gid {
    if attr.link_layer == LinkLayer::InfiniBand {
        return gid(nic, port, 0).unwrap_or_default();
    }
    let found = usable_gids(nic, port, attr.gid_tbl_len);
    let best = found
        .iter()
        .find(|(_, gid)| is_ipv4(*gid))
        .or(found.first());
    best.map(|&(_, gid)| gid).unwrap_or_default()
}

fn gid(nic: &Shared, port: u8, index: u16) -> Option<Gid> {
    let gid = nic.context.query_gid(port, index).ok()?;
    (gid != [0; 16]).then_some(Gid(gid))
}

/// The addresses of a port, with their indices.
pub(crate) fn gids(nic: &Shared, number: u8) -> Result<Vec<(u16, Gid)>, Error> {
    let attr = port(nic, number)?;
    Ok(usable_gids(nic, number, attr.gid_tbl_len))
}

/// The entries of a GID table that a queue pair can send from, with their indices. An Ethernet port may have an address
/// twice, and of the two the RoCEv1 entry is left out, because its packets are not IP packets.
fn usable_gids(nic: &Shared, port: u8, gid_tbl_len: u16) -> Vec<(u16, Gid)> {
    let indices = 0..gid_tbl_len.min(GIDS_SEARCHED);
    let usable = indices.filter(|&index| nic.context.gid_type(port, index) != Some(ROCE_V1));
    usable
        .filter_map(|index| Some((index, gid(nic, port, index)?)))
        .collect()
}

/// Whether the address is an IPv4-mapped IPv6 address.
fn is_ipv4(gid: Gid) -> bool {
    gid.0[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]
}

pub(super) fn query_pkey(nic: &Shared, args: &QueryPkey) -> Result<PKey, Error> {
    let found = nic.context.query_pkey(args.port, args.index);
    found.map(PKey).map_err(|errno| {
        let len = port(nic, args.port).map(|attr| attr.pkey_tbl_len);
        beyond(Attr::PkeyIndex, args.index, len).unwrap_or(error(errno))
    })
}

pub(super) fn query_gid(nic: &Shared, args: &QueryGid) -> Result<Gid, Error> {
    let found = nic.context.query_gid(args.port, args.index);
    found.map(Gid).map_err(|errno| {
        let len = port(nic, args.port).map(|attr| attr.gid_tbl_len);
        beyond(Attr::GidIndex, args.index, len).unwrap_or(error(errno))
    })
}

/// The error for an index that the kernel has refused, if it is beyond the table.
fn beyond(attr: Attr, index: u16, len: Result<u16, Error>) -> Option<Error> {
    let last = len.ok()?.saturating_sub(1);
    at_most(attr, index.into(), last.into()).err()
}
