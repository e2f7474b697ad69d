//! Serial numbers: how initiators tell disks apart, across all hosts and at all times.
//!
//! A disk in a file has its serial number in the file's extended attribute `user.verbs.srp.serial`, if the file
//! system supports those: drawn when the file is first served, and bound to the file and the host. It stays when
//! the file is renamed, written to, or made larger, and across restarts of the host. A copy of the file has
//! another one, even if its attributes were copied too, and so has a file that is created under the name of a
//! deleted one. Elsewhere (block devices, file systems without such attributes, files that are served read-only
//! and have none) it is derived from the host, the file system and the file's inode number and birth time.
//! it is made of the host, the file system and the file's number and time of birth.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::time::UNIX_EPOCH;

use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};
use rustix::rand::{GetRandomFlags, getrandom};

/// The attribute with a file's serial number: `1`, the number, and the place that it is bound to.
const ATTRIBUTE: &CStr = c"user.verbs.srp.serial";

/// The version of the format, which comes first in the attribute.
const VERSION: &str = "1";

/// Digits of a serial number, and of a place.
const DIGITS: usize = 32;

/// The context from which places are derived, so that they reveal nothing about the host's id.
const CONTEXT: &str = "verbs ulp-srp 2026-11 place of a disk";

/// A unique serial number.
pub(crate) fn drawn() -> io::Result<String> {
    let mut bytes = [0; DIGITS / 2];
    // A draw of sixteen bytes either succeeds or fails as a whole.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(format!("{:0DIGITS$x}", u128::from_be_bytes(bytes)))
}

/// The serial number of a file or block device. Writes an attribute only if `may_write`.
pub(super) fn of_file(file: &File, may_write: bool) -> io::Result<String> {
    let place = Place::of(file)?;
    if let Some(serial) = stored(file, &place.bound) {
        return Ok(serial);
    }
    if may_write {
        let text = format!("{VERSION} {} {}", drawn()?, place.bound);
        // The attribute that is there afterwards counts: another target of a read-only file may have been faster.
        let _unsupported = fsetxattr(file, ATTRIBUTE, text.as_bytes(), XattrFlags::empty());
    }
    Ok(stored(file, &place.bound).unwrap_or(place.derived))
}

/// The serial number in the file's attribute, if it belongs to this place.
fn stored(file: &File, bound: &str) -> Option<String> {
    let mut room = [0; 128];
    let len = fgetxattr(file, ATTRIBUTE, &mut room).ok()?;
    let text = str::from_utf8(room.get(..len)?).ok()?;
    let [VERSION, serial, place] = text.split(' ').collect::<Vec<_>>()[..] else {
        return None;
    };
    let is_serial = serial.len() == DIGITS && serial.bytes().all(|it| it.is_ascii_hexdigit());
    (is_serial && place == bound).then(|| serial.to_owned())
}

/// The identity of a file's place.
struct Place {
    /// What a stored serial number is bound to: stays the same across restarts of the host.
    bound: String,
    /// A serial number for a file that stores none.
    derived: String,
}

impl Place {
    fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let born = metadata.created().ok();
        let born = born.and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        let born = born.unwrap_or_default().as_nanos();
        let host = host();
        let digest = |parts: &[u128]| {
            let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
            hasher.update(host.as_bytes());
            for part in parts {
                hasher.update(&part.to_be_bytes());
            }
            hasher.finalize().to_hex()[..DIGITS].to_owned()
        };
        let number = u128::from(metadata.ino());
        let derived = match metadata.file_type().is_block_device() {
            // Its inode may be created again at every start of the host.
            true => digest(&[1, metadata.rdev().into()]),
            false => digest(&[2, metadata.dev().into(), number, born]),
        };
        Ok(Self {
            bound: digest(&[3, number, born]),
            derived,
        })
    }
}

/// A property of this host that no other host has.
fn host() -> String {
    let files = ["/etc/machine-id", "/var/lib/dbus/machine-id"];
    let found = files.iter().find_map(|path| fs::read_to_string(path).ok());
    let found = found.filter(|id| id.trim().len() == DIGITS);
    found.unwrap_or_else(|| {
        let name = rustix::system::uname();
        name.nodename().to_string_lossy().into_owned()
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use rustix::fs::fremovexattr;

    use super::*;

    fn file(dir: &tempfile::TempDir, name: &str) -> File {
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        options.open(dir.path().join(name)).unwrap()
    }

    fn serial(file: &File) -> String {
        of_file(file, true).unwrap()
    }

    #[test]
    fn a_file_keeps_its_number_and_a_copy_has_another() {
        let dir = tempfile::tempdir().unwrap();
        let disk = file(&dir, "disk");
        let first = serial(&disk);
        assert_eq!(first.len(), DIGITS);
        disk.set_len(1 << 20).unwrap();
        fs::rename(dir.path().join("disk"), dir.path().join("renamed")).unwrap();
        let disk = file(&dir, "renamed");
        assert_eq!(serial(&disk), first);
        assert_eq!(of_file(&disk, false).unwrap(), first);

        // A copy, with its attributes where supported; it keeps its own number from then on.
        let copy = file(&dir, "copy");
        let mut room = [0; 128];
        if let Ok(len) = fgetxattr(&disk, ATTRIBUTE, &mut room) {
            fsetxattr(&copy, ATTRIBUTE, &room[..len], XattrFlags::empty()).unwrap();
        }
        let second = serial(&copy);
        assert_ne!(second, first);
        assert_eq!(serial(&copy), second);
        assert_eq!(serial(&disk), first);

        // Another file under the old name, even with the inode number of the deleted one.
        drop(disk);
        fs::remove_file(dir.path().join("renamed")).unwrap();
        let again = file(&dir, "renamed");
        assert_ne!(serial(&again), first);
    }

    #[test]
    fn noise_is_no_number() {
        let dir = tempfile::tempdir().unwrap();
        let disk = file(&dir, "disk");
        let place = Place::of(&disk).unwrap();
        let right = format!("1 {} {}", "a".repeat(DIGITS), place.bound);
        let texts = ["", "1", "1 2 3", &right.replace('a', "\n"), &right[1..]];
        for text in texts {
            if fsetxattr(&disk, ATTRIBUTE, text.as_bytes(), XattrFlags::empty()).is_err() {
                println!("this file system keeps no attributes");
                return;
            }
            assert_eq!(stored(&disk, &place.bound), None, "{text:?}");
        }
        fsetxattr(&disk, ATTRIBUTE, right.as_bytes(), XattrFlags::empty()).unwrap();
        assert_eq!(serial(&disk), "a".repeat(DIGITS));
        fremovexattr(&disk, ATTRIBUTE).unwrap();
        assert_ne!(serial(&disk), "a".repeat(DIGITS));
    }

    #[test]
    fn a_file_that_keeps_none_has_one_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (file(&dir, "one"), file(&dir, "other"));
        let read_only = |file: &File| of_file(file, false).unwrap();
        assert_eq!(read_only(&one), read_only(&file(&dir, "one")));
        assert_ne!(read_only(&one), read_only(&other));
        assert_eq!(stored(&one, &Place::of(&one).unwrap().bound), None);
        assert_ne!(
            one.metadata().unwrap().ino(),
            other.metadata().unwrap().ino()
        );
        assert_ne!(drawn().unwrap(), drawn().unwrap());
    }
}
