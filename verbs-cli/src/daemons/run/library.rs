//! Where the library is.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use hca_sim::link::fabric::place::{self, PlaceError};
use rustix::process::geteuid;

use super::inside;

/// What programs are linked against.
pub(super) const NAME: &str = "libibverbs.so.1";
/// The same library's other name.
pub(super) const CM_NAME: &str = "librdmacm.so.1";
/// What cargo calls it.
const BUILT: &str = "libibverbs.so";
/// What makes rsockets of a program's sockets.
pub(super) const PRELOAD: &str = "librspreload.so";

/// There is no library to run programs on. One sentence without its full stop.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LibraryError {
    #[error("there is no {NAME} in {}", .0.display())]
    NotThere(PathBuf),
    #[error(
        "there is no library beside {}: build it with cargo build -p verbs-ibverbs, or name its folder with \
         --library",
        .0.display()
    )]
    NotFound(PathBuf),
    #[error("the name of the folder {} has a colon, which library paths cannot have", .0.display())]
    Colon(PathBuf),
    #[error(
        "there is no {PRELOAD} in {}: build it with cargo build -p verbs-rspreload", .0.display()
    )]
    NoPreload(PathBuf),
    #[error(
        "cannot give the library its name: {}. Set XDG_RUNTIME_DIR or TMPDIR to a folder that this user may write, or \
         name one that has {NAME} with --library",
        .0.join("; ")
    )]
    Link(Vec<String>),
    #[error(
        "{} belongs to user {owner}, and is not loaded: it must be root's or user {user}'s own. Name its folder with \
         --library if it is the right one",
        path.display()
    )]
    Foreign {
        path: PathBuf,
        owner: u32,
        user: u32,
    },
    #[error("cannot tell where this program is: {0}")]
    Program(io::Error),
}

/// The folder that has the library under its name: the one named; or else, beside this program, one of an
/// installation (`../lib/verbs`), or one that is made for a library that cargo has built there; or else those inside this program.
///
/// What is found beside the program is loaded only if nobody but root, this user or the owner of the program itself could have
/// put it there.
pub(super) fn folder(named: Option<&Path>) -> Result<PathBuf, LibraryError> {
    let folder = match named {
        Some(folder) => {
            let whole = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
            if !whole.join(NAME).exists() {
                return Err(LibraryError::NotThere(whole));
            }
            whole
        }
        None => {
            let program = env::current_exe().map_err(LibraryError::Program)?;
            let private = private_folders();
            match beside(&program, &private) {
                Err(LibraryError::NotFound(program)) => {
                    let inside = inside::unpacked(&private);
                    inside.unwrap_or(Err(LibraryError::NotFound(program)))?
                }
                found => found?,
            }
        }
    };
    if folder.as_os_str().as_encoded_bytes().contains(&b':') {
        return Err(LibraryError::Colon(folder));
    }
    Ok(folder)
}

/// The library to preload: in that folder, above it, or where cargo has built the one that the folder has.
pub(super) fn preload(folder: &Path) -> Result<PathBuf, LibraryError> {
    let above = folder.parent().unwrap_or(folder);
    let library = fs::canonicalize(folder.join(NAME)).ok();
    let built = library.as_deref().and_then(Path::parent);
    let mut places = [Some(folder), Some(above), built].into_iter().flatten();
    let found = places.find_map(|place| Some(place.join(PRELOAD)).filter(|path| path.exists()));
    let found = found.ok_or_else(|| LibraryError::NoPreload(folder.to_owned()))?;
    match built {
        // Whoever put the library there is trusted as far.
        Some(built) if found.starts_with(built) => Ok(found),
        _ => trusted(found, folder),
    }
}

/// Folders that are this user's own, made if they are not there, which have the names of libraries that lie where the user may
/// not write: `$XDG_RUNTIME_DIR/verbs`, and `verbs-run-UID` in the folder for temporary files.
fn private_folders() -> Vec<PathBuf> {
    let runtime = place::runtime_folder().map(|folder| folder.join("verbs"));
    let temporary = place::temporary_folder("verbs-run");
    runtime.into_iter().chain([temporary]).collect()
}

fn beside(program: &Path, private: &[PathBuf]) -> Result<PathBuf, LibraryError> {
    let here = program.parent().unwrap_or(program);
    let installed = here.parent().unwrap_or(here).join("lib/verbs");
    let mut refused = None;
    if installed.join(NAME).exists() {
        let checked = trusted(installed.join(NAME), program);
        match checked.and_then(|_| trusted(installed, program)) {
            Ok(installed) => return Ok(installed),
            // Another one may lie right beside the program.
            Err(error) => refused = Some(error),
        }
    }
    let built = here.join(BUILT);
    if !built.exists() {
        return Err(refused.unwrap_or_else(|| LibraryError::NotFound(program.to_owned())));
    }
    let built = trusted(built, program)?;
    named(&built, program, private)
}

