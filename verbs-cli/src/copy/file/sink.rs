//! The file that a copy ends in. It has no name until it is complete.
//!
//! Where the file system can, the bytes go to a file without a name (`O_TMPFILE`), which the kernel
//! removes however the process ends. Elsewhere they go to a temporary name in the same directory, which
//! is removed on every way out but a kill. In neither case is anything half done ever seen under the
//! target's own name.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{env, fs, process};

use rustix::fs::{
    Access, AtFlags, CWD, Mode, OFlags, RenameFlags, accessat, fsync, linkat, openat, renameat,
    renameat_with, unlinkat,
};
use rustix::io::Errno;

use super::source::other_than_file;
use crate::cli::STREAM;
use crate::copy::error::CopyError;
use crate::file_id::{FileId, file_id};

/// Names tried for a temporary file before giving up: others may exist from killed processes whose
/// number this one has got.
const TEMPORARY_NAMES_MAX: u32 = 100;

/// Where a copy is to go: checked, nothing created yet.
#[derive(Debug)]
pub(crate) struct Target {
    /// As it was given.
    path: PathBuf,
    /// Its directory, kept open so that it cannot be exchanged.
    dir: OwnedFd,
    name: OsString,
    replaces: bool,
    /// Its bytes go to stdout when it is complete; it gets no name.
    is_stream: bool,
}

/// A file on its way to its name.
#[derive(Debug)]
pub(crate) struct Sink {
    target: Target,
    file: File,
    /// The name it has for now; `None` if it has none.
    temporary: Option<OsString>,
}

impl Target {
    /// Checks that a file can be put there, and that it would not be the source, if that is a file of
    /// this host.
    pub(crate) fn find(path: &Path, source: Option<(&Path, FileId)>) -> Result<Self, CopyError> {
        let failed = |doing, error| CopyError::File {
            doing,
            path: path.into(),
            error,
        };
        let unfit = |what, right| CopyError::Unfit {
            path: path.into(),
            what,
            right,
        };
        if path.as_os_str() == STREAM {
            return Self::stdout();
        }
        if path.as_os_str().as_bytes().ends_with(b"/") && !path.is_dir() {
            return Err(unfit(
                "the name of a directory (it ends in '/')",
                "DST must name a file",
            ));
        }
        let (place, replaces) = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => (path.to_owned(), false),
            Err(error) => return Err(failed("look at", error)),
            // A link is followed, as every copying command does: the file behind it is replaced.
            Ok(seen) if seen.is_symlink() => match fs::canonicalize(path) {
                Ok(place) => (place, true),
                Err(_) => {
                    return Err(unfit(
                        "a symbolic link to nothing",
                        "DST must be a file or a new name",
                    ));
                }
            },
            Ok(_) => (path.to_owned(), true),
        };
        if replaces {
            let seen = fs::metadata(&place).map_err(|error| failed("look at", error))?;
            if let Some(what) = other_than_file(&seen) {
                return Err(unfit(what, "DST must be a regular file or a new name"));
            }
            if let Some((source, id)) = source
                && file_id(&seen) == id
            {
                return Err(CopyError::SameFile {
                    src: source.into(),
                    dst: path.into(),
                });
            }
            // Replacing takes no right to the file itself, but a user that took it away meant it.
            accessat(CWD, &place, Access::WRITE_OK, AtFlags::EACCESS)
                .map_err(|error| failed("replace", error.into()))?;
        }
        let Some(name) = place.file_name().map(OsStr::to_owned) else {
            return Err(unfit("a directory", "DST must name a file"));
        };
        let parent = match place.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let dir = directory(parent)?;
        Ok(Self {
            path: path.into(),
            dir,
            name,
            replaces,
            is_stream: false,
        })
    }

    /// Stdout, which gets what arrives when all of it has.
    fn stdout() -> Result<Self, CopyError> {
        Ok(Self {
            path: "stdout".into(),
            dir: directory(&env::temp_dir())?,
            name: OsString::new(),
            replaces: false,
            is_stream: true,
        })
    }

    /// What a failed copy leaves there, as the end of a sentence.
    pub(crate) fn fate(&self) -> String {
        let what = match self.replaces {
            _ if self.is_stream => "got nothing",
            true => "is as it was",
            false => "was not created",
        };
        format!("{} {what}", self.path.display())
    }

    fn failed(&self, doing: &'static str, error: impl Into<io::Error>) -> CopyError {
        CopyError::File {
            doing,
            path: self.path.clone(),
            error: error.into(),
        }
    }
}

