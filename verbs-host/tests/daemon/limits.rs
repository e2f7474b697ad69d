//! Clients that take all that they can get.

use std::net::{IpAddr, Ipv4Addr};

use verbs_core::host::Message;
use verbs_core::host::message::{No, NotListening, VERSION};
use verbs_core::host::quota::{Holder, Quota};
use verbs_host::User;

use crate::bed::{Bed, hello, service_of};

const GREEDY: u32 = 1000;
const OTHER: User = User { uid: 1001, pid: 7 };

/// Goal: a process that connects again and again is refused with the reason, and another one of its user is not.
#[test]
fn a_process_has_a_bounded_number_of_ports() {
    let mut bed = Bed::new();
    let greedy = User {
        uid: GREEDY,
        pid: 5,
    };
    for _ in 0..Quota::Clients.max() {
        bed.join_as(greedy, &hello(VERSION, VERSION))
            .expect("there is room");
    }
    let refused = Quota::Clients.exceeded_by(Holder::Process);
    let no = bed.join_as(greedy, &hello(VERSION, VERSION)).err();
    assert_eq!(no, Some(No::Quota(refused)));
    assert_eq!(
        refused.to_string(),
        "this process has 64 ports of the host's daemon already, the maximum"
    );
    let other = User { pid: 6, ..greedy };
    bed.join_as(other, &hello(VERSION, VERSION))
        .expect("there is room");
}

/// Goal: a user whose programs take everything leaves enough to others, and is told why there is no more. Method: as many
/// programs as it can start, each of which takes all that it can.
#[test]
fn a_user_that_takes_everything_leaves_something() {
    let mut bed = Bed::new();
    let mut theirs = Vec::new();
    let refused = loop {
        let pid = 10_000 + theirs.len() as u32;
        let user = User { uid: GREEDY, pid };
        match bed.join_as(user, &hello(VERSION, VERSION)) {
            Ok(client) => theirs.push(client),
            Err(no) => break no,
        }
        assert!(theirs.len() < 5000, "without end");
    };
    let user = |quota: Quota| quota.exceeded_by(Holder::User);
    assert_eq!(refused, No::Quota(user(Quota::Clients)));
    let (mut full, mut deaf) = ([false; 2], 0);
    for &client in &theirs {
        for tag in 0..5 {
            bed.say(client, &Message::Lease(tag));
        }
        for tag in 0..8 {
            let port = client.id.number() * 8 + tag as u32;
            bed.say(client, &Message::Listen(tag, service_of(port as u16)));
        }
        for n in 0..8 {
            let [a, b] = (client.id.number() as u16).to_be_bytes();
            let group = Ipv4Addr::new(239, a, b, n);
            bed.say(client, &Message::Join(IpAddr::V4(group)));
        }
        for message in bed.told(client) {
            match message {
                Message::Leased(_, Err(No::Quota(error))) => {
                    full[0] |= error.holder == Holder::User;
                }
                Message::Listening(_, Err(NotListening::Quota(error))) => {
                    full[1] |= error.holder == Holder::User;
                }
                _ => {}
            }
        }
        deaf += usize::from(!bed.is_there(client));
    }
    assert_eq!((full, deaf), ([true; 2], 0));
    let groups = std::iter::from_fn(|| bed.daemon.poll_group()).count();
    assert_eq!(groups as u32, Quota::Groups.max_of(Holder::User));
    let (leased, _) = bed.daemon.block_counts(bed.now);
    assert_eq!(leased as u32, Quota::Blocks.max_of(Holder::User));

    // Another user's program has all that it could have before.
    let other = bed
        .join_as(OTHER, &hello(VERSION, VERSION))
        .expect("there is room");
    for tag in 1..u64::from(Quota::Blocks.max()) {
        bed.say(other, &Message::Lease(tag));
        assert!(matches!(bed.told(other)[..], [Message::Leased(_, Ok(_))]));
    }
    bed.say(other, &Message::Listen(1, service_of(65_000)));
    assert_eq!(bed.told(other), [Message::Listening(1, Ok(()))]);
    bed.say(other, &Message::Join("239.77.7.7".parse().expect("one")));
    assert!(bed.daemon.poll_group().is_some_and(|change| change.joins));
}
