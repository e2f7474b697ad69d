//! Resolution of service ids (IBTA vol. 1, 12.11): which queue pair serves datagrams.

use std::collections::BTreeMap;
use std::time::Duration;

use verbs_core::addr::{Gid, Lid, QKey, Qpn};
use verbs_core::mad::{Address, MadBytes, TransactionId};
use verbs_core::time::Instant;

use crate::event::{CmError, Event, Failure, ListenId, Outputs, ResolveId};
use crate::pace::spread;
use crate::params::{Resolve, Resolved};
use crate::refusals::{REFUSED_PAUSE, Refusals, Verdict};
use crate::table::Cm;
use crate::wire::{CommId, IpHeader, Message, ServiceId, SidrRep, SidrReq, SidrStatus};

/// How long the answer to a question is kept for being sent again: a peer repeats its question
/// within this time.
const ANSWER_KEPT: Duration = Duration::from_secs(10);

/// How long a question waits for its answer: its peer has given up by then, as Linux does after 16 s.
const QUESTION_KEPT: Duration = Duration::from_secs(30);

/// The origin of a question: the port, and its name for the question.
type Asker = (Option<Gid>, Lid, CommId);

/// A question of ours.
#[derive(Debug)]
struct Asked {
    id: ResolveId,
    to: Address,
    mad: Box<MadBytes>,
    wait: Duration,
    retries_left: u32,
    deadline: Instant,
    /// What the network reports of it.
    refusals: Refusals,
}

/// A question of a peer.
#[derive(Debug)]
struct Question {
    id: ResolveId,
    from: Address,
    request_id: CommId,
    tid: TransactionId,
    service_id: ServiceId,
    answer: Option<Box<MadBytes>>,
    /// Until when the question, or its answer, is kept.
    until: Instant,
}

/// The questions under way, in both directions.
#[derive(Debug, Default)]
pub(super) struct Resolutions {
    next: u64,
    asked: BTreeMap<CommId, Asked>,
    questions: BTreeMap<Asker, Question>,
}

fn asker(from: &Address, id: CommId) -> Asker {
    (from.av.global.map(|global| global.dgid), from.av.dlid, id)
}

impl Resolutions {
    pub(super) fn is_asked(&self, id: CommId) -> bool {
        self.asked.contains_key(&id)
    }

    pub(super) fn len(&self) -> usize {
        self.asked.len() + self.questions.len()
    }

    pub(super) fn ask(
        &mut self,
        now: Instant,
        request_id: CommId,
        tid: TransactionId,
        resolve: &Resolve,
        max: usize,
        out: &mut Outputs,
    ) -> Result<ResolveId, CmError> {
        if self.asked.len() >= max {
            return Err(CmError::Limit {
                what: "resolutions_max",
                max,
            });
        }
        let request = Message::SidrReq(SidrReq {
            request_id,
            pkey: resolve.route.pkey.0,
            service_id: resolve.service_id,
            private_data: resolve.private_data,
        });
        let (mad, to, id) = (request.emit(tid), resolve.route.address(), self.next_id());
        let way = 2 * resolve.route.packet_lifetime.duration();
        let wait = resolve.response_timeout.duration() + way;
        let sends = resolve.max_cm_retries.value() + 1;
        let (wait, sends) = spread(wait, sends, resolve.timeout);
        out.send(to, mad);
        out.events.reserve(self.len() + 1);
        let asked = Asked {
            id,
            to,
            mad: Box::new(mad),
            wait,
            retries_left: sends - 1,
            deadline: now + wait,
            refusals: Refusals::default(),
        };
        self.asked.insert(request_id, asked);
        Ok(id)
    }

    /// The answer to a question of ours, if it comes from the port that was asked.
    pub(super) fn handle_rep(&mut self, from: &Address, rep: &SidrRep, out: &mut Outputs) -> bool {
        let found = self.asked.get(&rep.request_id);
        if !found.is_some_and(|asked| asked.to.is_same_port(from)) {
            return false;
        }
        let Some(asked) = self.asked.remove(&rep.request_id) else {
            return false;
        };
        out.events.push_back(Event::Resolved {
            resolution: asked.id,
            status: rep.status,
            qpn: rep.qpn,
            qkey: rep.qkey,
            private_data: rep.private_data,
        });
        true
    }

    /// The network reports that a host refused a question of ours. Whether that means anything.
    pub(super) fn refused(
        &mut self,
        now: Instant,
        request_id: CommId,
        to: Gid,
        out: &mut Outputs,
    ) -> bool {
        let found = self.asked.get_mut(&request_id);
        let sent_there = |asked: &&mut Asked| asked.to.av.global.map(|av| av.dgid) == Some(to);
        let Some(asked) = found.filter(sent_there) else {
            return false;
        };
        match asked.refusals.refused() {
            Verdict::Ignore => return false,
            Verdict::SendSoon if asked.retries_left > 0 => {
                asked.deadline = asked.deadline.min(now + REFUSED_PAUSE);
            }
            // That was the last one: it still has its time.
            Verdict::SendSoon => {}
            Verdict::GiveUp => {
                out.events.push_back(Event::ResolveError {
                    resolution: asked.id,
                    why: Failure::PortUnreachable,
                });
                self.asked.remove(&request_id);
            }
        }
        true
    }

