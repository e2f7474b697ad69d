//! The connection over which a program asks the subnet's host, one for the whole program.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};

use hca_sim::link::fabric::message::{Message, Refusal};
use hca_sim::link::fabric::place::check_default;
use hca_sim::link::fabric::socket::{Take, connect_to, default_path, receive_into, send};
use parking_lot::Mutex;
use rustix::io::Errno;
use verbs_core::process::variable;

/// The connection for questions, made with the first one: ports that are opened over it are open as long as it exists.
/// Nothing that can be cancelled is called while it is held.
static QUESTIONS: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// The nodes that are this host's adapters.
pub(crate) fn host() -> String {
    let names = ["VERBS_HOST", "SIM_HOST"];
    let text = |name| variable(name)?.into_string().ok();
    names.into_iter().find_map(text).unwrap_or_default()
}

/// Asks the subnet's host.
///
/// # Errors
/// The number of an error: the host cannot be reached, or refuses.
pub(crate) fn ask(question: &Message) -> Result<Message, Errno> {
    ask_for_file(question).map(|(answer, _)| answer)
}

/// Sends questions over that connection, or over a new one.
pub(crate) fn use_connection(socket: Option<OwnedFd>) {
    let before = std::mem::replace(&mut *QUESTIONS.lock(), socket);
    drop(before);
}

/// The same, and returns the file that comes with the answer.
///
/// # Errors
/// As [`ask`].
pub(crate) fn ask_for_file(question: &Message) -> Result<(Message, Option<OwnedFd>), Errno> {
    let mut questions = QUESTIONS.lock();
    let socket = match questions.take() {
        Some(socket) => socket,
        None => connect()?,
    };
    // A connection that has failed once is not kept.
    let (answer, file) = exchange(&socket, question)?;
    *questions = Some(socket);
    drop(questions);
    Ok((checked(answer)?, file))
}

fn connect() -> Result<OwnedFd, Errno> {
    let path = default_path();
    if let Err(error) = check_default(&path) {
        // The error number does not tell the user what to do; a closed stream is not an error.
        let _written = writeln!(std::io::stderr(), "libibumad of verbs: {error}");
        return Err(Errno::ACCESS);
    }
    connect_to(&path)
}

fn exchange(socket: &OwnedFd, question: &Message) -> Result<(Message, Option<OwnedFd>), Errno> {
    let question = question.encode();
    uninterrupted(|| send(socket.as_fd(), &question, true))?;
    let mut bytes = Vec::new();
    let received = || receive_into(socket.as_fd(), Take::Away, true, &mut bytes);
    let (len, file) = uninterrupted(received)?;
    let said = bytes.get(..len).filter(|said| !said.is_empty());
    let answer = Message::decode(said.ok_or(Errno::CONNRESET)?);
    Ok((answer.map_err(|_| Errno::PROTO)?, file))
}

/// Repeats an action until no signal interrupts it.
fn uninterrupted<T>(mut act: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match act() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

fn checked(answer: Message) -> Result<Message, Errno> {
    match answer {
        Message::Refused(refusal) => Err(match refusal {
            Refusal::Missing => Errno::NODEV,
            Refusal::Full => Errno::NOMEM,
            Refusal::Taken => Errno::BUSY,
            Refusal::Denied => Errno::PERM,
            _ => Errno::INVAL,
        }),
        answer => Ok(answer),
    }
}
