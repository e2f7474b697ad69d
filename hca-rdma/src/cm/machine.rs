//! The states of an endpoint, as a table: what an event of librdmacm means in each state, and the resulting action.
//!
//! ```text
//!            connect            ADDR        ROUTE        RESPONSE or ESTABLISHED
//!   Bound ────────▶ Address ──▶ Route ──▶ Reply ─────────────────────┐
//!     │ listen         └──────────┴─────────┴──▶ Spent                ▼        DISCONNECTED
//!     ▼                                                           Connected ──────▶ Over
//!  Listening                accept          ESTABLISHED               ▲ │ error here   ▲
//!   request:  Asked ─────────▶ Accepting ─────────────────────────────┘ └──▶ Leaving ──┘
//! ```
//!
//! Sans-IO: it has no id, no queue pair and no lock.

use verbs_abi::rdmacm::event;

/// The progress of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It has an address.
    Bound,
    /// It receives requests.
    Listening,
    /// A connect waits for the device that has a route to the peer.
    Address,
    /// A connect waits for the route.
    Route,
    /// A connect waits for the peer.
    Reply,
    /// It was created with a request, which is not answered yet.
    Asked,
    /// An accept waits for the peer's confirmation.
    Accepting,
    /// The connection is established.
    Connected,
    /// This end has ended the connection, and the peer has yet to confirm it.
    Leaving,
    /// A connect has failed. Another can begin, with another id.
    Spent,
    /// Nothing happens to it any longer.
    Over,
}

/// What librdmacm reports about an id. A request is reported for the listener, and is not among these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    AddrResolved,
    RouteResolved,
    /// No device or no route reaches the peer.
    NoWay,
    /// The peer has accepted, and waits for the confirmation.
    Response,
    /// The connection is established at both ends.
    Established,
    Rejected,
    /// No answer.
    Unreachable,
    /// Something failed at this end.
    Failed,
    Disconnected,
}

/// The resulting action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Resolve the route.
    FindRoute,
    /// Send the request to the peer.
    Ask,
    /// Bring the queue pair to RTS, confirm, and complete the connect.
    Establish,
    /// Complete the connect or the accept: the connection is established.
    Complete,
    /// Complete the connect or the accept: there will be no connection.
    Fail,
    /// Complete the accept, and then report that the connection has ended.
    CompleteAndEnd,
    /// Report that the connection has ended.
    End,
    /// The request no longer exists. An attempt to answer it fails.
    Forget,
}

impl Event {
    /// The event of that number, if it is one that is handled: an id that leaves timewait is of no interest.
    pub(crate) fn of(kind: u32) -> Option<Self> {
        Some(match kind {
            event::ADDR_RESOLVED => Self::AddrResolved,
            event::ROUTE_RESOLVED => Self::RouteResolved,
            event::ADDR_ERROR | event::ROUTE_ERROR => Self::NoWay,
            event::CONNECT_RESPONSE => Self::Response,
            event::ESTABLISHED => Self::Established,
            event::REJECTED => Self::Rejected,
            event::UNREACHABLE => Self::Unreachable,
            event::CONNECT_ERROR => Self::Failed,
            event::DISCONNECTED => Self::Disconnected,
            _ => return None,
        })
    }
}

/// The state after an event, and the action. `None`: the event is late, and no longer means anything.
pub(crate) fn next(state: State, event: Event) -> Option<(State, Act)> {
    use Event as E;
    use State as S;
    let is_failure = matches!(
        event,
        E::NoWay | E::Rejected | E::Unreachable | E::Failed | E::Disconnected
    );
    Some(match (state, event) {
        (S::Address, E::AddrResolved) => (S::Route, Act::FindRoute),
        (S::Route, E::RouteResolved) => (S::Reply, Act::Ask),
        (S::Reply, E::Response) => (S::Connected, Act::Establish),
        (S::Reply | S::Accepting, E::Established) => (S::Connected, Act::Complete),
        (S::Address | S::Route | S::Reply, _) if is_failure => (S::Spent, Act::Fail),
        // The confirmation was lost, and the peer has already disconnected.
        (S::Accepting, E::Disconnected) => (S::Over, Act::CompleteAndEnd),
        (S::Accepting, _) if is_failure => (S::Over, Act::Fail),
        (S::Asked, _) if is_failure => (S::Over, Act::Forget),
        (S::Connected | S::Leaving, _) if is_failure => (S::Over, Act::End),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 11] = [
        State::Bound,
        State::Listening,
        State::Address,
        State::Route,
        State::Reply,
        State::Asked,
        State::Accepting,
        State::Connected,
        State::Leaving,
        State::Spent,
        State::Over,
    ];

    const EVENTS: [Event; 9] = [
        Event::AddrResolved,
        Event::RouteResolved,
        Event::NoWay,
        Event::Response,
        Event::Established,
        Event::Rejected,
        Event::Unreachable,
        Event::Failed,
        Event::Disconnected,
    ];

    /// Goal: events in any order complete the waiting request exactly once and leave no other state waiting. Method:
    /// all sequences of four events from every state; the waiting request is a connect or an accept.
    #[test]
    fn events_in_any_order_answer_what_waits_once() {
        fn waits(state: State) -> bool {
            use State::{Accepting, Address, Reply, Route};
            matches!(state, Address | Route | Reply | Accepting)
        }
        fn walk(state: State, left: u32) {
            if left == 0 {
                return;
            }
            for event in EVENTS {
                let Some((then, act)) = next(state, event) else {
                    continue;
                };
                let answers = matches!(
                    act,
                    Act::Establish | Act::Complete | Act::Fail | Act::CompleteAndEnd
                );
                let name = format!("{state:?} + {event:?} -> {then:?}, {act:?}");
                assert_eq!(answers, waits(state) && !waits(then), "{name}");
                // It ends once, and only an established connection ends.
                let ends = matches!(act, Act::End | Act::CompleteAndEnd);
                assert!(!ends || then == State::Over, "{name}");
                assert!(!matches!(state, State::Over | State::Spent), "{name}");
                walk(then, left - 1);
            }
        }
        for state in STATES {
            walk(state, 4);
        }
    }

    /// Goal: every waiting request ends when the peer does not answer, and every connection ends when the peer
    /// disappears.
    #[test]
    fn no_state_waits_for_ever() {
        for state in STATES {
            let gone = next(state, Event::Unreachable).is_some();
            let idle = matches!(
                state,
                State::Bound | State::Listening | State::Spent | State::Over
            );
            assert_eq!(gone, !idle, "{state:?}");
        }
    }

    /// Goal: the usual sequences, as in the diagram.
    #[test]
    fn the_usual_ways() {
        let walk = |mut state: State, events: &[Event]| {
            for &event in events {
                (state, _) = next(state, event).expect("an edge of the picture");
            }
            state
        };
        let resolved = [Event::AddrResolved, Event::RouteResolved];
        let asked = walk(State::Address, &resolved);
        assert_eq!(asked, State::Reply);
        for (event, then) in [
            (Event::Response, State::Connected),
            (Event::Established, State::Connected),
            (Event::Rejected, State::Spent),
        ] {
            assert_eq!(walk(asked, &[event]), then);
        }
        assert_eq!(
            walk(State::Accepting, &[Event::Established, Event::Disconnected]),
            State::Over
        );
        assert_eq!(walk(State::Leaving, &[Event::Disconnected]), State::Over);
        assert_eq!(Event::of(event::TIMEWAIT_EXIT), None);
    }
}
