//! What requests and connections of the peer do in each state: requests, which anybody can forge, change nothing.

use super::*;

/// What is done to a machine.
#[derive(Clone, Copy, Debug)]
enum Event {
    Connect,
    Asked,
    /// A connection is established that was asked for after the one that is there was made.
    Newer,
    /// One that was asked for before.
    Older,
    Accept,
    Established,
    Fail,
    Lost,
}

const EVENTS: [Event; 8] = [
    Event::Connect,
    Event::Asked,
    Event::Newer,
    Event::Older,
    Event::Accept,
    Event::Established,
    Event::Fail,
    Event::Lost,
];

/// A machine whose connection is in that state, asked for by this end or by the peer.
fn in_state(host: u8, state: State, is_own: bool) -> (Machine, Asked) {
    let mut machine = End::new(host, 7).machine;
    let older = machine.asked().unwrap();
    if state == State::Down {
        return (machine, older);
    }
    match is_own {
        true => assert!(machine.connect().is_some()),
        false => assert!(machine.accept()),
    }
    if state != State::Connecting {
        let peer = End::new(3 - host, 8).machine.asked().unwrap().answer;
        machine.established(&peer, &CongestionMap::default());
    }
    // The last two are passed through at once.
    machine.state = state;
    (machine, older)
}

fn after(host: u8, state: State, is_own: bool, event: Event) -> String {
    let (mut machine, older) = in_state(host, state, is_own);
    let newer = Asked {
        connects: machine.counts.connects,
        ..older
    };
    let done = match event {
        Event::Connect => machine.connect().map_or("no", |_| "asks"),
        Event::Asked => machine.asked().map_or("refuses", |_| "answers"),
        Event::Newer => machine.supersede(&newer).map_or("refuses", |()| "takes"),
        Event::Older => machine.supersede(&older).map_or("refuses", |()| "takes"),
        Event::Accept => ["no", "takes"][usize::from(machine.accept())],
        Event::Established => {
            machine.established(&older.answer, &CongestionMap::default());
            ""
        }
        Event::Fail => {
            machine.fail();
            ""
        }
        Event::Lost => {
            machine.lost(Instant::ZERO, |_, _| Payload::default());
            ""
        }
    };
    let next = machine.state();
    match (next == state, done) {
        (true, "") => "-".to_owned(),
        (true, done) => done.to_owned(),
        (false, "") => next.to_string(),
        (false, done) => format!("{done} {next}"),
    }
}

/// All states and events, one state a line.
fn table(host: u8, is_own: bool) -> String {
    let line = |state: State| {
        let results = EVENTS.map(|event| after(host, state, is_own, event));
        format!("{state}: {}\n", results.join(", "))
    };
    State::ALL.map(line).concat()
}

/// The order of results: connect, asked, newer, older, accept, established, fail, lost.
#[test]
fn every_event_in_every_state() {
    let lower_asked = "\
down: asks connecting, answers, takes, takes, takes connecting, -, error, -
connecting: no, refuses, takes, takes, no, up, error, down
up: no, answers, takes error, refuses, no, -, error, down
error: no, answers, takes, takes, no, -, -, down
disconnecting: no, answers, takes, takes, no, -, error, down
";
    assert_eq!(table(1, true), lower_asked);
    // The higher address answers while it asks; and of two connections that were asked for at once, it takes the peer's.
    let higher_asked = lower_asked
        .replace("connecting: no, refuses", "connecting: no, answers")
        .replace("takes error, refuses", "takes error, takes error");
    assert_eq!(table(2, true), higher_asked);
    // What the peer asked for last stays, whichever address is lower.
    assert_eq!(table(1, false), lower_asked);
    let higher_was_asked =
        lower_asked.replace("connecting: no, refuses", "connecting: no, answers");
    assert_eq!(table(2, false), higher_was_asked);
}

/// Goal: of two connections that were asked for at once, both ends keep the same one, in whatever order they hear of them.
/// Method: every order in which each end may hear of its own and of the peer's.
#[test]
fn both_ends_keep_the_same_of_two_connections() {
    for orders in 0..4 {
        // The requests have crossed before either end had asked by itself, so that both are answered.
        let mut ends = [End::new(1, 11), End::new(2, 12)].map(|end| end.machine);
        let asked = [0, 1].map(|end: usize| ends[end].asked().unwrap());
        let answers = [1, 0].map(|end: usize| asked[end].answer);
        let kept = [0, 1].map(|end: usize| {
            let machine = &mut ends[end];
            assert!(machine.connect().is_some());
            let is_own_first = orders >> end & 1 == 0;
            if is_own_first {
                machine.established(&answers[end], &CongestionMap::default());
                match machine.supersede(&asked[end]) {
                    Ok(()) => 1 - end,
                    Err(Refusal::Older) => end,
                    Err(Refusal::Busy) => panic!("it is established"),
                }
            } else {
                // This end gives its attempt up, of which the peer then hears nothing.
                assert_eq!(machine.supersede(&asked[end]), Ok(()));
                1 - end
            }
        });
        match orders {
            // One has given its attempt up: there is only one connection.
            0b01 => assert_eq!(kept[0], 1, "{kept:?}"),
            0b10 => assert_eq!(kept[1], 0, "{kept:?}"),
            0b00 => assert_eq!(kept, [0, 0], "the lower address's"),
            // Both have given up, and ask again.
            _ => assert_eq!(kept, [1, 0]),
        }
    }
}

/// Goal: what the node keeps of a peer that has gone is nothing of its sockets'. Method: a machine is forgettable while it is down
/// and no socket has anything queued, whatever it would answer or ask itself.
#[test]
fn only_what_sockets_send_is_kept() {
    let mut pair = Pair::new();
    assert!(pair.ends[0].machine.is_forgettable());
    pair.send(0, 5, 6, b"waits");
    assert!(!pair.ends[0].machine.is_forgettable());
    pair.connect();
    pair.settle();
    assert!(!pair.ends[0].machine.is_forgettable(), "it is up");
    pair.cut();
    assert!(pair.ends[0].machine.is_forgettable());
    // A ping that comes, and whose answer is lost.
    pair.connect();
    pair.settle();
    pair.send(1, 4000, PING_PORT, b"");
    while pair.post(1) {}
    while pair.ends[0].take() {}
    assert!(pair.ends[0].machine.queued() > 0);
    pair.cut();
    assert!(pair.ends[0].machine.is_forgettable());
}