/// A folder in which the library has its names: the one beside it, which may be there already, or one of this user's own.
fn named(built: &Path, program: &Path, private: &[PathBuf]) -> Result<PathBuf, LibraryError> {
    let here = built.parent().unwrap_or(built);
    let ready = here.join("verbs-run");
    let mut why = Vec::new();
    let made = match ready.symlink_metadata() {
        Ok(_) => trusted(ready.clone(), program).map_err(|error| error.to_string()),
        Err(_) => fs::create_dir(&ready)
            .map(|()| ready.clone())
            .map_err(|error| format!("{}: {error}", ready.display())),
    };
    // The folders move together: one that was copied with the library still names it.
    let target = Path::new("..").join(BUILT);
    match made.and_then(|folder| link(&folder, &target, built).map(|()| folder)) {
        Ok(folder) => return Ok(folder),
        Err(error) => why.push(error),
    }
    let name = format!("{:016x}", number_of(built));
    in_first(private, &name, why, |folder| link(folder, built, built))
}

/// Has `fill` put something into a folder of that name, in the first of these folders of the user's own where that succeeds.
/// Each library has a folder of its own: programs that run keep theirs. `why` says what was tried before.
pub(super) fn in_first(
    private: &[PathBuf],
    name: &str,
    mut why: Vec<String>,
    fill: impl Fn(&Path) -> Result<(), String>,
) -> Result<PathBuf, LibraryError> {
    for folder in private {
        let of_it = folder.join(name);
        let made = own(folder)
            .and_then(|()| own(&of_it))
            .and_then(|()| fill(&of_it));
        match made {
            Ok(()) => return Ok(of_it),
            Err(error) => why.push(error),
        }
    }
    Err(LibraryError::Link(why))
}

/// Makes a folder that only this user can use, or checks that it is one.
fn own(folder: &Path) -> Result<(), String> {
    place::make_own(folder).map_err(|error| match error {
        PlaceError::Unusable { path, error } => format!("{}: {error}", path.display()),
        error @ PlaceError::Open { .. } => error.to_string(),
        _ => format!("{} is no folder of this user's own", folder.display()),
    })
}

