//! Peers that are gone without a word.

use std::time::Duration;

use verbs_core::mad::TransactionId;

use super::lab::{Lab, accept, connect, gid};
use crate::machine::State;
use crate::table::Cm;
use crate::wire::{Lap, Message};
use crate::{Config, ConnId, Ended, Event, Watch};

const SECOND: Duration = Duration::from_secs(1);

fn config(silence: Option<Duration>) -> Config {
    let watch = Some(Watch {
        silence,
        ..Watch::default()
    });
    Config {
        watch,
        ..Config::default()
    }
}

fn watched(silence: Option<Duration>) -> (Lab, [ConnId; 2]) {
    let mut lab = Lab::with(config(silence));
    let conns = lab.established();
    (lab, conns)
}

fn lost(conn: ConnId) -> Option<Event> {
    let by = Ended::Failed;
    Some(Event::Disconnected { conn, by })
}

/// Fires the timer of a host, and has its question refused; returns the question.
fn ask_nobody(lab: &mut Lab, host: usize) -> Vec<&'static str> {
    lab.fire(host);
    lab.refuse(host)
}

/// Goal: an end whose peer was killed ends in less than 2 s, and not before its third refusal in half a second; as a break,
/// with a timewait, and with nothing sent to the peer.
#[test]
fn a_peer_that_was_killed_is_noticed() {
    for (host, question) in [(0, "LAP"), (1, "REP")] {
        let (mut lab, conns) = watched(None);
        let died = lab.now;
        for _ in 0..2 {
            assert_eq!(ask_nobody(&mut lab, host), [question]);
            assert_eq!(lab.event(host), None);
        }
        assert_eq!(ask_nobody(&mut lab, host), [question]);
        assert_eq!(lab.event(host), lost(conns[host]));
        assert!(
            lab.now.since(died) < 2 * SECOND,
            "{:?}",
            lab.now.since(died)
        );
        assert_eq!(lab.lose(host), [""; 0]);
        let last = lab.changes.last().map(|&(at, state)| (at, state));
        assert_eq!(last, Some((host, verbs_core::QpState::Err)));
        assert_eq!(lab.state(host, conns[host]), Some(State::Timewait));
        assert_eq!(lab.cms[host].counters().lost, 1);
        lab.fire(host);
        let exit = Event::TimewaitExit { conn: conns[host] };
        assert_eq!(lab.event(host), Some(exit));
        assert!(lab.cms[host].is_empty() && lab.cms[host].poll_timeout().is_none());
    }
}

/// Goal: all connections with a peer end with it, and one question at a time is asked for all of them.
#[test]
fn one_question_is_for_all_connections_of_an_address() {
    let (mut lab, _) = watched(None);
    for n in 0..20 {
        lab.cms[0].connect(lab.now, connect(0x100 + n)).unwrap();
        lab.carry(0);
        let Some(Event::ConnectRequest { conn, .. }) = lab.event(1) else {
            panic!("a request")
        };
        let answer = crate::Accept {
            qpn: verbs_core::Qpn::new(0x200 + n),
            ..accept()
        };
        lab.cms[1].accept(lab.now, conn, &answer).unwrap();
        lab.exchange();
        while lab.event(0).is_some() || lab.event(1).is_some() {}
    }
    for _ in 0..3 {
        assert_eq!(ask_nobody(&mut lab, 0), ["LAP"]);
    }
    let events = std::iter::from_fn(|| lab.event(0));
    let ended = events.filter(|event| matches!(event, Event::Disconnected { .. }));
    assert_eq!(ended.count(), 21);
}

/// Goal: a live peer is asked for a day, and nothing changes at either end; each question is answered.
#[test]
fn questions_change_nothing() {
    let (mut lab, conns) = watched(Some(10 * SECOND));
    let begun = lab.now;
    let mut asked = 0;
    while lab.now.since(begun) < 86_400 * SECOND {
        let next = |host: usize| lab.cms[host].poll_timeout().expect("a question");
        let host = usize::from(next(1) < next(0));
        lab.fire(host);
        let (question, answer) = [("LAP", "APR"), ("REP", "RTU")][host];
        assert_eq!(lab.carry(host), [question]);
        assert_eq!(lab.carry(1 - host), [answer]);
        asked += 1;
    }
    assert!((172_700..=172_900).contains(&asked), "{asked}");
    for (host, conn) in [0, 1].into_iter().zip(conns) {
        assert_eq!(lab.event(host), None);
        assert_eq!(lab.state(host, conn), Some(State::Established));
        assert_eq!(lab.cms[host].counters(), crate::Counters::default());
    }
}

/// Goal: forged reports end nothing. Method: for an hour, each question is answered, and reported as refused beside it, ten
/// times over, before the answer and after it; so are messages that were never sent, at another address too.
#[test]
fn reports_of_refusals_end_no_live_connection() {
    for host in [0, 1] {
        let (mut lab, conns) = watched(Some(10 * SECOND));
        for round in 0..3600 {
            lab.fire(host);
            let mads = lab.sent_mads(host);
            for mad in &mads {
                for _ in 0..10 {
                    lab.report(host, gid(1 - host), mad);
                    lab.report(host, gid(7), mad);
                    let forged = TransactionId::new(2, round);
                    lab.cms[host].undelivered(lab.now, gid(1 - host), forged);
                }
                lab.cms[1 - host].handle(lab.now, super::lab::other_of(1 - host), mad);
                lab.carry(1 - host);
                lab.report(host, gid(1 - host), mad);
            }
            assert_eq!(lab.event(host), None);
        }
        assert_eq!(lab.state(host, conns[host]), Some(State::Established));
    }
}

