//! `verbs top`: tables for scripts, and a terminal that is as it was.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::run::{Ended, Place, VERBS};

/// What switches a terminal to its other screen, and back.
const ENTERED: &str = "\x1b[?1049h";
const LEFT: &str = "\x1b[?1049l";

/// A terminal with the command on it.
struct Terminal {
    master: File,
    slave: OwnedFd,
    child: Child,
    seen: String,
}

impl Terminal {
    fn new(place: &Place, args: &[&str]) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&master).expect("it is ours");
        unlockpt(&master).expect("it is ours");
        let name = ptsname(&master, Vec::new()).expect("it has a name");
        let flags = OFlags::RDWR | OFlags::NOCTTY;
        let slave = open(name.as_c_str(), flags, Mode::empty()).expect("its other side");
        let size = Winsize {
            ws_row: 12,
            ws_col: 100,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&slave, size).expect("a size");
        let end = || Stdio::from(slave.try_clone().expect("a descriptor"));
        let mut command = Command::new(VERBS);
        command.args(args).env("XDG_RUNTIME_DIR", place.path(""));
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn();
        Self {
            child: child.expect("it starts"),
            master: File::from(master),
            slave,
            seen: String::new(),
        }
    }

    /// Reads until that is on the terminal.
    fn until(&mut self, what: &str) {
        let mut piece = [0; 4096];
        while !self.seen.contains(what) {
            let n = self.master.read(&mut piece).expect("the terminal is open");
            self.seen += &String::from_utf8_lossy(&piece[..n]);
        }
    }

    fn is_cooked(&self) -> bool {
        let modes = tcgetattr(self.slave.as_fd())
            .expect("a terminal")
            .local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    /// Waits for the end; the terminal is as it was.
    fn ends(mut self) -> Option<i32> {
        self.until(LEFT);
        self.until("\x1b[?25h");
        let until = Instant::now() + Duration::from_secs(20);
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                break status;
            }
            assert!(Instant::now() < until, "it goes on: {}", self.seen);
            std::thread::sleep(Duration::from_millis(10));
        };
        assert!(self.is_cooked(), "the terminal is as it was");
        status.code()
    }
}

/// Goal: the terminal is as it was, whichever way the command ends: by keys, after its samples, by a signal.
#[test]
fn the_terminal_is_as_it_was() {
    let place = Place::new();
    for keys in ["q", "\x1b", "\x03"] {
        let mut terminal = Terminal::new(&place, &["top", "-d", "0.2"]);
        terminal.until(ENTERED);
        terminal.until("q quits");
        assert!(!terminal.is_cooked(), "keys come one by one");
        terminal.master.write_all(keys.as_bytes()).expect("keys");
        assert_eq!(terminal.ends(), Some(0), "{keys:?}");
    }
    let terminal = Terminal::new(&place, &["top", "-d", "0.2", "-n", "2"]);
    assert_eq!(terminal.ends(), Some(0));
    let mut terminal = Terminal::new(&place, &["top", "-d", "3600"]);
    terminal.until("q quits");
    let pid = Pid::from_child(&terminal.child);
    kill_process(pid, Signal::TERM).expect("it is ours");
    assert_eq!(terminal.ends(), None, "it ended by the signal");
}

/// Goal: without a terminal, and with `--plain` on one, each sample is a table; a running program is in it, with rates
/// from the second sample on.
#[test]
fn lines_for_scripts() {
    let place = Place::new();
    let top = |args: &[&str]| {
        let mut command = Command::new(VERBS);
        command
            .arg("top")
            .args(args)
            .env("XDG_RUNTIME_DIR", place.path(""));
        Ended::from(command.output().expect("it starts")).succeeded()
    };
    let nothing = top(&["-n", "1"]);
    assert!(nothing.contains("no program"), "{nothing}");
    let mut server = Command::new(VERBS);
    server.args([
        "serve",
        "--bind",
        "127.0.94.1",
        "--listen",
        "127.0.94.1:7174",
        ".",
    ]);
    server
        .current_dir(place.path(""))
        .env("XDG_RUNTIME_DIR", place.path(""));
    let mut server = server.stdout(Stdio::null()).spawn().expect("it starts");
    let until = Instant::now() + Duration::from_secs(20);
    let said = loop {
        let said = top(&["-n", "2", "-d", "0.1"]);
        let is_in_both = said.matches("serve 127.0.94.1").count() == 2;
        if is_in_both || Instant::now() > until {
            break said;
        }
    };
    server.kill().expect("it is ours");
    server.wait().expect("it was started");
    let samples: Vec<&str> = said.split("\n\n").collect();
    assert_eq!(samples.len(), 2, "{said}");
    assert!(
        samples[0]
            .lines()
            .nth(1)
            .is_some_and(|row| row.contains(" - ")),
        "{said}"
    );
    let row = samples[1].lines().nth(1).unwrap_or_default();
    assert!(
        !row.contains(" - ") && row.ends_with("serve 127.0.94.1"),
        "{said}"
    );
    assert!(!said.contains('\x1b'));
}