    pub(super) fn answer(
        &mut self,
        now: Instant,
        id: ResolveId,
        resolved: &Resolved,
        out: &mut Outputs,
    ) -> Result<(), CmError> {
        let waiting = |question: &&mut Question| question.id == id && question.answer.is_none();
        let question = self
            .questions
            .values_mut()
            .find(waiting)
            .ok_or(CmError::Stale)?;
        let is_valid = resolved.status == SidrStatus::Valid;
        let reply = Message::SidrRep(SidrRep {
            request_id: question.request_id,
            status: resolved.status,
            qpn: if is_valid {
                resolved.qpn
            } else {
                Qpn::default()
            },
            service_id: question.service_id,
            qkey: if is_valid {
                resolved.qkey
            } else {
                QKey::default()
            },
            private_data: resolved.private_data,
            ..SidrRep::default()
        });
        let mad = reply.emit(question.tid);
        out.send(question.from, mad);
        question.answer = Some(Box::new(mad));
        question.until = now + ANSWER_KEPT;
        Ok(())
    }

    pub(super) fn forget(&mut self, id: ResolveId, out: &mut Outputs) -> Result<(), CmError> {
        let before = self.len();
        self.asked.retain(|_, asked| asked.id != id);
        self.questions
            .retain(|_, question| question.id != id || question.answer.is_some());
        if self.len() == before {
            return Err(CmError::Stale);
        }
        out.events.retain(|event| match event {
            Event::ResolveRequest { resolution, .. } => *resolution != id,
            _ => true,
        });
        Ok(())
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, out: &mut Outputs) {
        self.asked.retain(|_, asked| {
            if asked.deadline > now {
                return true;
            }
            if asked.retries_left == 0 {
                out.events.push_back(Event::Unresolved {
                    resolution: asked.id,
                });
                return false;
            }
            asked.retries_left -= 1;
            asked.refusals.sent_again();
            asked.deadline = now + asked.wait;
            out.send(asked.to, *asked.mad);
            true
        });
        self.questions.retain(|_, question| question.until > now);
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let asked = self.asked.values().map(|asked| asked.deadline);
        let questions = self.questions.values().map(|question| question.until);
        asked.chain(questions).min()
    }

    /// Whether there is room for another question of a peer, if need be in place of the oldest answer.
    fn make_room(&mut self, max: usize) -> bool {
        if self.questions.len() >= max {
            let answered =
                (self.questions.iter()).filter(|(_, question)| question.answer.is_some());
            let oldest = answered
                .map(|(&asker, question)| (question.until, asker))
                .min();
            if let Some((_, asker)) = oldest {
                self.questions.remove(&asker);
            }
        }
        self.questions.len() < max
    }

    fn next_id(&mut self) -> ResolveId {
        self.next += 1;
        ResolveId(self.next)
    }
}

/// A question of a peer: the first time it is put before the user, after that it is answered as
/// before.
pub(super) fn handle_sidr_req(
    cm: &mut Cm,
    now: Instant,
    from: Address,
    tid: TransactionId,
    req: &SidrReq,
) -> bool {
    let key = asker(&from, req.request_id);
    if let Some(question) = cm.resolutions.questions.get(&key) {
        if let Some(mad) = &question.answer {
            cm.out.send(from, **mad);
        }
        return question.answer.is_some();
    }
    let ip = IpHeader::parse(&req.private_data.0).ok();
    let addr = ip.map(|ip| ip.addresses.destination());
    let Some(listener) = cm.listeners.find(req.service_id, addr) else {
        refuse_sidr(cm, from, tid, req, SidrStatus::Unsupported);
        return true;
    };
    if !cm.resolutions.make_room(cm.config.resolutions_max) {
        cm.out.counters.refused += 1;
        refuse_sidr(cm, from, tid, req, SidrStatus::NoQp);
        return true;
    }
    put_question(cm, now, from, tid, req, listener, ip);
    true
}

fn put_question(
    cm: &mut Cm,
    now: Instant,
    from: Address,
    tid: TransactionId,
    req: &SidrReq,
    listener: ListenId,
    ip: Option<IpHeader>,
) {
    let id = cm.resolutions.next_id();
    let question = Question {
        id,
        from,
        request_id: req.request_id,
        tid,
        service_id: req.service_id,
        answer: None,
        until: now + QUESTION_KEPT,
    };
    let key = asker(&from, req.request_id);
    cm.resolutions.questions.insert(key, question);
    cm.out.events.push_back(Event::ResolveRequest {
        resolution: id,
        listener,
        from,
        req: *req,
        ip,
    });
}

fn refuse_sidr(cm: &mut Cm, from: Address, tid: TransactionId, req: &SidrReq, status: SidrStatus) {
    let reply = Message::SidrRep(SidrRep {
        request_id: req.request_id,
        status,
        service_id: req.service_id,
        ..SidrRep::default()
    });
    cm.out.send(from, reply.emit(tid));
}