/// Goal: a few refusals in no time mean nothing: the peer's program may be restarting its device. Method: the same report
/// often, and two questions refused, then one answered.
#[test]
fn refusals_count_once_and_in_a_row() {
    let (mut lab, conns) = watched(None);
    for _ in 0..100 {
        for _ in 0..2 {
            lab.fire(1);
            let rep = lab.sent_mads(1)[0];
            for _ in 0..5 {
                lab.report(1, gid(0), &rep);
            }
        }
        lab.fire(1);
        assert_eq!(lab.carry(1), ["REP"]);
        assert_eq!(lab.carry(0), ["RTU"]);
        assert_eq!(lab.event(1), None);
    }
    assert_eq!(lab.state(1, conns[1]), Some(State::Established));
}

/// Goal: a peer that was started again at the same address is taken for gone as soon as it is asked, for all connections.
#[test]
fn a_peer_that_has_begun_again_knows_nothing() {
    for host in [0, 1] {
        let (mut lab, conns) = watched(None);
        lab.cms[1 - host] = Cm::new(config(None), super::lab::port(1 - host), 2, 77);
        lab.fire(host);
        lab.exchange();
        assert_eq!(lab.event(host), lost(conns[host]), "{host}");
    }
    // An answer that nobody has asked for, about a connection that is there.
    let (mut lab, conns) = watched(None);
    let apr = crate::wire::Apr {
        status: crate::wire::AprStatus::InvalidCommId,
        ..crate::wire::Apr::default()
    };
    lab.give(0, &apr.into());
    assert_eq!(lab.state(0, conns[0]), Some(State::Established));
}

/// Goal: a network that loses everything ends a connection when the peer was silent for as long as was said, and a network
/// that loses a fifth does not. Method: the same, without a time, for a day.
#[test]
fn silence_ends_a_connection_only_where_it_is_said() {
    for host in [0, 1] {
        let (mut lab, conns) = watched(Some(10 * SECOND));
        // The peer answers; then the cable is pulled.
        lab.fire(host);
        lab.exchange();
        let cut = lab.now;
        while lab.event(host).is_none() {
            assert!(lab.now.since(cut) < 13 * SECOND);
            lab.fire(host);
            let sent = lab.lose(host);
            assert!(sent.len() == 1, "{sent:?}");
        }
        assert!(
            lab.now.since(cut) >= 10 * SECOND,
            "{:?}",
            lab.now.since(cut)
        );
        assert_eq!(lab.state(host, conns[host]), Some(State::Timewait));

        let (mut lab, conns) = watched(None);
        lab.fire(host);
        lab.exchange();
        for _ in 0..86_400 {
            lab.fire(host);
            assert_eq!(lab.lose(host).len(), 1);
        }
        assert_eq!(lab.event(host), None);
        assert_eq!(lab.state(host, conns[host]), Some(State::Established));
    }
    let (mut lab, conns) = watched(Some(10 * SECOND));
    for n in 0..100_000_u32 {
        let next = |host: usize| lab.cms[host].poll_timeout().expect("a question");
        let host = usize::from(next(1) < next(0));
        lab.fire(host);
        // A fifth, in no order that a second repeats.
        match n.wrapping_mul(0x9e37_79b9) >> 24 {
            0..51 => drop(lab.lose(host)),
            _ => lab.exchange(),
        }
        assert_eq!(lab.event(host), None, "{n}");
    }
    assert_eq!(lab.state(0, conns[0]), Some(State::Established));
}

/// Goal: a peer that is thought to be gone for its silence and is not hears of it.
#[test]
fn a_silent_peer_is_told() {
    let (mut lab, conns) = watched(Some(10 * SECOND));
    lab.fire(1);
    lab.exchange();
    let cut = lab.now;
    while lab.event(1).is_none() {
        assert!(lab.now.since(cut) < 13 * SECOND);
        lab.fire(1);
        if lab.state(1, conns[1]) != Some(State::Timewait) {
            lab.lose(1);
        }
    }
    assert_eq!(lab.carry(1), ["DREQ"]);
    assert_eq!(lab.carry(0), ["DREP"]);
    assert!(matches!(lab.event(0), Some(Event::Disconnected { .. })));
}

/// Goal: a peer that does not answer such questions, as Linux does not answer an offer of a path, is not taken for gone.
#[test]
fn who_never_answers_is_not_expected_to() {
    let (mut lab, conns) = watched(Some(10 * SECOND));
    for _ in 0..1000 {
        lab.fire(0);
        assert_eq!(lab.lose(0), ["LAP"]);
        assert_eq!(lab.event(0), None);
    }
    assert_eq!(lab.state(0, conns[0]), Some(State::Established));
}

/// Goal: where it is not asked for, an idle connection sends nothing; and a question says what it should.
#[test]
fn it_is_off_unless_it_is_asked_for() {
    let mut lab = Lab::new();
    lab.established();
    assert_eq!(
        [0, 1].map(|host| lab.cms[host].poll_timeout()),
        [None, None]
    );
    let (mut lab, _) = watched(None);
    lab.fire(0);
    let [Message::Lap(Lap { remote_qpn, .. })] = lab.sent(0)[..] else {
        panic!("an offer of a path")
    };
    assert_eq!(remote_qpn, accept().qpn);
}
