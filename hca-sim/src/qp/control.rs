//! The control verbs of a queue pair, and what else takes it down: a failure, the removal of the device.

use verbs_core::mem::{Touched, grace};
use verbs_core::qp::{DestroyQp, ModifyQp, ResizeQp};
use verbs_core::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use verbs_core::sync::{Arc, MutexGuard};
use verbs_core::{Access, Attr, Command, Error, QpAttr, QpCap, QpInfo, QpState, QpType, Why};

use super::worker::migration;
use super::worker::packet_qp::PacketQp;
use super::{Links, QueuePair, check, tag_of, takes_packets};
use super::{pairing, recall};
use crate::effects::Finish;
use crate::queue::base::limits::{self, PORT};
use crate::queue::base::word::flag;
use crate::queue::recv::RecvRing;
use crate::queue::send::SendRing;

/// The ring of a queue.
#[derive(Clone, Copy)]
struct Filled {
    room: u32,
    outstanding: u32,
}

/// Whether a queue may have that depth, if one is asked for.
fn check_depth(attr: Attr, wanted: Option<u32>, ring: Option<Filled>) -> Result<(), Error> {
    let Some(got) = wanted else { return Ok(()) };
    let max = limits::QP_WR;
    match ring {
        _ if got > max => Err(Error::Invalid { attr, got, max }),
        Some(Filled { room: max, .. }) if got > max => Err(Error::Exhausted { attr, max }),
        Some(Filled { outstanding, .. }) if got < outstanding => Err(Error::Outstanding {
            attr,
            got,
            outstanding,
        }),
        _ => Ok(()),
    }
}

/// From RESET to RTS at once: a target of another program comes for a visit, and has these attributes.
///
/// # Errors
/// [`Error::NoMemory`].
pub(super) fn visited(qp: &QueuePair, attr: &QpAttr) -> Result<(), Error> {
    let _links = qp.port.link.lock();
    allocate(qp, QpState::Init)?;
    // Nothing is taken away, so no thread is waited for.
    let _ = apply(qp, QpState::Reset, QpState::Rts, attr);
    Ok(())
}

/// The target of another program does not come again, and no packets find it any longer.
pub(super) fn retire(qp: &Arc<QueuePair>) {
    let links = qp.port.link.lock();
    let touched = qp.take_away(&links, flag::GONE);
    qp.close(links, touched);
}

impl QueuePair {
    /// The verb of that name.
    pub(crate) fn modify(self: &Arc<Self>, command: Command<'_, ModifyQp>) {
        let links = self.port.link.lock();
        let change = command.attr;
        let from = self.state();
        let to = change.state.unwrap_or(from);
        let checked = may_change(self)
            .and_then(|()| check::check(self.qp_type, from, to, &change))
            .and_then(|()| check_connection(self, from, to))
            .and_then(|()| self.port.features.check_modify(from, &change))
            .and_then(|()| self.port.check_path(&change))
            .and_then(|()| migration::check_migration(self, &change));
        let checked = checked.and_then(|()| allocate(self, to));
        if let Err(error) = checked {
            drop(links);
            return command.complete(Err(error));
        }
        let takes_away = matches!(to, QpState::Err | QpState::Reset | QpState::Sqd)
            || change.access.is_some()
                && matches!(from, QpState::Rtr | QpState::Rts | QpState::Sqd);
        if !takes_away {
            // Nothing is taken away, so no thread is waited for.
            let _ = apply(self, from, to, &change).and(self.repair(&links));
            drop(links);
            command.complete(Ok(()));
            migration::tell_migrated(self, &change);
            return wake_both(self);
        }
        // Pending comes first: if its limit refuses the verb, nothing has been done.
        let Some((_, pending)) = command.pend() else {
            return;
        };
        let before = self.control.lock().attr();
        let touched =
            apply(self, from, to, &change).and(pairing::repair_after(self, &links, &before));
        self.control.lock().finish.push(Finish::Modify(pending));
        self.worker.owes.set();
        self.close(links, touched);
        migration::tell_migrated(self, &change);
        wake_both(self);
    }

