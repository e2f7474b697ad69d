//! Programs that a test starts: none outlives it.

mod line;

use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, Stdio};

/// A program that is killed if it goes on when its test has ended, however that was.
pub(crate) struct Guarded(Child);

impl Guarded {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(command.spawn().expect("it starts"))
    }
}

impl Deref for Guarded {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Guarded {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _killed = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Starts a program, and waits for its first line.
pub(crate) fn started(command: &mut Command) -> (Guarded, String) {
    let mut child = Guarded::start(command.stdout(Stdio::piped()));
    let stdout = child.stdout.take().expect("it is piped");
    (child, line::first_line(stdout))
}
