//! The file that is copied: read once, in order, and watched for changes.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::copy::error::{Change, CopyError};
use crate::file_id::{FileId, file_id};

/// An open source. Reading may block, so it happens on the command's own thread, never in a routine.
#[derive(Debug)]
pub(crate) struct Source {
    file: File,
    path: PathBuf,
    /// As it was when the copy began.
    before: Metadata,
    read: u64,
}

impl Source {
    /// Opens a regular file. Pipes and devices are refused: they have no size, so that neither the
    /// chunks could be counted nor a change be seen.
    pub(crate) fn open(path: &Path) -> Result<Self, CopyError> {
        let failed = |error| CopyError::File {
            doing: "open",
            path: path.into(),
            error,
        };
        // Without NONBLOCK, opening a pipe without a writer would never return.
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(path)
            .map_err(failed)?;
        Self::of(file, path)
    }

    /// Takes all of stdin, to its end, into a file without a name: so it has a size and a digest before any of it is sent.
    /// May block, as long as that takes.
    pub(crate) fn stdin() -> Result<Self, CopyError> {
        let place = std::env::temp_dir();
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let spool = openat(CWD, &place, flags, Mode::RUSR | Mode::WUSR);
        let mut spool = File::from(spool.map_err(|error| CopyError::File {
            doing: "keep stdin in",
            path: place,
            error: error.into(),
        })?);
        let taken = io::copy(&mut io::stdin().lock(), &mut spool).and_then(|_| spool.rewind());
        taken.map_err(|error| CopyError::File {
            doing: "read",
            path: "stdin".into(),
            error,
        })?;
        Self::of(spool, Path::new("stdin"))
    }

    /// Takes a file that is open already, and not in a way that waits for others.
    pub(crate) fn of(file: File, path: &Path) -> Result<Self, CopyError> {
        let before = file.metadata().map_err(|error| CopyError::File {
            doing: "look at",
            path: path.into(),
            error,
        })?;
        if let Some(what) = other_than_file(&before) {
            let right = "SRC must be a regular file";
            return Err(CopyError::Unfit {
                path: path.into(),
                what,
                right,
            });
        }
        Ok(Self {
            file,
            path: path.into(),
            before,
            read: 0,
        })
    }

    /// Bytes, as they were when the copy began.
    pub(crate) fn size(&self) -> u64 {
        self.before.len()
    }

    /// Permission bits for a copy of it.
    pub(crate) fn mode(&self) -> u32 {
        self.before.mode() & 0o777
    }

    pub(crate) fn id(&self) -> FileId {
        file_id(&self.before)
    }

    /// Fills `into` with the next bytes.
    ///
    /// Fails with [`Change::Ended`] if the file has become shorter than that.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> Result<(), CopyError> {
        let mut done = 0;
        while done < into.len() {
            match self.file.read(&mut into[done..]) {
                Ok(0) => {
                    let at = self.read + done as u64;
                    return Err(self.changed(Change::Ended {
                        at,
                        size: self.size(),
                    }));
                }
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed("read", error)),
            }
        }
        self.read += done as u64;
        Ok(())
    }

    /// Asks, when all was read, whether the file is still the one that the copy began with.
    pub(crate) fn check_unchanged(&mut self) -> Result<(), CopyError> {
        let now = self
            .file
            .metadata()
            .map_err(|error| self.failed("look at", error))?;
        if now.len() != self.size() {
            return Err(self.changed(Change::Size {
                was: self.size(),
                is: now.len(),
            }));
        }
        let modified = |metadata: &Metadata| (metadata.mtime(), metadata.mtime_nsec());
        if modified(&now) != modified(&self.before) {
            return Err(self.changed(Change::Modified));
        }
        // Files of /proc say that they have no bytes and have some all the same.
        match self.file.read(&mut [0]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(self.changed(Change::Grew { size: self.size() })),
            Err(error) => Err(self.failed("read", error)),
        }
    }

    fn changed(&self, change: Change) -> CopyError {
        CopyError::Changed {
            path: self.path.clone(),
            change,
        }
    }

    fn failed(&self, doing: &'static str, error: io::Error) -> CopyError {
        CopyError::File {
            doing,
            path: self.path.clone(),
            error,
        }
    }
}

