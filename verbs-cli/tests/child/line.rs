//! What a program says first.

use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How long that may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The first line that a program says, or what it said before it ended. What comes later is read and dropped, so that the
/// program never has to wait.
pub(crate) fn first_line(output: impl Read + Send + 'static) -> String {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let (mut reader, mut line) = (BufReader::new(output), String::new());
        let read = reader.read_line(&mut line);
        let _given_up = tell.send(read.map(|_| line));
        reader.lines().for_each(drop);
    });
    let line = told.recv_timeout(PATIENCE);
    line.expect("the program says its first line in time")
        .expect("text")
}
