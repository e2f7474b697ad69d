//! What users do: connect, answer, send data, disconnect.

use std::time::Duration;

use verbs_cm::machine::State;
use verbs_cm::wire::{RejectReason, ServiceId, SidrStatus, Transport};
use verbs_cm::{Accept, ConnId, Connect, Event, Resolved};
use verbs_core::QpState;
use verbs_core::addr::{Psn, QKey, Qpn};
use verbs_core::mad::{Bits, Blob, TimeCode};

use crate::world::{Item, World};

impl World {
    pub(super) fn connect(&mut self, host: usize, service: ServiceId) -> Result<(), String> {
        let transport = if self.chance(20) {
            Transport::Uc
        } else {
            Transport::Rc
        };
        let qpn = self.hosts[host].qp(transport);
        let mut connect = Connect::new(service, qpn, self.route(host));
        connect.transport = transport;
        connect.psn = self.hosts[host].cm.draw_psn();
        connect.responder_resources = self.byte(16);
        connect.initiator_depth = self.byte(16);
        connect.response_timeout = TimeCode::new(self.options.response_timeout);
        connect.max_cm_retries = Bits::saturating(self.options.max_cm_retries);
        let conn = self.hosts[host]
            .cm
            .connect(self.now, connect)
            .map_err(|e| e.to_string())?;
        self.hosts[host].conns.insert(conn, qpn);
        self.hosts[host].events.asked(conn)?;
        if self.chance(10) {
            self.later(10_000, Item::Destroy { host, conn });
        }
        Ok(())
    }

    /// A user answers a request, somehow.
    pub(super) fn answer(&mut self, host: usize, conn: ConnId, transport: Transport, psn: Psn) {
        let now = self.now;
        let choice = self.dice.rand_range(0..100);
        match choice {
            // First for more time, then again.
            0..10 => {
                let longer = TimeCode::new(self.byte(22));
                if self.hosts[host].cm.delay(now, conn, longer).is_ok() {
                    self.later(
                        3_000,
                        Item::Answer {
                            host,
                            conn,
                            transport,
                            psn,
                        },
                    );
                }
            }
            10..20 => {
                let reason = RejectReason::Consumer;
                let rejected = self.hosts[host]
                    .cm
                    .reject(now, conn, reason, b"", Blob::default());
                if rejected.is_ok() {
                    self.hosts[host].events.ended(conn);
                }
            }
            20..25 => self.later(1, Item::Destroy { host, conn }),
            _ => {
                let qpn = self.hosts[host].qp(transport);
                let accept = Accept {
                    qpn,
                    psn,
                    responder_resources: self.byte(16),
                    initiator_depth: self.byte(16),
                    ..Accept::default()
                };
                if self.hosts[host].cm.accept(now, conn, &accept).is_ok() {
                    self.hosts[host].conns.insert(conn, qpn);
                    if self.chance(5) {
                        self.later(5_000, Item::Destroy { host, conn });
                    }
                }
            }
        }
    }

    /// Data from the peer's queue pair tell a passive side that the connection is there.
    pub(super) fn data(&mut self, host: usize, qpn: Qpn) {
        let found = self.hosts[host].conns.iter().find(|(_, own)| **own == qpn);
        let Some((&conn, _)) = found else { return };
        // The transport drops what does not come from the peer that it knows.
        let peer_qpn = self.hosts[host].qps[&qpn].attr.dest_qpn.unwrap_or_default();
        let peer = self.hosts[1 - host].qps.get(&peer_qpn);
        if peer.is_none_or(|peer| peer.attr.dest_qpn != Some(qpn)) {
            return;
        }
        let is_waiting = matches!(
            self.hosts[host].cm.state(conn),
            Some(State::RepSent | State::RepMraRcvd)
        );
        if is_waiting
            && self.hosts[host]
                .cm
                .communication_established(self.now, conn)
                .is_ok()
        {
            self.outcome.rtu_by_data += 1;
        }
    }

    pub(super) fn event(&mut self, host: usize, event: &Event) -> Result<(), String> {
        self.hosts[host].events.event(event)?;
        match *event {
            Event::ConnectRequest { conn, req, .. } => {
                let psn = self.hosts[host].cm.draw_psn();
                let answer = Item::Answer {
                    host,
                    conn,
                    transport: req.transport,
                    psn,
                };
                self.later(self.options.answer_ms_max, answer);
            }
            Event::Established { conn, .. } => self.established(host, conn)?,
            Event::Rejected { conn, .. } => {
                self.outcome.rejected += 1;
                self.take_away(host, conn);
            }
            Event::Unreachable { conn } => {
                self.outcome.unreachable += 1;
                self.take_away(host, conn);
            }
            Event::ConnectError { .. } => self.outcome.failed += 1,
            Event::Disconnected { .. } => self.outcome.disconnected += 1,
            Event::ResolveRequest { resolution, .. } => {
                let resolved = Resolved {
                    status: SidrStatus::Valid,
                    qpn: Qpn::new(0x77),
                    qkey: QKey(1),
                    private_data: Blob::default(),
                };
                let answered = self.hosts[host].cm.answer(self.now, resolution, &resolved);
                answered.map_err(|error| error.to_string())?;
            }
            Event::Resolved { status, qpn, .. } => {
                self.outcome.resolved += 1;
                if (status == SidrStatus::Valid) != (qpn == Qpn::new(0x77)) {
                    return Err(format!("{event:?}"));
                }
            }
            Event::Unresolved { .. } => self.outcome.unresolved += 1,
            _ => {}
        }
        Ok(())
    }

    pub(super) fn established(&mut self, host: usize, conn: ConnId) -> Result<(), String> {
        self.outcome.established += 1;
        let qpn = self.hosts[host].conns[&conn];
        let qp = &self.hosts[host].qps[&qpn];
        if qp.state != QpState::Rts {
            return Err(format!("established with a queue pair in {}", qp.state));
        }
        let peer_qpn = qp.attr.dest_qpn.ok_or("no peer")?;
        // The passive side is told last: by then both are in RTS, unless the active one has left.
        // After a crash the peer's number may be another queue pair's.
        if self.outcome.crashed == 0 {
            let peer = self.hosts[1 - host].qps.get(&peer_qpn);
            let peer = peer.ok_or("the peer has no such queue pair")?;
            if peer.state == QpState::Rts {
                qp.fits(qpn, qp.attr.sq_psn.unwrap_or_default(), peer, peer_qpn)?;
            }
        }
        if self.chance(50) {
            self.later(
                1_000,
                Item::Data {
                    host: 1 - host,
                    qpn: peer_qpn,
                },
            );
        }
        if self.chance(40) {
            self.later(5_000, Item::Disconnect { host, conn });
        }
        let other = self.hosts[1 - host]
            .conns
            .iter()
            .find(|(_, own)| **own == peer_qpn);
        if let Some((&other, _)) = other.filter(|_| self.dice.rand_range(0..100) < 20) {
            // Both at the same time.
            let at = (self.now + Duration::from_millis(2_500), self.seq);
            self.agenda.insert(at, Item::Disconnect { host, conn });
            self.agenda.insert(
                (at.0, at.1 + 1),
                Item::Disconnect {
                    host: 1 - host,
                    conn: other,
                },
            );
            self.seq += 2;
            self.outcome.crossing += 1;
        }
        Ok(())
    }
}
