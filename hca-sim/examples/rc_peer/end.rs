//! One end of a connection: its objects, its posts, the completions that it waits for.

use std::time::{Duration, Instant};

use verbs_core::sync::thread;
use verbs_core::{
    Access, Av, Cq, Device, EventChannel, EventType, Gid, Mw, Path, Payload, Psn, Qp, QpAttr,
    QpInit, QpState, Qpn, RKey, Recv, Remote, SendFlags, SendOp, SendWr, Sge, Srq, Wc, WcOpcode,
    WcStatus, WindowType,
};

use crate::Failure;
use crate::memory::Slots;
use crate::plan::{Fault, Plan, Test};

/// How long to wait for a completion that must arrive.
const PATIENCE: Duration = Duration::from_secs(25);

/// How long to watch that no completion arrives.
const QUIET: Duration = Duration::from_millis(20);

/// The pause between two looks at a completion queue.
const PAUSE: Duration = Duration::from_micros(50);

/// Which end this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Requester,
    Responder,
}

/// The parameters that one end sends the other.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peer {
    pub(crate) qpn: Qpn,
    pub(crate) psn: Psn,
    pub(crate) gid: Gid,
    /// Its memory.
    pub(crate) remote: Remote,
    /// Its memory window, where it has one.
    pub(crate) window: RKey,
}

/// A queue pair with its queues and memory.
pub(crate) struct End {
    pub(crate) plan: Plan,
    pub(crate) peer: Peer,
    /// Bound to the first slot, if the test has one. Dropped before the queue pair.
    mw: Option<Mw>,
    /// `None` once it has been destroyed.
    pub(crate) qp: Option<Qp>,
    /// The queue that its receives come from, and the channel of that queue's limit event.
    pub(crate) srq: Option<(Srq, EventChannel)>,
    pub(crate) slots: Slots,
    pub(crate) send_cq: Cq,
    pub(crate) recv_cq: Cq,
    /// Receives that were posted.
    pub(crate) receives: u32,
}

impl End {
    /// Makes everything up to a queue pair in INIT.
    pub(crate) fn new(device: &Device, plan: Plan, role: Role) -> Result<Self, Failure> {
        let shut = |fault| role == Role::Responder && plan.test == Test::Fails(fault);
        let access = |shut| if shut { Access::REMOTE_READ } else { Access::REMOTE } | Access::LOCAL_WRITE;
        let room = 2 * plan.count + 8;
        let pd = device.alloc_pd().wait()?;
        let (send_cq, recv_cq) = (
            device.create_cq(room).wait()?,
            device.create_cq(room).wait()?,
        );
        let mr_access = access(shut(Fault::NoMrRight)) | Access::MW_BIND;
        let srq = if role == Role::Responder && plan.limit > 0 {
            Some((pd.create_srq(room, 2).wait()?, device.event_channel()?))
        } else {
            None
        };
        let mut init = QpInit::rc(&send_cq, &recv_cq).depth(room, room);
        if let Some((srq, _)) = &srq {
            init = init.srq(srq);
        }
        let qp = pd.create_qp(init).wait()?;
        let slots = Slots::new(pd, &plan, mr_access)?;
        qp.init(1, access(shut(Fault::NoQpRight))).wait()?;
        Ok(Self {
            plan,
            peer: Peer::default(),
            mw: None,
            qp: Some(qp),
            srq,
            slots,
            send_cq,
            recv_cq,
            receives: 0,
        })
    }

    /// INIT to RTS, with `psn` as the number of the first packet sent.
    pub(crate) fn connect(&self, psn: Psn) -> Result<(), Failure> {
        let plan = &self.plan;
        let path = Path {
            av: Av::to_gid(1, 0, self.peer.gid),
            dest_qpn: self.peer.qpn,
            rq_psn: self.peer.psn,
            mtu: plan.mtu,
        };
        let qp = self.qp()?;
        qp.modify(QpAttr {
            max_dest_rd_atomic: Some(plan.rd_atomic),
            min_rnr_timer: Some(plan.rnr_timer),
            ..QpAttr::rtr(&path)
        })
        .wait()?;
        qp.modify(QpAttr {
            timeout: Some(plan.timeout),
            retry_cnt: Some(plan.retry),
            rnr_retry: Some(plan.rnr_retry),
            max_rd_atomic: Some(plan.rd_atomic),
            ..QpAttr::rts(psn)
        })
        .wait()?;
        Ok(())
    }

    /// Opens the first slot to WRITEs through a memory window, if the test has one: of type 2 if its key will be
    /// invalidated, otherwise of type 1.
    pub(crate) fn bind_window(&mut self) -> Result<(), Failure> {
        let kind = match self.plan.test {
            Test::SendInv => WindowType::TwoB,
            Test::Window => WindowType::One,
            _ => return Ok(()),
        };
        let mut mw = self.slots.pd.alloc_mw(kind).wait()?;
        let slot = self.slots.piece(0, self.slots.stride);
        let bind = mw.bind(99, slot, Access::REMOTE_WRITE).signaled();
        let qp = self.qp.as_mut().ok_or("the queue pair is gone")?;
        qp.send_queue()?.bind(&mut mw, bind)?;
        self.finish(99, WcStatus::Success)?;
        self.mw = Some(mw);
        Ok(())
    }

    /// The key of the memory window.
    pub(crate) fn window_key(&self) -> Option<RKey> {
        self.mw.as_ref().map(Mw::rkey)
    }

