//! A port whose daemon ends, and the next daemon.

use std::collections::VecDeque;
use std::time::Duration;

use super::near::{neighbours, packet, send, texts, until};
use super::*;
use crate::time::WallClock;

/// The sockets that a port gets when it connects; none while there is no daemon.
pub(super) type Sockets = Arc<Mutex<VecDeque<OwnedFd>>>;

pub(super) fn rejoining(link: Joined) -> (Joined, Sockets) {
    let sockets = Sockets::default();
    let theirs = Arc::clone(&sockets);
    let connect = move || theirs.lock().pop_front().ok_or(Errno::CONNREFUSED);
    (link.rejoins(connect), sockets)
}

/// The next daemon: what the port says to it first.
pub(super) fn next_daemon(link: &mut Joined, sockets: &Sockets) -> (OwnedFd, Hello) {
    let (theirs, ours) = pair();
    sockets.lock().push_back(theirs);
    let mut bytes = vec![0; MESSAGE_MAX];
    let mut len = 0;
    until("the port to come", || {
        link.receive(&mut |_| {});
        len = recv(&ours, &mut bytes, RecvFlags::DONTWAIT).map_or(0, |(len, _)| len);
        len > 0
    });
    let Ok(Message::Hello(hello)) = Message::decode(&bytes[..len]) else {
        panic!("a hello");
    };
    (ours, hello)
}

pub(super) fn welcome(daemon: &OwnedFd, block: u16) {
    say(
        daemon,
        &Message::Welcome(Welcome {
            version: VERSION,
            features: FEATURE,
            client: 3,
            block,
            port: port(),
            token: [8; 16],
        }),
    );
}

fn said(daemon: &OwnedFd) -> Message<'static> {
    let bytes: &'static [u8] = heard(daemon).leak();
    Message::decode(bytes).expect("a message")
}

/// Goal: the port claims its numbers, and says again what it listens for and which groups it is in; nothing is reported
/// to the HCA.
#[test]
fn a_port_goes_on_with_the_next_daemon() {
    let Bed { link, daemon } = bed();
    let (mut link, sockets) = rejoining(link);
    let ports = link.host_ports().expect("it has some");
    let answers = Arc::new(Mutex::new(Vec::new()));
    let listen = |id| {
        let heard = Arc::clone(&answers);
        let service = Service { id, addr: None };
        ports.listen(
            service,
            Box::new(move |result| heard.lock().push((id, result))),
        );
    };
    for id in [7, 8] {
        listen(id);
        let Message::Listen(tag, _) = said(&daemon) else {
            panic!("a listen");
        };
        say(&daemon, &Message::Listening(tag, Ok(())));
    }
    link.receive(&mut |_| {});
    assert_eq!(answers.lock().split_off(0), [(7, Ok(())), (8, Ok(()))]);
    let group: IpAddr = "239.1.2.3".parse().expect("one");
    link.join(group).expect("there is room");
    link.join(group).expect("there is room");

    drop(daemon);
    link.receive(&mut |_| {});
    listen(9);
    let lost = packet(qpn(6, 0x10), b"lost");
    assert_eq!(send(&mut link, &lost, 64), Sent::Gone);
    assert_eq!((answers.lock().len(), link.change()), (0, None));

    let (daemon, hello) = next_daemon(&mut link, &sockets);
    assert_eq!((hello.token, hello.blocks), ([8; 16], vec![5]));
    assert_eq!(hello.addresses, port().addresses);
    welcome(&daemon, 5);
    link.receive(&mut |_| {});
    let mut tags = Vec::new();
    for id in [7, 8, 9] {
        let Message::Listen(tag, service) = said(&daemon) else {
            panic!("a listen");
        };
        assert_eq!(service.id, id);
        tags.push(tag);
    }
    assert_eq!(said(&daemon), Message::Join(group));
    assert_eq!(said(&daemon), Message::Join(group));
    // What another program has taken in between is not given back, and what is not wanted any longer is.
    ports.unlisten(Service { id: 7, addr: None });
    say(&daemon, &Message::Listening(tags[0], Ok(())));
    say(
        &daemon,
        &Message::Listening(tags[1], Err(NotListening::InUse)),
    );
    say(&daemon, &Message::Listening(tags[2], Ok(())));
    link.receive(&mut |_| {});
    let seventh = Service { id: 7, addr: None };
    assert_eq!(said(&daemon), Message::Unlisten(seventh));
    ports.unlisten(Service { id: 8, addr: None });
    assert_eq!(answers.lock().split_off(0), [(9, Ok(()))]);
    send(&mut link, &packet(qpn(6, 0x10), b"there"), 64);
    assert_eq!(said(&daemon), Message::OpenChannel(6));
    assert!(matches!(said(&daemon), Message::Packets(_)));
    assert_eq!(link.change(), None);
}

