//! What a command that runs for long says of itself on stderr.
//!
//! It happens on threads that may not wait, and stderr may make them wait; and any host that can reach a listener can have
//! something to be said of him as often as he likes. So lines go through a queue to a thread of their own, which
//! writes so many in a second, and how many there were beyond.

use std::fmt;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use verbs_core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use verbs_core::sync::{Arc, Mutex, thread};

/// Lines that wait for the thread at most.
const QUEUE: usize = 256;

/// Lines of one second.
const LINES_MAX: u32 = 50;
const SECOND: Duration = Duration::from_secs(1);

/// Where lines are put. Clones are the same place.
#[derive(Clone)]
pub(super) struct Notes(Arc<Queue>);

struct Queue {
    /// Taken out when no more come.
    lines: Mutex<Option<SyncSender<String>>>,
    /// Lines that there was no room for.
    dropped: Arc<AtomicU64>,
    writer: Mutex<Option<thread::JoinHandle<()>>>,
}

impl Notes {
    /// For a command of that name.
    ///
    /// # Errors
    /// The system's: no thread can be had.
    pub(super) fn start(command: &'static str) -> io::Result<Self> {
        let (lines, to_write) = sync_channel(QUEUE);
        let dropped = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&dropped);
        let builder = thread::Builder::new().name("notes".into());
        let writer = builder.spawn(move || {
            let stderr = |line: &str| {
                // There is no one to tell that stderr is closed.
                let _ = writeln!(io::stderr(), "{command}: {line}");
            };
            write(&to_write, &counted, stderr);
        })?;
        Ok(Self(Arc::new(Queue {
            lines: Mutex::new(Some(lines)),
            dropped,
            writer: Mutex::new(Some(writer)),
        })))
    }

    /// Says one line. Never waits.
    pub(super) fn say(&self, line: &dyn fmt::Display) {
        let line = line.to_string();
        let lines = self.0.lines.lock().clone();
        if lines.is_some_and(|lines| lines.try_send(line).is_err()) {
            self.0.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Waits until all that was said is written. Nothing is written afterwards.
    pub(super) fn finish(&self) {
        let lines = self.0.lines.lock().take();
        drop(lines);
        let writer = self.0.writer.lock().take();
        if let Some(writer) = writer {
            // It does not panic, and there is nothing to be done if it did.
            let _ = writer.join();
        }
    }
}

/// Writes lines until no more can come, so many of them in each second.
fn write(lines: &Receiver<String>, dropped: &AtomicU64, mut put: impl FnMut(&str)) {
    let (mut left, mut since, mut more) = (LINES_MAX, Instant::now(), 0);
    loop {
        let received = lines.recv_timeout(SECOND);
        more += dropped.swap(0, Relaxed);
        if since.elapsed() >= SECOND {
            (left, since) = (LINES_MAX, Instant::now());
            if more > 0 {
                put(&format!("... and {} more lines", std::mem::take(&mut more)));
            }
        }
        match received {
            Ok(line) if left > 0 => {
                put(&line);
                left -= 1;
            }
            Ok(_) => more += 1,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    if more > 0 {
        put(&format!("... and {more} more lines"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_not_written() {
        let (say, said) = sync_channel(1000);
        for number in 0..200 {
            say.send(number.to_string()).expect("there is room");
        }
        drop(say);
        let mut written = Vec::new();
        write(&said, &AtomicU64::new(7), |line| {
            written.push(line.to_owned());
        });
        assert_eq!(written[..2], ["0", "1"]);
        // A slow machine may have begun another second.
        assert!(written.len() < 200, "{written:?}");
        let lines = written.iter().filter(|line| !line.starts_with('.')).count();
        let more: usize = (written.iter())
            .filter_map(|line| line.strip_prefix("... and ")?.strip_suffix(" more lines"))
            .map(|count| count.parse::<usize>().expect("a number"))
            .sum();
        assert_eq!(lines + more, 207);
    }
}
