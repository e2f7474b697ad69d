//! What a connection does to its queue pair: INIT to RTR to RTS, and to ERR when it is over.

use verbs_core::addr::Qpn;
use verbs_core::mad::TimeCode;
use verbs_core::{AltPath, Av, MigState, Mtu, Path, QpAttr, QpState};

use crate::machine::paths::{alternate, is_accepted};
use crate::params::{Accept, Connect};
use crate::wire::{Rep, Req, Transport};

/// How far a queue pair is, or shall get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Where the user brought it.
    Init,
    Rtr,
    Rts,
    Err,
}

/// What the end of a modify means for the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The goal is reached.
    Ready,
    /// The modify that loads a path has ended, well or not.
    Loaded,
    /// It cannot be reached.
    Failed,
    /// Another modify is needed, or what ended no longer matters.
    Working,
}

/// What a modify is to bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flying {
    Step(Stage),
    Path,
}

/// Brings a queue pair where its connection wants it, one modify at a time.
#[derive(Debug)]
pub(crate) struct QpDriver {
    qpn: Qpn,
    rtr: QpAttr,
    rts: QpAttr,
    stage: Stage,
    goal: Stage,
    /// The modify that was issued and has not ended.
    flying: Option<Flying>,
    /// A modify that loads an alternate path, to be issued in RTS.
    load: Option<QpAttr>,
    /// The user took the queue pair away.
    detached: bool,
}

impl QpDriver {
    /// A queue pair in INIT; its attributes are set with [`QpDriver::attrs`] before it is to go
    /// anywhere.
    pub(crate) fn new(qpn: Qpn) -> Self {
        Self {
            qpn,
            rtr: QpAttr::default(),
            rts: QpAttr::default(),
            stage: Stage::Init,
            goal: Stage::Init,
            flying: None,
            load: None,
            detached: false,
        }
    }

    pub(crate) fn qpn(&self) -> Qpn {
        self.qpn
    }

    pub(crate) fn attrs(&mut self, (rtr, rts): (QpAttr, QpAttr)) {
        (self.rtr, self.rts) = (rtr, rts);
    }

    /// The modifies to RTR and to RTS, once they are set.
    pub(crate) fn to_rts(&self) -> Option<[QpAttr; 2]> {
        let is_set = self.rtr.state.is_some();
        is_set.then_some([self.rtr, self.rts])
    }

    /// Sets the goal. ERR is final, and never a step from INIT: an untouched queue pair stays the
    /// user's to use again.
    pub(crate) fn aim(&mut self, goal: Stage) {
        self.goal = self.goal.max(goal);
    }

    /// Has an alternate path loaded, as that modify has it. One at a time.
    pub(crate) fn load(&mut self, attr: QpAttr) {
        self.load = Some(attr);
    }

    /// Leaves the queue pair alone from now on.
    pub(crate) fn detach(&mut self) {
        self.detached = true;
    }

    /// The next modify to issue, if there is one now.
    pub(crate) fn next(&mut self) -> Option<QpAttr> {
        if self.flying.is_some() || self.detached {
            return None;
        }
        if self.is_there() {
            let attr = self.load.take_if(|_| self.stage == Stage::Rts)?;
            self.flying = Some(Flying::Path);
            return Some(attr);
        }
        let (step, attr) = match (self.goal, self.stage) {
            (Stage::Err, _) => (Stage::Err, QpAttr::to(QpState::Err)),
            (_, Stage::Init) => (Stage::Rtr, self.rtr),
            _ => (Stage::Rts, self.rts),
        };
        self.flying = Some(Flying::Step(step));
        Some(attr)
    }

    /// The modify that was issued has ended.
    pub(crate) fn ended(&mut self, is_ok: bool) -> Progress {
        let step = match self.flying.take() {
            Some(Flying::Step(step)) => step,
            Some(Flying::Path) => return Progress::Loaded,
            None => return Progress::Working,
        };
        if is_ok {
            self.stage = step;
        } else if step == Stage::Err {
            // There is nothing better that could be done to it.
            self.stage = Stage::Err;
        } else if self.goal != Stage::Err {
            return Progress::Failed;
        }
        if self.is_there() {
            Progress::Ready
        } else {
            Progress::Working
        }
    }

    /// Whether nothing is left to do.
    pub(crate) fn is_there(&self) -> bool {
        let untouched = self.goal == Stage::Err && self.stage == Stage::Init;
        self.detached || self.flying.is_none() && (self.stage >= self.goal || untouched)
    }
}

