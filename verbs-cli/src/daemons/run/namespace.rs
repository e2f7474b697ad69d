//! Device files that programs look for, where only this process sees them: a mount namespace of its own, which on most
//! systems an ordinary user may have, in a user namespace where he is himself.
//!
//! /dev and /sys/class become folders in memory. What was in them is bound to its place; beside it are
//! /dev/infiniband/uverbs0, a name of /dev/null, and /sys/class/infiniband/roce0 with what libraries read there. The library
//! writes these files once more when it has made the device.

use std::fs::{self, File, FileType};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};

use rustix::mount::{
    MountFlags, MountPropagationFlags, mount, mount_bind_recursive, mount_change, mount_move,
};
use rustix::process::{getegid, geteuid};
use rustix::thread::UnshareFlags;

use super::device::Shown;

/// The device's folder. The library has it in `VERBS_SYSFS`, and writes there what its calls report, once it has a device.
fn folder(shown: &Shown) -> String {
    format!("infiniband/{}", shown.name)
}

/// The files of the device, below its folder in /sys/class, for programs that look before they ask the library, or never do.
fn files(shown: &Shown) -> Vec<(String, String)> {
    let file = |name: &str, line: &str| (name.to_owned(), line.to_owned());
    let mut files = vec![
        file("node_type", shown.node_type),
        file("fw_ver", env!("CARGO_PKG_VERSION")),
        file("hw_rev", "0"),
        file("hca_type", "software"),
        file("board_id", "verbs"),
        file("device/numa_node", "-1"),
        file("ports/1/state", "4: ACTIVE"),
        file("ports/1/phys_state", "5: LinkUp"),
        file("ports/1/rate", "200 Gb/sec (4X HDR)"),
        file("ports/1/link_layer", shown.link_layer),
        file("ports/1/lid", "0x0"),
        file("ports/1/lid_mask_count", "0"),
        file("ports/1/sm_lid", "0x0"),
        file("ports/1/sm_sl", "0"),
        file("ports/1/cap_mask", "0x00010000"),
        file("ports/1/pkeys/0", "0xffff"),
        file("ports/1/gid_attrs/types/0", shown.gid_type),
    ];
    let Some(address) = shown.address else {
        return files;
    };
    let gid = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let [.., a, b] = gid.segments();
    let guid = format!("0200:5eff:{a:04x}:{b:04x}");
    let gid = gid.segments().map(|group| format!("{group:04x}")).join(":");
    files.push(("node_guid".into(), guid.clone()));
    files.push(("sys_image_guid".into(), guid));
    files.push(("ports/1/gids/0".into(), gid));
    if address.is_loopback() {
        files.push(file("ports/1/gid_attrs/ndevs/0", "lo"));
        files.push(file("device/net/lo/operstate", "up"));
    }
    files
}

/// Goes into it; says where the device's folder is, if there was none before. After an error the process may be in namespaces
/// of its own, and sees what it saw before.
pub(super) fn enter(shown: &Shown) -> io::Result<Option<PathBuf>> {
    if Path::new("/dev/infiniband/uverbs0").exists() {
        return Ok(None);
    }
    leave_the_others()?;
    // Mounts of this namespace stay in it.
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )?;
    extend("/dev", |dev| {
        let folder = dev.join("infiniband");
        fs::create_dir_all(&folder)?;
        symlink("../null", folder.join("uverbs0"))
    })?;
    extend("/sys/class", |class| {
        let of_device = files(shown).into_iter();
        let of_device = of_device.map(|(name, line)| (format!("{}/{name}", folder(shown)), line));
        let of_calls = [
            ("infiniband_verbs/abi_version", "6"),
            ("infiniband_verbs/uverbs0/abi_version", "1"),
            ("infiniband_verbs/uverbs0/ibdev", shown.name),
        ];
        let of_calls = of_calls.map(|(name, line)| (name.to_owned(), line.to_owned()));
        for (name, line) in of_device.chain(of_calls) {
            let path = class.join(name);
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(path, format!("{line}\n"))?;
        }
        Ok(())
    })?;
    Ok(Some(Path::new("/sys/class").join(folder(shown))))
}

/// Namespaces of this process's own; its user is the same.
fn leave_the_others() -> io::Result<()> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let is_root = user == 0;
    let flags = match is_root {
        true => UnshareFlags::NEWNS,
        false => UnshareFlags::NEWNS | UnshareFlags::NEWUSER,
    };
    #[expect(
        deprecated,
        reason = "what makes its successor unsafe is a flag about descriptors, which is not here"
    )]
    rustix::thread::unshare(flags)?;
    if is_root {
        return Ok(());
    }
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

/// Puts a folder in memory over `folder`, with all that was in it and what `add` makes.
fn extend(folder: &str, add: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let staging = Path::new("/tmp");
    // /tmp is covered for a moment, in this namespace only.
    mount("verbs", staging, "tmpfs", MountFlags::NOSUID, c"mode=0755")?;
    let filled = fill(Path::new(folder), staging).and_then(|()| add(staging));
    match filled {
        Ok(()) => Ok(mount_move(staging, folder)?),
        Err(error) => {
            let _ = rustix::mount::unmount(staging, rustix::mount::UnmountFlags::DETACH);
            Err(error)
        }
    }
}

/// Binds every entry of a folder to one of its name in another.
fn fill(from: &Path, into: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (kind, source) = (entry.file_type()?, entry.path());
        let target = into.join(entry.file_name());
        if kind.is_symlink() {
            symlink(fs::read_link(&source)?, &target)?;
            continue;
        }
        if kind.is_dir() {
            fs::create_dir(&target)?;
        } else if is_file_like(kind) {
            File::create(&target)?;
        } else {
            continue;
        }
        // What this user may not bind he does not see.
        let _ = mount_bind_recursive(&source, &target);
    }
    Ok(())
}

fn is_file_like(kind: FileType) -> bool {
    kind.is_file()
        || kind.is_char_device()
        || kind.is_block_device()
        || kind.is_socket()
        || kind.is_fifo()
}
