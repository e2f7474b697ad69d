//! The daemon of a host, which its keeper starts.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Pid;

/// The state of a process, and its parent; `None` if there is none.
fn stat(process: &str) -> Option<(String, String)> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // They are behind its name, which may have anything in it.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').map(str::to_owned);
    fields.next().zip(fields.next())
}

/// Whether a process goes on.
pub(crate) fn is_alive(process: Pid) -> bool {
    let stat = stat(&process.as_raw_nonzero().to_string());
    stat.is_some_and(|(state, _)| state != "Z")
}

/// The daemon that is kept by that process; `None` while there is none.
pub(crate) fn kept_by(keeper: u32) -> Option<Pid> {
    let processes = fs::read_dir("/proc").expect("Linux has one");
    let names = processes.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let parent = keeper.to_string();
    let mut kept = names.filter(|name| {
        let stat = stat(name);
        stat.is_some_and(|(state, of)| state != "Z" && of == parent)
    });
    kept.find_map(|name| Pid::from_raw(name.parse().ok()?))
}

/// The same, once there is one, and it is not `last`.
pub(crate) fn next_kept_by(keeper: u32, last: Option<Pid>) -> Pid {
    let patience = Instant::now() + Duration::from_secs(60);
    loop {
        match kept_by(keeper) {
            Some(next) if Some(next) != last => return next,
            _ => assert!(Instant::now() < patience, "none is started"),
        }
    }
}