/// The modifies of the active side (IBTA vol. 1, 12.9.8.2).
pub(crate) fn active_attrs(connect: &Connect, req: &Req, rep: &Rep) -> (QpAttr, QpAttr) {
    let route = &connect.route;
    let path = Path {
        av: route.av,
        dest_qpn: rep.qpn,
        // A message says at which number its receiver is to begin (IBTA vol. 1, 12.7.31).
        rq_psn: req.psn,
        mtu: route.mtu,
    };
    let mut rtr = QpAttr::rtr(&path);
    // A peer that wants more than it was offered gets what it was offered.
    rtr.max_dest_rd_atomic = Some(req.responder_resources.min(rep.initiator_depth));
    rtr.min_rnr_timer = Some(connect.min_rnr_timer);
    let mut rts = QpAttr::rts(rep.psn);
    rts.timeout = Some(ack_timeout(route.packet_lifetime, rep.target_ack_delay).code());
    rts.retry_cnt = Some(connect.retry_count.byte());
    rts.rnr_retry = Some(rep.rnr_retry_count.byte());
    rts.max_rd_atomic = Some(req.initiator_depth.min(rep.responder_resources));
    if let Some(route) = connect.alternate.filter(|_| is_accepted(rep.failover)) {
        with_path(&mut rtr, &mut rts, alternate(&route, rep.target_ack_delay));
    }
    if req.transport == Transport::Extended {
        // An initiator is asked for nothing.
        (rtr.max_dest_rd_atomic, rtr.min_rnr_timer) = (None, None);
    }
    for_transport(req.transport, rtr, rts)
}

/// Has an alternate path loaded on the way to RTR, and armed from RTS on.
fn with_path(rtr: &mut QpAttr, rts: &mut QpAttr, path: AltPath) {
    rtr.alt_path = Some(path);
    rts.path_mig_state = Some(MigState::Rearm);
}

/// What a REQ says of the ways to its sender.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ways {
    pub(crate) av: Av,
    pub(crate) mtu: Mtu,
    pub(crate) alternate: Option<AltPath>,
}

/// The modifies of the passive side (IBTA vol. 1, 12.9.8.3); `rep` is what is sent.
pub(crate) fn passive_attrs(
    accept: &Accept,
    req: &Req,
    rep: &Rep,
    ways: &Ways,
) -> (QpAttr, QpAttr) {
    let Ways { av, mtu, alternate } = *ways;
    let path = Path {
        av,
        dest_qpn: req.qpn,
        rq_psn: rep.psn,
        mtu,
    };
    let mut rtr = QpAttr::rtr(&path);
    rtr.max_dest_rd_atomic = Some(rep.responder_resources);
    rtr.min_rnr_timer = Some(accept.min_rnr_timer);
    let mut rts = QpAttr::rts(req.psn);
    rts.timeout = Some(req.primary.ack_timeout.code());
    rts.retry_cnt = Some(req.retry_count.byte());
    rts.rnr_retry = Some(req.rnr_retry_count.byte());
    rts.max_rd_atomic = Some(rep.initiator_depth);
    if let Some(path) = alternate {
        with_path(&mut rtr, &mut rts, path);
    }
    if req.transport == Transport::Extended {
        // A target asks for nothing.
        (rts.retry_cnt, rts.rnr_retry, rts.max_rd_atomic) = (None, None, None);
    }
    for_transport(req.transport, rtr, rts)
}

/// Takes away what an unreliable connection has no use for.
fn for_transport(transport: Transport, mut rtr: QpAttr, mut rts: QpAttr) -> (QpAttr, QpAttr) {
    if transport == Transport::Uc {
        rtr.max_dest_rd_atomic = None;
        rtr.min_rnr_timer = None;
        rts.timeout = None;
        rts.retry_cnt = None;
        rts.rnr_retry = None;
        rts.max_rd_atomic = None;
    }
    (rtr, rts)
}

/// How long a queue pair waits for an acknowledgement: there and back, and what the peer's adapter
/// takes (IBTA vol. 1, 12.7.34). The delay counts where it is at least half of the way.
pub(crate) fn ack_timeout(packet_lifetime: TimeCode, ack_delay: TimeCode) -> TimeCode {
    let way = packet_lifetime.code() + 1;
    let (longer, shorter) = (way.max(ack_delay.code()), way.min(ack_delay.code()));
    TimeCode::new(longer + u8::from(shorter + 1 >= longer))
}

#[cfg(test)]
mod tests {
    use verbs_core::mad::Bits;
    use verbs_core::qp_state::check;
    use verbs_core::{Psn, QpType};

    use super::*;
    use crate::params::Route;

    fn ways(mtu: Mtu) -> Ways {
        Ways {
            av: Av::default(),
            mtu,
            alternate: None,
        }
    }

