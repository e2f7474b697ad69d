//! `verbs host`, started for a program that is to share an address.

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use hca_sim::link::host::is_there;

/// How long the daemon stays after its last program.
const LINGER_S: &str = "10";

/// Starts a daemon on that address, unless one runs. Returns when programs can join it, or why none can.
pub(super) fn start(address: Option<IpAddr>) -> Result<(), String> {
    if is_there() {
        return Ok(());
    }
    let address = address.unwrap_or(Ipv4Addr::LOCALHOST.into());
    let failed = |error: std::io::Error| error.to_string();
    let program = env::current_exe().map_err(failed)?;
    let mut daemon = Command::new(program)
        .args(["host", "--linger", LINGER_S, "--bind", &address.to_string()])
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
    if !first.is_empty() || is_there() {
        return Ok(());
    }
    let mut why = String::new();
    if let Some(mut stderr) = daemon.stderr.take() {
        stderr.read_to_string(&mut why).map_err(failed)?;
    }
    let _ended = daemon.wait();
    let why = why.trim_end();
    Err(why.strip_prefix("verbs host: ").unwrap_or(why).to_owned())
}
