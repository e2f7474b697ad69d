//! Runs the command in a directory of its own, and holds it where a test wants it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;

pub(crate) const VERBS: &str = env!("CARGO_BIN_EXE_verbs");

/// The second numbers of the addresses in 127.0.0.0/8 that a file of tests has to itself.
pub(crate) const HOST: Range<u8> = 48..64;
pub(crate) const WIRE: Range<u8> = 64..192;
pub(crate) const RPING: Range<u8> = 192..224;
pub(crate) const SRP: Range<u8> = 224..240;
pub(crate) const RDS: Range<u8> = 240..255;

/// An address of a file's own that no other process of these tests has.
pub(crate) fn address_of(file: Range<u8>, n: u8) -> String {
    let [_, _, high, low] = process::id().to_be_bytes();
    let second = file.start + high % (file.end - file.start);
    format!("127.{second}.{low}.{n}")
}

/// How long a test waits for something that is bound to happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How long a command may run.
const RUN_MAX: Duration = Duration::from_secs(150);

/// A directory with files, in which commands run.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    /// With a source `A` of that content.
    pub(crate) fn with_source(content: &[u8]) -> Self {
        let place = Self::new();
        place.write("A", content);
        place
    }

    /// With a source `A` of so many zero bytes, which take no room.
    pub(crate) fn with_sparse_source(bytes: u64) -> Self {
        let place = Self::new();
        File::create(place.path("A"))
            .and_then(|file| file.set_len(bytes))
            .expect("a sparse file");
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: &[u8]) {
        fs::write(self.path(name), content).expect("room for a file");
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).expect("a file")
    }

    /// All names in the directory, hidden ones too.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).expect("a directory");
        let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
        let mut names: Vec<_> = entries
            .map(|entry| name(entry).to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// `verbs` with these arguments.
    pub(crate) fn verbs<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Ended {
        self.run(Command::new(VERBS).args(arguments))
    }

    /// A shell script in which `"$@"` is `verbs` with these arguments.
    pub(crate) fn shell(&self, script: &str, arguments: &[&str]) -> Ended {
        self.run(
            Command::new("sh")
                .args(["-c", script, "sh", VERBS])
                .args(arguments),
        )
    }

    /// `verbs` as somebody to whom permissions apply, even if the tests run as root.
    pub(crate) fn verbs_without_privileges(&self, arguments: &[&str]) -> Ended {
        if geteuid().is_root() {
            let less = "--bounding-set=-dac_override,-dac_read_search,-fowner";
            self.run(Command::new("setpriv").args([less, VERBS]).args(arguments))
        } else {
            self.verbs(arguments)
        }
    }

    /// Starts `verbs`.
    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        let mut command = Command::new(VERBS);
        command.args(arguments).current_dir(self.0.path());
        Running {
            child: Some(Self::piped(&mut command)),
            source: self.path("A"),
        }
    }

    fn run(&self, command: &mut Command) -> Ended {
        end_of(Self::piped(command.current_dir(self.0.path())))
    }

    fn piped(command: &mut Command) -> Child {
        command.stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("it starts")
    }
}

/// Waits for the end of a command, which is killed if it does not come in time.
pub(crate) fn end_of(child: Child) -> Ended {
    let pid = Pid::from_child(&child);
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(Ended::from(child.wait_with_output().expect("a child"))));
    told.recv_timeout(RUN_MAX).unwrap_or_else(|_| {
        // It may end just now.
        let _ = kill_process(pid, Signal::KILL);
        let said = told.recv_timeout(Duration::from_secs(5));
        panic!("a command goes on after {RUN_MAX:?}, and was killed: {said:?}");
    })
}

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("text");
        Self {
            code: output.status.code(),
            signal: output.status.signal(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }
}