    /// Changes that take nothing away, without a verb.
    #[cfg(all(test, verbs_loom))]
    pub(crate) fn change(self: &Arc<Self>, changes: &[QpAttr]) {
        let links = self.port.link.lock();
        for change in changes {
            let (from, to) = (self.state(), change.state.unwrap_or(self.state()));
            check::check(self.qp_type, from, to, change).expect("a model makes legal changes");
            allocate(self, to).expect("a model has memory");
            let _ = apply(self, from, to, change).and(self.repair(&links));
        }
    }

    /// The verb of that name: flushes and releases.
    pub(crate) fn destroy(self: &Arc<Self>, command: Command<'_, DestroyQp>) {
        let mut links = self.port.link.lock();
        let Some((_, pending)) = command.pend() else {
            return;
        };
        let touched = self.take_away(&links, flag::GONE);
        links.leave(self.port.lid, self.qpn);
        self.control.lock().finish.push(Finish::Destroy(pending));
        self.worker.owes.set();
        self.close(links, touched);
    }

    /// Goes to ERR for a reason that a completion or an event reports; `false` if it is in RESET or ERR.
    pub(crate) fn fail(self: &Arc<Self>) -> bool {
        let links = self.port.link.lock();
        fail_under(self, links)
    }

    /// The same, for a reason of before: not if it was reset in the meantime.
    pub(crate) fn fail_since(self: &Arc<Self>, resets: u32) -> bool {
        let links = self.port.link.lock();
        // Counted under that lock.
        self.resets() == resets && fail_under(self, links)
    }

    /// Its send queue goes to SQE for a reason that a completion reports; receives continue.
    pub(crate) fn fail_sends(self: &Arc<Self>) {
        let links = self.port.link.lock();
        if self.state() != QpState::Rts && self.state() != QpState::Sqd {
            return;
        }
        let touched = set_state(self, QpState::Sqe, 0);
        self.close(links, touched);
    }

    /// The device was removed.
    pub(crate) fn remove(self: &Arc<Self>) {
        let links = self.port.link.lock();
        let touched = self.take_away(&links, flag::REMOVED);
        self.close(links, touched);
    }

    /// Its attributes as they are now.
    pub(crate) fn query(&self) -> QpInfo {
        let state = self.state();
        let mut attr = self.control.lock().attr();
        attr.state = Some(state);
        if let (Some(sends), true) = (self.send_ring(), attr.sq_psn.is_some()) {
            attr.sq_psn = Some(verbs_core::Psn::new(sends.psn()));
        }
        if let (Some(recvs), true) = (self.recv_ring(), attr.rq_psn.is_some()) {
            attr.rq_psn = Some(verbs_core::Psn::new(recvs.epsn()));
        }
        QpInfo {
            state,
            attr,
            cap: self.cap.get(),
            sq_sig_all: self.sq_sig_all,
            sq_draining: state == QpState::Sqd && self.is_draining(),
        }
    }

    /// The verb of that name. The rings have the size of the next power of two, and may be used up to that; before they
    /// are allocated, any depth may be chosen. What is outstanding is counted in the rings, so posts tell nothing for it.
    pub(crate) fn resize(&self, command: Command<'_, ResizeQp>) {
        // Allocates the rings under the same lock, so that they have either the old sizes or the new ones.
        let links = self.port.link.lock();
        let resized = may_change(self).and_then(|()| change_cap(self, &command));
        drop(links);
        if let Ok(cap) = &resized {
            command.target().resized(cap);
        }
        command.complete(resized);
    }

    /// From RESET or INIT to RTS for a connection: `attr` is what the two ends have agreed on. `ready` gives the queue
    /// pair its stream between the two transitions.
    pub(crate) fn establish(
        self: &Arc<Self>,
        attr: &QpAttr,
        ready: impl FnOnce(&mut PacketQp),
    ) -> Result<(), Error> {
        let links = self.port.link.lock();
        may_change(self)?;
        let from = self.state();
        if !matches!(from, QpState::Reset | QpState::Init) {
            let (attr, why) = (Attr::Qp, Why::State);
            return Err(Error::Mismatch { attr, why });
        }
        allocate(self, QpState::Init)?;
        let exchange = self.worker.exchange().ok_or(Error::DeviceFailed)?;
        ready(&mut exchange.lock());
        let mut attr = *attr;
        if from == QpState::Reset {
            attr.access = Some(Access::REMOTE | Access::LOCAL_WRITE);
            attr.port = Some(PORT);
        }
        // Nothing is taken away, so no thread is waited for.
        let _ = apply(self, from, QpState::Rts, &attr);
        drop(links);
        Ok(())
    }

