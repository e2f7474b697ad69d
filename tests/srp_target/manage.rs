//! Task management, credit, events, and commands that wait for each other.

use std::sync::Arc;
use std::time::Duration;

use ulp_srp::iu::{
    AerRsp, Cdb, Cmd, CredRsp, DataBuffer, Descriptors, Indirect, Lun, ResponseCode, Status, Tag,
    TaskAttribute, TaskFunction, ToInitiator, TskMgmt,
};
use ulp_srp::lun::{Fault, FaultUnit, MemoryUnit};
use ulp_srp::scsi::{Blocks, Code, Command, Sense};

use crate::raw::{Raw, device, run, target, target_of};

fn faulty() -> Arc<FaultUnit> {
    Arc::new(FaultUnit::new(Arc::new(
        MemoryUnit::new(1 << 20, 512).unwrap(),
    )))
}

const HANGS: Command = Command::Verify(Blocks::new(0, 1));

#[test]
fn an_aborted_command_is_not_answered_and_its_credit_comes_back() {
    run(1, async |sim| {
        let unit = faulty();
        let target = target_of(
            sim,
            |config| config.request_limit = 4,
            Arc::<FaultUnit>::clone(&unit),
        )
        .await;
        let mut raw = Raw::new(&device(sim, 2), 7).await;
        raw.settle().await;
        unit.break_blocks(0, 1, Fault::Hang);
        let victim = raw.begin(&HANGS, DataBuffer::None, DataBuffer::None);
        let other = raw.begin(&HANGS, DataBuffer::None, DataBuffer::None);
        let abort = raw.manage(TaskFunction::ABORT_TASK, victim);
        // Nothing is sent before the unit has released it.
        sim.sleep(Duration::from_millis(5)).await;
        let ready = raw
            .ask(&Command::TestUnitReady, DataBuffer::None, DataBuffer::None)
            .await;
        assert_eq!(ready.status, Status::GOOD);
        unit.release();
        let done = raw.answer(other).await;
        assert_eq!(done.status, Status::GOOD);
        let aborted = raw.answer(abort).await;
        assert_eq!(aborted.code, Some(ResponseCode::COMPLETE));
        assert_eq!(
            ready.delta + done.delta + aborted.delta,
            4,
            "the victim's as well"
        );
        assert_eq!(target.counters().aborted, 1);
        // One that has ended is complete, an unknown one is not supported.
        let late = raw.manage(TaskFunction::ABORT_TASK, victim);
        assert_eq!(raw.answer(late).await.code, Some(ResponseCode::COMPLETE));
        for (function, code) in [
            (TaskFunction::CLEAR_ACA, ResponseCode::NOT_SUPPORTED),
            (TaskFunction::from_code(0x33), ResponseCode::NOT_SUPPORTED),
        ] {
            let tag = raw.manage(function, Tag(0));
            assert_eq!(raw.answer(tag).await.code, Some(code));
        }
        let tag = raw.tag();
        let nowhere = TskMgmt {
            tag,
            lun: Lun::new(9).unwrap(),
            function: TaskFunction::LUN_RESET,
            ..TskMgmt::default()
        };
        raw.send(&nowhere.unit());
        assert_eq!(raw.answer(tag).await.code, Some(ResponseCode::FAILED));
        target.close().await;
    });
}

