//! What is different about sessions whose connections are streams.
//!
//! Connections are made by verbs, and end at both ends whichever ends first. A SEND or WRITE completes when it was handed
//! over; that it has arrived is known when a READ or an atomic behind it has completed, or the receiver says so.

use std::cell::Cell;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use verbs_core::sync::{Arc, Mutex};
use verbs_core::{
    Access, CmEvent, CmParam, CmReply, CmRequest, CmSink, Error, QpAttr, QpState, SendFlags, SendOp,
};

use crate::check::Rule;
use crate::coverage::Operation;
use crate::run::Mode;
use crate::run::area::{Area, begin};
use crate::run::conn::{Lane, Place, What};
use crate::run::machine::addresses;
use crate::run::rc::post::receives;
use crate::run::rc::state::Session;
use crate::run::rc::{post, reap};
use crate::run::world::{LIVE_MAX, World};
use crate::run::wr_builder::WrBuilder;

/// Requests that may wait for an answer.
const BACKLOG: u32 = 8;
/// How long after a look whether something has come the next one is, at first and at most.
const LOOK: Duration = Duration::from_micros(2);
const LOOK_MAX: Duration = Duration::from_micros(500);
/// Bytes of the READ that confirms what was sent before it.
const PROBE: usize = 8;
/// What an endpoint says along when it accepts.
const WELCOME: &[u8] = b"welcome";

/// The requests that a listening endpoint has got; `None` once no more are wanted: what comes then is dropped, which
/// rejects it.
#[derive(Default)]
struct Requests(Mutex<Option<Vec<CmRequest>>>);

impl CmSink for Requests {
    fn event(&self, event: CmEvent) {
        let CmEvent::ConnectRequest(request) = event else {
            return;
        };
        let unwanted = match &mut *self.0.lock() {
            Some(requests) => {
                requests.push(request);
                None
            }
            None => Some(request),
        };
        // Under no lock.
        drop(unwanted);
    }
}

/// Takes requests as long as it is there. Each has an endpoint that keeps its sink, so that none may stay in it.
struct Reception(Arc<Requests>);

impl Reception {
    fn open() -> Self {
        let requests = Requests(Mutex::new(Some(Vec::new())));
        Self(Arc::new(requests))
    }

    /// The request that says that, of those that have come; others are rejected.
    fn request(&self, tag: &[u8]) -> Option<CmRequest> {
        let all = self.0.0.lock().replace(Vec::new());
        let mut all = all.into_iter().flatten();
        all.find(|request| request.private_data == tag)
    }
}

impl Drop for Reception {
    fn drop(&mut self) {
        let left = self.0.0.lock().take();
        drop(left);
    }
}

/// Takes both ends of a connection to RTS by the verbs of its ends' endpoints. `None`: a fault prevented it.
pub(crate) async fn connect_stream(session: &mut Session, index: usize) -> Option<()> {
    let world = Rc::clone(&session.world);
    let Session { ends, conns, .. } = session;
    let conn = &mut conns[index];
    let access = Access::REMOTE | Access::LOCAL_WRITE;
    for end in [0, 1] {
        let init = conn.qps[end].as_ref()?.modify(QpAttr::init(1, access));
        world.verb(&ends[end].lease, init).await.ok()?;
    }
    let at = |end: usize| {
        let ip = addresses(ends[end].lease.node)[usize::from(conn.attrs.gid_index)];
        SocketAddr::new(ip, 0)
    };
    let (from, to) = (at(0), at(1));
    let reception = Reception::open();
    let device = ends[1].lease.device()?;
    let bind = device.bind_cm(to, Arc::clone(&reception.0) as Arc<dyn CmSink>);
    let listener = world.verb(&ends[1].lease, bind).await.ok()?;
    let to = listener.local();
    let listen = world.verb(&ends[1].lease, listener.listen(BACKLOG)).await;
    conn.endpoints.push((1, listener));
    listen.ok()?;
    let device = ends[0].lease.device()?;
    let bind = device.bind_cm(from, Arc::new(Requests::default()));
    let endpoint = world.verb(&ends[0].lease, bind).await.ok()?;
    conn.from = Some(endpoint.local());
    let qps = (conn.qps[0].as_ref()?, conn.qps[1].as_ref()?);
    let param = CmParam {
        responder_resources: conn.attrs.rd_atomic,
        initiator_depth: conn.attrs.rd_atomic,
        ..CmParam::default()
    };
    let tag = world.name().to_be_bytes().to_vec();
    let is_over = Cell::new(false);
    let is_orphaned = || ends.iter().any(|end| end.lease.removed.get());
    let connect = async {
        let connect = endpoint.connect(qps.0, to, param, tag.clone());
        let connect = pin!(world.verb(&ends[0].lease, connect));
        // A device that was removed answers nothing, and its peer waits for long.
        let reply = first(connect, patiently(&world, || is_orphaned().then_some(())));
        let reply = reply.await;
        is_over.set(true);
        reply
    };
    let accept = async {
        let asked = patiently(&world, || match is_over.get() {
            true => Some(None),
            false => reception.request(&tag).map(Some),
        });
        let request = asked.await?;
        let accept = request.endpoint.accept(qps.1, param, WELCOME.to_vec());
        // The peer may have given up.
        let gone = |error: &Error| matches!(error, Error::Mismatch { .. });
        let done = world.verb_or(&ends[1].lease, accept, gone).await;
        // Its end tells the peer that there is no connection.
        done.is_ok().then_some(request.endpoint)
    };
    let (reply, accepted) = both(connect, accept).await;
    conn.endpoints.push((0, endpoint));
    let was_accepted = accepted.is_some();
    conn.endpoints
        .extend(accepted.map(|endpoint| (1, endpoint)));
    judge_connect(session, index, reply?.ok()?, was_accepted)
}