    /// To ERR, from any state but RESET, where there is nothing to flush.
    fn take_away(self: &Arc<Self>, links: &Links, flags: u32) -> Touched {
        let to = if self.state() == QpState::Reset {
            QpState::Reset
        } else {
            QpState::Err
        };
        if to == QpState::Err && self.state() != to {
            self.control.lock().tell_last_wqe = self.srq.is_some();
            self.worker.owes.set();
        }
        let touched = set_state(self, to, flags);
        let before = self.control.lock().attr();
        touched.and(pairing::repair_after(self, links, &before))
    }

    /// Flushes and completes what waits for it, once no thread can be inside any longer. Until then no new direct path
    /// begins or ends here: one direction would have two owners.
    fn close(self: &Arc<Self>, links: MutexGuard<'_, Links>, touched: Touched) {
        self.begin_close(&links);
        drop(links);
        self.end_close(touched);
    }

    /// No direct path begins here from now on; called under the lock under which the old one was taken away.
    pub(crate) fn begin_close(&self, _links: &Links) {
        self.worker.closing.fetch_add(1, AcqRel);
    }

    /// Completes what [`QueuePair::begin_close`] has begun, outside of locks.
    pub(crate) fn end_close(self: &Arc<Self>, touched: Touched) {
        let me = Arc::clone(self);
        // Pollers write nothing after this.
        let scatter = self.scatter();
        let pollers = scatter
            .as_ref()
            .map(|scatter| scatter.ring.shut_out_pollers());
        let touched = touched.and(pollers.unwrap_or(Touched::NOBODY));
        grace::after(touched, move || {
            if let Some(scatter) = scatter {
                recall::end_inline_cqes(&me, &scatter);
            }
            me.worker.closing.fetch_sub(1, AcqRel);
            me.turn();
            let links = me.port.link.lock();
            // A direct path that is made from now on has no thread to wait for.
            let _ = me.repair(&links);
            drop(links);
            wake_both(&me);
        });
    }

    /// Continues with what waits, if anything does.
    pub(crate) fn wake(self: &Arc<Self>) {
        if self.send_ring().is_some_and(|sends| !sends.is_drained()) {
            self.kick();
        }
    }
}

fn fail_under(qp: &Arc<QueuePair>, links: MutexGuard<'_, Links>) -> bool {
    if matches!(qp.state(), QpState::Reset | QpState::Err) {
        return false;
    }
    let touched = qp.take_away(&links, 0);
    qp.close(links, touched);
    true
}

fn change_cap(qp: &QueuePair, change: &ResizeQp) -> Result<QpCap, Error> {
    let mut cap = qp.cap.get();
    if change.max_recv_wr.is_some() && (qp.srq.is_some() || qp.qp_type == QpType::XrcSend) {
        let why = if qp.srq.is_some() {
            Why::UsesSrq
        } else {
            Why::NoReceives
        };
        return Err(Error::Mismatch {
            attr: Attr::MaxRecvWr,
            why,
        });
    }
    let sends = qp.send_ring().map(|sends| Filled {
        room: sends.room(),
        outstanding: sends.outstanding(|at| qp.send_cq.is_waiting(at)),
    });
    let recvs = qp.recv_ring().map(|recvs| Filled {
        room: recvs.room(),
        outstanding: recvs.outstanding(),
    });
    check_depth(Attr::MaxSendWr, change.max_send_wr, sends)?;
    check_depth(Attr::MaxRecvWr, change.max_recv_wr, recvs)?;
    if change
        .max_send_wr
        .is_some_and(|depth| depth < cap.max_send_wr)
    {
        qp.gate.shrunk.store(true, Release);
    }
    cap.max_send_wr = change.max_send_wr.unwrap_or(cap.max_send_wr);
    cap.max_recv_wr = change.max_recv_wr.unwrap_or(cap.max_recv_wr);
    qp.cap.resize(&cap);
    Ok(cap)
}

