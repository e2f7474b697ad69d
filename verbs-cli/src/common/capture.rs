//! A capture file that survives a kill: what was written reaches the system within a moment.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use verbs_core::sync::{Arc, Mutex, Weak, thread};

/// For how long packets may wait in the process.
const FLUSH_EVERY: Duration = Duration::from_millis(200);

/// The file. Clones are the same file.
#[derive(Clone, Debug)]
pub(crate) struct CaptureFile(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    out: BufWriter<File>,
    /// Why it ended early.
    failed: Option<io::Error>,
}

impl CaptureFile {
    /// Creates the file, and a thread that flushes it as long as it is open.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let state = Arc::new(Mutex::new(State {
            out: BufWriter::new(File::create(path)?),
            failed: None,
        }));
        let weak = Arc::downgrade(&state);
        let builder = thread::Builder::new().name("capture".into());
        builder.spawn(move || flush_while_open(&weak))?;
        Ok(Self(state))
    }

    /// Flushes it, and tells why it ended early, if it did.
    pub(crate) fn finish(&self) -> io::Result<()> {
        let mut state = self.0.lock();
        match state.failed.take() {
            Some(error) => Err(error),
            None => state.out.flush(),
        }
    }
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

    #[test]
    fn a_full_disk_is_told_at_the_end() {
        let mut file = CaptureFile::create(Path::new("/dev/full")).expect("opened");
        let written = file.write_all(&vec![0; 1 << 20]);
        assert!(written.is_err());
        let error = file.finish().expect_err("it was full");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