    pub(crate) fn qp(&self) -> Result<&Qp, Failure> {
        self.qp
            .as_ref()
            .ok_or_else(|| "the queue pair is gone".into())
    }

    pub(crate) fn expect_state(&self, want: QpState) -> Result<(), Failure> {
        let state = self.qp()?.query().wait()?.state;
        if state != want {
            return Err(format!("the queue pair is in state {state:?}, not {want:?}").into());
        }
        Ok(())
    }

    /// The place `offset` bytes into the peer's memory.
    pub(crate) fn remote(&self, offset: usize) -> Remote {
        let Remote { addr, rkey } = self.peer.remote;
        Remote {
            addr: addr + offset as u64,
            rkey,
        }
    }

    pub(crate) fn post(
        &mut self,
        wr_id: u64,
        op: SendOp,
        piece: Sge,
        flags: SendFlags,
    ) -> Result<(), Failure> {
        self.post_batch(&[request(wr_id, op, piece, flags)])
    }

    pub(crate) fn post_batch(&mut self, wrs: &[SendWr<'_>]) -> Result<(), Failure> {
        let qp = self.qp.as_mut().ok_or("the queue pair is gone")?;
        match wrs {
            [one] => qp.post_send(*one)?,
            many => qp.send_queue()?.post_batch(many)?,
        }
        Ok(())
    }

    pub(crate) fn post_recv(
        &mut self,
        wr_id: u64,
        offset: usize,
        len: usize,
    ) -> Result<(), Failure> {
        let piece = self.slots.piece(offset, len);
        let recv = Recv::new(wr_id).into(piece);
        match (&mut self.srq, &mut self.qp) {
            (Some((srq, _)), _) => srq.post_recv(recv)?,
            (None, Some(qp)) => qp.post_recv(recv)?,
            (None, None) => return Err("the queue pair is gone".into()),
        }
        self.receives += 1;
        Ok(())
    }

    /// Takes the next completion of the send queue, which must be that work request's, with that status.
    pub(crate) fn finish(&mut self, wr_id: u64, want: WcStatus) -> Result<Wc, Failure> {
        let wc = next(&mut self.send_cq, PATIENCE)
            .ok_or_else(|| format!("no completion for work request {wr_id}"))?;
        expect(&wc, wr_id, want, "work request")
    }

    /// Takes the next completion of the receive queue, which must be that receive's, with that status.
    pub(crate) fn receive(&mut self, wr_id: u64, want: WcStatus) -> Result<Wc, Failure> {
        let wc = next(&mut self.recv_cq, PATIENCE)
            .ok_or_else(|| format!("no completion for receive {wr_id}"))?;
        expect(&wc, wr_id, want, "receive")
    }

    /// Takes the next completion of the receive queue, which must be a whole message, with or without immediate.
    pub(crate) fn arrived(
        &mut self,
        wr_id: u64,
        opcode: WcOpcode,
        imm: Option<u32>,
    ) -> Result<(), Failure> {
        let wc = self.receive(wr_id, WcStatus::Success)?;
        let got = (wc.opcode, wc.byte_len, wc.immediate());
        let want = (opcode, self.plan.size, imm);
        if got != want {
            return Err(format!("receive {wr_id}: {got:x?}, not {want:x?}").into());
        }
        Ok(())
    }

    /// Arms the limit event, if there is a queue that has one.
    pub(crate) fn arm_limit(&self) -> Result<(), Failure> {
        if let Some((srq, _)) = &self.srq {
            srq.arm_limit(self.plan.limit).wait()?;
        }
        Ok(())
    }

    /// Checks that the limit event was raised once.
    pub(crate) fn expect_limit(&self) -> Result<(), Failure> {
        let Some((_, events)) = &self.srq else {
            return Ok(());
        };
        let all = std::iter::from_fn(|| events.try_next());
        let limits = all.filter(|event| event.event == EventType::SrqLimitReached);
        match limits.count() {
            1 => Ok(()),
            count => Err(format!("the limit event came {count} times").into()),
        }
    }

    /// Checks that no further completion of a receive arrives.
    pub(crate) fn expect_quiet(&mut self) -> Result<(), Failure> {
        match next(&mut self.recv_cq, QUIET) {
            None => Ok(()),
            Some(wc) => Err(format!("a completion too many: {wc:?}").into()),
        }
    }
}

pub(crate) fn request<'a>(wr_id: u64, op: SendOp, piece: Sge, flags: SendFlags) -> SendWr<'a> {
    SendWr {
        wr_id,
        op,
        flags,
        payload: Payload::One(piece),
        dest: verbs_core::Dest::Peer,
    }
}

/// The next completion, if one arrives within that time.
fn next(cq: &mut Cq, within: Duration) -> Option<Wc> {
    let begun = Instant::now();
    loop {
        if let Some(wc) = cq.poll(&mut [Wc::default()]).first() {
            eprintln!(
                "  wc: wr {} {}, {}, {} bytes",
                wc.wr_id, wc.status, wc.opcode, wc.byte_len
            );
            return Some(*wc);
        }
        if begun.elapsed() > within {
            return None;
        }
        thread::sleep(PAUSE);
    }
}

fn expect(wc: &Wc, wr_id: u64, want: WcStatus, what: &str) -> Result<Wc, Failure> {
    if wc.wr_id != wr_id {
        return Err(format!("{what} {} completed, not {wr_id}", wc.wr_id).into());
    }
    if wc.status != want {
        return Err(format!("{what} {wr_id}: {}, not {want}", wc.status).into());
    }
    Ok(*wc)
}