fn may_change(qp: &QueuePair) -> Result<(), Error> {
    match qp.gate.word.tag() {
        tag if tag & flag::REMOVED != 0 => Err(Error::DeviceRemoved),
        tag if tag & flag::GONE != 0 => Err(Error::Closing),
        _ => Ok(()),
    }
}

/// Where streams carry messages, only a connection brings the stream and takes the queue pair to RTS.
fn check_connection(qp: &QueuePair, from: QpState, to: QpState) -> Result<(), Error> {
    let connects = from != to && (to == QpState::Rtr || from == QpState::Rtr);
    if qp.port.streams.is_some() && connects && to != QpState::Err && to != QpState::Reset {
        let (attr, why) = (Attr::Qp, Why::NeedsConnection);
        return Err(Error::Mismatch { attr, why });
    }
    Ok(())
}

/// Allocates the rings when they are first needed.
fn allocate(qp: &QueuePair, to: QpState) -> Result<(), Error> {
    if to != QpState::Init || qp.sends.get().is_some() {
        return Ok(());
    }
    let slabs = &qp.port.slabs;
    let cap = qp.cap.get();
    let sends = SendRing::new(slabs, &cap, qp.service())?;
    let recvs = RecvRing::new(slabs, cap.max_recv_wr, cap.max_recv_sge)?;
    let (sends, recvs) = (slabs.arc(sends)?, slabs.arc(recvs)?);
    if qp.port.streams.is_some() {
        qp.worker.set_exchange(PacketQp::over_stream()?);
    } else if qp.goes_as_packets() {
        qp.worker.set_exchange(PacketQp::new(qp.qp_type, &cap)?);
    }
    // Under the lock of the link no other thread does this.
    let _ = qp.recvs.set(recvs);
    let _ = qp.sends.set(sends);
    Ok(())
}

/// Takes over a change that has been checked. Returns which threads to wait for if it takes something away.
fn apply(qp: &QueuePair, from: QpState, to: QpState, change: &QpAttr) -> Touched {
    let mut control = qp.control.lock();
    let attr = control.attr.get_or_insert_default();
    let migrates = migration::is_asked_for(attr, change);
    attr.apply(change);
    attr.state = Some(to);
    attr.cur_state = None;
    if migrates {
        migration::swap_paths(attr);
    }
    if to == QpState::Reset {
        // Its memory stays, for the next change.
        **attr = QpAttr::default();
        qp.resets.fetch_add(1, AcqRel);
        qp.contacted.store(false, Relaxed);
    }
    if from != to {
        control.tell_drained = to == QpState::Sqd && change.en_sqd_async_notify == Some(true);
        control.tell_last_wqe = to == QpState::Err && qp.srq.is_some();
    }
    control.tell_migrated |= migrates;
    drop(control);
    qp.worker.owes.set();
    qp.changes.fetch_add(1, AcqRel);
    if let Some(recvs) = qp.recv_ring() {
        if let Some(psn) = change.rq_psn {
            recvs.expect(psn.value());
        }
        if let Some(code) = change.min_rnr_timer {
            recvs.set_rnr_timer(code);
        }
    }
    if let (Some(sends), Some(psn)) = (qp.send_ring(), change.sq_psn) {
        sends.set_psn(psn.value());
    }
    if from == to {
        return Touched::NOBODY;
    }
    set_state(qp, to, 0)
}

fn set_state(qp: &QueuePair, to: QpState, flags: u32) -> Touched {
    let keep = flag::GONE | flag::REMOVED;
    let changed = qp
        .gate
        .word
        .update(|tag| Some(tag & keep | tag_of(to) | flags));
    if let Some(managed) = qp.port.managed.as_ref().filter(|_| qp.is_special()) {
        let attends = takes_packets(to) && qp.gate.word.tag() & keep == 0;
        managed.attend(qp.qpn, attends);
    }
    changed.map_or(Touched::NOBODY, |(_, touched)| touched)
}

/// Both ends may continue now: a machine waited for the other to be ready.
fn wake_both(qp: &Arc<QueuePair>) {
    let attr = qp.control.lock().attr();
    let peer = pairing::named_peer(&qp.port.link.lock(), &attr).cloned();
    for qp in peer.iter().chain([qp]) {
        qp.wake();
    }
}
