//! The connection over which a program asks the subnet's host, one for the whole program.

use std::os::fd::{AsFd, OwnedFd};

use hca_sim::link::fabric::message::{Message, Refusal};
use hca_sim::link::fabric::socket::{Take, connect_to, default_path, receive, send};
use parking_lot::Mutex;
use rustix::io::Errno;

/// The connection for questions, made with the first one. Nothing that can be cancelled is called while
/// it is held.
static QUESTIONS: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// The nodes that are this host's adapters.
pub(crate) fn host() -> String {
    let names = ["VERBS_HOST", "SIM_HOST"];
    let found = names.into_iter().find_map(|name| std::env::var(name).ok());
    found.unwrap_or_default()
}

/// Asks the subnet's host.
///
/// # Errors
/// The number of an error: the host cannot be reached, or says no.
pub(crate) fn ask(question: &Message) -> Result<Message, Errno> {
    let mut questions = QUESTIONS.lock();
    let socket = match questions.take() {
        Some(socket) => socket,
        None => connect_to(&default_path())?,
    };
    // A connection that has failed once is not kept.
    let answer = exchange(&socket, question)?;
    *questions = Some(socket);
    drop(questions);
    checked(answer)
}

/// Has questions go over that connection, or over a new one.
pub(crate) fn use_connection(socket: Option<OwnedFd>) {
    let before = std::mem::replace(&mut *QUESTIONS.lock(), socket);
    drop(before);
}

/// Asks over a connection of its own, which the caller keeps.
///
/// # Errors
/// As [`ask`].
pub(crate) fn ask_over(socket: &OwnedFd, question: &Message) -> Result<Message, Errno> {
    exchange(socket, question).and_then(checked)
}

fn exchange(socket: &OwnedFd, question: &Message) -> Result<Message, Errno> {
    send(socket.as_fd(), &question.encode(), true)?;
    let bytes = loop {
        match receive(socket.as_fd(), Take::Away, true) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    let bytes = bytes.ok_or(Errno::CONNRESET)?;
    Message::decode(&bytes).map_err(|_| Errno::PROTO)
}

fn checked(answer: Message) -> Result<Message, Errno> {
    match answer {
        Message::Refused(refusal) => Err(match refusal {
            Refusal::Missing => Errno::NODEV,
            Refusal::Full => Errno::NOMEM,
            Refusal::Taken => Errno::BUSY,
            _ => Errno::INVAL,
        }),
        answer => Ok(answer),
    }
}