/// Whether a connect has ended as it may. `None`: there is no connection.
fn judge_connect(
    session: &mut Session,
    index: usize,
    reply: CmReply,
    was_accepted: bool,
) -> Option<()> {
    match reply {
        CmReply::Established(said) => {
            if *said != *WELCOME || !was_accepted {
                let what = format!("a connect was accepted with {said:?}, which nobody said");
                session.world.violated(Rule::Result, what);
            }
            session.conns[index].live = true;
            Some(())
        }
        reply => {
            let plan = &session.world.plan;
            // Strangers may fill the backlog.
            let explained = is_cut(session, index) || session.is_orphaned() || plan.verb_faults;
            if !explained && !plan.hostile {
                let what = format!("a connect ended without cause: {reply:?}");
                session.world.violated(Rule::Verb, what);
            }
            None
        }
    }
}

/// Gives the addresses back, which ends the connections that are there.
pub(crate) async fn unbind(session: &mut Session) {
    let world = Rc::clone(&session.world);
    for conn in &mut session.conns {
        for (end, endpoint) in std::mem::take(&mut conn.endpoints) {
            let done = world
                .verb(&session.ends[end].lease, endpoint.unbind())
                .await;
            if let Err(refused) = done
                && refused.handle.is_some()
            {
                let what = format!("an unbind gave the endpoint back: {}", refused.error);
                world.violated(Rule::Verb, what);
            }
        }
    }
}

/// Whether a fault has ended the connection.
fn is_cut(session: &Session, index: usize) -> bool {
    let from = session.conns[index].from;
    from.is_some_and(|from| session.world.sim.streams().is_broken(from))
}

/// Notes which connections faults have ended.
pub(crate) fn note_cuts(session: &mut Session) {
    for index in 0..session.conns.len() {
        if is_cut(session, index) {
            session.conns[index].broken = true;
        }
    }
}

/// A connection that was ended by a fault, or by a work request that fails at the peer, ends at both ends.
pub(crate) async fn await_ends(session: &mut Session) {
    if session.world.plan.mode != Mode::Streams {
        return;
    }
    let begun = session.world.sim.now();
    for index in 0..session.conns.len() {
        let conn = &session.conns[index];
        let fails = conn.lanes.iter().any(|lane| lane.failing.is_some());
        if !conn.live || !(fails || is_cut(session, index)) {
            continue;
        }
        for end in [0, 1] {
            while !has_ended(session, index, end).await && !session.is_orphaned() {
                if session.world.sim.now() - begun > LIVE_MAX {
                    let what = "a connection has ended at one end, and not at the other";
                    return session.world.violated(Rule::Liveness, what);
                }
                // What ends it may be behind a message that waits for a receive.
                for end in [0, 1] {
                    receives::post(session, index, end);
                }
                reap::reap(session);
                session.world.sim.sleep(Duration::from_micros(50)).await;
            }
        }
    }
}

