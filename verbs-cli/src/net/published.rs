//! What running programs of this command tell the user's other programs: each answers at a socket of its own, in a
//! folder that only the user can look into, and a reader asks all of them.
//!
//! A program that connects is sent JSON and the end. Neither side trusts the other with its time or memory: a program
//! gives up a reader that takes longer than [`SAYING`], and a reader gives up a program after [`PATIENCE`] or
//! [`SAID_MAX`] bytes, and all of them after [`PATIENCE_FOR_ALL`]. Which process has said something is what the
//! kernel says of the socket (`SO_PEERCRED`).

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process;
use std::time::{Duration, Instant};

use hca_sim::link::fabric::place::{PlaceError, make_own, runtime_folder, temporary_folder};
use rustix::net::sockopt::socket_peercred;
use serde::de::DeserializeOwned;
use verbs_core::sync::thread;

/// How long a program may take to say what it knows.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long all of them may take together.
const PATIENCE_FOR_ALL: Duration = Duration::from_secs(10);

/// How long a reader may take to read it: less than another one waits.
const SAYING: Duration = Duration::from_millis(500);

/// Bytes that one program may say.
const SAID_MAX: u64 = 16 << 20;

/// What others can ask as long as this is kept.
#[derive(Debug)]
pub(crate) struct Published(PathBuf);

impl Drop for Published {
    fn drop(&mut self) {
        // Another program may have cleared it away.
        let _gone = fs::remove_file(&self.0);
    }
}

/// Answers this user's other programs with what `say` returns, JSON, from now on; `None` where that cannot be, as
/// nothing else depends on it.
pub(crate) fn publish(
    name: &str,
    say: impl Fn() -> io::Result<Vec<u8>> + Send + 'static,
) -> Option<Published> {
    publish_in(&folder(name), name, say)
}

fn publish_in(
    folder: &Path,
    name: &str,
    say: impl Fn() -> io::Result<Vec<u8>> + Send + 'static,
) -> Option<Published> {
    make_own(folder).ok()?;
    let path = folder.join(process::id().to_string());
    // One of an earlier process of that number.
    let _stale = fs::remove_file(&path);
    let listener = UnixListener::bind(&path).ok()?;
    let builder = thread::Builder::new().name(name.into());
    let serving = builder.spawn(move || {
        for stream in listener.incoming() {
            match stream {
                Ok(stream) => drop(say().and_then(|text| tell(&stream, &text))),
                // Out of descriptors, most likely: there may be some later.
                Err(_) => thread::sleep(PATIENCE),
            }
        }
    });
    serving.ok().map(|_| Published(path))
}

/// What one process has said.
#[derive(Debug)]
pub(crate) struct Said<T> {
    pub(crate) pid: u32,
    pub(crate) what: T,
}

/// What all programs say, by the numbers of their processes. Those that say nothing sensible are left out.
pub(crate) fn ask_all<T: DeserializeOwned>(name: &str) -> io::Result<Vec<Said<T>>> {
    ask_all_in(&folder(name), PATIENCE)
}

fn ask_all_in<T: DeserializeOwned>(folder: &Path, patience: Duration) -> io::Result<Vec<Said<T>>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    // Another user that can write here could speak for any program.
    make_own(folder).map_err(<io::Error as From<PlaceError>>::from)?;
    let until = Instant::now() + PATIENCE_FOR_ALL;
    let mut said = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let now = Instant::now();
        if now >= until {
            break;
        }
        match ask(&path, until.min(now + patience)) {
            Ok(one) => said.push(one),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => clear(&path),
            // It has just ended, or does not say anything sensible.
            Err(_) => {}
        }
    }
    said.sort_by_key(|one| one.pid);
    Ok(said)
}

/// Takes away the socket of a program that was killed, and nothing else. Another may have cleared it away.
fn clear(path: &Path) {
    use std::os::unix::fs::FileTypeExt;
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        let _gone = fs::remove_file(path);
    }
}

