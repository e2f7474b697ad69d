//! The device's folder below /sys/class/infiniband, where `verbs run` has made one for the program. Its files are written when
//! the device is made, from what the calls report.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use verbs_abi as abi;
use verbs_core::process::variable;

use super::gid::{TABLE_MIN, guid_of, interface_of, type_of};
use super::query::shown_port;
use super::{Made, Network, PORT, sysfs};
use crate::call::{Errno, log};

/// Names the folder.
const VARIABLE: &str = "VERBS_SYSFS";

/// A file's path in the folder, and its line.
type Entry = (String, String);

/// Writes the files, where there is a folder for them.
pub(super) fn write(made: &Made) {
    let Some(folder) = variable(VARIABLE).map(PathBuf::from) else {
        return;
    };
    let Ok(entries) = entries(made) else { return };
    if let Err(error) = fill(&folder, &entries) {
        log(&format!("cannot write {}: {error}", folder.display()));
    }
}

fn entries(made: &Made) -> Result<Vec<Entry>, Errno> {
    let device = made.hca.open().wait()?;
    let attr = device.query_port(PORT).wait()?;
    let port = shown_port(&attr);
    let mut entries: Vec<Entry> = sysfs::FILES
        .iter()
        .map(|&(name, line)| (name.to_owned(), line.to_owned()))
        .collect();
    let guid = quads(&guid_of(made).to_be_bytes());
    let mut add = |name: &str, line: String| entries.push((name.to_owned(), line));
    let is_rnic = made.network == Network::Iwarp;
    add(
        "node_type",
        if is_rnic { "4: RNIC" } else { "1: CA" }.into(),
    );
    add("node_guid", guid.clone());
    add("sys_image_guid", guid);
    of_port(&port, &mut |name, line| {
        add(&format!("ports/{PORT}/{name}"), line);
    });
    for index in 0..attr.pkey_tbl_len {
        let pkey = device.query_pkey(PORT, index).wait()?;
        add(
            &format!("ports/{PORT}/pkeys/{index}"),
            format!("{:#06x}", pkey.0),
        );
    }
    for index in 0..attr.gid_tbl_len.max(TABLE_MIN as u16) {
        let gid = match index < attr.gid_tbl_len {
            true => device.query_gid(PORT, index).wait()?,
            false => verbs_core::Gid::default(),
        };
        add(&format!("ports/{PORT}/gids/{index}"), quads(&gid.0));
        // Of an entry that is not used the kernel's cannot be read.
        if gid == verbs_core::Gid::default() {
            continue;
        }
        let kind = match type_of(made.network) {
            super::gid::ROCE_V2 => "RoCE v2",
            _ => "IB/RoCE v1",
        };
        add(
            &format!("ports/{PORT}/gid_attrs/types/{index}"),
            kind.into(),
        );
        if let Some(name) = interface_of(gid).and_then(interface_name) {
            add(
                &format!("ports/{PORT}/gid_attrs/ndevs/{index}"),
                name.clone(),
            );
            let state = if port.state == ACTIVE { "up" } else { "down" };
            add(&format!("device/net/{name}/operstate"), state.into());
        }
    }
    let _ = device.close().wait();
    Ok(entries)
}

/// `IBV_PORT_ACTIVE`.
const ACTIVE: u32 = 4;

fn of_port(port: &abi::PortAttr, add: &mut impl FnMut(&str, String)) {
    let state = ["NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"];
    let state = state.get(port.state as usize).unwrap_or(&"NOP");
    add("state", format!("{}: {state}", port.state));
    let physical = match port.phys_state {
        5 => "LinkUp",
        3 => "Disabled",
        _ => "<unknown>",
    };
    add("phys_state", format!("{}: {physical}", port.phys_state));
    let link_layer = if port.link_layer == 2 {
        "Ethernet"
    } else {
        "InfiniBand"
    };
    add("link_layer", link_layer.into());
    add("lid", format!("{:#x}", port.lid));
    add("lid_mask_count", port.lmc.to_string());
    add("sm_lid", format!("{:#x}", port.sm_lid));
    add("sm_sl", port.sm_sl.to_string());
    add("cap_mask", format!("{:#010x}", port.port_cap_flags));
    add("rate", rate(port.active_width, port.active_speed_ex));
}

/// As the kernel writes it: 200 Gb/sec (4X HDR).
fn rate(width: u8, speed: u32) -> String {
    let lanes = match width {
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 1,
    };
    // Tenths of Gbit/s.
    let (each, name) = match speed {
        2 => (50, " DDR"),
        4 => (100, " QDR"),
        8 => (100, " FDR10"),
        16 => (140, " FDR"),
        32 => (250, " EDR"),
        64 => (500, " HDR"),
        128 => (1000, " NDR"),
        _ => (25, ""),
    };
    let all = each * lanes;
    let tenth = match all % 10 {
        0 => String::new(),
        tenth => format!(".{tenth}"),
    };
    format!("{}{tenth} Gb/sec ({lanes}X{name})", all / 10)
}

/// Four digits a group.
fn quads(bytes: &[u8]) -> String {
    let groups = bytes
        .chunks(2)
        .map(|pair| format!("{:02x}{:02x}", pair[0], pair[1]));
    groups.collect::<Vec<_>>().join(":")
}

fn interface_name(index: u32) -> Option<String> {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: room for a name.
    let named = unsafe { libc::if_indextoname(index, name.as_mut_ptr()) };
    if named.is_null() {
        return None;
    }
    // SAFETY: it is that room, with a C string in it.
    let name = unsafe { CStr::from_ptr(named) };
    Some(name.to_string_lossy().into_owned())
}

/// Replaces each file as a whole, as other processes may read it. Of interfaces, those of another address are not left.
fn fill(folder: &Path, entries: &[Entry]) -> io::Result<()> {
    let net = folder.join("device/net");
    if net.is_dir() {
        fs::remove_dir_all(&net)?;
    }
    for (name, line) in entries {
        let path = folder.join(name);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        let part = path.with_extension(std::process::id().to_string());
        fs::write(&part, format!("{line}\n"))?;
        fs::rename(&part, &path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_the_kernels() {
        assert_eq!(rate(2, 64), "200 Gb/sec (4X HDR)");
        assert_eq!(rate(1, 1), "2.5 Gb/sec (1X)");
        assert_eq!(rate(2, 16), "56 Gb/sec (4X FDR)");
    }

    #[test]
    fn ids_are_in_groups_of_four_digits() {
        assert_eq!(
            quads(&[0x02, 0, 0x5e, 0xff, 127, 0, 0, 2]),
            "0200:5eff:7f00:0002"
        );
    }
}
