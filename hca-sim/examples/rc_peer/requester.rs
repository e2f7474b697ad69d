//! The requester's half of the tests.

use verbs_core::{RKey, Remote, SendFlags, SendOp, WcOpcode, WcStatus};

use crate::Failure;
use crate::end::{End, request};
use crate::memory::{COUNTER, back, forth};
use crate::plan::{Fault, Kind, Test};

/// The operand of FETCH ADD.
const ADDEND: u64 = 7;

const QUIETLY: SendFlags = SendFlags::empty();

/// Posts the test's requests, and checks all their results at this end.
pub(crate) fn run(end: &mut End) -> Result<(), Failure> {
    match end.plan.test {
        Test::Many(kind) => many(end, kind),
        Test::Rnr => many(end, Kind::Send),
        Test::Mixed => mixed(end),
        Test::Fence => fence(end),
        Test::Both => both(end),
        Test::SendInv => invalidate(end),
        Test::Window => window(end),
        Test::Fails(fault) => fails(end, fault),
    }
}

/// The immediate data of message `k`.
pub(crate) fn immediate(k: u32) -> u32 {
    0x1234_0000 + k
}

/// The counter's value after `k` atomics of that kind; every other compare fails.
pub(crate) fn counted(kind: Kind, k: u32) -> u64 {
    match kind {
        Kind::FetchAdd => COUNTER.wrapping_add(u64::from(k) * ADDEND),
        Kind::CompareSwap => COUNTER.wrapping_add(u64::from(k.div_ceil(2))),
        _ => COUNTER,
    }
}

/// Posts `count` requests, `window` at a time.
fn many(end: &mut End, kind: Kind) -> Result<(), Failure> {
    let plan = end.plan;
    let signal = plan.signal.min(plan.window);
    let (mut posted, mut done) = (0, 0);
    while done < plan.count {
        while posted < plan.count && posted - done < plan.window {
            let signaled = (posted + 1).is_multiple_of(signal) || posted + 1 == plan.count;
            post_one(end, kind, posted, signaled)?;
            posted += 1;
        }
        done = ((done / signal + 1) * signal).min(plan.count);
        end.finish(u64::from(done - 1), WcStatus::Success)?;
    }
    for k in 0..plan.count {
        let at = end.slots.back_at(k);
        match kind {
            Kind::Read => end.slots.check(at, back(k))?,
            Kind::FetchAdd | Kind::CompareSwap => expect_old(end, k, counted(kind, k))?,
            _ => {}
        }
    }
    Ok(())
}

fn post_one(end: &mut End, kind: Kind, k: u32, signaled: bool) -> Result<(), Failure> {
    let (forth_at, back_at) = (end.slots.forth_at(k), end.slots.back_at(k));
    let counter = end.remote(end.slots.counter_at());
    let op = match kind {
        Kind::Send => SendOp::Send,
        Kind::SendImm => SendOp::SendWithImm(immediate(k)),
        Kind::Write => SendOp::Write(end.remote(forth_at)),
        Kind::WriteImm => SendOp::WriteWithImm(end.remote(forth_at), immediate(k)),
        Kind::Read => SendOp::Read(end.remote(back_at)),
        Kind::AtomicWrite => SendOp::AtomicWrite(end.remote(forth_at)),
        Kind::FetchAdd => SendOp::FetchAdd {
            remote: counter,
            add: ADDEND,
        },
        Kind::CompareSwap => SendOp::CompareSwap {
            remote: counter,
            compare: counted(kind, k).wrapping_add(u64::from(k % 2) * 1000),
            swap: COUNTER.wrapping_add(u64::from(k / 2) + 1),
        },
    };
    let size = end.plan.size as usize;
    let piece = match kind {
        Kind::Read => end.slots.piece(back_at, size),
        Kind::FetchAdd | Kind::CompareSwap => end.slots.piece(back_at, 8),
        _ => end.slots.piece(forth_at, size),
    };
    let flags = if signaled {
        SendFlags::SIGNALED
    } else {
        QUIETLY
    };
    end.post(u64::from(k), op, piece, flags)
}

/// Checks the previous value that atomic `k` has returned.
fn expect_old(end: &End, k: u32, want: u64) -> Result<(), Failure> {
    let old = end.slots.number(end.slots.back_at(k))?;
    if old != want {
        return Err(format!("atomic {k} found {old:#x}, not {want:#x}").into());
    }
    Ok(())
}

/// Batches of all kinds, with a completion only for the very last request.
fn mixed(end: &mut End) -> Result<(), Failure> {
    let (count, size) = (end.plan.count, end.plan.size as usize);
    for k in (0..count).step_by(4) {
        let forth = |i: u32| end.slots.piece(end.slots.forth_at(k + i), size);
        let back = |i: u32, len| end.slots.piece(end.slots.back_at(k + i), len);
        let at = |i: u32| end.remote(end.slots.forth_at(k + i));
        let source = end.remote(end.slots.back_at(k + 1));
        let remote = end.remote(end.slots.counter_at());
        let last = if k + 4 >= count {
            SendFlags::SIGNALED
        } else {
            QUIETLY
        };
        let id = |i: u32| u64::from(k + i);
        let batch = [
            request(id(0), SendOp::Write(at(0)), forth(0), QUIETLY),
            request(id(1), SendOp::Read(source), back(1, size), QUIETLY),
            request(
                id(2),
                SendOp::SendWithImm(immediate(k + 2)),
                forth(2),
                QUIETLY,
            ),
            request(
                id(3),
                SendOp::FetchAdd {
                    remote,
                    add: ADDEND,
                },
                back(3, 8),
                QUIETLY,
            ),
            request(
                id(3),
                SendOp::WriteWithImm(at(3), immediate(k + 3)),
                forth(3),
                last,
            ),
        ];
        end.post_batch(&batch)?;
    }
    end.finish(u64::from(count - 1), WcStatus::Success)?;
    for k in (0..count).step_by(4) {
        end.slots.check(end.slots.back_at(k + 1), back(k + 1))?;
        expect_old(end, k + 3, counted(Kind::FetchAdd, k / 4))?;
    }
    Ok(())
}

