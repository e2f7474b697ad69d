//! The default place of a hosted subnet, and whether that place is private to the user.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use verbs_core::process::variable;

/// Not only this user can change the folder, so its contents may be another user's.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// It cannot be created or examined.
    #[error("cannot use the folder {}: {error}", path.display())]
    Unusable {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// It is a symbolic link, a file or something else.
    #[error(
        "{} is not a folder but {kind}: remove it, or name another place with --socket or its variable",
        path.display()
    )]
    NoFolder {
        /// The path of the folder.
        path: PathBuf,
        /// What is there instead.
        kind: &'static str,
    },
    /// It belongs to another user.
    #[error(
        "the folder {} belongs to user {owner}, and this is user {user}: name another place with --socket or its \
         variable",
        path.display()
    )]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// This user.
        user: u32,
    },
    /// Other users may read or change it.
    #[error(
        "the folder {} has mode {mode:04o}, and other users must have no access: chmod 0700 it",
        path.display()
    )]
    Open {
        /// The folder.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
}

impl From<PlaceError> for io::Error {
    fn from(error: PlaceError) -> Self {
        match error {
            PlaceError::Unusable { error, .. } => error,
            _ => Self::new(io::ErrorKind::PermissionDenied, error),
        }
    }
}

/// The place of a hosted subnet: the value of the variable `VERBS_SUBNET`; or a socket in the user's runtime
/// directory, `$XDG_RUNTIME_DIR/verbs-subnet`; or one in a private folder in the directory for temporary files,
/// `/tmp/verbs-subnet-UID/subnet`.
///
/// The last two are only used if their folder is private to the user: see [`check_default`].
pub fn default_path() -> PathBuf {
    match variable("VERBS_SUBNET") {
        Some(path) => path.into(),
        None => default_folder().1,
    }
}

/// The default folder, and the socket in it.
fn default_folder() -> (PathBuf, PathBuf) {
    if let Some(folder) = runtime_folder() {
        let socket = folder.join("verbs-subnet");
        return (folder, socket);
    }
    let folder = temporary_folder("verbs-subnet");
    let socket = folder.join("subnet");
    (folder, socket)
}

/// The user's runtime directory, if there is one.
pub fn runtime_folder() -> Option<PathBuf> {
    let runtime = variable("XDG_RUNTIME_DIR").map(PathBuf::from);
    // According to the XDG base directory specification, a path that is not absolute is ignored.
    runtime.filter(|folder| folder.is_absolute())
}

/// The name of the user's private folder in the directory for temporary files: `/tmp/NAME-UID`.
pub fn temporary_folder(name: &str) -> PathBuf {
    let user = geteuid().as_raw();
    env::temp_dir().join(format!("{name}-{user}"))
}

/// Checks the folder of a socket, if it is the default one: anyone who could change the folder could host a
/// subnet in this user's name. A place that the user names is the user's choice.
///
/// Does not wait.
///
/// # Errors
/// [`PlaceError`].
pub fn check_default(socket: &Path) -> Result<(), PlaceError> {
    let (folder, default) = default_folder();
    if socket != default {
        return Ok(());
    }
    match check_own(&folder) {
        // Then there is no socket in it either; connecting to it reports that.
        Err(PlaceError::Unusable { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
            Ok(())
        }
        other => other,
    }
}

/// The same for a program that will host a subnet there: creates the folder in the directory for temporary files.
///
/// # Errors
/// [`PlaceError`].
pub fn make_default(socket: &Path) -> Result<(), PlaceError> {
    let (folder, default) = default_folder();
    if socket != default {
        return Ok(());
    }
    make_own(&folder)
}

/// Creates a folder that only this user can read, or checks that the existing one is such a folder.
///
/// # Errors
/// [`PlaceError`].
pub fn make_own(folder: &Path) -> Result<(), PlaceError> {
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(PlaceError::Unusable {
            path: folder.to_owned(),
            error,
        }),
        // A folder that was just created may be less open than requested, never more.
        _ => check_own(folder),
    }
}

/// Checks that only this user can read a folder: it is a folder and no symbolic link, this user owns it, and it
/// has no permission bits for others.
///
/// # Errors
/// [`PlaceError`].
pub fn check_own(folder: &Path) -> Result<(), PlaceError> {
    let path = || folder.to_owned();
    let found = fs::symlink_metadata(folder);
    let found = found.map_err(|error| PlaceError::Unusable {
        path: path(),
        error,
    })?;
    if !found.is_dir() {
        let kind = match found.file_type() {
            kind if kind.is_symlink() => "a symbolic link",
            kind if kind.is_file() => "a file",
            _ => "something else",
        };
        return Err(PlaceError::NoFolder { path: path(), kind });
    }
    let user = geteuid().as_raw();
    if found.uid() != user {
        return Err(PlaceError::Foreign {
            path: path(),
            owner: found.uid(),
            user,
        });
    }
    let mode = found.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(PlaceError::Open { path: path(), mode });
    }
    Ok(())
}

#[cfg(all(test, not(verbs_loom), not(miri)))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
    }

    /// Goal: a folder that others could change is refused, with a message that says what is wrong. Method: one of
    /// each kind; the system's own folder as another user's.
    #[test]
    fn only_a_folder_of_ones_own_will_do() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = place.path().join("own");
        make_own(&folder).expect("it is made");
        make_own(&folder).expect("it is there");
        let mode = fs::metadata(&folder).expect("it is there").mode();
        assert_eq!(mode & 0o7777, 0o700);
        for mode in [0o755, 0o770, 0o707, 0o1777, 0o710] {
            set_mode(&folder, mode);
            let refused = check_own(&folder).expect_err("others have access");
            assert!(refused.to_string().contains(&format!("{mode:04o}")));
        }
        set_mode(&folder, 0o700);

        let link = place.path().join("link");
        symlink(&folder, &link).expect("a link");
        let refused = make_own(&link).expect_err("a link leads elsewhere");
        assert!(refused.to_string().contains("a symbolic link"), "{refused}");
        let nowhere = place.path().join("nowhere");
        symlink(place.path().join("missing"), &nowhere).expect("a link");
        assert!(matches!(
            make_own(&nowhere),
            Err(PlaceError::NoFolder { .. })
        ));
        let file = place.path().join("file");
        fs::write(&file, "").expect("a file");
        let refused = make_own(&file).expect_err("a file is no folder");
        assert!(refused.to_string().contains("but a file"), "{refused}");
        let missing = place.path().join("missing").join("own");
        assert!(matches!(
            make_own(&missing),
            Err(PlaceError::Unusable { .. })
        ));

        let foreign = Path::new(if geteuid().is_root() { "/proc/1" } else { "/" });
        let owner = fs::metadata(foreign).expect("it is there").uid();
        if owner != geteuid().as_raw() {
            assert!(matches!(
                check_own(foreign),
                Err(PlaceError::Foreign { .. })
            ));
        }
    }

    #[test]
    fn another_users_folder_is_refused() {
        if !geteuid().is_root() {
            return;
        }
        let place = tempfile::tempdir().expect("a folder");
        let folder = place.path().join("own");
        make_own(&folder).expect("it is made");
        std::os::unix::fs::chown(&folder, Some(65_534), None).expect("root may");
        let refused = make_own(&folder).expect_err("it is another user's");
        assert!(refused.to_string().contains("user 65534"), "{refused}");
    }
}
