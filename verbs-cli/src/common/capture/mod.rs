//! Captures, in files that survive a kill: what was written reaches the system within a moment.

mod links;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hca_sim::clock::Clock;
use hca_sim::link::pcap::{LinkType, PcapNgWriter};
use hca_sim::link::{Captured, PacketLink};
use verbs_core::sync::{Arc, Mutex, Weak, thread};

pub(crate) use links::LinkCapture;

/// For how long packets may wait in the process.
const FLUSH_EVERY: Duration = Duration::from_millis(200);

/// The file. Clones are the same file.
#[derive(Clone, Debug)]
pub(crate) struct CaptureFile(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    path: PathBuf,
    out: BufWriter<File>,
    /// Why it ended early.
    failed: Option<io::Error>,
}

impl CaptureFile {
    /// Creates the file, and a thread that flushes it as long as it is open. Only this user can read a file that is new: packets
    /// have the data of transfers in them.
    pub(crate) fn create(path: &Path) -> Result<Self, CaptureError> {
        let out = private(path).map_err(CaptureError::at(path))?;
        let state = Arc::new(Mutex::new(State {
            path: path.into(),
            out: BufWriter::new(out),
            failed: None,
        }));
        let weak = Arc::downgrade(&state);
        let builder = thread::Builder::new().name("capture".into());
        let spawned = builder.spawn(move || flush_while_open(&weak));
        spawned.map_err(CaptureError::at(path))?;
        Ok(Self(state))
    }

    /// Flushes it, and tells why it ended early, if it did.
    pub(crate) fn finish(&self) -> Result<(), CaptureError> {
        let mut state = self.0.lock();
        let flushed = match state.failed.take() {
            Some(error) => Err(error),
            None => state.out.flush(),
        };
        flushed.map_err(CaptureError::at(&state.path))
    }
}

/// A capture cannot be written. One sentence without its full stop.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the capture {}: {error}", path.display())]
pub(crate) struct CaptureError {
    path: PathBuf,
    error: io::Error,
}

impl CaptureError {
    /// The error of the capture at that path.
    fn at(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self {
            path: path.into(),
            error,
        }
    }
}

/// Puts a capture around the link of an HCA, which has that name. It sees what the network carries; faults go around it.
pub(crate) fn around<L: PacketLink>(
    link: L,
    name: &str,
    link_type: LinkType,
    path: &Path,
) -> Result<(Captured<L, CaptureFile>, CaptureFile), CaptureError> {
    let file = CaptureFile::create(path)?;
    let pcap = PcapNgWriter::with_interface(file.clone(), name, link_type);
    let pcap = pcap.map_err(CaptureError::at(path))?;
    let link = Captured::new(link, pcap, Clock::wall(), since_epoch());
    Ok((link, file))
}

/// The time since the Unix epoch; none before 1970, which no capture can say.
fn since_epoch() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default()
}

/// An empty file to write, which others cannot read unless it was there before.
fn private(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path)
}

/// The first error is kept, because the writer of packets is not asked.
impl Write for CaptureFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.0.lock();
        state.out.write_all(bytes).map_err(|error| {
            let kind = error.kind();
            state.failed.get_or_insert(error);
            kind
        })?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.lock().out.flush()
    }
}

fn flush_while_open(state: &Weak<Mutex<State>>) {
    while let Some(state) = state.upgrade() {
        let mut state = state.lock();
        if let Err(error) = state.out.flush() {
            state.failed.get_or_insert(error);
        }
        drop(state);
        thread::sleep(FLUSH_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Instant;

    use super::*;

    #[test]
    fn what_is_written_soon_is_in_the_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("pcap");
        let mut file = CaptureFile::create(&path).expect("created");
        file.write_all(b"packet").expect("room");
        let since = Instant::now();
        while fs::read(&path).expect("there") != b"packet" {
            assert!(since.elapsed() < Duration::from_secs(60), "it never comes");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Goal: whoever else may log in does not read what was transferred. Method: a new file, and one that was there with
    /// a mode of its user's choice.
    #[test]
    fn a_new_file_is_this_users_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        let path = dir.path().join("pcap");
        let _file = CaptureFile::create(&path).expect("created");
        // A mask may take more away.
        assert_eq!(mode(&path) & 0o177, 0, "{:o}", mode(&path));
        let shared = dir.path().join("shared");
        fs::write(&shared, "old").expect("room");
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o664)).expect("ours");
        let _file = CaptureFile::create(&shared).expect("created");
        assert_eq!(
            (mode(&shared), fs::read(&shared).expect("there").len()),
            (0o664, 0)
        );
    }

    #[test]
    fn a_full_disk_is_told_at_the_end() {
        let mut file = CaptureFile::create(Path::new("/dev/full")).expect("opened");
        let written = file.write_all(&vec![0; 1 << 20]);
        assert!(written.is_err());
        let refused = file.finish().expect_err("it was full");
        assert_eq!(refused.error.kind(), io::ErrorKind::StorageFull);
        let text = refused.to_string();
        assert!(
            text.starts_with("cannot write the capture /dev/full: "),
            "{text}"
        );
    }
}
