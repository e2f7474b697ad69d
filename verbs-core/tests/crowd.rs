//! Grace periods among more threads than have a bit of their own.
//!
//! In a process of its own: while these threads live, all later ones share a bit, and a thread that has
//! touched what one of them is inside of waits for them. No other test could say "at once".
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use verbs_core::mem::{Pin, TouchWord, grace, pin};

/// A thread that has touched `word` and stays inside until the sender is dropped.
fn sitter(word: &Arc<TouchWord>) -> (Sender<()>, JoinHandle<()>) {
    let (leave, told_to_leave) = mpsc::channel::<()>();
    let (inside, is_inside) = mpsc::channel();
    let word = Arc::clone(word);
    let handle = thread::spawn(move || {
        let pin = pin();
        assert!(word.admits(&pin, TouchWord::TAG, 1));
        inside.send(()).unwrap();
        told_to_leave.recv().unwrap_err();
    });
    is_inside.recv().unwrap();
    (leave, handle)
}

/// Goal: the job runs when the last of many threads leaves, not before, without help.
/// Method: more threads than there are bits, released one by one.
#[test]
fn the_last_to_leave_runs_the_job() {
    let word = Arc::new(TouchWord::new(1));
    let threads = Pin::NO_NUMBER + 6;
    let sitters: Vec<_> = (0..threads).map(|_| sitter(&word)).collect();
    let done = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&done);
    grace::after(word.kill().unwrap(), move || {
        assert!(!set.swap(true, SeqCst), "a job runs once");
    });
    for (leave, handle) in sitters {
        grace::help();
        assert!(!done.load(SeqCst), "somebody is still inside");
        drop(leave);
        handle.join().unwrap();
    }
    assert!(done.load(SeqCst));
}