#[test]
fn a_reset_ends_the_commands_of_all_initiators() {
    run(2, async |sim| {
        let unit = faulty();
        let target = target_of(sim, |_| (), Arc::<FaultUnit>::clone(&unit)).await;
        let device = device(sim, 2);
        let mut one = Raw::new(&device, 7).await;
        let mut two = Raw::new(&device, 8).await;
        one.settle().await;
        two.settle().await;
        unit.break_blocks(0, 1, Fault::Hang);
        let mine = one.begin(&HANGS, DataBuffer::None, DataBuffer::None);
        let theirs = two.begin(&HANGS, DataBuffer::None, DataBuffer::None);
        let reset = one.manage(TaskFunction::LUN_RESET, Tag(0));
        sim.sleep(Duration::from_millis(5)).await;
        unit.release();
        assert_eq!(one.answer(reset).await.code, Some(ResponseCode::COMPLETE));
        assert_eq!(two.answer(theirs).await.status, Status::TASK_ABORTED);
        for raw in [&mut one, &mut two] {
            let news = raw
                .ask(&Command::TestUnitReady, DataBuffer::None, DataBuffer::None)
                .await;
            assert_eq!(news.sense, Some(Sense::attention(Code::DEVICE_RESET)));
            let ready = raw
                .ask(&Command::TestUnitReady, DataBuffer::None, DataBuffer::None)
                .await;
            assert_eq!(ready.status, Status::GOOD);
        }
        assert_eq!(target.counters().aborted, 2);
        let _ = mine;
        target.close().await;
    });
}

#[test]
fn ordered_commands_wait_for_those_before_and_hold_those_behind() {
    run(3, async |sim| {
        let unit = faulty();
        let target = target_of(sim, |_| (), Arc::<FaultUnit>::clone(&unit)).await;
        let mut raw = Raw::new(&device(sim, 2), 7).await;
        raw.settle().await;
        unit.break_blocks(0, 1, Fault::Hang);
        let first = raw.begin(&HANGS, DataBuffer::None, DataBuffer::None);
        let mut send = |attribute| {
            let tag = raw.tag();
            raw.send_cmd(&Cmd {
                tag,
                attribute,
                cdb: Cdb::new(&[0; 6]).unwrap(),
                ..Cmd::default()
            });
            tag
        };
        let ordered = send(TaskAttribute::ORDERED);
        let behind = send(TaskAttribute::SIMPLE);
        let hurried = send(TaskAttribute::HEAD_OF_QUEUE);
        let wrong = send(TaskAttribute::ACA);
        let mut came = Vec::new();
        for _ in 0..5 {
            if came.len() == 2 {
                unit.release();
            }
            let bytes = raw.next().await.expect("an answer");
            let Ok(ToInitiator::Rsp(rsp)) = ToInitiator::parse(&bytes) else {
                panic!("{bytes:?}");
            };
            came.push(rsp.tag);
        }
        assert_eq!(came, [hurried, wrong, first, ordered, behind]);
        target.close().await;
    });
}

#[test]
fn credit_is_raised_at_once_and_lowered_by_answers() {
    run(4, async |sim| {
        let target = target(sim, |config| {
            (config.request_limit, config.initial_limit) = (8, 2);
        })
        .await;
        let mut raw = Raw::new(&device(sim, 2), 7).await;
        assert_eq!(raw.login.delta.0, 2);
        raw.settle().await;
        let channel = target.channels()[0].id;
        target.adjust(channel, 100);
        let unit = raw.next().await.expect("a request of the target's");
        let Ok(ToInitiator::CredReq(req)) = ToInitiator::parse(&unit) else {
            panic!("{unit:?}");
        };
        assert_eq!(req.delta.0, 6, "no more than there are buffers for");
        raw.send(&CredRsp { tag: req.tag }.unit());
        let ask =
            |raw: &mut Raw| raw.begin(&Command::TestUnitReady, DataBuffer::None, DataBuffer::None);
        let tags: Vec<_> = (0..8).map(|_| ask(&mut raw)).collect();
        for tag in tags {
            assert_eq!(raw.answer(tag).await.delta, 1);
        }
        target.adjust(channel, -3);
        let mut deltas = Vec::new();
        for _ in 0..5 {
            let tag = ask(&mut raw);
            deltas.push(raw.answer(tag).await.delta);
        }
        assert_eq!(deltas, [0, 0, 0, 1, 1]);

        target.capacity_changed(0);
        let unit = raw.next().await.expect("an event");
        let Ok(ToInitiator::AerReq(event)) = ToInitiator::parse(&unit) else {
            panic!("{unit:?}");
        };
        let sense = Sense::attention(Code::CAPACITY_CHANGED);
        assert_eq!(Sense::parse(event.sense), Some(sense));
        let tag = event.tag;
        raw.send(&AerRsp { tag }.unit());
        let news = raw
            .ask(&Command::TestUnitReady, DataBuffer::None, DataBuffer::None)
            .await;
        assert_eq!(news.sense, Some(sense));
        target.close().await;
    });
}

