//! The daemon of this host, where there is one: processes that share its addresses.
//!
//! A daemon (`verbs host`) listens at a Unix socket: the one that the variable `VERBS_HOST_SOCKET` names; or one in the
//! user's runtime directory, `$XDG_RUNTIME_DIR/verbs-host-NETWORK`; or one in a folder of the user's own,
//! `/tmp/verbs-host-UID/host-NETWORK`. The last two are only used if their folder belongs to the user. `NETWORK` is the number
//! of the process's network namespace, whose addresses the daemon has: of programs in two of them, neither joins the
//! other's by mistake. If the variable is set and empty, the process joins no daemon.

#[doc(hidden)]
pub mod uplink;

use std::env;
use std::fs::read_link;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use verbs_core::host::list::Listed;
use verbs_core::host::message::No;
use verbs_core::process::variable;
use verbs_subnet::ipc::place::{PlaceError, check_own, make_own, runtime_folder, temporary_folder};
use verbs_subnet::ipc::socket::{connect_now, connect_to};

use crate::link::{JoinError, Joined, clients_of};

/// Names the socket of the daemon, or, if it is empty, says that there is none.
pub const VARIABLE: &str = "VERBS_HOST_SOCKET";

/// The process could not become a client of the daemon that its user named.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// No daemon listens at the socket that the user named.
    #[error("cannot reach the host's daemon at {}, which {VARIABLE} names: {error}; `verbs host` starts one", path.display())]
    Reach {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// There is a daemon, but the process could not become its client.
    #[error(transparent)]
    Join(#[from] JoinError),
}

/// Where a daemon listens by default: the folder, and the socket in it.
fn default_place() -> (PathBuf, PathBuf) {
    let network = network();
    if let Some(folder) = runtime_folder() {
        let socket = folder.join(format!("verbs-host{network}"));
        return (folder, socket);
    }
    let folder = temporary_folder("verbs-host");
    let socket = folder.join(format!("host{network}"));
    (folder, socket)
}

/// The end of a name that is for the network namespace of this process; nothing where the system does not say which it is.
fn network() -> String {
    let name = read_link("/proc/self/ns/net").unwrap_or_default();
    // As in `net:[4026531840]`.
    let name = name.to_string_lossy();
    let digits: String = name.chars().filter(char::is_ascii_digit).collect();
    match digits.is_empty() {
        true => digits,
        false => format!("-{digits}"),
    }
}

/// The socket that the variable names: `Some(None)` if it says that there is no daemon.
fn named() -> Option<Option<PathBuf>> {
    let value = variable(VARIABLE)?;
    Some((!value.is_empty()).then(|| value.into()))
}

/// Whether the user has said at which socket the daemon is, or that there is none.
pub fn is_named() -> bool {
    named().is_some()
}

/// Where a daemon that is started listens; its folder is made if it is the default one.
///
/// # Errors
/// [`PlaceError`] if the folder is not the user's own.
pub fn place_to_listen() -> Result<PathBuf, PlaceError> {
    if let Some(Some(path)) = named() {
        return Ok(path);
    }
    let (folder, socket) = default_place();
    make_own(&folder)?;
    Ok(socket)
}

/// Whether a daemon listens where programs look for one.
pub fn is_there() -> bool {
    let path = match named() {
        Some(path) => path,
        None => {
            let (folder, socket) = default_place();
            check_own(&folder).is_ok().then_some(socket)
        }
    };
    path.is_some_and(|path| connect_to(&path).is_ok())
}

/// Becomes a client of the host's daemon, if there is one and its port has all of these addresses; with no address, it
/// takes those of the daemon's port, whatever they are. If the daemon ends, it becomes a client of the next one at the same
/// socket. `None` if the process is to have addresses of its own.
///
/// Waits for the daemon's answer, which comes at once.
///
/// # Errors
/// [`HostError::Reach`] if there is no daemon although the variable names one; [`HostError::Join`] if it refuses for a
/// reason other than its addresses.
pub fn join(addresses: &[IpAddr]) -> Result<Option<Joined>, HostError> {
    let Some((socket, path, is_named)) = connect()? else {
        return Ok(None);
    };
    match Joined::join(socket, addresses, &program()) {
        Ok(link) => Ok(Some(link.rejoins(move || connect_now(&path)))),
        Err(JoinError::Refused(No::Addresses)) => Ok(None),
        Err(JoinError::Socket(_)) if !is_named => Ok(None),
        Err(error) => without_answer(error, path, is_named),
    }
}

/// What follows from that error of a daemon: one that is just ending is as one that had ended before.
fn without_answer<T>(
    error: JoinError,
    path: PathBuf,
    is_named: bool,
) -> Result<Option<T>, HostError> {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected, UnexpectedEof};
    let error = match error {
        JoinError::Socket(error) => error,
        error => return Err(error.into()),
    };
    match error.kind() {
        BrokenPipe | ConnectionReset | NotConnected | UnexpectedEof => match is_named {
            true => Err(HostError::Reach { path, error }),
            false => Ok(None),
        },
        _ => Err(JoinError::Socket(error).into()),
    }
}

/// The clients of the host's daemon, and what it knows of each; `None` if there is no daemon where programs look for one. The
/// process becomes no client.
///
/// Waits for the daemon's answers, which come at once.
///
/// # Errors
/// [`HostError::Reach`] if there is no daemon although the variable names one; [`HostError::Join`] if it does not answer.
pub fn clients() -> Result<Option<Vec<Listed>>, HostError> {
    let Some((socket, path, is_named)) = connect()? else {
        return Ok(None);
    };
    match clients_of(&socket) {
        Ok(clients) => Ok(Some(clients)),
        Err(error) => without_answer(error, path, is_named),
    }
}

/// Connects to the daemon, if there is one: the socket, where it listens, and whether the variable names that.
fn connect() -> Result<Option<(OwnedFd, PathBuf, bool)>, HostError> {
    let (path, is_named) = match named() {
        Some(None) => return Ok(None),
        Some(Some(path)) => (path, true),
        None => {
            let (folder, socket) = default_place();
            // Another user's daemon is not for this process.
            if check_own(&folder).is_err() {
                return Ok(None);
            }
            (socket, false)
        }
    };
    match connect_to(&path) {
        Ok(socket) => Ok(Some((socket, path, is_named))),
        Err(_) if !is_named => Ok(None),
        Err(error) => {
            let error = error.into();
            Err(HostError::Reach { path, error })
        }
    }
}

/// The name of this program.
fn program() -> String {
    let path = env::args_os().next().unwrap_or_default();
    let name = Path::new(&path).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// Goal: programs in two network namespaces do not meet at one daemon, whose addresses only one of them has.
    #[test]
    fn a_default_place_is_for_one_network() {
        let namespace = fs::metadata("/proc/self/ns/net").expect("Linux has one");
        let (folder, socket) = default_place();
        assert!(socket.starts_with(&folder), "{socket:?}");
        let name = socket.file_name().expect("a file").to_string_lossy();
        assert!(
            name.ends_with(&format!("host-{}", namespace.ino())),
            "{name}"
        );
    }
}