/// What something is that is not a regular file.
pub(crate) fn other_than_file(metadata: &Metadata) -> Option<&'static str> {
    let kind = metadata.file_type();
    let what = [
        (kind.is_file(), None),
        (kind.is_dir(), Some("a directory")),
        (kind.is_fifo(), Some("a pipe")),
        (kind.is_socket(), Some("a socket")),
        (kind.is_char_device(), Some("a character device")),
        (kind.is_block_device(), Some("a block device")),
    ];
    what.into_iter()
        .find(|(is, _)| *is)
        .map_or(Some("no regular file"), |(_, what)| what)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    fn source(content: &[u8]) -> (tempfile::TempDir, PathBuf, Source) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("src");
        fs::write(&path, content).expect("a file");
        let source = Source::open(&path).expect("readable");
        (dir, path, source)
    }

    fn change(result: Result<(), CopyError>) -> Change {
        match result {
            Err(CopyError::Changed { change, .. }) => change,
            other => panic!("not a change: {other:?}"),
        }
    }

    #[test]
    fn an_untouched_file_is_unchanged() {
        let (_dir, _, mut source) = source(b"0123456789");
        let mut buffer = [0; 10];
        source.read(&mut buffer).expect("ten bytes");
        assert_eq!(&buffer, b"0123456789");
        source.check_unchanged().expect("nobody touched it");
    }

    #[test]
    fn a_shorter_file_is_noticed_while_reading() {
        let (_dir, path, mut source) = source(b"0123456789");
        source.read(&mut [0; 4]).expect("four bytes");
        OpenOptions::new()
            .write(true)
            .open(path)
            .and_then(|file| file.set_len(7))
            .expect("shorter");
        assert_eq!(
            change(source.read(&mut [0; 6])),
            Change::Ended { at: 7, size: 10 }
        );
    }

    #[test]
    fn a_longer_or_rewritten_file_is_noticed_at_the_end() {
        let (_dir, path, mut source) = source(b"0123456789");
        source.read(&mut [0; 10]).expect("ten bytes");
        let mut file = OpenOptions::new()
            .append(true)
            .open(&path)
            .expect("writable");
        file.write_all(b"x").expect("room");
        assert_eq!(
            change(source.check_unchanged()),
            Change::Size { was: 10, is: 11 }
        );
        file.set_len(10).expect("shorter");
        file.set_modified(std::time::UNIX_EPOCH)
            .expect("our own file");
        assert_eq!(change(source.check_unchanged()), Change::Modified);
    }

    #[test]
    fn a_file_that_hides_its_size_is_noticed() {
        let mut source = Source::open(Path::new("/proc/self/status")).expect("readable");
        assert_eq!(source.size(), 0);
        assert_eq!(change(source.check_unchanged()), Change::Grew { size: 0 });
    }

    #[test]
    fn only_regular_files_are_sources() {
        let dir = tempfile::tempdir().expect("a directory");
        let pipe = dir.path().join("F");
        let (kind, mode) = (rustix::fs::FileType::Fifo, Mode::RUSR);
        rustix::fs::mknodat(CWD, &pipe, kind, mode, 0).expect("a pipe");
        let cases = [
            (Path::new("/"), "a directory"),
            (Path::new("/dev/zero"), "a character device"),
            (&pipe, "a pipe"),
        ];
        for (path, expected) in cases {
            match Source::open(path) {
                Err(CopyError::Unfit { what, .. }) => assert_eq!(what, expected),
                other => panic!("{path:?}: {other:?}"),
            }
        }
    }
}
