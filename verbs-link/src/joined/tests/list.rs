//! The list of a daemon's clients, with a daemon played by the test.

use super::*;
use crate::joined::list::clients_of;
use verbs_core::host::list::{Cursor, Listed, ListedConnection};

fn piece(client: u32, connections: usize, next: Option<Cursor>) -> Listed {
    let here = port().addresses[0];
    let connection = ListedConnection {
        local: here,
        remote: here,
        service: None,
        is_active: false,
        qpn: None,
        remote_qpn: None,
    };
    Listed {
        client,
        uid: 0,
        pid: 0,
        name: String::new(),
        blocks: vec![1],
        services: Vec::new(),
        groups: Vec::new(),
        shares: Vec::new(),
        connections: vec![connection; connections],
        next,
    }
}

/// Asks a daemon that answers each question with the next of these, and then ends.
fn list(answers: Vec<Vec<u8>>) -> Result<Vec<Listed>, JoinError> {
    let (ours, daemon) = pair();
    let daemon = thread::spawn(move || {
        let mut question = vec![0; MESSAGE_MAX];
        for answer in answers {
            let (len, _) = recv(&daemon, &mut question, RecvFlags::empty()).expect("a question");
            if len == 0 {
                return;
            }
            let Ok(Message::List(..)) = Message::decode(&question[..len]) else {
                panic!("a question");
            };
            line::send(&daemon, &answer).expect("there is room");
        }
        let _ = recv(&daemon, &mut question, RecvFlags::empty());
    });
    let listed = clients_of(&ours);
    drop(ours);
    daemon.join().expect("no panic");
    listed
}

fn answer(tag: u64, piece: Option<Listed>) -> Vec<u8> {
    Message::Listing(tag, piece.map(Box::new)).encode()
}

fn at(client: u32, connections: u32) -> Option<Cursor> {
    Some(Cursor {
        client,
        connections,
    })
}

#[test]
fn pieces_are_put_together() {
    let listed = list(vec![
        answer(0, Some(piece(1, 2, at(1, 2)))),
        answer(1, Some(piece(1, 1, at(4, 0)))),
        answer(2, Some(piece(4, 0, None))),
    ]);
    let listed = listed.expect("a list");
    let counts: Vec<_> = listed
        .iter()
        .map(|one| (one.client, one.connections.len(), one.blocks.len()))
        .collect();
    assert_eq!(counts, [(1, 3, 1), (4, 0, 1)]);
    assert_eq!(list(vec![answer(0, None)]).expect("a list"), []);
}

/// Goal: a daemon that does not answer as it should is not waited for, and does not keep the program busy.
#[test]
fn a_daemon_that_makes_no_sense_ends_the_list() {
    for (answers, is_expected) in [
        // It goes round in circles.
        (
            vec![
                answer(0, Some(piece(1, 1, at(1, 1)))),
                answer(1, Some(piece(1, 1, at(1, 1)))),
            ],
            (|error| matches!(error, JoinError::Unexpected)) as fn(&JoinError) -> bool,
        ),
        (vec![answer(7, None)], |error| {
            matches!(error, JoinError::Unexpected)
        }),
        (vec![Message::Lease(0).encode()], |error| {
            matches!(error, JoinError::Unexpected)
        }),
        (vec![vec![1, 2, 3]], |error| {
            matches!(error, JoinError::Malformed(_))
        }),
        // One that has no lists ends the line.
        (vec![], |error| match error {
            JoinError::Socket(error) => error.kind() == io::ErrorKind::ConnectionReset,
            _ => false,
        }),
    ] {
        let error = list(answers).expect_err("no list");
        assert!(is_expected(&error), "{error:?}");
    }
}
