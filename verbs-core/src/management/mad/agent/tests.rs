//! Goal: every request ends exactly once, with its own response or a timeout, and no peer can end
//! another's. Method: two services exchanging datagrams by hand.

use std::time::Duration;

use super::*;
use crate::addr::Lid;
use crate::mad::header::Status;
use crate::mad::rmpp::{self, RmppFlags, RmppStatus, Sent};
use crate::mad::sa;
use crate::qp_attr::Av;

const SECOND: Duration = Duration::from_secs(1);
const RETRY: Retry = Retry {
    timeout: SECOND,
    retries: 2,
};

fn port(lid: u16) -> Address {
    Address::gsi(Av::to_lid(1, Lid(lid)))
}

fn get(method: Method) -> MadBytes {
    let mut mad = [0; 256];
    let header = MadHeader {
        base_version: 1,
        class: Class::SA,
        class_version: sa::CLASS_VERSION,
        method,
        ..MadHeader::default()
    };
    emit_header(&header, &mut mad);
    mad
}

fn response_to(mad: &MadBytes) -> MadBytes {
    let mut response = *mad;
    let header = MadHeader::parse(header_of(mad));
    emit_header(&header.response(Status::OK), &mut response);
    response
}

fn client() -> (Agents, AgentId) {
    let mut agents = Agents::new(AgentConfig::default(), 0xffff_ffff);
    let id = agents.register(Class::SA, 2, &[]).unwrap();
    (agents, id)
}

#[test]
fn a_method_of_a_class_belongs_to_one_agent() {
    let mut agents = Agents::new(AgentConfig::default(), 1);
    let cm = agents.register(Class::CM, 2, &[Method::SEND]).unwrap();
    let taken = agents.register(Class::CM, 2, &[Method::GET, Method::SEND]);
    assert_eq!(
        taken,
        Err(AgentError::Taken {
            class: Class::CM,
            version: 2,
            method: Method::SEND
        })
    );
    assert!(
        agents.register(Class::CM, 2, &[Method::GET]).is_ok(),
        "the refused one took nothing"
    );
    agents.unregister(cm).unwrap();
    assert_eq!(agents.unregister(cm), Err(AgentError::NoAgent));
    assert!(agents.register(Class::CM, 2, &[Method::SEND]).is_ok());
}

#[test]
fn requests_go_to_who_registered_and_the_inbox_is_bounded() {
    let config = AgentConfig {
        inbox_max: 1,
        ..AgentConfig::default()
    };
    let mut agents = Agents::new(config, 1);
    let agent = agents.register(Class::SA, 2, &[Method::GET]).unwrap();
    let mad = get(Method::GET);
    agents.handle(Instant::ZERO, port(7), &get(Method::SET));
    assert_eq!(agents.counters().unclaimed, 1);
    for _ in 0..2 {
        agents.handle(Instant::ZERO, port(7), &mad);
    }
    assert_eq!(agents.counters().inbox_full, 1);
    let delivery = Delivery::Request {
        agent,
        from: port(7),
        mad,
    };
    assert_eq!(agents.poll_delivery(), Some(delivery));
    agents.handle(Instant::ZERO, port(7), &mad);
    assert!(agents.poll_delivery().is_some(), "there is room again");
    let mut old = mad;
    old[0] = 2;
    agents.handle(Instant::ZERO, port(7), &old);
    assert_eq!(
        (agents.counters().bad_version, agents.poll_delivery()),
        (1, None)
    );
}

#[test]
fn a_response_ends_its_request_once_and_only_from_its_peer() {
    let (mut agents, agent) = client();
    let mad = get(Method::GET);
    let tid = agents
        .request(Instant::ZERO, agent, port(7), &mad, RETRY)
        .unwrap();
    let (to, sent) = agents.poll_transmit().unwrap();
    assert_eq!((to, header_of(&sent).tid()), (port(7), tid));
    let response = response_to(&sent);
    agents.handle(Instant::ZERO, port(8), &response);
    assert_eq!((agents.counters().unmatched, agents.pending()), (1, 1));
    let mut other_class = response;
    other_class[1] = Class::PERF.0;
    agents.handle(Instant::ZERO, port(7), &other_class);
    assert_eq!((agents.counters().unmatched, agents.pending()), (2, 1));
    for _ in 0..2 {
        agents.handle(Instant::ZERO, port(7), &response);
    }
    let delivery = Delivery::Response {
        agent,
        tid,
        mad: response,
        payload: None,
    };
    assert_eq!(agents.poll_delivery(), Some(delivery));
    assert_eq!(
        (agents.poll_delivery(), agents.poll_timeout()),
        (None, None)
    );
    assert_eq!(agents.counters().unmatched, 3);
}

