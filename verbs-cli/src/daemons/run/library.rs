//! Where the library is.

use std::env;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// What programs are linked against.
const NAME: &str = "libibverbs.so.1";
/// The same library's other name.
const CM_NAME: &str = "librdmacm.so.1";
/// What cargo calls it.
const BUILT: &str = "libibverbs.so";
/// What makes rsockets of a program's sockets.
const PRELOAD: &str = "librspreload.so";

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
    #[error("cannot give the library its name in {}: {error}", folder.display())]
    Link { folder: PathBuf, error: io::Error },
    #[error("cannot tell where this program is: {0}")]
    Program(io::Error),
}

/// The folder that has the library under its name: the one named; or else, beside this program, one of an
/// installation (`../lib/verbs`), or one that is made for a library that cargo has built there.
pub(super) fn folder(named: Option<&Path>) -> Result<PathBuf, LibraryError> {
    let folder = match named {
        Some(folder) => {
            let whole = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
            if !whole.join(NAME).exists() {
                return Err(LibraryError::NotThere(whole));
            }
            whole
        }
        None => beside(&env::current_exe().map_err(LibraryError::Program)?)?,
    };
    if folder.as_os_str().as_encoded_bytes().contains(&b':') {
        return Err(LibraryError::Colon(folder));
    }
    Ok(folder)
}

/// The library to preload: in that folder, or above it where cargo has built it.
pub(super) fn preload(folder: &Path) -> Result<PathBuf, LibraryError> {
    let above = folder.parent().unwrap_or(folder);
    let places = [folder, above].map(|place| place.join(PRELOAD));
    let found = places.into_iter().find(|place| place.exists());
    found.ok_or_else(|| LibraryError::NoPreload(folder.to_owned()))
}

fn beside(program: &Path) -> Result<PathBuf, LibraryError> {
    let here = program.parent().unwrap_or(program);
    let installed = here.parent().unwrap_or(here).join("lib/verbs");
    if installed.join(NAME).exists() {
        return Ok(installed);
    }
    let built = here.join(BUILT);
    if !built.exists() {
        return Err(LibraryError::NotFound(program.to_owned()));
    }
    let folder = here.join("verbs-run");
    let failed = |error| LibraryError::Link {
        folder: folder.clone(),
        error,
    };
    std::fs::create_dir_all(&folder).map_err(failed)?;
    for name in [NAME, CM_NAME] {
        match symlink(Path::new("..").join(BUILT), folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed(error));
            }
            _ => {}
        }
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_was_built_gets_its_name() {
        let place = tempfile::tempdir().expect("a directory");
        let program = place.path().join("verbs");
        let refused = beside(&program).expect_err("nothing was built");
        assert!(
            refused.to_string().contains("cargo build -p verbs-ibverbs"),
            "{refused}"
        );
        std::fs::write(place.path().join(BUILT), "library").expect("room");
        for _ in 0..2 {
            let folder = beside(&program).expect("it is there");
            for name in [NAME, CM_NAME] {
                let read = std::fs::read_to_string(folder.join(name)).expect("a link to it");
                assert_eq!(read, "library");
            }
        }
    }

    #[test]
    fn the_library_to_preload_is_beside_the_other_or_where_it_was_built() {
        let place = tempfile::tempdir().expect("a directory");
        let folder = place.path().join("verbs-run");
        std::fs::create_dir_all(&folder).expect("room");
        let refused = preload(&folder).expect_err("nothing was built");
        assert!(refused.to_string().contains("verbs-rspreload"), "{refused}");
        for home in [place.path(), &folder] {
            std::fs::write(home.join(PRELOAD), "library").expect("room");
            assert_eq!(preload(&folder).expect("it is there"), home.join(PRELOAD));
        }
    }

    #[test]
    fn an_installed_one_comes_first_and_a_named_one_must_be_there() {
        let place = tempfile::tempdir().expect("a directory");
        let (bin, lib) = (place.path().join("bin"), place.path().join("lib/verbs"));
        for folder in [&bin, &lib] {
            std::fs::create_dir_all(folder).expect("room");
        }
        std::fs::write(bin.join(BUILT), "built").expect("room");
        std::fs::write(lib.join(NAME), "installed").expect("room");
        assert_eq!(beside(&bin.join("verbs")).expect("it is there"), lib);
        assert_eq!(folder(Some(&lib)).expect("it is there"), lib);
        assert!(matches!(folder(Some(&bin)), Err(LibraryError::NotThere(_))));
    }
}
