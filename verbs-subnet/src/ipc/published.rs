//! What running programs tell the user's other programs: each answers at a socket of its own, in a folder that only the user
//! can look into, and a reader asks all of them.
//!
//! A program that connects is sent a text and the end. Neither side trusts the other with its time or memory: a program
//! gives up a reader that takes longer than half a second, and a reader gives up a program after two seconds or 16 MiB, and all
//! of them after ten seconds. Which process has said something is what the kernel says of the socket (`SO_PEERCRED`).

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::net::{Shutdown, shutdown};
use verbs_core::process::spawn_without_signals;
use verbs_core::time::Instant;
use verbs_link::time::Clock;

use super::place::{PlaceError, make_own, runtime_folder, temporary_folder};

/// How long a program may take to say what it knows.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long all of them may take together.
const PATIENCE_FOR_ALL: Duration = Duration::from_secs(10);

/// How long a reader may take to read it: less than another one waits.
const SAYING: Duration = Duration::from_millis(500);

/// Bytes that one program may say.
const SAID_MAX: u64 = 16 << 20;

/// What others can ask as long as this is kept. Dropping it ends the thread that answers.
#[derive(Debug)]
pub struct Published {
    path: PathBuf,
    /// Of the socket's name, which another one may have taken.
    inode: u64,
    listener: UnixListener,
}

impl Published {
    /// Takes the socket's name away, for a process that ends without dropping this.
    pub fn withdraw(&self) {
        // Another program may have cleared it away, and this one have published again.
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _gone = fs::remove_file(&self.path);
        }
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        self.withdraw();
        // Who waits for readers there is told that none comes.
        let _ended = shutdown(&self.listener, Shutdown::Both);
    }
}

/// Answers this user's other programs with what `say` returns from now on, on a thread of its own; `None` where that cannot
/// be, as nothing else depends on it. The name is that of the folder; a process has one socket in each.
pub fn publish(
    name: &str,
    say: impl Fn() -> io::Result<Vec<u8>> + Send + 'static,
) -> Option<Published> {
    publish_in(&folder(name), name, say)
}

/// As [`publish`], in that folder.
#[doc(hidden)]
pub fn publish_in(
    folder: &Path,
    name: &str,
    say: impl Fn() -> io::Result<Vec<u8>> + Send + 'static,
) -> Option<Published> {
    make_own(folder).ok()?;
    let path = folder.join(process::id().to_string());
    // One of an earlier process of that number.
    let _stale = fs::remove_file(&path);
    let listener = UnixListener::bind(&path).ok()?;
    let inode = fs::symlink_metadata(&path).ok()?.ino();
    let answering = listener.try_clone().ok()?;
    let spare = listener.try_clone().ok()?;
    let serving = spawn_without_signals(name, move || answer(&answering, spare, say));
    serving.ok().map(|_| Published {
        path,
        inode,
        listener,
    })
}

/// Answers until the socket is shut down. The spare descriptor is given up for who comes when there are no others, and learns
/// nothing then.
fn answer(listener: &UnixListener, spare: UnixListener, say: impl Fn() -> io::Result<Vec<u8>>) {
    let mut spare = Some(spare);
    for stream in listener.incoming() {
        match stream {
            Ok(stream) if spare.is_some() => drop(say().and_then(|text| tell(&stream, &text))),
            Ok(stream) => {
                drop(stream);
                spare = listener.try_clone().ok();
            }
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                // There are no descriptors left, most likely.
                _ if spare.take().is_some() => {}
                _ => break,
            },
        }
    }
}

/// What one process has said.
#[derive(Debug)]
pub struct Said<T> {
    /// Its number, as the kernel says of the socket.
    pub pid: u32,
    /// What it has said.
    pub what: T,
}

/// What all programs say, by the numbers of their processes. Those of which `read` makes nothing are left out.
///
/// # Errors
/// The folder cannot be read, or others than the user can write to it.
pub fn ask_all<T>(name: &str, read: impl Fn(&[u8]) -> Option<T>) -> io::Result<Vec<Said<T>>> {
    ask_all_in(&folder(name), PATIENCE, read)
}

/// As [`ask_all`], in that folder, and with that much time for each.
///
/// # Errors
/// As there.
#[doc(hidden)]
pub fn ask_all_in<T>(
    folder: &Path,
    patience: Duration,
    read: impl Fn(&[u8]) -> Option<T>,
) -> io::Result<Vec<Said<T>>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    // Another user that can write here could speak for any program.
    make_own(folder).map_err(<io::Error as From<PlaceError>>::from)?;
    let clock = Clock::wall();
    let until = clock.now() + PATIENCE_FOR_ALL;
    let mut said = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let now = clock.now();
        if now >= until {
            break;
        }
        match ask(&path, &clock, until.min(now + patience)) {
            Ok(Said { pid, what }) => {
                said.extend(read(&what).map(|what| Said { pid, what }));
            }
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
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        let _gone = fs::remove_file(path);
    }
}

fn ask(path: &Path, clock: &Clock, until: Instant) -> io::Result<Said<Vec<u8>>> {
    let mut stream = UnixStream::connect(path)?;
    let peer = socket_peercred(&stream)?;
    let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).map_err(io::Error::other)?;
    let mut text = Vec::new();
    let mut piece = vec![0; 64 << 10];
    loop {
        stream.set_read_timeout(Some(left(clock, until)?))?;
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
    Ok(Said { pid, what: text })
}

fn tell(mut stream: &UnixStream, mut text: &[u8]) -> io::Result<()> {
    let clock = Clock::wall();
    let until = clock.now() + SAYING;
    while !text.is_empty() {
        stream.set_write_timeout(Some(left(&clock, until)?))?;
        match stream.write(text) {
            Ok(sent) => text = &text[sent..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The time that is left; an error when there is none.
fn left(clock: &Clock, until: Instant) -> io::Result<Duration> {
    let left = until.since(clock.now());
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
