//! A hosted subnet, and an honest client of it.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use hca_sim::link::fabric::message::{MadMessage, Message, Refusal, Registration};
use hca_sim::link::fabric::socket::{Take, connect_to, receive, receive_into, send};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use verbs_core::Lid;

use crate::child::{Guarded, started};

pub(crate) const NET: &str = "Switch 4 \"s\"\n[1] \"a\"[1]\n[2] \"b\"[1]\n[3] \"c\"[1]\n\
                   Hca 1 \"a\"\nHca 1 \"b\"\nHca 1 \"c\"\n";

/// After which a host hangs. It answers within a millisecond; the machine may have more to do.
pub(crate) const STUCK: Duration = Duration::from_secs(60);

/// A hosted subnet, ended when it goes.
pub(crate) struct Hosted {
    pub(crate) child: Guarded,
    pub(crate) folder: tempfile::TempDir,
    pub(crate) socket: PathBuf,
}

impl Hosted {
    pub(crate) fn new() -> Self {
        Self::limited(None)
    }

    /// With so many open files at most.
    pub(crate) fn limited(files: Option<u64>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (socket, file) = (folder.path().join("subnet"), folder.path().join("net"));
        fs::write(&file, NET).unwrap();
        let mut command = match files {
            None => Command::new(env!("CARGO_BIN_EXE_verbs")),
            Some(files) => {
                let mut command = Command::new("sh");
                let script = format!("ulimit -n {files}; exec \"$@\"");
                command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_verbs")]);
                command
            }
        };
        let command = command.arg("subnet").arg(&file);
        let (child, line) = started(command.env("VERBS_SUBNET", &socket));
        assert!(line.starts_with("subnet with"), "{line}");
        Self {
            child,
            folder,
            socket,
        }
    }

    pub(crate) fn connect(&self) -> OwnedFd {
        connect_to(&self.socket).unwrap()
    }

    /// Asks something of an honest client's.
    pub(crate) fn is_well(&self) {
        let client = self.connect();
        let answer = ask(&client, &Message::Count);
        assert!(matches!(answer, Some(Message::Counts { .. })), "{answer:?}");
    }

    pub(crate) fn memory(&self) -> u64 {
        let status = format!("/proc/{}/status", self.child.id());
        let status = fs::read_to_string(status).unwrap();
        let line = status.lines().find_map(|it| it.strip_prefix("VmRSS:"));
        let kib = line.unwrap().split_whitespace().next().unwrap();
        kib.parse().unwrap()
    }

    pub(crate) fn files(&self) -> usize {
        let files = fs::read_dir(format!("/proc/{}/fd", self.child.id()));
        files.unwrap().count()
    }

    /// Hundredths of a second of processor time so far.
    pub(crate) fn ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let (_, rest) = stat.rsplit_once(')').unwrap();
        let times = rest.split_whitespace().skip(11).take(2);
        times.map(|time| time.parse::<u64>().unwrap()).sum()
    }
}

/// What comes over a connection, or nothing within [`STUCK`].
pub(crate) fn heard(client: &OwnedFd) -> Option<Message> {
    let mut entry = [PollFd::new(client, PollFlags::IN)];
    let patience = Timespec::try_from(STUCK).unwrap();
    let ready = poll(&mut entry, Some(&patience)).unwrap();
    assert_eq!(ready, 1, "the host does not answer");
    let bytes = receive(client.as_fd(), Take::Away, false).ok()??;
    Some(Message::decode(&bytes).unwrap())
}

pub(crate) fn ask(client: &OwnedFd, question: &Message) -> Option<Message> {
    send(client.as_fd(), &question.encode(), true).unwrap();
    heard(client)
}

/// Opens a port: what the session is called, and its connection.
pub(crate) fn open(client: &OwnedFd, node: &str) -> Result<(u32, OwnedFd), Refusal> {
    let open = Message::Open {
        host: node.into(),
        adapter: 0,
        port: 1,
    };
    send(client.as_fd(), &open.encode(), true).unwrap();
    let mut buffer = Vec::new();
    let (len, end) = receive_into(client.as_fd(), Take::Away, true, &mut buffer).unwrap();
    match Message::decode(&buffer[..len]).unwrap() {
        Message::Opened { session } => Ok((session, end.expect("the end comes with it"))),
        Message::Refused(refusal) => Err(refusal),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn register(
    client: &OwnedFd,
    session: u32,
    class: u8,
    methods: u128,
) -> Option<Message> {
    let registration = Registration {
        class,
        version: 1,
        methods,
        ..Registration::default()
    };
    let question = Message::Register {
        session,
        registration,
    };
    ask(client, &question)
}

/// Asks the switch what it is called, by a directed route.
pub(crate) fn node_description(port: &OwnedFd) -> MadMessage {
    let mut mad = vec![0; 256];
    mad[..4].copy_from_slice(&[1, 0x81, 1, 1]);
    mad[17] = 0x10;
    mad[32..36].fill(0xff);
    (mad[7], mad[129]) = (1, 1);
    let question = MadMessage {
        timeout_ms: 1000,
        retries: 3,
        lid: Lid(0xffff),
        bytes: mad,
        ..MadMessage::default()
    };
    match ask(port, &Message::Mad(question)) {
        Some(Message::Mad(answer)) => answer,
        other => panic!("{other:?}"),
    }
}
