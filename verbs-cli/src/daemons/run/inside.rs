//! The libraries that are inside the program: `cargo install` has no place for them beside it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statvfs};

use super::library::{LibraryError, NAME, in_first, link};

/// A library: the name by which programs ask for it, and what is in it.
type Library<'l> = (&'static str, &'l [u8]);

/// Those of this program; none in a build for tests.
#[cfg(libraries_inside)]
static LIBRARIES: &[Library<'static>] = &[
    (
        NAME,
        include_bytes!(concat!(env!("VERBS_LIBRARIES"), "/libibverbs.so")),
    ),
    (
        super::library::PRELOAD,
        include_bytes!(concat!(env!("VERBS_LIBRARIES"), "/librspreload.so")),
    ),
];
#[cfg(not(libraries_inside))]
static LIBRARIES: &[Library<'static>] = &[];

/// A folder with the libraries of this program, in the first of these folders of the user's own in which they can be; `None` if
/// the program has none.
///
/// # Errors
/// [`LibraryError::Link`].
pub(super) fn unpacked(private: &[PathBuf]) -> Option<Result<PathBuf, LibraryError>> {
    let are_there = LIBRARIES.iter().all(|(_, bytes)| !bytes.is_empty());
    (are_there && !LIBRARIES.is_empty()).then(|| unpack(LIBRARIES, private))
}

fn unpack(libraries: &[Library<'_>], private: &[PathBuf]) -> Result<PathBuf, LibraryError> {
    let mut digest = blake3::Hasher::new();
    for (name, bytes) in libraries {
        digest.update(name.as_bytes()).update(bytes);
    }
    let digest = digest.finalize().to_hex();
    in_first(private, &digest[..16], Vec::new(), |folder| {
        fill(folder, libraries)
    })
}

/// Has the libraries in the folder.
fn fill(folder: &Path, libraries: &[Library<'_>]) -> Result<(), String> {
    let said = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    let flags = statvfs(folder)
        .map_err(|error| said(folder, error.into()))?
        .f_flag;
    if flags.contains(StatVfsMountFlags::NOEXEC) {
        return Err(format!(
            "{}: nothing there may be executed (noexec)",
            folder.display()
        ));
    }
    for (name, bytes) in libraries {
        let path = folder.join(name);
        let is_there = |found: fs::Metadata| found.is_file() && found.len() == bytes.len() as u64;
        if fs::symlink_metadata(&path).is_ok_and(is_there) {
            continue;
        }
        // Another program may do the same: each writes a file of its own, and the last one has the name.
        let part = folder.join(format!(".{name}.{}", std::process::id()));
        fs::write(&part, bytes).map_err(|error| said(&part, error))?;
        fs::rename(&part, &path).map_err(|error| said(&path, error))?;
    }
    link(folder, Path::new(NAME), &folder.join(NAME))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;
    use crate::daemons::run::library::{CM_NAME, PRELOAD};

    #[test]
    fn libraries_are_unpacked_once_for_each_version() {
        let place = tempfile::tempdir().expect("a directory");
        let private = [place.path().join("missing/own"), place.path().join("own")];
        let libraries: [Library<'_>; 2] = [(NAME, b"one"), (PRELOAD, b"two")];
        let folder = unpack(&libraries, &private).expect("room");
        assert_eq!(folder.parent(), Some(&*private[1]));
        let read = |name| fs::read(folder.join(name)).expect("it is there");
        assert_eq!((read(NAME), read(CM_NAME)), (b"one".into(), b"one".into()));
        assert_eq!(read(PRELOAD), b"two");
        let mode = fs::metadata(&folder).expect("it is there").mode();
        assert_eq!(mode & 0o7777, 0o700);
        let node = |folder: &Path| fs::metadata(folder.join(NAME)).expect("it is there").ino();
        let first = node(&folder);
        assert_eq!(unpack(&libraries, &private).expect("again"), folder);
        assert_eq!(node(&folder), first, "nothing is written again");
        // One that was cut short is put right.
        fs::write(folder.join(NAME), "o").expect("room");
        unpack(&libraries, &private).expect("room");
        assert_eq!(read(NAME), b"one");
        let newer: [Library<'_>; 1] = [(NAME, b"another")];
        assert_ne!(unpack(&newer, &private).expect("room"), folder);
        let files = fs::read_dir(&folder).expect("it is there").count();
        assert_eq!(files, 3, "nothing else is left");
    }

    #[test]
    fn a_folder_of_others_is_not_used() {
        let place = tempfile::tempdir().expect("a directory");
        let open = place.path().join("open");
        fs::create_dir(&open).expect("room");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).expect("ours");
        let refused = unpack(&[(NAME, b"one")], &[open]).expect_err("others may look into it");
        assert!(refused.to_string().contains("0755"), "{refused}");
    }
}