fn ask<T: DeserializeOwned>(path: &Path, until: Instant) -> io::Result<Said<T>> {
    let mut stream = UnixStream::connect(path)?;
    let peer = socket_peercred(&stream)?;
    let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).map_err(io::Error::other)?;
    let mut text = Vec::new();
    let mut piece = vec![0; 64 << 10];
    loop {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(got) => text.extend_from_slice(&piece[..got]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if text.len() as u64 > SAID_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
    }
    let what = serde_json::from_slice(&text).map_err(io::Error::other)?;
    Ok(Said { pid, what })
}

fn tell(mut stream: &UnixStream, mut text: &[u8]) -> io::Result<()> {
    let until = Instant::now() + SAYING;
    while !text.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        match stream.write(text) {
            Ok(sent) => text = &text[sent..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The time that is left; an error when there is none.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    (!left.is_zero())
        .then_some(left)
        .ok_or_else(|| io::ErrorKind::TimedOut.into())
}

/// The folder of the sockets: in the user's runtime directory, or one of the user's own in that for temporary files.
fn folder(name: &str) -> PathBuf {
    match runtime_folder() {
        Some(folder) => folder.join(name),
        None => temporary_folder(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Long enough for a program on a busy machine.
    const SHORT: Duration = Duration::from_millis(700);

    fn one() -> io::Result<Vec<u8>> {
        Ok(b"[1,2,3]".to_vec())
    }

    /// A socket in the folder whose program does that with its readers.
    fn hostile(folder: &Path, name: &str, act: fn(UnixStream)) {
        let listener = UnixListener::bind(folder.join(name)).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || act(stream));
            }
        });
    }

    /// Goal: an honest program is heard among others that say nonsense, nothing, too much, or a byte now and
    /// then; the stale socket of a killed one goes, and a file that is no socket stays.
    #[test]
    fn hostile_writers_are_given_up() {
        let place = tempfile::tempdir().unwrap();
        let folder = &place.path().join("own");
        let _published = publish_in(folder, "test", one).unwrap();
        fs::write(folder.join("file"), "[1]").unwrap();
        drop(UnixListener::bind(folder.join("killed")).unwrap());
        hostile(folder, "nonsense", |mut s| drop(s.write_all(b"{{{{")));
        hostile(folder, "silent", |s| {
            thread::sleep(Duration::from_secs(60));
            drop(s);
        });
        hostile(folder, "drips", |mut s| {
            while s.write_all(b"[").is_ok() {
                thread::sleep(Duration::from_millis(50));
            }
        });
        hostile(folder, "floods", |mut s| {
            let piece = vec![b'['; 1 << 20];
            while s.write_all(&piece).is_ok() {}
        });
        let began = Instant::now();
        let said: Vec<Said<Vec<u8>>> = ask_all_in(folder, SHORT).unwrap();
        let [only] = &said[..] else {
            panic!("{said:?}");
        };
        assert_eq!((only.pid, &only.what[..]), (process::id(), &[1, 2, 3][..]));
        assert!(began.elapsed() < PATIENCE_FOR_ALL);
        assert!(folder.join("file").exists() && !folder.join("killed").exists());
    }

    /// Goal: a reader that never reads keeps no other from what the program says.
    #[test]
    fn hostile_readers_are_given_up() {
        let place = tempfile::tempdir().unwrap();
        let folder = &place.path().join("own");
        let much = || Ok(format!("\"{}\"", "x".repeat(4 << 20)).into_bytes());
        let _published = publish_in(folder, "test", much).unwrap();
        let path = folder.join(process::id().to_string());
        let _deaf = UnixStream::connect(&path).unwrap();
        let said: Vec<Said<String>> = ask_all_in(folder, Duration::from_secs(20)).unwrap();
        assert_eq!(said[0].what.len(), 4 << 20);
    }

    /// Goal: a folder that others can write to is not believed.
    #[test]
    fn a_folder_of_others_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(ask_all_in::<Vec<u8>>(place.path(), SHORT).is_err());
        assert!(publish_in(place.path(), "test", one).is_none());
        let nowhere = place.path().join("nowhere");
        assert!(ask_all_in::<Vec<u8>>(&nowhere, SHORT).unwrap().is_empty());
    }
}