#[test]
fn silence_means_retries_and_then_a_timeout() {
    let (mut agents, agent) = client();
    let tid = agents
        .request(Instant::ZERO, agent, port(7), &get(Method::GET), RETRY)
        .unwrap();
    let mut sent = 0;
    while let Some(deadline) = agents.poll_timeout() {
        sent += std::iter::from_fn(|| agents.poll_transmit()).count();
        agents.handle_timeout(deadline);
    }
    assert_eq!((sent, agents.pending()), (3, 0));
    assert_eq!(
        agents.poll_delivery(),
        Some(Delivery::TimedOut { agent, tid })
    );

    let tid = agents
        .request(Instant::ZERO, agent, port(7), &get(Method::GET), RETRY)
        .unwrap();
    assert!(agents.cancel(tid) && !agents.cancel(tid));
    assert_eq!(
        (agents.poll_timeout(), agents.poll_delivery()),
        (None, None)
    );
}

/// However a request ends, and however often it was sent before, its timer ends with it.
#[test]
fn the_timer_of_a_request_ends_with_it() {
    for repeats in 0..=RETRY.retries {
        for is_answered in [true, false] {
            let (mut agents, agent) = client();
            let mad = get(Method::GET);
            let tid = agents
                .request(Instant::ZERO, agent, port(7), &mad, RETRY)
                .unwrap();
            let (_, sent) = agents.poll_transmit().unwrap();
            for _ in 0..repeats {
                let due = agents.poll_timeout().unwrap();
                agents.handle_timeout(due);
                assert!(agents.poll_transmit().is_some());
            }
            assert!(agents.poll_timeout().is_some());
            if is_answered {
                agents.handle(Instant::ZERO, port(7), &response_to(&sent));
            } else {
                assert!(agents.cancel(tid));
            }
            let left = (agents.pending(), agents.poll_timeout());
            assert_eq!(left, (0, None), "{repeats} {is_answered}");
        }
    }
}

#[test]
fn limits_and_wrong_classes_are_refused() {
    let config = AgentConfig {
        agents_max: 1,
        requests_max: 1,
        ..AgentConfig::default()
    };
    let mut agents = Agents::new(config, 1);
    let id = agents.register(Class::SA, 2, &[]).unwrap();
    let full = agents.register(Class::CM, 2, &[]);
    assert_eq!(
        full,
        Err(AgentError::Limit {
            what: "agents_max",
            max: 1
        })
    );
    let mut other = get(Method::GET);
    other[1] = Class::PERF.0;
    let wrong = agents.request(Instant::ZERO, id, port(1), &other, RETRY);
    assert_eq!(
        wrong,
        Err(AgentError::WrongClass {
            expected: Class::SA,
            got: Class::PERF
        })
    );
    agents
        .request(Instant::ZERO, id, port(1), &get(Method::GET), RETRY)
        .unwrap();
    let full = agents.request(Instant::ZERO, id, port(1), &get(Method::GET), RETRY);
    assert_eq!(
        full,
        Err(AgentError::Limit {
            what: "requests_max",
            max: 1
        })
    );
}

