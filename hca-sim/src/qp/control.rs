//! The control verbs of a queue pair, and what takes it down besides them: a failure, the end of the device.

use verbs_core::mem::{Touched, grace};
use verbs_core::qp::{DestroyQp, ModifyQp};
use verbs_core::sync::atomic::Ordering::{AcqRel, Relaxed};
use verbs_core::sync::{Arc, MutexGuard};
use verbs_core::{Command, Error, QpAttr, QpInfo, QpState};

use super::finish::Finish;
use super::pairing::Links;
use super::worker::packet_qp::PacketQp;
use super::{QueuePair, check, tag_of, takes_packets};
use crate::queue::base::word::flag;
use crate::queue::recv::RecvRing;
use crate::queue::send::SendRing;

impl QueuePair {
    /// The verb of that name.
    pub(crate) fn modify(self: &Arc<Self>, command: Command<'_, ModifyQp>) {
        if matches!(command.attr.state, Some(QpState::Err | QpState::Reset)) {
            self.acknowledge();
        }
        let links = self.port.link.lock();
        let change = command.attr;
        let from = self.state();
        let to = change.state.unwrap_or(from);
        let checked = self
            .may_change()
            .and_then(|()| check::check(self.qp_type, from, to, &change))
            .and_then(|()| self.port.check_path(&change));
        let checked = checked.and_then(|()| self.allocate(to));
        if let Err(error) = checked {
            drop(links);
            return command.complete(Err(error));
        }
        let takes_away = matches!(to, QpState::Err | QpState::Reset | QpState::Sqd)
            || change.access.is_some()
                && matches!(from, QpState::Rtr | QpState::Rts | QpState::Sqd);
        if !takes_away {
            // Nothing is taken away, so nobody is waited for.
            let _ = self.apply(from, to, &change).and(self.repair(&links));
            drop(links);
            command.complete(Ok(()));
            return self.wake_both();
        }
        // Pending comes first: when its limit refuses the verb, nothing has been done.
        let Some((_, pending)) = command.pend() else {
            return;
        };
        let before = self.control.lock().attr();
        let touched = self
            .apply(from, to, &change)
            .and(self.repair_after(&links, &before));
        self.control.lock().finish.push(Finish::Modify(pending));
        self.close(links, touched);
        self.wake_both();
    }

    /// Changes that take nothing away, without a verb.
    #[cfg(all(test, verbs_loom))]
    pub(crate) fn change(self: &Arc<Self>, changes: &[QpAttr]) {
        let links = self.port.link.lock();
        for change in changes {
            let (from, to) = (self.state(), change.state.unwrap_or(self.state()));
            check::check(self.qp_type, from, to, change).expect("a model makes legal changes");
            self.allocate(to).expect("a model has memory");
            let _ = self.apply(from, to, change).and(self.repair(&links));
        }
    }

    /// The verb of that name: flushes and lets go.
    pub(crate) fn destroy(self: &Arc<Self>, command: Command<'_, DestroyQp>) {
        self.acknowledge();
        let mut links = self.port.link.lock();
        let Some((_, pending)) = command.pend() else {
            return;
        };
        let touched = self.take_away(&links, flag::GONE);
        links.leave(self.port.lid, self.qpn);
        self.control.lock().finish.push(Finish::Destroy(pending));
        self.close(links, touched);
    }

    /// What has arrived is acknowledged, before nothing is.
    fn acknowledge(self: &Arc<Self>) {
        if let Some(driver) = self.port.driver() {
            driver.acknowledge(self);
        }
    }

    /// Goes to ERR for a reason that a completion or an event tells; `false` if it is in RESET or ERR.
    pub(crate) fn fail(self: &Arc<Self>) -> bool {
        let links = self.port.link.lock();
        if matches!(self.state(), QpState::Reset | QpState::Err) {
            return false;
        }
        let touched = self.take_away(&links, 0);
        self.close(links, touched);
        true
    }

    /// Its send queue goes to SQE for a reason that a completion tells; receives go on.
    pub(crate) fn fail_sends(self: &Arc<Self>) {
        let links = self.port.link.lock();
        if self.state() != QpState::Rts && self.state() != QpState::Sqd {
            return;
        }
        let touched = self.set_state(QpState::Sqe, 0);
        self.close(links, touched);
    }

