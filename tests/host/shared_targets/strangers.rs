//! A program that sends what it should not.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use hca_sim::Hca;
use hca_sim::link::{Burst, Joined, PacketLink, Route};
use hca_sim::wire::target::{About, Again, Phase, Recall, TargetMessage};
use verbs_core::{EventType, Psn, Qpn};

use super::mixed::{Draw, mixed};
use super::{Host, NAME, address, daemon, joined};

/// What a program sends that knows the numbers of a target and of queues, and the form of messages, but has not opened the domain.
fn attack(mut link: Joined, target: Qpn, doors: &[Qpn], is_over: &AtomicBool) -> u64 {
    let here = link.addresses()[0];
    let route = Route {
        src: here,
        dst: here,
        tclass: 0,
        hop_limit: 64,
        local: None,
    };
    let mut draw = Draw(99);
    let mut sent = 0;
    while !is_over.load(Relaxed) {
        let mut some = |end| draw.below(end);
        let about = match some(8) {
            0 => About::Recall(Recall {
                psn: Psn::new(some(1 << 24) as u32),
                again: Again::Read,
            }),
            1 => About::Report(Phase::Over, Box::default()),
            2 => About::Report(Phase::Failed, Box::default()),
            3 => About::End,
            4 => About::Close,
            5 => About::Closed,
            6 => About::Opened(true),
            _ => About::Event(EventType::QpFatal),
        };
        let message = TargetMessage {
            target,
            visit: some(1 << 16) as u32,
            about,
        };
        let mut bytes = message.emit();
        match some(4) {
            0 => bytes.truncate(some(20) as usize),
            1 => {
                let at = some(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << some(8);
            }
            _ => {}
        }
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        let door = doors[some(doors.len() as u64) as usize]
            .value()
            .to_be_bytes();
        let qkey = TargetMessage::QKEY.0.to_be_bytes();
        let mut packet = vec![
            0x64, 0, 0xff, 0xff, 0, door[1], door[2], door[3], 0, 0, 0, 0,
        ];
        packet.extend(qkey);
        packet.extend([0, door[1], door[2], door[3]]);
        packet.extend(&bytes);
        packet.extend([0; 4]);
        let burst = Burst {
            route,
            segment: packet.len(),
            bytes: &packet,
        };
        let _ = link.transmit(&burst);
        link.receive(&mut |_| {});
        sent += 1;
    }
    sent
}

/// Goal: a program that sends messages about others' targets, without having opened the domain, harms nobody: what it guesses is
/// wrong, and what is no message is dropped.
#[test]
fn messages_of_a_stranger_harm_nobody() {
    let [attacker, links @ ..] = daemon::start::<5>(address()).map(joined);
    let host = Host::over(links, [Some(NAME); 3], |_, link| Hca::over(link).build());
    let target = host.target.qpn();
    // The last number of a block is the door of its program.
    let doors: Vec<_> = (0..3)
        .map(|k| Qpn::new(host.srqn(k).value() | 1023))
        .collect();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let attacks = scope.spawn(|| attack(attacker, target, &doors, &is_over));
        mixed(host, 5);
        is_over.store(true, Relaxed);
        let sent = attacks.join().expect("no panic");
        assert!(sent > 100, "{sent}");
    });
}
