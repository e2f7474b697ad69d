//! Whether packets to a peer may be sent as bursts: the evidence for it and against it.
//!
//! Over IPv4 a burst is only valid if packet *k* is sent with identification *k*. The kernel does so; a device that
//! splits bursts itself may not. Bursts to an address of the same machine are not split; for others the echo of the
//! first burst or the peer's acknowledgements tell. A wrong assumption costs a repetition, because repeated packets
//! travel alone.

use std::collections::BTreeMap;

use crate::{Feedback, GsoOff, Route};

use crate::udp::echo::Echo;

/// Routes remembered; when there are more, all are tried again.
const ROUTES_MAX: usize = 1024;
/// Packets of a burst on an unproven route: the cost of a wrong assumption.
const TRIAL_MAX: usize = 16;
/// Bursts of which only the first packet arrived, in a row, that end the trial.
const LOST_MAX: u8 = 2;

/// The evidence about bursts, by route.
#[derive(Debug)]
pub(in crate::udp) struct Offload {
    /// By source and destination; a missing route has not been tried.
    routes: BTreeMap<(std::net::IpAddr, std::net::IpAddr), State>,
    /// Packets that one send may have; 1 if the kernel cannot do it.
    packets_max: usize,
    routes_off: u64,
    last_reason: Option<GsoOff>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    is_proven: bool,
    is_off: bool,
    /// Bursts in a row of which only the first packet arrived.
    lost: u8,
}

impl Offload {
    pub(in crate::udp) fn new(packets_max: usize) -> Self {
        Self {
            routes: BTreeMap::new(),
            packets_max,
            routes_off: 0,
            last_reason: (packets_max == 1).then_some(GsoOff::Kernel),
        }
    }

    /// Packets that a burst on that route may have. `is_local` says that the burst is not split.
    pub(in crate::udp) fn limit(&self, route: &Route, is_local: bool) -> usize {
        match self.routes.get(&(route.src, route.dst)) {
            Some(state) if state.is_off => 1,
            Some(state) if state.is_proven => self.packets_max,
            _ if is_local || route.dst.is_ipv6() => self.packets_max,
            _ => self.packets_max.min(TRIAL_MAX),
        }
    }

    /// Whether an echo could prove anything.
    pub(in crate::udp) fn is_untried(&self, route: &Route, is_local: bool) -> bool {
        route.dst.is_ipv4() && !is_local && !self.routes.contains_key(&(route.src, route.dst))
    }

    /// A burst was sent on an untried route, and this was its echo.
    pub(in crate::udp) fn tried(&mut self, route: &Route, segment: usize, echo: Option<Echo>) {
        match echo {
            Some(echo) if !echo.is_plain() => self.give_up(route, GsoOff::Identification),
            // The driver got single packets, so the kernel has split the burst.
            Some(echo) if echo.transport_len() == Some(segment) => {
                self.state(route).is_proven = true;
            }
            // The driver got the burst, or reports nothing.
            _ => self.state(route).is_proven = false,
        }
    }

    pub(in crate::udp) fn feedback(&mut self, route: &Route, news: Feedback) {
        let state = self.state(route);
        match news {
            Feedback::Arrived => {
                state.is_proven = true;
                state.lost = 0;
            }
            Feedback::OnlyFirst if state.is_off => {}
            Feedback::OnlyFirst => {
                state.lost += 1;
                if state.lost >= LOST_MAX {
                    self.give_up(route, GsoOff::OnlyFirst);
                }
            }
        }
    }

    /// No more bursts on that route.
    pub(in crate::udp) fn give_up(&mut self, route: &Route, reason: GsoOff) {
        let state = self.state(route);
        if !state.is_off {
            state.is_off = true;
            self.routes_off += 1;
            self.last_reason = Some(reason);
            tracing::warn!(src = %route.src, dst = %route.dst, %reason, "no more bursts");
        }
    }