/// Sends on what it reads: without the fence the SEND would carry the previous bytes.
fn fence(end: &mut End) -> Result<(), Failure> {
    let size = end.plan.size as usize;
    for k in 0..end.plan.count {
        let at = end.slots.back_at(k);
        let (source, piece) = (end.remote(at), end.slots.piece(at, size));
        let fenced = SendFlags::FENCE | SendFlags::SIGNALED;
        end.post(u64::from(k), SendOp::Read(source), piece, QUIETLY)?;
        end.post(u64::from(k), SendOp::Send, piece, fenced)?;
    }
    for k in 0..end.plan.count {
        end.finish(u64::from(k), WcStatus::Success)?;
    }
    Ok(())
}

/// Sends while the other end does the same.
fn both(end: &mut End) -> Result<(), Failure> {
    for k in 0..end.plan.count {
        post_one(end, Kind::Send, k, true)?;
    }
    for k in 0..end.plan.count {
        end.finish(u64::from(k), WcStatus::Success)?;
        end.arrived(u64::from(k), WcOpcode::Recv, None)?;
        end.slots.check(end.slots.back_at(k), back(k))?;
    }
    Ok(())
}

/// Writes through the peer's memory window, invalidates it, and finds it invalid.
fn invalidate(end: &mut End) -> Result<(), Failure> {
    let size = end.plan.size as usize;
    let window = end.peer.window;
    if window == RKey::default() {
        return Err("the peer has no memory window".into());
    }
    let through = SendOp::Write(Remote {
        addr: end.peer.remote.addr,
        rkey: window,
    });
    let steps = [
        (through, 0, WcStatus::Success),
        (SendOp::SendWithInv(window), 1, WcStatus::Success),
        (through, 0, WcStatus::RemAccessErr),
    ];
    for (id, (op, slot, status)) in (0..).zip(steps) {
        let piece = end.slots.piece(end.slots.forth_at(slot), size);
        end.post(id, op, piece, SendFlags::SIGNALED)?;
        end.finish(id, status)?;
    }
    Ok(())
}

/// Writes through the peer's memory window, and under its previous key.
fn window(end: &mut End) -> Result<(), Failure> {
    let size = end.plan.size as usize;
    let (addr, now) = (end.peer.remote.addr, end.peer.window.value());
    let before = RKey::new(now & !0xff | now.wrapping_sub(1) & 0xff);
    let steps = [
        (RKey::new(now), WcStatus::Success),
        (before, WcStatus::RemAccessErr),
    ];
    for (id, (rkey, status)) in (0..).zip(steps) {
        let piece = end.slots.piece(end.slots.forth_at(id), size);
        let op = SendOp::Write(Remote { addr, rkey });
        end.post(u64::from(id), op, piece, SendFlags::SIGNALED)?;
        end.finish(u64::from(id), status)?;
    }
    Ok(())
}

/// One request that fails, and two behind it that are flushed.
fn fails(end: &mut End, fault: Fault) -> Result<(), Failure> {
    let size = end.plan.size as usize;
    let Remote { addr, rkey } = end.peer.remote;
    let place = |key: u32, offset: usize| Remote {
        addr: addr + offset as u64,
        rkey: RKey::new(rkey.value() ^ key),
    };
    let beyond = end.slots.mr.len() - size + 1;
    let verb = |read, at| {
        if read {
            SendOp::Read(at)
        } else {
            SendOp::Write(at)
        }
    };
    let op = match fault {
        Fault::BadRkey { read } => verb(read, place(0x5a00, 0)),
        Fault::BadKeyByte { read } => verb(read, place(0x5a, 0)),
        Fault::BadRange { read } => verb(read, place(0, beyond)),
        Fault::NoMrRight | Fault::NoQpRight => verb(false, place(0, 0)),
        Fault::TooLong | Fault::RnrExhausted | Fault::Gone => SendOp::Send,
    };
    let piece = end.slots.piece(end.slots.forth_at(0), size);
    end.post(0, op, piece, SendFlags::SIGNALED)?;
    // The first failure may have been found before these are posted: they are flushed nevertheless.
    end.post(1, SendOp::Write(place(0, 0)), piece, QUIETLY)?;
    end.post(2, SendOp::Send, end.slots.piece(0, 1), SendFlags::SIGNALED)?;
    end.finish(0, end.plan.expect)?;
    end.finish(1, WcStatus::WrFlushErr)?;
    end.finish(2, WcStatus::WrFlushErr)?;
    end.expect_state(verbs_core::QpState::Err)
}

/// Fills the slots that this end sends from.
pub(crate) fn prepare(end: &mut End) -> Result<(), Failure> {
    for k in 0..end.plan.count {
        end.slots.fill(end.slots.forth_at(k), forth(k))?;
    }
    if end.plan.test == Test::Both {
        for k in 0..end.plan.count {
            end.post_recv(u64::from(k), end.slots.back_at(k), end.plan.size as usize)?;
        }
    }
    Ok(())
}