async fn has_ended(session: &Session, index: usize, end: usize) -> bool {
    let Some(qp) = &session.conns[index].qps[end] else {
        return true;
    };
    let info = session
        .world
        .verb(&session.ends[end].lease, qp.query())
        .await;
    info.is_ok_and(|info| info.state == QpState::Err)
}

/// Whether this run's transport lacks an operation.
pub(crate) fn lacks(session: &Session, operation: Operation) -> bool {
    let lacking = matches!(
        operation,
        Operation::SendImm | Operation::AtomicWrite | Operation::Flush
    );
    lacking && session.world.plan.mode == Mode::Streams
}

/// The most pieces that a result is scattered into.
pub(crate) fn sink_pieces(session: &Session, index: usize) -> usize {
    match session.world.plan.mode {
        Mode::Streams => 1,
        Mode::Packets | Mode::Direct => session.conns[index].attrs.sges as usize,
    }
}

/// A READ that confirms what was sent before it, if something has not been confirmed. Whether there was room for its
/// result.
pub(crate) fn post_probe(session: &mut Session, index: usize, end: usize) -> bool {
    let conn = &session.conns[index];
    let lane = &conn.lanes[end];
    let is_quiet = lane.sends.iter().last().is_some_and(|last| !last.signaled);
    if lane.unsettled.is_none() && !is_quiet {
        return true;
    }
    let last = lane.unsettled.unwrap_or(0);
    let is_asked = lane.sends.iter().any(|sent| {
        let confirms = sent.what.back.is_some() && sent.what.seq > last;
        confirms && sent.signaled && !is_quiet
    });
    if !conn.live || conn.broken || is_asked {
        return true;
    }
    let at = begin(index, Area::Target);
    let remote = post::remote(session, 1 - end, Place::Main, at);
    let back = post::back(session, index, end, PROBE);
    let (Some(remote), Some(back)) = (remote, back) else {
        return false;
    };
    let mut builder = WrBuilder::new(Operation::Read, SendOp::Read(remote));
    builder.flags = SendFlags::SIGNALED;
    builder.len = PROBE;
    builder.target = Some((Place::Main, at..at + PROBE));
    builder.back = Some(back);
    if post::scatter(session, index, end, &mut builder).is_some() {
        post::post(session, index, end, builder);
    }
    true
}

impl Lane {
    /// A work request has completed: what is confirmed by that. Whether all before it has taken effect.
    pub(crate) fn confirm(&mut self, what: &What, mode: Mode) -> bool {
        self.unconfirmed += u64::from(what.receives);
        if mode == Mode::Streams && what.back.is_none() {
            return false;
        }
        self.confirmed += std::mem::take(&mut self.unconfirmed);
        self.unsettled = self.unsettled.filter(|&last| last > what.seq);
        true
    }

    /// Whether something that was posted has not ended, or not been confirmed.
    pub(crate) fn is_open(&self, mode: Mode) -> bool {
        !self.sends.is_empty() || mode == Mode::Streams && self.unsettled.is_some()
    }
}

/// Looks until something is there, ever less often.
async fn patiently<T>(world: &World, mut look: impl FnMut() -> Option<T>) -> T {
    let mut pause = LOOK;
    loop {
        if let Some(found) = look() {
            return found;
        }
        world.sim.sleep(pause).await;
        pause = (2 * pause).min(LOOK_MAX);
    }
}

/// The output of the first future, unless the second ends before it.
async fn first<A: Future, B: Future>(a: A, b: B) -> Option<A::Output> {
    let (mut a, mut b) = (pin!(a), pin!(b));
    std::future::poll_fn(|cx| match a.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => b.as_mut().poll(cx).map(|_| None),
    })
    .await
}

/// The outputs of two futures.
async fn both<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut first, mut second) = (None, None);
    std::future::poll_fn(|cx| {
        if first.is_none()
            && let Poll::Ready(output) = a.as_mut().poll(cx)
        {
            first = Some(output);
        }
        if second.is_none()
            && let Poll::Ready(output) = b.as_mut().poll(cx)
        {
            second = Some(output);
        }
        match (first.take(), second.take()) {
            (Some(a), Some(b)) => Poll::Ready((a, b)),
            (a, b) => {
                (first, second) = (a, b);
                Poll::Pending
            }
        }
    })
    .await
}
