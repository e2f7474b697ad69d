//! Threads that wait at a link: the engine's, and one of the program beside it.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use verbs_core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::near::{
    NUMBER, PATIENCE, RING_LEN, arrived, beside, message, neighbours, packet, send, start, texts,
    until, write,
};
use super::*;
use crate::ring::Bell;
use crate::time::VirtualClock;

/// Without a time limit, in effect: a lost wake-up is not hidden.
const FOR_EVER: Option<Duration> = Some(Duration::from_secs(120));

/// How a thread waits for its link.
type Wait = fn(&dyn Waiter);

fn as_the_engine(waiter: &dyn Waiter) {
    waiter.wait(FOR_EVER, true);
}

fn beside_the_engine(waiter: &dyn Waiter) {
    let waited = waiter.wait_beside(&[], FOR_EVER);
    waited.expect("there is a place").expect("no error");
}

/// A thread that sends numbers to and fro with a neighbour, and sleeps when it has nothing to do.
fn echo(bed: &mut Bed, to: u32, first: bool, wait: Wait) {
    const ROUNDS: u32 = 3000;
    let waiter = bed.link.waiter().expect("there is one");
    let mut next = 0;
    if first {
        send(&mut bed.link, &packet(to, &0_u32.to_le_bytes()), 64);
        next = 1;
    }
    let (clock, start) = start();
    while next < ROUNDS {
        for text in texts(&mut bed.link) {
            let number = u32::from_le_bytes(text.try_into().expect("four bytes"));
            assert_eq!(number, next);
            send(&mut bed.link, &packet(to, &(number + 1).to_le_bytes()), 64);
            next += 2;
        }
        if next < ROUNDS {
            wait(&*waiter);
        }
        assert!(clock.now().since(start) < PATIENCE, "at {next}");
    }
}

/// Goal: threads at both ends that sleep when they have nothing to do lose nothing and never both sleep.
#[test]
fn sleeping_neighbours_wake_each_other() {
    for wait in [as_the_engine as Wait, beside_the_engine] {
        let [mut one, mut other] = neighbours();
        let there = thread::spawn(move || {
            echo(&mut other, qpn(5, 0x10), false, wait);
            other
        });
        echo(&mut one, qpn(6, 0x10), true, wait);
        there.join().expect("no panic");
    }
}

/// Goal: what the engine's thread takes in while a thread of the program sleeps beside it reaches that one. Method: at both
/// ends, an engine's thread waits all the time, in either way, and receives nothing; it is woken and has its deadlines.
#[test]
fn an_engines_thread_takes_no_wake_from_the_one_beside_it() {
    let [mut one, mut other] = neighbours();
    let is_over = Arc::new(AtomicBool::new(false));
    let engine = |bed: &Bed| {
        let waiter = bed.link.waiter().expect("there is one");
        let is_over = Arc::clone(&is_over);
        thread::spawn(move || {
            for turn in 0_u64.. {
                if is_over.load(Relaxed) {
                    break;
                }
                if turn % 3 == 0 {
                    waiter.wake();
                }
                let soon = Duration::from_micros(turn % 7 * 20);
                waiter.wait(Some(soon), turn % 4 != 0);
            }
        })
    };
    let engines = [engine(&one), engine(&other)];
    let there = thread::spawn(move || {
        echo(&mut other, qpn(5, 0x10), false, beside_the_engine);
        other
    });
    echo(&mut one, qpn(6, 0x10), true, beside_the_engine);
    there.join().expect("no panic");
    is_over.store(true, Relaxed);
    for engine in engines {
        engine.join().expect("no panic");
    }
}

/// Goal: a thread of a program that waits beside the engine's waits for the daemon, packets, its own descriptors and the
/// timeout; it takes no wake from the engine's thread.
#[test]
fn a_second_thread_waits_for_packets_and_its_own_descriptors() {
    let (mut bed, mut rings, bell) = beside(true);
    let waiter = bed.link.waiter().expect("there is one");
    let (clock, _) = start();
    let (long, short) = (Duration::from_secs(60), Duration::from_millis(5));
    let own_event = eventfd(0, EventfdFlags::empty()).expect("a descriptor");
    let timed = |timeout| {
        let before = clock.now();
        let waited = waiter.wait_beside(&[own_event.as_fd()], Some(timeout));
        waited.expect("there is a place").expect("no error");
        clock.now() - before
    };
    let woken = || {
        let before = clock.now();
        waiter.wait(Some(long), false);
        clock.now() - before < long
    };
    // What has happened until now.
    while timed(short) < short {
        texts(&mut bed.link);
    }
    waiter.wake();
    assert!(timed(short) >= short, "a wake is the other thread's");
    assert!(woken());
    let here = bed.link.addresses()[0];
    let text = message(here, here, 64, &packet(qpn(5, 0x10), b"near"));
    assert_eq!(write(&mut rings, &text), Bell::Quiet, "nobody sleeps");
    assert!(timed(long) < long, "there is a packet");
    assert_eq!(texts(&mut bed.link), [b"near"]);
    assert!(timed(short) >= short);
    say(&bed.daemon, &Message::Gone(vec![3]));
    assert!(timed(long) < long, "the daemon has said something");
    texts(&mut bed.link);
    assert_eq!(bed.link.gone(), Some(qpns(3)));
    rustix::io::write(&own_event, &1_u64.to_ne_bytes()).expect("it counts");
    assert!(timed(long) < long);
    rustix::io::read(&own_event, &mut [0; 8]).expect("it has counted");
    drop((rings, bell));
    until("the end", || {
        timed(short);
        texts(&mut bed.link);
        bed.link.channels.get_mut(NUMBER).is_none()
    });
    assert!(waiter.wait_beside(&[own_event.as_fd(); 17], None).is_none());
}

