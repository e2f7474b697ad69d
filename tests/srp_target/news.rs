//! What a target tells without being asked: unit attentions and requests of its own; and its counters.

use std::sync::Arc;
use std::time::Duration;

use ulp_srp::iu::{CredRsp, DataBuffer, ResponseCode, Status, Tag, TaskFunction, ToInitiator};
use ulp_srp::lun::{Fault, FaultUnit, MemoryUnit, UnitError};
use ulp_srp::scsi::{Blocks, Code, Command, Sense, SenseKey};

use crate::commands::bytes;
use crate::raw::{Raw, device, run, target, target_of};

const NONE: DataBuffer<'_> = DataBuffer::None;

/// The sense data that REQUEST SENSE returns.
async fn requested(raw: &mut Raw) -> Sense {
    let command = Command::RequestSense {
        descriptors: false,
        allocation: 252,
    };
    let room = DataBuffer::Direct(raw.piece(0, 252));
    let answer = raw.ask(&command, room, NONE).await;
    assert_eq!(answer.status, Status::GOOD);
    Sense::parse(&bytes(raw, 0, 18)).expect("sense data")
}

async fn reset(raw: &mut Raw) {
    let reset = raw.manage(TaskFunction::LUN_RESET, Tag(0));
    let code = raw.answer(reset).await.code;
    assert_eq!(code, Some(ResponseCode::COMPLETE));
}

/// Waits for more credit, and takes it. Returns how much.
async fn credit(raw: &mut Raw) -> i32 {
    let unit = raw.next().await.expect("a request of the target's");
    let Ok(ToInitiator::CredReq(req)) = ToInitiator::parse(&unit) else {
        panic!("{unit:?}");
    };
    raw.send(&CredRsp { tag: req.tag }.unit());
    req.delta.0
}

/// Goal: REQUEST SENSE returns a unit attention as its data, once; then there is none for the next command, and nothing
/// to be told (SPC-4, 6.39). Method: the news of a login, and of a reset.
#[test]
fn news_that_are_asked_for_are_told_once() {
    run(1, async |sim| {
        let target = target(sim, |_| ()).await;
        let mut raw = Raw::new(&device(sim, 2), 7).await;
        for code in [Code::POWER_ON, Code::DEVICE_RESET] {
            if code == Code::DEVICE_RESET {
                reset(&mut raw).await;
            }
            assert_eq!(requested(&mut raw).await, Sense::attention(code));
            let quiet = requested(&mut raw).await;
            assert_eq!((quiet.key, quiet.code), (SenseKey::NoSense, Code::NONE));
            let ready = raw.ask(&Command::TestUnitReady, NONE, NONE).await;
            assert_eq!(ready.status, Status::GOOD);
        }
        target.close().await;
    });
}

/// Goal: what happened several times before an initiator looks is told once, and each kind by itself, oldest first.
/// Method: three resets and nothing else; then resets before the login's news were taken.
#[test]
fn the_same_news_are_told_once() {
    run(2, async |sim| {
        let target = target(sim, |_| ()).await;
        let device = device(sim, 2);
        for settles in [true, false] {
            let mut raw = Raw::new(&device, 7).await;
            if settles {
                raw.settle().await;
            }
            for _ in 0..3 {
                reset(&mut raw).await;
            }
            if !settles {
                raw.settle().await;
            }
            let news = raw.ask(&Command::TestUnitReady, NONE, NONE).await;
            assert_eq!(news.sense, Some(Sense::attention(Code::DEVICE_RESET)));
            let ready = raw.ask(&Command::TestUnitReady, NONE, NONE).await;
            assert_eq!(ready.status, Status::GOOD);
        }
        target.close().await;
    });
}

