//! The directory that is served: nothing outside of it can be named, by `..` or by symbolic links.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

use crate::copy::error::CopyError;
use crate::copy::source::Source;

/// Tries of a path while others rename its directories.
const TRIES_MAX: u32 = 8;

/// An open directory.
#[derive(Debug)]
pub(super) struct Root(OwnedFd);

impl Root {
    pub(super) fn open(dir: &Path) -> Result<Self, CopyError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(CWD, dir, flags, Mode::empty());
        opened.map(Self).map_err(|error| CopyError::File {
            doing: "open the directory",
            path: dir.into(),
            error: error.into(),
        })
    }

    /// A regular file beneath it. Symbolic links are followed as long as they stay there.
    pub(super) fn source(&self, path: &[u8]) -> Result<Source, CopyError> {
        let path = Path::new(OsStr::from_bytes(path));
        let file = match self.resolve(path) {
            Err(Errno::NOSYS) => self.walk(path),
            result => result,
        };
        let file = file.map_err(|error| match error {
            Errno::XDEV => CopyError::Unfit {
                path: path.into(),
                what: "outside of the directory that is served",
                right: "PATH must stay beneath it",
            },
            error => CopyError::File {
                doing: "open",
                path: path.into(),
                error: error.into(),
            },
        })?;
        Source::of(file, path)
    }

    /// Has the kernel see to it that the path stays beneath.
    fn resolve(&self, path: &Path) -> Result<File, Errno> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let mut tries = 1;
        loop {
            match openat2(&self.0, path, FLAGS, Mode::empty(), resolve) {
                Err(Errno::AGAIN) if tries < TRIES_MAX => tries += 1,
                result => return result.map(File::from),
            }
        }
    }

    /// As [`Root::resolve`], for kernels that cannot: one name at a time, and no symbolic links.
    fn walk(&self, path: &Path) -> Result<File, Errno> {
        let mut names = Vec::new();
        for component in path.components() {
            match component {
                Component::Normal(name) => names.push(name),
                Component::CurDir => {}
                _ => return Err(Errno::XDEV),
            }
        }
        let last = names.pop().ok_or(Errno::ISDIR)?;
        let mut dir: Option<OwnedFd> = None;
        for name in names {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let at = dir.as_ref().unwrap_or(&self.0).as_fd();
            let next = openat(at, name, flags, Mode::empty())?;
            dir = Some(next);
        }
        let at = dir.as_ref().unwrap_or(&self.0).as_fd();
        openat(at, last, FLAGS | OFlags::NOFOLLOW, Mode::empty()).map(File::from)
    }
}

/// Pipes without a writer are not waited for.
const FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Goal: whatever is named, only files beneath the directory are opened, in both ways. Method: a
    /// secret beside the directory, and every path to it that comes to mind.
    #[test]
    fn nothing_outside_can_be_named() {
        let outer = tempfile::tempdir().expect("a directory");
        let at = |name: &str| outer.path().join(name);
        fs::create_dir_all(at("dir/sub")).expect("directories");
        fs::write(at("secret"), b"secret").expect("a file");
        fs::write(at("dir/sub/file"), b"public").expect("a file");
        symlink("../secret", at("dir/up")).expect("a link");
        symlink(at("secret"), at("dir/absolute")).expect("a link");
        symlink("..", at("dir/sub/parent")).expect("a link");
        symlink(outer.path(), at("dir/outer")).expect("a link");
        symlink("sub/file", at("dir/inside")).expect("a link");
        symlink("loop", at("dir/loop")).expect("a link");
        let root = Root::open(&at("dir")).expect("a directory");
        let secret = at("secret");
        let absolute = secret.to_str().expect("text");
        let outside = [
            "../secret",
            "..",
            "/",
            "/etc/passwd",
            absolute,
            "up",
            "absolute",
            "sub/../../secret",
            "outer/secret",
            "sub/parent/../secret",
            "./../secret",
            "sub/../sub/../../secret",
            "/proc/self/root/etc/passwd",
        ];
        for open in [Root::resolve as fn(&Root, &Path) -> _, Root::walk] {
            for path in outside {
                let opened = open(&root, Path::new(path));
                assert!(opened.is_err(), "{path}");
            }
            for path in ["missing", "sub/file/x", "loop", "", "sub/file/"] {
                assert!(
                    open(&root, Path::new(path)).is_err() || path == "sub/file/",
                    "{path}"
                );
            }
            let inside = open(&root, Path::new("sub/./file")).expect("beneath");
            assert_eq!(inside.metadata().expect("open").len(), 6);
        }
        assert_eq!(root.source(b"inside").expect("a link within").size(), 6);
        for (path, part) in [
            ("../secret", "outside of the directory"),
            ("sub", "a directory"),
        ] {
            let error = root.source(path.as_bytes()).expect_err("refused");
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}