/// Goal: a thread that finds something to read instead of sleeping leaves the other one's sleep as it is.
#[test]
fn a_thread_that_does_not_sleep_keeps_the_bell_for_the_other() {
    let (mut bed, mut rings, _bell) = beside(true);
    let here = bed.link.addresses()[0];
    let text = message(here, here, 64, &packet(qpn(5, 0x10), b"text"));
    texts(&mut bed.link);
    for is_beside in [false, true] {
        let waiter = Arc::clone(&bed.link.waiter);
        assert!(waiter.falls_asleep(is_beside));
        assert_eq!(write(&mut rings, &text), Bell::Ring);
        // It has not been rung yet, and the other thread finds what was written.
        match is_beside {
            true => as_the_engine(&*waiter),
            false => beside_the_engine(&*waiter),
        }
        assert_eq!(texts(&mut bed.link), [b"text"]);
        assert_eq!(write(&mut rings, &text), Bell::Ring, "one sleeps");
        waiter.is_awake(is_beside);
        assert_eq!(write(&mut rings, &text), Bell::Quiet, "none sleeps");
        assert_eq!(texts(&mut bed.link).len(), 2);
    }
}

/// Goal: while a thread of the program sleeps, packets wake that one only.
#[test]
fn packets_wake_the_programs_thread_only() {
    let (mut bed, mut rings, bell) = beside(true);
    let here = bed.link.addresses()[0];
    let text = message(here, here, 64, &packet(qpn(5, 0x10), b"text"));
    texts(&mut bed.link);
    let waiter = Arc::clone(&bed.link.waiter);
    let (clock, _) = start();
    let timed = |timeout| {
        let before = clock.now();
        waiter.wait(Some(timeout), false);
        clock.now() - before
    };
    let (long, short) = (Duration::from_secs(60), Duration::from_millis(5));
    while timed(short) < short {}
    assert!(waiter.falls_asleep(true));
    assert_eq!(write(&mut rings, &text), Bell::Ring);
    rustix::net::send(&bell, &[1], rustix::net::SendFlags::empty()).expect("there is room");
    say(&bed.daemon, &Message::Gone(vec![3]));
    assert!(timed(short) >= short, "the engine's sleeps on");
    waiter.wake();
    assert!(timed(long) < long);
    waiter.is_awake(true);
    assert!(timed(long) < long, "it looks when no other thread does");
}

/// Goal: packets to a neighbour that reads, but not as fast as they are written, are not lost. Method: in virtual time, its
/// ring is full all the time, and it reads what is there five times a millisecond.
#[test]
fn a_slow_neighbour_loses_nothing() {
    let [mut one, mut other] = neighbours();
    let time = VirtualClock::new();
    one.link = one.link.clock(time.clone());
    let burst = packet(qpn(6, 0x10), &[7; RING_LEN / 4]);
    let (mut sent, mut came) = (0, 0);
    for _ in 0..1000 {
        while send(&mut one.link, &burst, burst.len()) == Sent::Gone {
            sent += 1;
            assert_eq!(one.link.counters().shared_lost, 0);
        }
        time.advance(Duration::from_micros(200));
        came += texts(&mut other.link).len();
    }
    assert!(sent >= 1000, "{sent}");
    until("all of them", || {
        came += texts(&mut other.link).len();
        came == sent
    });
    assert!(one.link.counters().blocked >= 1000);
}

/// A reader that polls neither waits nor asks the system: the line is looked at when a waiting thread has seen something.
#[test]
fn a_quiet_line_is_not_looked_at() {
    let [mut one, _other] = neighbours();
    for _ in 0..2 * LOOKS {
        arrived(&mut one.link);
    }
    assert_eq!(one.link.looks, 0);
    say(&one.daemon, &Message::Gone(vec![3]));
    arrived(&mut one.link);
    assert_eq!(one.link.gone(), None, "nobody has looked");
    let waiter = one.link.waiter().expect("there is one");
    waiter.wait(Some(PATIENCE), false);
    arrived(&mut one.link);
    assert_eq!(one.link.gone(), Some(qpns(3)));
}