/// Gives the library its names in a folder, unless it has them there.
pub(super) fn link(folder: &Path, target: &Path, built: &Path) -> Result<(), String> {
    for name in [NAME, CM_NAME] {
        let path = folder.join(name);
        if is_same(&path, built) {
            continue;
        }
        // A name of another library, or of one that has gone.
        let _gone = fs::remove_file(&path);
        match symlink(target, &path) {
            // Another program was faster.
            Err(_) if is_same(&path, built) => {}
            Err(error) => return Err(format!("{}: {error}", path.display())),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Whether both are names of one file.
fn is_same(one: &Path, other: &Path) -> bool {
    let file = |path: &Path| {
        let found = fs::metadata(path).ok()?;
        Some((found.dev(), found.ino()))
    };
    file(one).is_some_and(|one| file(other) == Some(one))
}

/// A number for a path. The names in a folder are compared with what they stand for, so that it need not be another one for each.
fn number_of(path: &Path) -> u64 {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut hasher = DefaultHasher::new();
    whole.hash(&mut hasher);
    hasher.finish()
}

/// The path, if what is there belongs to root, to this user, or to the owner of `program`, who could change that as well.
fn trusted(path: PathBuf, program: &Path) -> Result<PathBuf, LibraryError> {
    let owner = |path: &Path| fs::metadata(path).ok().map(|found| found.uid());
    let user = geteuid().as_raw();
    match owner(&path) {
        Some(owner_of_it)
            if owner_of_it != 0 && owner_of_it != user && owner(program) != Some(owner_of_it) =>
        {
            Err(LibraryError::Foreign {
                path,
                owner: owner_of_it,
                user,
            })
        }
        _ => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_library_that_was_built_gets_its_name() {
        let place = tempfile::tempdir().expect("a directory");
        let program = place.path().join("verbs");
        let refused = beside(&program, &[]).expect_err("nothing was built");
        assert!(
            refused.to_string().contains("cargo build -p verbs-ibverbs"),
            "{refused}"
        );
        fs::write(place.path().join(BUILT), "library").expect("room");
        for _ in 0..2 {
            let folder = beside(&program, &[]).expect("it is there");
            for name in [NAME, CM_NAME] {
                let read = fs::read_to_string(folder.join(name)).expect("a link to it");
                assert_eq!(read, "library");
            }
        }
    }

    /// A folder that this user may not write, whoever runs the test: no folder can be made in a file.
    fn closed(place: &Path) -> PathBuf {
        let program = place.join("verbs");
        fs::write(place.join(BUILT), "library").expect("room");
        fs::write(place.join("verbs-run"), "no folder").expect("room");
        program
    }

    /// Goal: a library that lies where the user may not write is found under its names all the same. Method: places that
    /// are no folders; private folders, of which the first cannot be made.
    #[test]
    fn names_go_where_the_user_may_write() {
        let place = tempfile::tempdir().expect("a directory");
        let program = closed(place.path());
        let private = [place.path().join("missing/own"), place.path().join("own")];
        let folder = beside(&program, &private).expect("the second");
        assert_eq!(folder.parent(), Some(&*private[1]));
        for folder in [&folder, &private[1]] {
            let mode = fs::metadata(folder).expect("it is made").mode();
            assert_eq!(mode & 0o7777, 0o700, "{}", folder.display());
        }
        for name in [NAME, CM_NAME] {
            let read = fs::read_to_string(folder.join(name)).expect("a link to it");
            assert_eq!(read, "library");
        }
        assert_eq!(beside(&program, &private).expect("again"), folder);
        // A name that has come to stand for another library is put right.
        fs::remove_file(folder.join(NAME)).expect("it is there");
        fs::write(folder.join(NAME), "another").expect("room");
        beside(&program, &private).expect("again");
        let read = fs::read_to_string(folder.join(NAME)).expect("a link to it");
        assert_eq!(read, "library");
        fs::write(place.path().join(PRELOAD), "sockets").expect("room");
        let preload = preload(&folder).expect("beside what it was built with");
        assert!(is_same(&preload, &place.path().join(PRELOAD)));
    }

    #[test]
    fn who_may_write_nowhere_is_told_what_to_do() {
        let place = tempfile::tempdir().expect("a directory");
        let program = closed(place.path());
        let open = place.path().join("open");
        fs::create_dir(&open).expect("room");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).expect("ours");
        let refused = beside(&program, &[open, place.path().join("missing/own")]);
        let refused = refused.expect_err("nothing can be written").to_string();
        for part in ["verbs-run", "0755", "missing", "TMPDIR", "--library"] {
            assert!(refused.contains(part), "{part} is missing: {refused}");
        }
    }

    /// Goal: what another user has put beside the program is not loaded. Method: folders and files of user 65534, which root can
    /// make; the program's own owner is trusted as the program is.
    #[test]
    fn another_users_library_is_refused() {
        if !geteuid().is_root() {
            return;
        }
        let give = |path: &Path| std::os::unix::fs::chown(path, Some(65_534), None).expect("may");
        let place = tempfile::tempdir().expect("a directory");
        let (bin, lib) = (place.path().join("bin"), place.path().join("lib/verbs"));
        for folder in [&bin, &lib] {
            fs::create_dir_all(folder).expect("room");
        }
        let program = bin.join("verbs");
        fs::write(&program, "program").expect("room");
        fs::write(lib.join(NAME), "installed").expect("room");
        give(&lib);
        let refused = beside(&program, &[]).expect_err("the folder is another's");
        assert!(refused.to_string().contains("user 65534"), "{refused}");
        give(&lib.join(NAME));
        assert!(beside(&program, &[]).is_err());
        // The one beside the program is taken, and not in another's folder.
        fs::write(bin.join(BUILT), "built").expect("room");
        fs::create_dir(bin.join("verbs-run")).expect("room");
        give(&bin.join("verbs-run"));
        let own = place.path().join("own");
        let folder = beside(&program, std::slice::from_ref(&own)).expect("the one beside it");
        assert!(folder.starts_with(&own), "{}", folder.display());
        give(&bin.join(BUILT));
        assert!(matches!(
            beside(&program, &[own]),
            Err(LibraryError::Foreign { .. })
        ));
        give(&program);
        assert_eq!(
            beside(&program, &[]).expect("all of it is the same user's"),
            lib
        );
    }

    #[test]
    fn the_library_to_preload_is_beside_the_other_or_where_it_was_built() {
        let place = tempfile::tempdir().expect("a directory");
        let folder = place.path().join("verbs-run");
        fs::create_dir_all(&folder).expect("room");
        let refused = preload(&folder).expect_err("nothing was built");
        assert!(refused.to_string().contains("verbs-rspreload"), "{refused}");
        for home in [place.path(), &folder] {
            fs::write(home.join(PRELOAD), "library").expect("room");
            assert_eq!(preload(&folder).expect("it is there"), home.join(PRELOAD));
        }
    }

    #[test]
    fn an_installed_one_comes_first_and_a_named_one_must_be_there() {
        let place = tempfile::tempdir().expect("a directory");
        let (bin, lib) = (place.path().join("bin"), place.path().join("lib/verbs"));
        for folder in [&bin, &lib] {
            fs::create_dir_all(folder).expect("room");
        }
        fs::write(bin.join(BUILT), "built").expect("room");
        fs::write(lib.join(NAME), "installed").expect("room");
        assert_eq!(beside(&bin.join("verbs"), &[]).expect("it is there"), lib);
        assert_eq!(folder(Some(&lib)).expect("it is there"), lib);
        assert!(matches!(folder(Some(&bin)), Err(LibraryError::NotThere(_))));
    }
}