/// Goal: an abort ends what it names, and nothing on other units. Method: commands hang on two units; ABORT TASK SET,
/// CLEAR TASK SET and ABORT TASK with the number of the other unit, each for the first unit.
#[test]
fn task_management_of_one_unit_leaves_the_others_alone() {
    run(5, async |sim| {
        let units = [faulty(), faulty()];
        let [first, second] = units.each_ref().map(Arc::<FaultUnit>::clone);
        let target = target_of(sim, |_| (), first).await;
        target.export(1, second).await.unwrap();
        let mut raw = Raw::new(&device(sim, 2), 7).await;
        for unit in &units {
            unit.break_blocks(0, 1, Fault::Hang);
        }
        for function in [
            TaskFunction::ABORT_TASK_SET,
            TaskFunction::CLEAR_TASK_SET,
            TaskFunction::ABORT_TASK,
        ] {
            for number in [0, 1] {
                raw.ready(number).await;
            }
            let mine = raw.begin_on(0, &HANGS);
            let other = raw.begin_on(1, &HANGS);
            // A command of the other unit is named for this one: it does not belong to it.
            let task = match function {
                TaskFunction::ABORT_TASK => other,
                _ => Tag(0),
            };
            let before = target.counters().aborted;
            let managing = raw.manage(function, task);
            sim.sleep(Duration::from_millis(1)).await;
            units.iter().for_each(|unit| unit.release());
            assert_eq!(
                raw.answer(managing).await.code,
                Some(ResponseCode::COMPLETE)
            );
            assert_eq!(raw.answer(other).await.status, Status::GOOD, "{function}");
            let aborted = target.counters().aborted - before;
            match function {
                TaskFunction::ABORT_TASK => {
                    assert_eq!(raw.answer(mine).await.status, Status::GOOD);
                    assert_eq!(aborted, 0);
                }
                _ => assert_eq!(aborted, 1),
            }
            for unit in &units {
                unit.break_blocks(0, 1, Fault::Hang);
            }
        }
        units.iter().for_each(|unit| unit.release());
        target.close().await;
    });
}

/// Goal: a command whose answer is being sent is answered, once, and task management follows. Method: a send queue of
/// four, on which the data of a READ in 16 pieces wait for room.
#[test]
fn what_is_being_answered_is_not_aborted() {
    run(6, async |sim| {
        let target = target(sim, |config| config.send_depth = 4).await;
        let mut raw = Raw::new(&device(sim, 2), 7).await;
        raw.settle().await;
        for function in [TaskFunction::ABORT_TASK, TaskFunction::LUN_RESET] {
            let pieces: Vec<_> = (0..16).map(|at| raw.piece(at * 1024, 512)).collect();
            let buffer = DataBuffer::Indirect(Indirect {
                table: raw.piece(512 << 10, 16 * 16),
                total_len: 16 * 512,
                partial: Descriptors::new(&pieces),
            });
            let read = Command::Read(Blocks::new(0, 16));
            let reading = raw.begin(&read, buffer, DataBuffer::None);
            let managing = raw.manage(function, reading);
            let mut came = Vec::new();
            for _ in 0..2 {
                let unit = raw.next().await.expect("an answer");
                let Ok(ToInitiator::Rsp(rsp)) = ToInitiator::parse(&unit) else {
                    panic!("{unit:?}");
                };
                came.push((rsp.tag, rsp.status));
            }
            let good = |tag| (tag, Status::GOOD);
            assert_eq!(came, [good(reading), good(managing)]);
            assert_eq!(target.counters().aborted, 0);
        }
        target.close().await;
    });
}