    #[test]
    fn attributes_are_those_that_the_states_require() {
        let (route, accept) = (Route::default(), Accept::default());
        let connect = Connect::new(crate::wire::ServiceId(1), Qpn::new(2), route);
        for (transport, qp_types) in [
            (Transport::Rc, [QpType::Rc; 2]),
            (Transport::Uc, [QpType::Uc; 2]),
            (Transport::Extended, [QpType::XrcSend, QpType::XrcRecv]),
        ] {
            let req = Req {
                transport,
                ..Req::default()
            };
            let rep = Rep::default();
            let active = active_attrs(&connect, &req, &rep);
            let passive = passive_attrs(&accept, &req, &rep, &ways(Mtu::B1024));
            for ((rtr, rts), qp_type) in [active, passive].into_iter().zip(qp_types) {
                let rtr = check(QpState::Init, QpState::Rtr, qp_type, rtr.mask());
                let rts = check(QpState::Rtr, QpState::Rts, qp_type, rts.mask());
                assert_eq!((rtr, rts), (Ok(()), Ok(())));
            }
        }
    }

    /// Goal: each number goes to the modify that it is for, and never from the wrong message. Method: all numbers
    /// of the request and of the reply differ.
    #[test]
    fn each_attribute_comes_from_the_message_that_says_it() {
        let route = Route::default();
        let mut connect = Connect::new(crate::wire::ServiceId(1), Qpn::new(2), route);
        connect.min_rnr_timer = 9;
        connect.retry_count = Bits::truncated(1);
        let mut req = Req {
            qpn: Qpn::new(0x11),
            psn: Psn::new(0x111),
            responder_resources: 6,
            initiator_depth: 7,
            retry_count: Bits::truncated(3),
            rnr_retry_count: Bits::truncated(4),
            ..Req::default()
        };
        req.primary.ack_timeout = TimeCode::new(21);
        let rep = Rep {
            qpn: Qpn::new(0x22),
            psn: Psn::new(0x222),
            responder_resources: 4,
            initiator_depth: 5,
            rnr_retry_count: Bits::truncated(2),
            ..Rep::default()
        };
        let told = |(rtr, rts): (QpAttr, QpAttr)| {
            let ends = (rtr.dest_qpn, rtr.rq_psn, rts.sq_psn);
            let depths = (rtr.max_dest_rd_atomic, rts.max_rd_atomic);
            let retries = (rtr.min_rnr_timer, rts.retry_cnt, rts.rnr_retry);
            (ends, depths, retries, rtr.path_mtu, rts.timeout)
        };
        let ack = ack_timeout(route.packet_lifetime, rep.target_ack_delay).code();
        let active = (
            (Some(rep.qpn), Some(req.psn), Some(rep.psn)),
            (Some(5), Some(4)),
            (Some(9), Some(1), Some(2)),
            Some(route.mtu),
            Some(ack),
        );
        assert_eq!(told(active_attrs(&connect, &req, &rep)), active);
        let accept = Accept {
            min_rnr_timer: 13,
            ..Accept::default()
        };
        let passive = (
            (Some(req.qpn), Some(rep.psn), Some(req.psn)),
            (Some(4), Some(5)),
            (Some(13), Some(3), Some(4)),
            Some(Mtu::B512),
            Some(21),
        );
        let attrs = passive_attrs(&accept, &req, &rep, &ways(Mtu::B512));
        assert_eq!(told(attrs), passive);
    }

    #[test]
    fn ack_timeouts_are_there_and_back_and_the_delay() {
        let timeout =
            |lifetime, delay| ack_timeout(TimeCode::new(lifetime), TimeCode::new(delay)).code();
        assert_eq!(timeout(18, 15), 19, "what Linux sends over RoCE");
        assert_eq!(
            (timeout(14, 14), timeout(14, 15), timeout(14, 13)),
            (16, 16, 15)
        );
        assert_eq!((timeout(0, 20), timeout(31, 31)), (20, 31));
    }

    #[test]
    fn a_queue_pair_goes_one_step_at_a_time() {
        let mut qp = QpDriver::new(Qpn::new(1));
        qp.aim(Stage::Rts);
        assert!(qp.next().is_some() && qp.next().is_none());
        assert_eq!(qp.ended(true), Progress::Working);
        qp.aim(Stage::Err);
        assert_eq!(qp.next().and_then(|attr| attr.state), Some(QpState::Err));
        assert_eq!(qp.ended(false), Progress::Ready);
        assert!(qp.is_there() && qp.next().is_none());

        let mut untouched = QpDriver::new(Qpn::new(1));
        untouched.aim(Stage::Err);
        assert!(untouched.is_there() && untouched.next().is_none());

        let mut failing = QpDriver::new(Qpn::new(1));
        failing.aim(Stage::Rtr);
        failing.next();
        assert_eq!(failing.ended(false), Progress::Failed);
    }
}
