//! What running programs tell each other as JSON.

use std::io;

use hca_sim::link::published;
use serde::de::DeserializeOwned;

pub(crate) use hca_sim::link::published::{Published, Said, publish};

/// What all programs say, by the numbers of their processes. Those that say nothing sensible are left out.
pub(crate) fn ask_all<T: DeserializeOwned>(name: &str) -> io::Result<Vec<Said<T>>> {
    published::ask_all(name, |text| serde_json::from_slice(text).ok())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::Path;
    use std::process;
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::{Duration, Instant};

    use hca_sim::link::published::{ask_all_in, publish_in};
    use verbs_core::sync::thread;

    use super::*;

    /// Long enough for a program on a busy machine.
    const SHORT: Duration = Duration::from_millis(700);

    fn one() -> io::Result<Vec<u8>> {
        Ok(b"[1,2,3]".to_vec())
    }

    /// What is said, if it is a list that ends.
    fn list(text: &[u8]) -> Option<String> {
        let text = str::from_utf8(text).ok()?;
        (text.starts_with('[') && text.ends_with(']')).then(|| text.to_owned())
    }

    /// A socket in the folder whose program does that with its readers.
    fn hostile(folder: &Path, name: &str, act: fn(UnixStream)) {
        let listener = UnixListener::bind(folder.join(name)).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || act(stream));
            }
        });
    }

    /// Goal: an honest program is heard among others that say nonsense, nothing, too much, or a byte now and
    /// then; the stale socket of a killed one goes, and a file that is no socket stays.
    #[test]
    fn hostile_writers_are_given_up() {
        let place = tempfile::tempdir().unwrap();
        let folder = &place.path().join("own");
        let _published = publish_in(folder, "test", one).unwrap();
        fs::write(folder.join("file"), "[1]").unwrap();
        drop(UnixListener::bind(folder.join("killed")).unwrap());
        hostile(folder, "nonsense", |mut s| drop(s.write_all(b"{{{{")));
        hostile(folder, "silent", |s| {
            thread::sleep(Duration::from_secs(60));
            drop(s);
        });
        hostile(folder, "drips", |mut s| {
            while s.write_all(b"[").is_ok() {
                thread::sleep(Duration::from_millis(50));
            }
        });
        hostile(folder, "floods", |mut s| {
            let piece = vec![b'['; 1 << 20];
            while s.write_all(&piece).is_ok() {}
        });
        let began = Instant::now();
        let said = ask_all_in(folder, SHORT, list).unwrap();
        let [only] = &said[..] else {
            panic!("{said:?}");
        };
        assert_eq!((only.pid, &only.what[..]), (process::id(), "[1,2,3]"));
        assert!(began.elapsed() < Duration::from_secs(10));
        assert!(folder.join("file").exists() && !folder.join("killed").exists());
    }

    /// Goal: a reader that never reads keeps no other from what the program says.
    #[test]
    fn hostile_readers_are_given_up() {
        let place = tempfile::tempdir().unwrap();
        let folder = &place.path().join("own");
        let much = || Ok(vec![b'x'; 4 << 20]);
        let _published = publish_in(folder, "test", much).unwrap();
        let path = folder.join(process::id().to_string());
        let _deaf = UnixStream::connect(&path).unwrap();
        let said = ask_all_in(folder, Duration::from_secs(20), |text| Some(text.len())).unwrap();
        assert_eq!(said[0].what, 4 << 20);
    }

    /// Goal: the thread that answers ends with what was published, and lets go of what it answers with.
    #[test]
    fn nothing_is_left_of_what_is_published_no_longer() {
        let place = tempfile::tempdir().unwrap();
        let folder = &place.path().join("own");
        let (kept, gone) = channel::<()>();
        let say = move || {
            let _kept = &kept;
            one()
        };
        drop(publish_in(folder, "test", say).unwrap());
        // Ends only when the other end is dropped.
        let ended = gone.recv_timeout(Duration::from_secs(60));
        assert_eq!(ended, Err(RecvTimeoutError::Disconnected));
        assert!(!folder.join(process::id().to_string()).exists());
    }

    /// Goal: who publishes again takes the place of the first, whose end takes nothing away.
    #[test]
    fn who_publishes_again_is_heard() {
        let place = tempfile::tempdir().unwrap();
        let folder = &place.path().join("own");
        let first = publish_in(folder, "test", one).unwrap();
        let second = publish_in(folder, "test", || Ok(b"[2]".to_vec())).unwrap();
        drop(first);
        let said = ask_all_in(folder, Duration::from_secs(20), list).unwrap();
        assert_eq!(said[0].what, "[2]");
        drop(second);
        let none = ask_all_in(folder, SHORT, list).unwrap();
        assert!(none.is_empty());
    }

    /// Goal: a folder that others can write to is not believed.
    #[test]
    fn a_folder_of_others_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(ask_all_in(place.path(), SHORT, list).is_err());
        assert!(publish_in(place.path(), "test", one).is_none());
        let nowhere = place.path().join("nowhere");
        assert!(ask_all_in(&nowhere, SHORT, list).unwrap().is_empty());
    }
}