/// Goal: commands that are being carried out count when the request limit changes: the initiator never has more
/// requests than there are receives for them. Method: more credit while three of eight commands hang, and when they
/// have ended; then less, and more again.
#[test]
fn commands_under_way_count_as_credit() {
    run(3, async |sim| {
        let unit = Arc::new(FaultUnit::new(Arc::new(
            MemoryUnit::new(1 << 20, 512).unwrap(),
        )));
        let limit = |config: &mut ulp_srp::target::TargetConfig| {
            (config.request_limit, config.initial_limit) = (8, 8);
        };
        let target = target_of(sim, limit, Arc::<FaultUnit>::clone(&unit)).await;
        let mut raw = Raw::new(&device(sim, 2), 7).await;
        raw.settle().await;
        let channel = target.channels()[0].id;
        unit.break_blocks(0, 1, Fault::Hang);
        let hangs = Command::Verify(Blocks::new(0, 1));
        let tags = [(); 3].map(|()| raw.begin(&hangs, NONE, NONE));
        sim.sleep(Duration::from_millis(1)).await;
        target.adjust(channel, 100);
        sim.sleep(Duration::from_millis(1)).await;
        unit.release();
        for tag in tags {
            // Anything but an answer would be credit that there are no receives for.
            assert_eq!(raw.answer(tag).await.delta, 1);
        }
        target.adjust(channel, -5);
        let mut deltas = Vec::new();
        for _ in 0..6 {
            deltas.push(raw.ask(&Command::TestUnitReady, NONE, NONE).await.delta);
        }
        assert_eq!(deltas, [0, 0, 0, 0, 0, 1]);
        target.adjust(channel, 100);
        assert_eq!(credit(&mut raw).await, 5);
        target.close().await;
    });
}

/// Goal: the target may ask as often as it likes: what an initiator answers takes no receive away. Method: credit goes
/// down and up, far more often than there are receives.
#[test]
fn answers_of_the_initiator_take_nothing_away() {
    run(4, async |sim| {
        let target = target(sim, |config| {
            (config.request_limit, config.initial_limit) = (4, 4);
        })
        .await;
        let mut raw = Raw::new(&device(sim, 2), 7).await;
        raw.settle().await;
        let channel = target.channels()[0].id;
        for _ in 0..40 {
            target.adjust(channel, -1);
            let ready = raw.ask(&Command::TestUnitReady, NONE, NONE).await;
            assert_eq!(ready.delta, 0);
            target.adjust(channel, 1);
            assert_eq!(credit(&mut raw).await, 1);
        }
        let ready = raw.ask(&Command::TestUnitReady, NONE, NONE).await;
        assert_eq!((ready.status, ready.delta), (Status::GOOD, 1));
        target.close().await;
    });
}

/// Goal: the target's counters are those of all channels that there were. Method: two initiators, one after the other,
/// the first of which goes.
#[test]
fn what_ended_channels_did_stays_counted() {
    run(5, async |sim| {
        let target = target(sim, |_| ()).await;
        let device = device(sim, 2);
        let mut first = Raw::new(&device, 7).await;
        first.settle().await;
        first.ready(0).await;
        assert_eq!(target.counters().commands, 2);
        first.send(&ulp_srp::iu::InitiatorLogout { tag: Tag(1) }.unit());
        assert!(first.is_ended().await);
        sim.sleep(Duration::from_millis(1)).await;
        assert_eq!(
            (target.channels().len(), target.counters().commands),
            (0, 2)
        );
        let mut second = Raw::new(&device, 8).await;
        second.settle().await;
        assert_eq!(target.counters().commands, 3);
        let [channel] = &target.channels()[..] else {
            panic!("there is one");
        };
        assert_eq!(channel.counters.commands, 1);
        target.close().await;
    });
}

/// Goal: VERIFY reads every block of its range and none beyond, also where the range is longer than a buffer. Method: a
/// bad block in each of several buffers' ranges, at the end, and behind it.
#[test]
fn a_verify_reads_all_of_its_blocks() {
    run(6, async |sim| {
        let unit = Arc::new(FaultUnit::new(Arc::new(
            MemoryUnit::new(1 << 20, 512).unwrap(),
        )));
        let small = |config: &mut ulp_srp::target::TargetConfig| config.buffer_bytes = 64 << 10;
        let target = target_of(sim, small, Arc::<FaultUnit>::clone(&unit)).await;
        let mut raw = Raw::new(&device(sim, 2), 7).await;
        raw.settle().await;
        for (bad, is_read) in [
            (0, true),
            (127, true),
            (128, true),
            (999, true),
            (1000, false),
        ] {
            unit.break_blocks(bad, 1, Fault::Error(UnitError::Read(bad)));
            let verify = Command::Verify(Blocks::new(0, 1000));
            let answer = raw.ask(&verify, NONE, NONE).await;
            let key = answer.sense.map(|sense| sense.key);
            assert_eq!(key, is_read.then_some(SenseKey::MediumError), "{bad}");
            unit.release();
        }
        target.close().await;
    });
}