/// Goal: however much credit is withdrawn, one request may be sent: without any, no credit could be returned.
#[test]
fn one_credit_is_left() {
    run(7, async |sim| {
        let target = target(sim, |config| config.request_limit = 4).await;
        let mut raw = Raw::new(&device(sim, 2), 7).await;
        raw.settle().await;
        let channel = target.channels()[0].id;
        for all in [-4, -1000, i32::MIN] {
            target.adjust(channel, all);
            sim.sleep(Duration::from_millis(1)).await;
        }
        let mut deltas = Vec::new();
        for _ in 0..8 {
            let ready = raw.ask(&Command::TestUnitReady, DataBuffer::None, DataBuffer::None);
            deltas.push(ready.await.delta);
        }
        assert_eq!(deltas, [0, 0, 0, 1, 1, 1, 1, 1]);
        // And it is returned.
        target.adjust(channel, i32::MAX);
        let unit = raw.next().await.expect("a request of the target's");
        let Ok(ToInitiator::CredReq(req)) = ToInitiator::parse(&unit) else {
            panic!("{unit:?}");
        };
        assert_eq!(req.delta.0, 3);
        raw.send(&CredRsp { tag: req.tag }.unit());
        target.close().await;
    });
}

/// Goal: an initiator gets the unit attentions of each unit, once, when it uses that unit. Method: two units, of which
/// the second is used first; then the first is reset.
#[test]
fn news_are_of_the_unit_that_is_used() {
    run(9, async |sim| {
        let target = target(sim, |_| ()).await;
        let second = Arc::new(MemoryUnit::new(1 << 20, 512).unwrap());
        target.export(1, second).await.unwrap();
        let mut raw = Raw::new(&device(sim, 2), 7).await;
        let news = async |raw: &mut Raw, unit| {
            let tag = raw.begin_on(unit, &Command::TestUnitReady);
            raw.answer(tag).await.sense.map(|sense| sense.code)
        };
        assert_eq!(news(&mut raw, 1).await, Some(Code::POWER_ON));
        assert_eq!(news(&mut raw, 1).await, None);
        assert_eq!(news(&mut raw, 0).await, Some(Code::POWER_ON));
        assert_eq!(news(&mut raw, 0).await, None);
        let reset = raw.manage(TaskFunction::LUN_RESET, Tag(0));
        let answer = raw.answer(reset).await;
        assert_eq!(answer.code, Some(ResponseCode::COMPLETE));
        assert_eq!(news(&mut raw, 1).await, None);
        assert_eq!(news(&mut raw, 0).await, Some(Code::DEVICE_RESET));
        target.close().await;
    });
}

/// Goal: the target sends an initiator one request at a time, and the next when that is answered. Method: more credit
/// and a change of capacity at once; the first is answered late.
#[test]
fn the_target_asks_one_thing_at_a_time() {
    run(10, async |sim| {
        let target = target(sim, |config| {
            (config.request_limit, config.initial_limit) = (8, 2);
        })
        .await;
        let mut raw = Raw::new(&device(sim, 2), 7).await;
        raw.settle().await;
        target.adjust(target.channels()[0].id, 2);
        target.capacity_changed(0);
        let unit = raw.next().await.expect("a request of the target's");
        let Ok(ToInitiator::CredReq(req)) = ToInitiator::parse(&unit) else {
            panic!("{unit:?}");
        };
        let tag = req.tag;
        sim.sleep(Duration::from_millis(50)).await;
        // Next comes the answer to this command, and no second request.
        let ready = raw.begin(&Command::TestUnitReady, DataBuffer::None, DataBuffer::None);
        let unit = raw.next().await.expect("an answer");
        let Ok(ToInitiator::Rsp(rsp)) = ToInitiator::parse(&unit) else {
            panic!("{unit:?}");
        };
        assert_eq!(rsp.tag, ready);
        raw.send(&CredRsp { tag }.unit());
        let unit = raw.next().await.expect("the next question");
        let Ok(ToInitiator::AerReq(event)) = ToInitiator::parse(&unit) else {
            panic!("{unit:?}");
        };
        let tag = event.tag;
        raw.send(&AerRsp { tag }.unit());
        target.close().await;
    });
}
