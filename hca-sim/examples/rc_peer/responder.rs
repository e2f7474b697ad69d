//! The responder's half of the tests.

use std::time::Duration;

use verbs_core::sync::thread;
use verbs_core::{QpState, SendFlags, SendOp, WcOpcode, WcStatus};

use crate::Failure;
use crate::end::End;
use crate::memory::{back, forth};
use crate::plan::{Fault, Kind, Test};
use crate::requester::{counted, immediate};

/// The effect of message `k` at the responder.
struct Message {
    /// It arrives in a receive that has the slot, or in one without memory.
    receive: Option<WcOpcode>,
    imm: bool,
    /// The seed of the slot's contents afterwards.
    lands: Option<u64>,
}

/// Message `k` of a test without a fault.
fn message(test: Test, k: u32) -> Message {
    let of = |receive, imm, lands| Message {
        receive,
        imm,
        lands,
    };
    let (send, with_imm) = (Some(WcOpcode::Recv), Some(WcOpcode::RecvRdmaWithImm));
    match test {
        Test::Many(Kind::Send) | Test::Rnr | Test::Both => of(send, false, Some(forth(k))),
        Test::Many(Kind::SendImm) => of(send, true, Some(forth(k))),
        Test::Many(Kind::Write | Kind::AtomicWrite) => of(None, false, Some(forth(k))),
        Test::Many(Kind::WriteImm) => of(with_imm, true, Some(forth(k))),
        Test::Mixed if k.is_multiple_of(4) => of(None, false, Some(forth(k))),
        Test::Mixed if k % 4 == 2 => of(send, true, Some(forth(k))),
        Test::Mixed if k % 4 == 3 => of(with_imm, true, Some(forth(k))),
        Test::Fence => of(send, false, Some(back(k))),
        _ => of(None, false, None),
    }
}

/// Fills the slots that are read from, and posts the receives unless they are posted late.
pub(crate) fn prepare(end: &mut End) -> Result<(), Failure> {
    for k in 0..end.plan.count {
        end.slots.fill(end.slots.back_at(k), back(k))?;
    }
    if end.plan.late_ms == 0 {
        post_receives(end)?;
    }
    Ok(())
}

/// The part that begins when the requester does.
pub(crate) fn begin(end: &mut End) -> Result<(), Failure> {
    if end.plan.test == Test::Both {
        for k in 0..end.plan.count {
            let piece = end
                .slots
                .piece(end.slots.back_at(k), end.plan.size as usize);
            end.post(u64::from(k), SendOp::Send, piece, SendFlags::SIGNALED)?;
        }
    }
    if end.plan.late_ms > 0 {
        thread::sleep(Duration::from_millis(end.plan.late_ms));
        post_receives(end)?;
    }
    Ok(())
}

fn post_receives(end: &mut End) -> Result<(), Failure> {
    let (test, size) = (end.plan.test, end.plan.size as usize);
    let first = end.slots.forth_at(0);
    match test {
        Test::Window => return Ok(()),
        Test::SendInv => return end.post_recv(1, end.slots.forth_at(1), size),
        Test::Fails(Fault::RnrExhausted | Fault::Gone) => return Ok(()),
        Test::Fails(fault) => {
            let short = usize::from(fault == Fault::TooLong);
            end.post_recv(0, first, size - short)?;
            end.post_recv(1, first, size)?;
        }
        _ => {}
    }
    for k in 0..end.plan.count {
        let at = end.slots.forth_at(k);
        match message(test, k).receive {
            // Two bytes more than the message, which must stay unchanged.
            Some(WcOpcode::Recv) => end.post_recv(u64::from(k), at, size + 2)?,
            Some(_) => end.post_recv(u64::from(k), at, 0)?,
            None => {}
        }
    }
    end.arm_limit()
}

/// Checks everything that the test has done to this end, when the requester has finished.
pub(crate) fn check(end: &mut End) -> Result<(), Failure> {
    let plan = end.plan;
    match plan.test {
        Test::Fails(fault) => return check_failed(end, fault),
        Test::SendInv => return check_invalidated(end),
        Test::Window => return end.slots.check(end.slots.forth_at(0), forth(0)),
        _ => {}
    }
    for k in 0..plan.count {
        let message = message(plan.test, k);
        if let Some(opcode) = message.receive {
            end.arrived(u64::from(k), opcode, message.imm.then(|| immediate(k)))?;
        }
        if let Some(seed) = message.lands {
            end.slots.check(end.slots.forth_at(k), seed)?;
        }
        if plan.test == Test::Both {
            end.finish(u64::from(k), WcStatus::Success)?;
        }
        // What was read from is unchanged.
        end.slots.check(end.slots.back_at(k), back(k))?;
    }
    end.expect_quiet()?;
    end.expect_limit()?;
    let want = match plan.test {
        Test::Many(kind) => counted(kind, plan.count),
        Test::Mixed => counted(Kind::FetchAdd, plan.count / 4),
        _ => counted(Kind::Send, 0),
    };
    let counter = end.slots.counter()?;
    if counter != want {
        return Err(format!("the counter is {counter:#x}, not {want:#x}").into());
    }
    end.expect_state(QpState::Rts)
}

/// Checks the WRITE through the window, and the SEND that has invalidated its key.
fn check_invalidated(end: &mut End) -> Result<(), Failure> {
    let wc = end.receive(1, WcStatus::Success)?;
    let window = end.window_key().ok_or("there is no memory window")?;
    if wc.invalidated() != Some(window) {
        return Err(format!("invalidated {:?}, not {window}", wc.invalidated()).into());
    }
    end.slots.check(end.slots.forth_at(0), forth(0))?;
    end.slots.check(end.slots.forth_at(1), forth(1))
}

/// Checks after a failed request: the receives, the state, and untouched memory.
fn check_failed(end: &mut End, fault: Fault) -> Result<(), Failure> {
    if let Some(first) = end.plan.receive {
        for k in 0..end.receives {
            let want = if k == 0 { first } else { WcStatus::WrFlushErr };
            end.receive(u64::from(k), want)?;
        }
    }
    end.expect_quiet()?;
    if let Some(state) = end.plan.state {
        end.expect_state(state)?;
    }
    if fault != Fault::TooLong {
        end.slots.check_untouched()?;
    }
    Ok(())
}