impl Ended {
    /// It did what it was to do, and had nothing to say about it on stderr.
    #[track_caller]
    pub(crate) fn succeeded(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (Some(0), ""));
        self.stdout
    }

    /// It failed with this code and one sentence that has all these parts.
    #[track_caller]
    pub(crate) fn failed(self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.stdout, "", "results belong to successes");
        assert_eq!(self.stderr.lines().count(), 1, "{}", self.stderr);
        for part in parts {
            assert!(self.stderr.contains(part), "{part:?} in {:?}", self.stderr);
        }
    }
}

/// A copy from `A` that is under way; killed if a test forgets it.
pub(crate) struct Running {
    child: Option<Child>,
    source: PathBuf,
}

impl Running {
    /// Waits until it has read at least so many bytes, or has ended.
    pub(crate) fn reached(mut self, bytes: u64) -> Self {
        let since = Instant::now();
        while self.bytes_read() < bytes && !self.has_ended() {
            assert!(
                since.elapsed() < PATIENCE,
                "it does not get to byte {bytes}"
            );
            thread::sleep(Duration::from_micros(200));
        }
        self
    }

    /// Stops it when it has read at least so many bytes, and not yet ended.
    pub(crate) fn stopped_after(self, bytes: u64) -> Self {
        let stopped = self.stopped_in_time(bytes);
        stopped.expect("it has not ended before it is stopped")
    }

    /// The same, or nothing if it has ended before.
    pub(crate) fn stopped_in_time(self, bytes: u64) -> Option<Self> {
        let mut reached = self.reached(bytes);
        if reached.has_ended() {
            return None;
        }
        reached.signal(Signal::STOP);
        // One that has ended just now has no files open.
        (reached.bytes_read() >= bytes).then_some(reached)
    }

    /// Ends it without a chance to clean up, if it has not ended.
    pub(crate) fn killed(mut self) -> Ended {
        let child = self.child.as_mut().expect("only `end` takes it");
        child.kill().expect("a child of ours");
        self.end()
    }

    /// Lets it run to its end.
    pub(crate) fn continued(self) -> Ended {
        self.signal(Signal::CONT);
        self.end()
    }

    /// The most memory that it has had, in bytes. The pages of the program itself, which a debug build has many of, do not count.
    pub(crate) fn memory_peak(&self) -> u64 {
        let status = fs::read_to_string(self.proc().join("status")).expect("it runs");
        let kib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line
                .expect("the kernel says")
                .trim()
                .trim_end_matches(" kB");
            number.parse::<u64>().expect("a number")
        };
        (kib("VmHWM:") - kib("RssFile:")) << 10
    }

    /// How far it has read its source; 0 before it opened it and after it has ended.
    fn bytes_read(&self) -> u64 {
        let Ok(entries) = fs::read_dir(self.proc().join("fd")) else {
            return 0;
        };
        let is_source = |link: &Path| fs::read_link(link).is_ok_and(|path| path == self.source);
        let Some(fd) = entries.flatten().find(|entry| is_source(&entry.path())) else {
            return 0;
        };
        let info =
            fs::read_to_string(self.proc().join("fdinfo").join(fd.file_name())).unwrap_or_default();
        let position = info.lines().find_map(|line| line.strip_prefix("pos:"));
        position
            .and_then(|position| position.trim().parse().ok())
            .unwrap_or(0)
    }

    fn proc(&self) -> PathBuf {
        Path::new("/proc").join(self.pid().as_raw_nonzero().to_string())
    }

    fn has_ended(&mut self) -> bool {
        let child = self.child.as_mut().expect("only `end` takes it");
        child.try_wait().expect("a child of ours").is_some()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(self.child.as_ref().expect("only `end` takes it"))
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("a child that was not waited for");
    }

    fn end(mut self) -> Ended {
        end_of(self.child.take().expect("only here it is taken"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Bytes in which no piece is like another.
pub(crate) fn content(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut content = Vec::with_capacity(bytes + 8);
    while content.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        content.extend_from_slice(&state.to_le_bytes());
    }
    content.truncate(bytes);
    content
}
