//! `verbs host`, started for a program that is to share an address.

use std::env;
use std::io::{self, BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hca_sim::link::host::is_there;
use verbs_core::sync::thread;

use crate::exit;

/// How long the daemon stays after its last program.
const LINGER_S: &str = "10";

/// How long another daemon may take that is just starting, or ending.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often is looked whether it is there.
const LOOK: Duration = Duration::from_millis(2);

/// What has come of a start.
enum Started {
    Listens,
    /// Another daemon is starting at the same time, or ending; what this one says of it.
    Another(String),
}

/// Starts a daemon on that address, unless one runs. Returns when programs can join it, or why none can. Several programs
/// that are started at the same time have one daemon.
pub(super) fn start(address: Option<IpAddr>) -> Result<(), String> {
    let address = address.unwrap_or(Ipv4Addr::LOCALHOST.into());
    let begun = Instant::now();
    loop {
        if is_there() {
            return Ok(());
        }
        match attempt(address)? {
            Started::Listens => return Ok(()),
            Started::Another(why) if begun.elapsed() >= PATIENCE => return Err(why),
            Started::Another(_) => thread::sleep(LOOK),
        }
    }
}

fn attempt(address: IpAddr) -> Result<Started, String> {
    let failed = |error: io::Error| error.to_string();
    let program = env::current_exe().map_err(failed)?;
    let mut daemon = Command::new(program)
        .args(["host", "--linger", LINGER_S, "--bind", &address.to_string()])
        // It goes on after the program, and keeps no folder busy.
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // What ends the program, such as a key of its terminal, does not end the daemon under others.
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    let mut first = String::new();
    if let Some(stdout) = daemon.stdout.take() {
        // Its first line says that it listens; without one it has ended.
        BufReader::new(stdout)
            .read_line(&mut first)
            .map_err(failed)?;
    }
    if !first.is_empty() {
        return Ok(Started::Listens);
    }
    let mut why = String::new();
    if let Some(mut stderr) = daemon.stderr.take() {
        stderr.read_to_string(&mut why).map_err(failed)?;
    }
    let why = why.trim_end();
    let why = why.strip_prefix("verbs host: ").unwrap_or(why).to_owned();
    let ended = daemon.wait().map_err(failed)?;
    match ended.code() == Some(exit::RUNNING.into()) {
        true => Ok(Started::Another(why)),
        false => Err(why),
    }
}