/// Goal: a table of many datagrams comes through both services, over a wire that loses every fifth
/// datagram. Method: virtual time; the server answers a request that it sees again once more.
#[test]
fn a_table_of_many_datagrams_is_asked_for_and_delivered() {
    let (mut client, agent) = client();
    let mut server = Agents::new(AgentConfig::default(), 9);
    let methods = [Method::GET_TABLE];
    let serving = server.register(Class::SA, 2, &methods).unwrap();
    let table: Vec<u8> = (0..64 * 100_u32).map(|n| n.to_le_bytes()[0]).collect();
    let start = Instant::ZERO;
    let asked = client.request(start, agent, port(2), &get(Method::GET_TABLE), RETRY);
    let tid = asked.unwrap();

    let (mut now, mut count, mut responded) = (start, 0, 0);
    let delivery = loop {
        let mut lost = || {
            count += 1;
            count % 5 == 0
        };
        while let Some((_, mad)) = client.poll_transmit() {
            if !lost() {
                server.handle(now, port(1), &mad);
            }
        }
        while let Some(delivery) = server.poll_delivery() {
            match delivery {
                Delivery::Request { mad, .. } => {
                    let template = response_to(&mad);
                    let answered = server.respond(now, serving, port(1), &template, table.clone());
                    let again = Err(AgentError::InProgress(tid));
                    assert!(answered == Ok(()) || answered == again);
                }
                Delivery::Responded { outcome, .. } => {
                    assert_eq!(outcome, Sent::Done);
                    responded += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        while let Some((_, mad)) = server.poll_transmit() {
            if !lost() {
                client.handle(now, port(2), &mad);
            }
        }
        if responded > 0 {
            break client.poll_delivery();
        }
        let next = [client.poll_timeout(), server.poll_timeout()]
            .into_iter()
            .flatten()
            .min();
        now = next.filter(|&next| next > now).unwrap_or(now);
        client.handle_timeout(now);
        server.handle_timeout(now);
    };
    match delivery {
        Some(Delivery::Response {
            tid: found,
            payload: Some(payload),
            ..
        }) => {
            assert_eq!((found, payload), (tid, table));
        }
        other => panic!("{other:?}"),
    }
    // Nothing is left behind once late repetitions are no longer waited for.
    while let Some(deadline) = client.poll_timeout().or(server.poll_timeout()) {
        client.handle_timeout(deadline);
        server.handle_timeout(deadline);
    }
    assert!(client.incoming.is_empty() && server.outgoing.is_empty() && client.pending() == 0);
}

/// Goal: a port cannot end the transfer to another one. Method: an ABORT from elsewhere, then one
/// from the receiver.
#[test]
fn transfers_are_ended_by_their_receiver_only() {
    let mut agents = Agents::new(AgentConfig::default(), 1);
    let agent = agents.register(Class::SA, 2, &[Method::GET_TABLE]).unwrap();
    let request = get(Method::GET_TABLE);
    let template = response_to(&request);
    agents
        .respond(Instant::ZERO, agent, port(7), &template, vec![0; 999])
        .unwrap();
    let mut abort = request;
    let header = RmppHeader {
        version: rmpp::VERSION,
        kind: Kind::ABORT,
        flags: RmppFlags::ACTIVE,
        status: RmppStatus::UNSPECIFIED,
        ..RmppHeader::default()
    };
    header.put(&mut abort);
    agents.handle(Instant::ZERO, port(8), &abort);
    assert_eq!(
        (agents.poll_delivery(), agents.counters().unmatched),
        (None, 1)
    );
    agents.handle(Instant::ZERO, port(7), &abort);
    let outcome = Sent::Failed(RmppStatus::UNSPECIFIED);
    let tid = TransactionId(0);
    assert_eq!(
        agents.poll_delivery(),
        Some(Delivery::Responded {
            agent,
            tid,
            outcome
        })
    );
}

/// Goal: no datagram of a peer makes the service panic or grow. Method: random ones, with headers
/// that are nearly right, while requests wait.
#[test]
fn hostile_datagrams_do_no_harm() {
    let (mut agents, agent) = client();
    for _ in 0..8 {
        agents
            .request(
                Instant::ZERO,
                agent,
                port(7),
                &get(Method::GET_TABLE),
                RETRY,
            )
            .unwrap();
    }
    let sent: Vec<_> = std::iter::from_fn(|| agents.poll_transmit()).collect();
    let mut state = 1_u64;
    for round in 0..20_000_u64 {
        let mut mad = response_to(&sent[usize::from((round % 8).to_le_bytes()[0])].1);
        for (at, byte) in mad.iter_mut().enumerate().take(36).skip(24) {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(99);
            // Small numbers, so that most headers say something.
            let is_low = at % 4 == 3 || at < 28;
            *byte = if is_low {
                state.to_be_bytes()[0] & 7
            } else {
                0
            };
        }
        agents.handle(Instant::from_nanos(round), port(7), &mad);
        while agents.poll_transmit().is_some() {}
        assert!(agents.incoming.len() <= 8);
    }
    let ended = std::iter::from_fn(|| agents.poll_delivery()).count();
    assert_eq!(ended + agents.pending(), 8, "each request ends once");
}

/// Goal: where ports have several LIDs, an answer may come from another of the asked port's, and from no other port.
/// Method: LIDs around those of a port with four, asked at its second.
#[test]
fn an_answer_may_come_from_another_lid_of_the_port() {
    for (lmc, from, is_taken) in [
        (0, 9, true),
        (0, 8, false),
        (2, 8, true),
        (2, 11, true),
        (2, 12, false),
        (2, 7, false),
        (7, 8, true),
    ] {
        let (mut agents, id) = client();
        agents.set_lmc(lmc);
        let request = agents.request(Instant::ZERO, id, port(9), &get(Method::GET), RETRY);
        request.unwrap();
        let (_, sent) = agents.poll_transmit().unwrap();
        agents.handle(Instant::ZERO, port(from), &response_to(&sent));
        let delivered = agents.poll_delivery().is_some();
        assert_eq!(delivered, is_taken, "LMC {lmc}, from {from}");
    }
}

/// Goal: a service whose turn comes late asks once more, and gives the answer its whole time again. Method: a turn five
/// timeouts late.
#[test]
fn a_late_turn_asks_once() {
    let (mut agents, agent) = client();
    let request = agents.request(Instant::ZERO, agent, port(7), &get(Method::GET), RETRY);
    request.unwrap();
    while agents.poll_transmit().is_some() {}
    let late = Instant::ZERO + 5 * SECOND;
    agents.handle_timeout(late);
    assert_eq!(std::iter::from_fn(|| agents.poll_transmit()).count(), 1);
    assert_eq!(agents.poll_timeout(), Some(late + SECOND));
    assert_eq!((agents.poll_delivery(), agents.pending()), (None, 1));
}
