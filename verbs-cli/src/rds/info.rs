//! `verbs rds info`: programs of this command show what their nodes know at a socket of this user's, and this asks all
//! of them.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use hca_sim::link::fabric::place::{PlaceError, make_own, runtime_folder, temporary_folder};
use serde::{Deserialize, Serialize};
use ulp_rds::Node;
use verbs_core::sync::thread;

use super::RdsError;
use super::args::InfoArgs;
use super::report::{show_json, write};

/// How long a program may take to say what it knows.
const PATIENCE: Duration = Duration::from_secs(2);

/// Bytes that one program may say.
const SAID_MAX: u64 = 16 << 20;

/// What one program knows.
#[derive(Debug, Serialize, Deserialize)]
struct Program {
    pid: u32,
    sockets: Vec<SocketAddr>,
    connections: Vec<Connection>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Connection {
    local: IpAddr,
    remote: IpAddr,
    tos: u8,
    state: String,
    queued: usize,
    unacked: usize,
    received: u64,
    duplicates: u64,
    packets: u64,
    connects: u64,
    losses: u64,
    pings_dropped: u64,
    peer_restarts: u64,
}

impl Program {
    fn of(node: &Node) -> Self {
        let connections = node.connections().into_iter().map(|of| Connection {
            local: of.local,
            remote: of.remote,
            tos: of.tos,
            state: format!("{:?}", of.state).to_lowercase(),
            queued: of.queued,
            unacked: of.unacked,
            received: of.counts.received,
            duplicates: of.counts.duplicates,
            packets: of.counts.packets,
            connects: of.counts.connects,
            losses: of.counts.losses,
            pings_dropped: of.counts.pings_dropped,
            peer_restarts: of.counts.peer_restarts,
        });
        Self {
            pid: process::id(),
            sockets: node.sockets(),
            connections: connections.collect(),
        }
    }
}

/// The folder of the sockets: in the user's runtime directory, or one of the user's own in that for temporary files.
fn folder() -> PathBuf {
    match runtime_folder() {
        Some(folder) => folder.join("verbs-rds"),
        None => temporary_folder("verbs-rds"),
    }
}

/// What others can ask as long as this is kept.
pub(super) struct Published(PathBuf);

impl Drop for Published {
    fn drop(&mut self) {
        // Another program may have cleared it away.
        let _gone = fs::remove_file(&self.0);
    }
}

/// Shows what a node knows to this user's other programs; `None` where that cannot be, as nothing else depends on it.
pub(super) fn publish(node: &Node) -> Option<Published> {
    let folder = folder();
    make_own(&folder).ok()?;
    let path = folder.join(process::id().to_string());
    // One of an earlier process of that number.
    let _stale = fs::remove_file(&path);
    let listener = UnixListener::bind(&path).ok()?;
    let node = node.clone();
    let builder = thread::Builder::new().name("rds info".into());
    let serving = builder.spawn(move || {
        for stream in listener.incoming() {
            match stream {
                Ok(stream) => drop(say(&node, stream)),
                // Out of descriptors, most likely: there may be some later.
                Err(_) => thread::sleep(PATIENCE),
            }
        }
    });
    serving.ok().map(|_| Published(path))
}

fn say(node: &Node, mut stream: UnixStream) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let text = serde_json::to_vec(&Program::of(node)).map_err(io::Error::other)?;
    stream.write_all(&text)
}

pub(super) fn run(args: &InfoArgs, out: &mut (dyn Write + Send)) -> Result<(), RdsError> {
    let programs = ask_all(&folder()).map_err(RdsError::system("look for running programs"))?;
    if args.json {
        return show_json(out, &programs);
    }
    if programs.is_empty() {
        return write(out, &"no program of `verbs rds` is running");
    }
    for program in &programs {
        write(out, &format_args!("process {}", program.pid))?;
        for socket in &program.sockets {
            write(out, &format_args!("  socket {socket}"))?;
        }
        for of in &program.connections {
            let Connection {
                local,
                remote,
                tos,
                state,
                ..
            } = of;
            write(
                out,
                &format_args!(
                    "  connection {local} to {remote}, type of service {tos}: {state}; {} queued, {} unacknowledged; \
                     {} messages and {} packets; made {} times, lost {}; {} duplicates dropped, {} pings unanswered, \
                     peer restarted {} times",
                    of.queued,
                    of.unacked,
                    of.received,
                    of.packets,
                    of.connects,
                    of.losses,
                    of.duplicates,
                    of.pings_dropped,
                    of.peer_restarts
                ),
            )?;
        }
    }
    Ok(())
}

/// What all programs say, by their numbers.
fn ask_all(folder: &Path) -> io::Result<Vec<Program>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    // Another user that can write here could speak for any program.
    make_own(folder).map_err(<io::Error as From<PlaceError>>::from)?;
    let mut programs = Vec::new();
    for entry in entries {
        let path = entry?.path();
        match ask(&path) {
            Ok(program) => programs.push(program),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                // It was killed. Another `info` may have cleared it away.
                let _gone = fs::remove_file(&path);
            }
            // It has just ended, or does not say anything sensible.
            Err(_) => {}
        }
    }
    programs.sort_by_key(|program| program.pid);
    Ok(programs)
}

fn ask(path: &Path) -> io::Result<Program> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = Vec::new();
    stream.take(SAID_MAX).read_to_end(&mut text)?;
    serde_json::from_slice(&text).map_err(io::Error::other)
}