    /// The device has gone.
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
            cap: self.cap,
            sq_sig_all: self.sq_sig_all,
            sq_draining: false,
        }
    }

    fn may_change(&self) -> Result<(), Error> {
        match self.gate.word.tag() {
            tag if tag & flag::REMOVED != 0 => Err(Error::DeviceRemoved),
            tag if tag & flag::GONE != 0 => Err(Error::Closing),
            _ => Ok(()),
        }
    }

    /// The rings, when they are needed first.
    fn allocate(&self, to: QpState) -> Result<(), Error> {
        if to != QpState::Init || self.sends.get().is_some() {
            return Ok(());
        }
        let yard = &self.port.yard;
        let sends = SendRing::new(yard, &self.cap, self.service())?;
        let recvs = RecvRing::new(yard, self.cap.max_recv_wr, self.cap.max_recv_sge)?;
        let (sends, recvs) = (yard.common(sends)?, yard.common(recvs)?);
        if self.goes_as_packets() {
            self.worker
                .set_exchange(PacketQp::new(self.qp_type, &self.cap)?);
        }
        // Under the lock of the link nobody else does this.
        let _ = self.recvs.set(recvs);
        let _ = self.sends.set(sends);
        Ok(())
    }

    /// Takes over a change that has been checked. Whom to wait for if it takes something away.
    fn apply(&self, from: QpState, to: QpState, change: &QpAttr) -> Touched {
        let mut control = self.control.lock();
        let attr = control.attr.get_or_insert_default();
        attr.apply(change);
        attr.state = Some(to);
        attr.cur_state = None;
        if to == QpState::Reset {
            control.attr = None;
            self.resets.fetch_add(1, AcqRel);
            self.contacted.store(false, Relaxed);
        }
        if from != to {
            control.tell_drained = to == QpState::Sqd && change.en_sqd_async_notify == Some(true);
            control.tell_last_wqe = to == QpState::Err && self.srq.is_some();
        }
        drop(control);
        self.changes.fetch_add(1, AcqRel);
        if let Some(recvs) = self.recv_ring() {
            if let Some(psn) = change.rq_psn {
                recvs.expect(psn.value());
            }
            if let Some(code) = change.min_rnr_timer {
                recvs.set_rnr_timer(code);
            }
        }
        if let (Some(sends), Some(psn)) = (self.send_ring(), change.sq_psn) {
            sends.set_psn(psn.value());
        }
        if from == to {
            return Touched::NOBODY;
        }
        self.set_state(to, 0)
    }

    fn set_state(&self, to: QpState, flags: u32) -> Touched {
        let keep = flag::GONE | flag::REMOVED;
        let changed = self
            .gate
            .word
            .update(|tag| Some(tag & keep | tag_of(to) | flags));
        if let Some(managed) = self.port.managed.as_ref().filter(|_| self.is_special()) {
            let attends = takes_packets(to) && self.gate.word.tag() & keep == 0;
            managed.attend(self.qpn, attends);
        }
        changed.map_or(Touched::NOBODY, |(_, touched)| touched)
    }

    /// To ERR, whatever it was; RESET stays, as there is nothing to flush.
    fn take_away(self: &Arc<Self>, links: &Links, flags: u32) -> Touched {
        let to = if self.state() == QpState::Reset {
            QpState::Reset
        } else {
            QpState::Err
        };
        if to == QpState::Err && self.state() != to {
            self.control.lock().tell_last_wqe = self.srq.is_some();
        }
        let touched = self.set_state(to, flags);
        let before = self.control.lock().attr();
        touched.and(self.repair_after(links, &before))
    }

    /// Flushes and completes what waits for it, once nobody can be inside any more. Until then no new
    /// direct path begins or ends here: there would be two owners of one direction.
    fn close(self: &Arc<Self>, links: MutexGuard<'_, Links>, touched: Touched) {
        self.begin_close(&links);
        drop(links);
        self.end_close(touched);
    }

    /// No direct path begins here from now on; under the lock under which the old one was taken away.
    pub(crate) fn begin_close(&self, _links: &Links) {
        self.worker.closing.fetch_add(1, AcqRel);
    }

    /// The rest of what [`QueuePair::begin_close`] has begun, outside of locks.
    pub(crate) fn end_close(self: &Arc<Self>, touched: Touched) {
        let me = Arc::clone(self);
        // Nothing is written by pollers when this is over.
        let berths = self.berths();
        let pollers = berths.as_ref().map(|berths| berths.ring.shut_out_pollers());
        let touched = touched.and(pollers.unwrap_or(Touched::NOBODY));
        grace::after(touched, move || {
            if let Some(berths) = berths {
                me.end_riding(&berths);
            }
            me.worker.closing.fetch_sub(1, AcqRel);
            me.turn();
            let links = me.port.link.lock();
            // What a direct path is made for since has nobody to wait for.
            let _ = me.repair(&links);
            drop(links);
            me.wake_both();
        });
    }

    /// Both ends may go on now: a machine waited for the other to be ready.
    fn wake_both(self: &Arc<Self>) {
        let attr = self.control.lock().attr();
        let peer = self.named_peer(&self.port.link.lock(), &attr).cloned();
        for qp in peer.iter().chain([self]) {
            qp.wake();
        }
    }

    /// Goes on with what waits, if anything does.
    pub(crate) fn wake(self: &Arc<Self>) {
        if self.send_ring().is_some_and(|sends| !sends.is_drained()) {
            self.kick();
        }
    }
}
