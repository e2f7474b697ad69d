//! The files that subnet managers keep open: the program that has one open manages that port.
//!
//! With the kernel, such a file is a device that exists for each port. Here it is a FIFO. A manager opens it
//! to read; whether it is open for that is what opening it to write tells, without waiting, and
//! when it is no longer open, the end that writes is told. So a manager that is killed is noticed too.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use hca_sim::link::fabric::PortRef;
use rustix::fs::{CWD, FileType, Mode, OFlags, inotify, mknodat, open};
use rustix::io::Errno;

/// A port's file.
#[derive(Debug)]
struct File {
    path: PathBuf,
    /// Held while a manager has the other end.
    end: Option<OwnedFd>,
}

/// The files of a subnet, in a folder of their own.
#[derive(Debug)]
pub(crate) struct Managers {
    folder: PathBuf,
    watch: OwnedFd,
    files: BTreeMap<PortRef, File>,
    /// Files that may be held at a time. Of more managers, some are not noticed before others have gone.
    max: usize,
}

/// What each file's name begins with.
const PREFIX: &str = "issm-";

impl Managers {
    /// No file yet. The folder is there; what an earlier run has left in it is used again. At most so many managers
    /// are noticed at a time.
    pub(crate) fn new(folder: PathBuf, max: usize) -> io::Result<Self> {
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        inotify::add_watch(&watch, &folder, inotify::WatchFlags::OPEN)?;
        Ok(Self {
            folder,
            watch,
            files: BTreeMap::new(),
            max,
        })
    }

    /// Removes what is left of managers' files in a folder, as far as that goes.
    pub(crate) fn remove_files(folder: &Path) {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        for entry in entries {
            if entry.file_name().to_string_lossy().starts_with(PREFIX) {
                let _left = std::fs::remove_file(entry.path());
            }
        }
    }

    /// The file of a port.
    pub(crate) fn file(&mut self, at: PortRef) -> io::Result<&Path> {
        let name = format!("{PREFIX}{}-{}", at.node.0, at.port);
        let path = self.folder.join(name);
        match mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let file = self.files.entry(at).or_insert(File { path, end: None });
        Ok(&file.path)
    }

    /// What tells that a file was opened.
    pub(crate) fn watch(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// Ends whose other end may be closed, in the order that [`closed`](Self::closed) counts them in.
    pub(crate) fn ends(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.files
            .values()
            .filter_map(|file| file.end.as_ref().map(AsFd::as_fd))
    }

    /// Some file was opened. Returns the ports where a manager is now and was not before.
    pub(crate) fn opened(&mut self) -> Vec<PortRef> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.watch, &mut buffer);
        while events.next().is_ok() {}
        let mut managed = Vec::new();
        let mut held = self.ends().count();
        for (&at, file) in &mut self.files {
            if file.end.is_none() && held < self.max {
                let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                // It fails as long as there is no reader.
                file.end = open(&file.path, flags, Mode::empty()).ok();
                held += usize::from(file.end.is_some());
                managed.extend(file.end.is_some().then_some(at));
            }
        }
        managed
    }

    /// The other ends of some are closed, by their number among [`ends`](Self::ends). Returns the
    /// ports that no longer have a manager.
    pub(crate) fn closed(&mut self, is_closed: impl Fn(usize) -> bool) -> Vec<PortRef> {
        let held = self.files.iter_mut().filter(|(_, file)| file.end.is_some());
        let left = held.enumerate().filter(|&(number, _)| is_closed(number));
        left.map(|(_, (&at, file))| {
            file.end = None;
            at
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use hca_sim::link::fabric::NodeId;

    use super::*;

    /// Goal: a manager is noticed when it opens its file and when it closes it. Method: a reader in the
    /// same process.
    #[test]
    fn managers_come_and_go() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut managers = Managers::new(folder.path().to_owned(), 1).expect("files");
        let at = PortRef {
            node: NodeId(3),
            port: 1,
        };
        let path = managers.file(at).expect("a file").to_owned();
        assert_eq!(managers.opened(), [], "nobody has opened it");
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let reader = open(&path, flags, Mode::empty()).expect("it can be opened");
        assert_eq!(managers.opened(), [at]);
        assert_eq!(managers.opened(), [], "it is known");
        assert_eq!(managers.ends().count(), 1);
        let other = PortRef { port: 2, ..at };
        let path_of_other = managers.file(other).expect("a file").to_owned();
        let second = open(&path_of_other, flags, Mode::empty()).expect("it can be opened");
        assert_eq!(managers.opened(), [], "there is room for one");
        drop(reader);
        assert_eq!(managers.closed(|number| number == 0), [at]);
        assert_eq!(managers.ends().count(), 0);
        assert_eq!(managers.opened(), [other], "its turn has come");
        drop(second);
        // An earlier run's files are used again.
        let again = Managers::new(folder.path().to_owned(), 1);
        assert_eq!(again.expect("files").file(at).expect("a file"), path);
        Managers::remove_files(folder.path());
        assert_eq!(std::fs::read_dir(&folder).expect("it is there").count(), 0);
    }
}