impl Sink {
    /// Creates the file, without the target's name, with these permission bits less the umask's.
    pub(crate) fn create(target: Target, mode: u32) -> Result<Self, CopyError> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match openat(&target.dir, ".", flags, Mode::from_raw_mode(mode)) {
            Ok(file) => Ok(Self {
                target,
                file: file.into(),
                temporary: None,
            }),
            // The last two come from file systems and kernels that do not know the flag at all.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Self::create_named(target, mode),
            Err(error) => Err(target.failed("create", error)),
        }
    }

    /// As [`Sink::create`], under a temporary name.
    fn create_named(target: Target, mode: u32) -> Result<Self, CopyError> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let create = |name: &OsStr| openat(&target.dir, name, flags, Mode::from_raw_mode(mode));
        match with_temporary_name(create) {
            Ok((name, file)) => Ok(Self {
                target,
                file: file.into(),
                temporary: Some(name),
            }),
            Err(error) => Err(target.failed("create", error)),
        }
    }

    /// Appends bytes. May block.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), CopyError> {
        self.file
            .write_all(bytes)
            .map_err(|error| self.target.failed("write", error))
    }

    /// Makes the file durable and gives it its name, in one step; or writes all of it to stdout. May block.
    pub(crate) fn commit(mut self) -> Result<(), CopyError> {
        if self.target.is_stream {
            let mut out = io::stdout().lock();
            let written = self
                .file
                .rewind()
                .and_then(|()| io::copy(&mut self.file, &mut out))
                .and_then(|_| out.flush());
            return written.map_err(|error| self.target.failed("write", error));
        }
        // Some file systems tell only now that there is no room.
        self.file
            .sync_all()
            .map_err(|error| self.target.failed("write", error))?;
        match (&self.temporary, self.target.replaces) {
            (None, false) => self
                .link(&self.target.name)
                .map_err(|error| self.no_name(error))?,
            (None, true) => {
                let link = |name: &OsStr| self.link(name);
                let (name, ()) = with_temporary_name(link).map_err(|error| self.no_name(error))?;
                self.temporary = Some(name);
                self.rename()?;
            }
            (Some(_), _) => self.rename()?,
        }
        self.temporary = None;
        self.sync_directory()
    }

    /// Gives a file without a name this one; never replaces.
    fn link(&self, name: &OsStr) -> Result<(), Errno> {
        let by_number = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        match linkat(
            CWD,
            by_number,
            &self.target.dir,
            name,
            AtFlags::SYMLINK_FOLLOW,
        ) {
            // Where there is no /proc, newer kernels let a process link what it has itself opened.
            Err(Errno::NOENT) => {
                linkat(&self.file, "", &self.target.dir, name, AtFlags::EMPTY_PATH)
            }
            result => result,
        }
    }

    /// From the temporary name to the final one.
    fn rename(&self) -> Result<(), CopyError> {
        let Some(from) = &self.temporary else {
            return Ok(());
        };
        let (dir, to) = (&self.target.dir, &self.target.name);
        let renamed = if self.target.replaces {
            renameat(dir, from, dir, to)
        } else {
            match renameat_with(dir, from, dir, to, RenameFlags::NOREPLACE) {
                // Not every file system knows the flag; a second name and no first one do the same.
                Err(Errno::INVAL | Errno::NOSYS) => linkat(dir, from, dir, to, AtFlags::empty())
                    .and_then(|()| unlinkat(dir, from, AtFlags::empty())),
                result => result,
            }
        };
        renamed.map_err(|error| self.no_name(error))
    }

    /// Makes the name durable, too. A directory that may be written to but not read cannot be synced;
    /// the file is complete all the same.
    fn sync_directory(&self) -> Result<(), CopyError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match openat(&self.target.dir, ".", flags, Mode::empty()).and_then(fsync) {
            Ok(()) | Err(Errno::ACCESS | Errno::INVAL) => Ok(()),
            Err(error) => Err(CopyError::NotDurable {
                path: self.target.path.clone(),
                error: error.into(),
            }),
        }
    }

    fn no_name(&self, error: Errno) -> CopyError {
        match error {
            Errno::EXIST if !self.target.replaces => CopyError::Appeared(self.target.path.clone()),
            error => self.target.failed("put in place", error),
        }
    }
}

/// The place for files of a directory.
fn directory(path: &Path) -> Result<OwnedFd, CopyError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty()).map_err(|error| CopyError::File {
        doing: "open the directory",
        path: path.into(),
        error: error.into(),
    })
}

