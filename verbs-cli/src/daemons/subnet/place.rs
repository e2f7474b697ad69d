//! The files of a hosted subnet: its socket, and a folder beside it with the control socket and the managers' files.
//! They are there as long as the subnet is hosted, and one program hosts it.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use hca_sim::link::fabric::place::{make_default, make_own};
use hca_sim::link::fabric::socket::listen_at;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open};
use rustix::io::Errno;

use crate::file_id::{SocketFile, id_of};
use crate::subnet::error::SubnetError;
use crate::subnet::managers::Managers;

/// How often the folder of a host that is just going is tried again.
const TRIES: usize = 16;

/// What a hosted subnet has in the file system; removed when this goes.
#[derive(Debug)]
pub(crate) struct Place {
    folder: PathBuf,
    /// Held by the program that hosts the subnet, and released when it ends, however it ends.
    _lock: OwnedFd,
    sockets: Vec<SocketFile>,
}

/// The folder of the subnet with that socket.
fn folder_of(socket: &Path) -> PathBuf {
    let mut folder = socket.as_os_str().to_owned();
    folder.push(".d");
    folder.into()
}

/// The socket of the subnet's operators.
pub(crate) fn control_of(socket: &Path) -> PathBuf {
    folder_of(socket).join("control")
}

impl Place {
    /// Takes the place of a subnet: makes the folder, which is to be the user's own, and locks it.
    pub(crate) fn take(socket: &Path) -> Result<Self, SubnetError> {
        make_default(socket)?;
        let folder = folder_of(socket);
        for _ in 0..TRIES {
            make_own(&folder)?;
            let files = |error: Errno| SubnetError::Files {
                path: folder.clone(),
                error: error.into(),
            };
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let lock = open(&folder, flags, Mode::empty()).map_err(files)?;
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Err(SubnetError::Hosted(socket.to_owned())),
                Err(error) => return Err(files(error)),
            }
            // Another host that was just ending may have removed it before the lock was there.
            let held = fstat(&lock).map_err(files)?;
            if id_of(&folder).ok() == Some((held.st_dev, held.st_ino)) {
                return Ok(Self {
                    folder,
                    _lock: lock,
                    sockets: Vec::new(),
                });
            }
        }
        Err(SubnetError::Hosted(socket.to_owned()))
    }

    /// Listens at a socket.
    pub(crate) fn listen(&mut self, path: &Path) -> Result<OwnedFd, SubnetError> {
        let refused = |error| SubnetError::Listen {
            path: path.to_owned(),
            error,
        };
        let listener = listen_at(path).map_err(|error| refused(error.into()))?;
        self.sockets.push(SocketFile::bound(path).map_err(refused)?);
        Ok(listener)
    }

    /// The managers' files.
    pub(crate) fn managers(&self, max: usize) -> Result<Managers, SubnetError> {
        let managers = Managers::new(self.folder.clone(), max);
        managers.map_err(|error| SubnetError::Files {
            path: self.folder.clone(),
            error,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.sockets.clear();
        Managers::remove_files(&self.folder);
        // It stays if something else was put into it.
        let _left = fs::remove_dir(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Goal: a place has one host, and is as it was when that has gone; what another has put there stays. Method: a
    /// second host while there is one, and after it.
    #[test]
    fn a_place_has_one_host() {
        let base = tempfile::tempdir().expect("a folder");
        let socket = base.path().join("subnet");
        let mut place = Place::take(&socket).expect("it is free");
        let refused = Place::take(&socket).expect_err("it is taken");
        assert!(matches!(refused, SubnetError::Hosted(_)), "{refused}");
        let listeners = [socket.clone(), control_of(&socket)].map(|path| place.listen(&path));
        assert!(listeners.iter().all(Result::is_ok));
        place.managers(1).expect("files");
        drop(place);
        assert_eq!(fs::read_dir(base.path()).expect("it is there").count(), 0);

        let mut place = Place::take(&socket).expect("it is free again");
        let _listener = place.listen(&socket).expect("it is free");
        fs::remove_file(&socket).expect("it is there");
        fs::write(&socket, "another's").expect("a file");
        drop(place);
        assert_eq!(fs::read(&socket).expect("it is there"), b"another's");
    }

    /// Goal: a folder that others could change, or that leads elsewhere, is refused and left alone.
    #[test]
    fn a_place_that_is_not_ones_own_is_refused() {
        let base = tempfile::tempdir().expect("a folder");
        let socket = base.path().join("subnet");
        let elsewhere = base.path().join("elsewhere");
        fs::create_dir(&elsewhere).expect("a folder");
        symlink(&elsewhere, folder_of(&socket)).expect("a link");
        let refused = Place::take(&socket).expect_err("it is a link");
        assert!(refused.to_string().contains("a symbolic link"), "{refused}");
        assert_eq!(fs::read_dir(&elsewhere).expect("it is there").count(), 0);
    }
}
