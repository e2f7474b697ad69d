//! Goal: sockets do what the traits promise. Method: real ones on the loopback interface.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::Tcp;
use crate::port_space::PortError;
use crate::stream::{Interest, Stream, StreamLink, Token};

fn local() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn link() -> Tcp {
    Tcp::on(&[local().ip()]).expect("descriptors")
}

/// Waits for that token, as the engine's thread does.
fn wait_for(link: &Tcp, token: Token) {
    let waiter = link.waiter().expect("TCP has one");
    let mut tokens = Vec::new();
    for _ in 0..100 {
        waiter.wait(Some(Duration::from_secs(1)), true);
        link.ready(&mut tokens);
        if tokens.contains(&token) {
            return;
        }
    }
    panic!("{token:?} was never ready");
}

fn would_block<T>(result: io::Result<T>) -> bool {
    result.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// A connection from one link to another; both ends are watched under token 3.
fn pair(ours: &Tcp, theirs: &Tcp) -> (Box<dyn Stream>, Box<dyn Stream>) {
    let mut listener = theirs.bind(local()).expect("a port");
    listener.listen(4, Token(1)).expect("it listens");
    assert!(would_block(listener.accept()));
    let bound = ours.bind(local()).expect("a port");
    let from = bound.local();
    let mut ours_end = bound.connect(listener.local(), Token(2)).expect("begun");
    wait_for(ours, Token(2));
    assert!(ours_end.connected().expect("there"));
    wait_for(theirs, Token(1));
    let mut theirs_end = listener.accept().expect("there");
    assert_eq!((theirs_end.peer(), ours_end.local()), (from, from));
    for end in [&mut ours_end, &mut theirs_end] {
        end.watch(Token(3), Interest::Receive).expect("watched");
    }
    (ours_end, theirs_end)
}

#[test]
fn bytes_go_both_ways_and_the_end_is_seen() {
    let (ours, theirs) = (link(), link());
    let (mut a, mut b) = pair(&ours, &theirs);
    let mut room = [0; 16];
    assert!(would_block(b.receive(&mut room)));
    assert_eq!(a.send(b"hello").expect("room"), 5);
    wait_for(&theirs, Token(3));
    assert_eq!(b.receive(&mut room).expect("there"), 5);
    assert_eq!(&room[..5], b"hello");
    a.finish();
    wait_for(&theirs, Token(3));
    assert_eq!(b.receive(&mut room).expect("the end"), 0);
    assert_eq!(b.send(b"still").expect("half open"), 5);
    wait_for(&ours, Token(3));
    assert_eq!(a.receive(&mut room).expect("there"), 5);
    assert!(a.segment_max() > 500);
}

#[test]
fn room_is_told_of_when_it_is_waited_for() {
    let (ours, theirs) = (link(), link());
    let (mut a, mut b) = pair(&ours, &theirs);
    let much = vec![7; 1 << 20];
    while !would_block(a.send(&much)) {}
    let mut tokens = Vec::new();
    ours.ready(&mut tokens);
    assert!(
        tokens.is_empty(),
        "nothing has come, and no room was asked for"
    );
    a.watch(Token(4), Interest::Both).expect("watched");
    let mut room = vec![0; 1 << 20];
    while !would_block(b.receive(&mut room)) {}
    wait_for(&ours, Token(4));
}

/// Goal: a socket is named for what it is watched for now, whatever it was watched for before, and under its last token. Method:
/// every change from one interest to another, on a stream that has bytes and room.
#[test]
fn what_is_waited_for_changes_at_any_time() {
    let (ours, theirs) = (link(), link());
    let (mut a, mut b) = pair(&ours, &theirs);
    assert_eq!(b.send(b"unread").expect("room"), 6);
    wait_for(&ours, Token(3));
    let all = [
        Interest::Nothing,
        Interest::Send,
        Interest::Receive,
        Interest::Both,
    ];
    let mut token = 10;
    for before in all {
        for now in all {
            for interest in [before, now] {
                token += 1;
                a.watch(Token(token), interest).expect("watched");
            }
            let mut tokens = Vec::new();
            ours.ready(&mut tokens);
            let named = match now {
                Interest::Nothing => vec![],
                _ => vec![Token(token)],
            };
            assert_eq!(tokens, named, "{before:?} to {now:?}");
        }
    }
    // A socket that is not waited for leaves its thread asleep, and wakes it again when it is.
    a.watch(Token(5), Interest::Nothing).expect("watched");
    let waiter = ours.waiter().expect("TCP has one");
    waiter.wait(Some(Duration::from_millis(5)), true);
    a.watch(Token(5), Interest::Receive).expect("watched");
    wait_for(&ours, Token(5));
}

#[test]
fn addresses_are_taken_and_refused() {
    let link = link();
    let mut listener = link.bind(local()).expect("a port");
    listener.listen(1, Token(1)).expect("it listens");
    let at = listener.local();
    let taken = link.bind(at).expect_err("it is taken");
    assert_eq!(taken.in_use(), Some(at));
    let foreign = link.bind(SocketAddr::from(([192, 0, 2, 1], 0)));
    let foreign = foreign.expect_err("not of the link");
    assert!(matches!(foreign, PortError::AddrNotAvailable { .. }));
    let gone = listener.local();
    drop(listener);
    let bound = link.bind(local()).expect("a port");
    // Loopback may refuse at once.
    if let Ok(mut refused) = bound.connect(gone, Token(5)) {
        wait_for(&link, Token(5));
        let kind = refused.connected().expect_err("nobody listens").kind();
        assert_eq!(kind, io::ErrorKind::ConnectionRefused);
    }
}
