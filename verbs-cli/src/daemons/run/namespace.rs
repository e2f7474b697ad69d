//! Device files that programs look for, where only this process sees them: a mount namespace of its own, which on most
//! systems an ordinary user may have, in a user namespace where he is himself.
//!
//! /dev and /sys/class become folders in memory. What was in them is bound to its place; beside it are
//! /dev/infiniband/uverbs0, a name of /dev/null, and /sys/class/infiniband/roce0 with what libraries read there.

use std::fs::{self, File, FileType};
use std::io;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;

use rustix::mount::{
    MountFlags, MountPropagationFlags, mount, mount_bind_recursive, mount_change, mount_move,
};
use rustix::process::{getegid, geteuid};
use rustix::thread::UnshareFlags;

use super::device::Shown;

/// The files of the device, below its folder in /sys/class/infiniband.
fn files(shown: &Shown) -> [(&'static str, &'static str); 14] {
    [
        ("node_type", shown.node_type),
        ("fw_ver", concat!(env!("CARGO_PKG_VERSION"), "\n")),
        ("hca_type", "software\n"),
        ("board_id", "verbs\n"),
        ("device/net/lo/operstate", "up\n"),
        ("ports/1/state", "4: ACTIVE\n"),
        ("ports/1/phys_state", "5: LinkUp\n"),
        ("ports/1/rate", "200 Gb/sec (4X HDR)\n"),
        ("ports/1/link_layer", shown.link_layer),
        ("ports/1/lid", "0x0\n"),
        ("ports/1/sm_lid", "0x0\n"),
        ("ports/1/pkeys/0", "0xffff\n"),
        ("ports/1/gid_attrs/types/0", shown.gid_type),
        ("ports/1/gid_attrs/ndevs/0", "lo\n"),
    ]
}

/// Goes into it. After an error the process may be in namespaces of its own, and sees what it saw before.
pub(super) fn enter(shown: &Shown) -> io::Result<()> {
    if Path::new("/dev/infiniband/uverbs0").exists() {
        return Ok(());
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
        for (name, content) in files(shown) {
            let path = class.join("infiniband").join(shown.name).join(name);
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(path, content)?;
        }
        Ok(())
    })
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