impl Drop for Sink {
    fn drop(&mut self) {
        if let Some(name) = &self.temporary {
            // There is no one left to tell; a file that stays has a name that says whose it was.
            let _ = unlinkat(&self.target.dir, name, AtFlags::empty());
        }
    }
}

/// Does something with unused names, until it works.
fn with_temporary_name<T>(
    mut attempt: impl FnMut(&OsStr) -> Result<T, Errno>,
) -> Result<(OsString, T), Errno> {
    let mut tried = 0;
    loop {
        let name = OsString::from(format!(".verbs-copy-{}-{tried}", process::id()));
        match attempt(&name) {
            Err(Errno::EXIST) if tried < TEMPORARY_NAMES_MAX => tried += 1,
            result => return Ok((name, result?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn find(path: &Path) -> Result<Target, CopyError> {
        Target::find(path, None)
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).expect("a directory");
        let mut names: Vec<_> = entries
            .map(|entry| {
                entry
                    .expect("an entry")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        names.sort();
        names
    }

    type Create = fn(Target, u32) -> Result<Sink, CopyError>;

    /// Goal: both ways of creating do the same. Method: each walks through the life of a new file, a
    /// replaced one and an abandoned one.
    #[test]
    fn the_name_appears_when_complete() {
        for create in [Sink::create as Create, Sink::create_named as Create] {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join("dst");

            let mut sink = create(find(&path).expect("fits"), 0o640).expect("created");
            sink.write(b"first").expect("room");
            assert!(!path.exists());
            sink.commit().expect("complete");
            assert_eq!(fs::read(&path).expect("there"), b"first");
            let mode = fs::metadata(&path).expect("there").permissions().mode();
            assert_eq!(mode & 0o777 & !0o640, 0, "no more rights than asked for");
            assert_eq!(names(dir.path()), ["dst"]);

            let mut sink = create(find(&path).expect("fits"), 0o600).expect("created");
            sink.write(b"second").expect("room");
            assert_eq!(fs::read(&path).expect("there"), b"first");
            sink.commit().expect("complete");
            assert_eq!(fs::read(&path).expect("there"), b"second");

            let mut sink = create(find(&path).expect("fits"), 0o600).expect("created");
            sink.write(b"third").expect("room");
            drop(sink);
            assert_eq!(fs::read(&path).expect("there"), b"second");
            assert_eq!(names(dir.path()), ["dst"]);
        }
    }

    #[test]
    fn what_appears_meanwhile_is_left_alone() {
        for create in [Sink::create as Create, Sink::create_named as Create] {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join("dst");
            let sink = create(find(&path).expect("fits"), 0o600).expect("created");
            fs::write(&path, b"theirs").expect("room");
            assert!(matches!(sink.commit(), Err(CopyError::Appeared(_))));
            assert_eq!(fs::read(&path).expect("there"), b"theirs");
            assert_eq!(names(dir.path()), ["dst"]);
        }
    }

    #[test]
    fn links_are_followed() {
        let dir = tempfile::tempdir().expect("a directory");
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, b"old").expect("room");
        symlink("file", &link).expect("a link");
        let mut sink = Sink::create(find(&link).expect("fits"), 0o600).expect("created");
        sink.write(b"new").expect("room");
        sink.commit().expect("complete");
        assert_eq!(fs::read(&file).expect("there"), b"new");
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
    }

    #[test]
    fn unfit_targets_are_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        symlink("nowhere", at("dangling")).expect("a link");
        fs::write(at("file"), b"x").expect("room");
        let unfit = [
            dir.path().to_owned(),
            "/".into(),
            "..".into(),
            "/dev/null".into(),
            at("dangling"),
            at("new/"),
            "".into(),
        ];
        for path in unfit {
            let result = find(&path);
            assert!(
                matches!(result, Err(CopyError::Unfit { .. })),
                "{path:?}: {result:?}"
            );
        }
        for path in [at("missing/dst"), at("file/dst")] {
            let result = find(&path);
            assert!(
                matches!(result, Err(CopyError::File { .. })),
                "{path:?}: {result:?}"
            );
        }
        let id = file_id(&fs::metadata(at("file")).expect("there"));
        fs::hard_link(at("file"), at("other")).expect("a link");
        for name in ["file", "other"] {
            let result = Target::find(&at(name), Some((&at("file"), id)));
            assert!(
                matches!(result, Err(CopyError::SameFile { .. })),
                "{result:?}"
            );
        }
    }
}