/// Goal: neighbours need no daemon, and notice each other's end without one.
#[test]
fn neighbours_go_on_without_a_daemon() {
    let [(mut one, _none), (mut other, _nor)] = neighbours().map(|Bed { link, daemon }| {
        drop(daemon);
        rejoining(link)
    });
    for link in [&mut one, &mut other] {
        link.receive(&mut |_| {});
        assert!(link.tie.is_cut());
    }
    send(&mut one, &packet(qpn(6, 0x10), b"there"), 64);
    assert_eq!(texts(&mut other), [b"there"]);
    send(&mut other, &packet(qpn(5, 0x10), b"last"), 64);
    drop(other);
    assert_eq!(texts(&mut one), [b"last"]);
    let waiter = one.waiter().expect("there is one");
    let mut gone = None;
    until("the end", || {
        waiter.wait(Some(Duration::from_millis(10)), true);
        one.receive(&mut |_| {});
        gone = one.gone();
        gone.is_some()
    });
    assert_eq!((gone, one.change()), (Some(qpns(6)), None));
}

/// Goal: without a daemon for long, the port goes down, and up again with the next; one that does not take it ends it.
#[test]
fn a_port_without_a_daemon_goes_down() {
    let Bed { link, daemon } = bed();
    let (mut link, sockets) = rejoining(link);
    link.tie.patience = Duration::ZERO;
    drop(daemon);
    let waiter = link.waiter().expect("there is one");
    until("the port to go down", || {
        waiter.wait(None, true);
        link.receive(&mut |_| {});
        link.change() == Some(Change::Down)
    });
    // One that breaks the rules is left, and so is one that ends before it has answered.
    let (daemon, _) = next_daemon(&mut link, &sockets);
    say(&daemon, &Message::Gone(vec![1]));
    let (daemon, _) = next_daemon(&mut link, &sockets);
    drop(daemon);
    let (daemon, _) = next_daemon(&mut link, &sockets);
    assert_eq!(link.change(), None);
    welcome(&daemon, 5);
    link.receive(&mut |_| {});
    assert_eq!((link.change(), link.change()), (Some(Change::Up), None));
    drop(daemon);
    let (daemon, _) = next_daemon(&mut link, &sockets);
    say(&daemon, &Message::No(No::Claim));
    until("the port to go down", || {
        link.receive(&mut |_| {});
        link.change() == Some(Change::Down)
    });
    let (theirs, _daemon) = pair();
    sockets.lock().push_back(theirs);
    let clock = WallClock::default();
    let start = clock.now();
    while clock.now().since(start) < waiter::RETRY * 4 {
        waiter.wait(Some(waiter::RETRY), true);
        link.receive(&mut |_| {});
    }
    assert_eq!(sockets.lock().len(), 1, "it does not look any longer");
}

/// Goal: the time that a port stays up without a daemon is counted from when it had one last, however many have ended
/// since before they answered. Method: each next daemon ends when it has been asked.
#[test]
fn daemons_that_do_not_answer_give_a_port_no_time() {
    let Bed { link, daemon } = bed();
    let (mut link, sockets) = rejoining(link);
    link.tie.patience = waiter::RETRY * 4;
    drop(daemon);
    let mut daemons = 0;
    let mut last = None;
    until("the port to go down", || {
        if sockets.lock().is_empty() {
            let (theirs, ours) = pair();
            sockets.lock().push_back(theirs);
            last = Some(ours);
            daemons += 1;
        }
        link.receive(&mut |_| {});
        link.change() == Some(Change::Down)
    });
    assert!(daemons > 1 && last.is_some(), "{daemons} daemons");
}
