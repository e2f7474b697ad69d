//! Which file a path names, and a socket's file that is removed with its owner.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Which file it is, whatever its names.
pub(crate) type FileId = (u64, u64);

/// The device and inode of a file.
pub(crate) fn file_id(metadata: &Metadata) -> FileId {
    (metadata.dev(), metadata.ino())
}

/// The device and inode of the file with that name; of a symbolic link, its own.
pub(crate) fn id_of(path: &Path) -> io::Result<FileId> {
    Ok(file_id(&fs::symlink_metadata(path)?))
}

/// The file of a socket that this program listens at. It is removed when this is dropped, if it is still the same one:
/// while it is listened at, no other file has its number.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    id: FileId,
}

impl SocketFile {
    /// The file that a socket has just been bound to.
    pub(crate) fn bound(path: &Path) -> io::Result<Self> {
        let (id, path) = (id_of(path)?, path.to_owned());
        Ok(Self { path, id })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if id_of(&self.path).is_ok_and(|id| id == self.id) {
            // A file that cannot be removed is used again; one that another program removes is gone as well.
            let _left = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a socket's file goes with its owner, and what another program has put in its place stays. Method: both, one
    /// after the other.
    #[test]
    fn only_the_same_file_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        fs::write(&path, "ours").expect("a file");
        drop(SocketFile::bound(&path).expect("it is there"));
        assert!(!path.exists());

        fs::write(&path, "ours").expect("a file");
        let socket = SocketFile::bound(&path).expect("it is there");
        let other = folder.path().join("other");
        fs::write(&other, "another's").expect("a file");
        fs::rename(&other, &path).expect("it takes the place");
        drop(socket);
        assert_eq!(fs::read(&path).expect("it is there"), b"another's");
    }
}