    /// Routes or addresses have changed: everything has to be tried again.
    pub(in crate::udp) fn forget(&mut self) {
        *self = Self::new(self.packets_max);
    }

    pub(in crate::udp) fn routes_off(&self) -> (u64, Option<GsoOff>) {
        (self.routes_off, self.last_reason)
    }

    fn state(&mut self, route: &Route) -> &mut State {
        let key = (route.src, route.dst);
        if self.routes.len() >= ROUTES_MAX && !self.routes.contains_key(&key) {
            self.forget();
        }
        self.routes.entry(key).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(dst: &str) -> Route {
        Route {
            src: "192.0.2.1".parse().unwrap(),
            dst: dst.parse().unwrap(),
            tclass: 0,
            hop_limit: 64,
            local: None,
        }
    }

    fn echo(transport_len: usize, identification: u16) -> Echo {
        Echo {
            identification,
            dont_fragment: true,
            header_words: 5,
            total_len: transport_len + 28,
        }
    }

    #[test]
    fn an_echo_of_the_first_packet_proves_bursts() {
        let mut offload = Offload::new(128);
        let there = route("192.0.2.2");
        assert!(offload.is_untried(&there, false));
        assert_eq!(offload.limit(&there, false), 16);
        offload.tried(&there, 1040, Some(echo(1040, 0)));
        assert!(!offload.is_untried(&there, false));
        assert_eq!(offload.limit(&there, false), 128);
    }

    /// Goal: what only the peer can tell is left to the peer; and its evidence is revoked by two losses in a row, not
    /// by two in all.
    #[test]
    fn acknowledgements_prove_what_no_echo_can() {
        let there = route("192.0.2.2");
        for seen in [None, Some(echo(5 * 1040, 0))] {
            let mut offload = Offload::new(128);
            offload.tried(&there, 1040, seen);
            assert_eq!(offload.limit(&there, false), 16);
            assert!(!offload.is_untried(&there, false), "once is enough");
            offload.feedback(&there, Feedback::OnlyFirst);
            offload.feedback(&there, Feedback::Arrived);
            assert_eq!(offload.limit(&there, false), 128);
            offload.feedback(&there, Feedback::OnlyFirst);
            assert_eq!(offload.limit(&there, false), 128);
            offload.feedback(&there, Feedback::OnlyFirst);
            offload.feedback(&there, Feedback::OnlyFirst);
            assert_eq!(offload.limit(&there, false), 1);
            assert_eq!(offload.routes_off(), (1, Some(GsoOff::OnlyFirst)));
            assert_eq!(offload.limit(&route("192.0.2.3"), false), 16, "another");
            offload.forget();
            assert!(offload.is_untried(&there, false));
        }
    }

    #[test]
    fn an_unexpected_identification_ends_bursts_at_once() {
        let mut offload = Offload::new(128);
        let there = route("192.0.2.2");
        offload.tried(&there, 1040, Some(echo(1040, 7)));
        assert_eq!(offload.limit(&there, false), 1);
        assert_eq!(offload.routes_off(), (1, Some(GsoOff::Identification)));
    }

    #[test]
    fn nothing_needs_proof_on_the_machine_itself_or_over_ipv6() {
        let mut offload = Offload::new(64);
        for (there, is_local) in [(route("127.0.0.1"), true), (route("fd00::1"), false)] {
            assert!(!offload.is_untried(&there, is_local));
            assert_eq!(offload.limit(&there, is_local), 64);
            offload.give_up(&there, GsoOff::Refused);
            assert_eq!(offload.limit(&there, is_local), 1);
        }
        assert_eq!(Offload::new(1).limit(&route("127.0.0.1"), true), 1);
    }

    #[test]
    fn the_table_is_bounded() {
        let mut offload = Offload::new(64);
        for i in 0..3 * ROUTES_MAX {
            let there = route(&format!("10.0.{}.{}", i / 256, i % 256));
            offload.feedback(&there, Feedback::Arrived);
            assert!(offload.routes.len() <= ROUTES_MAX);
        }
    }
}
