//! Malicious initiators: never a crash, never another initiator's data, and never another's channel.

use std::sync::Arc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use ulp_srp::iu::{
    Cdb, Cmd, CredRsp, DataBuffer, Descriptors, Indirect, LogoutReason, Status, Tag, ToInitiator,
};
use ulp_srp::lun::{Fault, FaultUnit, MemoryUnit};
use ulp_srp::scsi::{Blocks, Code, Command};
use ulp_srp::target::Target;

use crate::raw::{Raw, device, run, target, target_of};

/// Why the target ends the channel.
async fn reason(raw: &mut Raw) -> Option<LogoutReason> {
    while let Some(unit) = raw.next().await {
        if let Ok(ToInitiator::Logout(logout)) = ToInitiator::parse(&unit) {
            assert!(raw.is_ended().await);
            return Some(logout.reason);
        }
    }
    None
}

async fn is_alone(sim: &verbs_simulator::Sim, target: &Target, others: usize) {
    sim.sleep(Duration::from_millis(1)).await;
    assert_eq!(target.channels().len(), others);
}

#[test]
fn units_that_are_none_end_the_channel_and_no_other() {
    run(1, async |sim| {
        let target = target(sim, |_| ()).await;
        let device = device(sim, 2);
        let mut friend = Raw::new(&device, 1).await;
        friend.settle().await;
        let mut cut = [0; 64];
        let cmd = Cmd {
            tag: Tag(1),
            cdb: Cdb::new(&[0x28]).unwrap(),
            data_in: DataBuffer::Direct(friend.piece(0, 512)),
            ..Cmd::default()
        };
        cmd.emit(&mut cut).unwrap();
        let spurious = CredRsp { tag: Tag(5) }.unit();
        let cases: [(&[u8], LogoutReason); 5] = [
            (&[0x77; 64], LogoutReason::INVALID_TYPE),
            (&[], LogoutReason::INVALID_TYPE),
            (&[0xc1; 36], LogoutReason::INVALID_TYPE),
            (&cut[..63], LogoutReason::INVALID_LENGTH),
            (&spurious, LogoutReason::SPURIOUS_ANSWER),
        ];
        for (unit, why) in cases {
            let mut raw = Raw::new(&device, 7).await;
            raw.send(unit);
            assert_eq!(reason(&mut raw).await, Some(why), "{unit:?}");
        }
        assert_eq!(target.counters().bad_units, 5);
        is_alone(sim, &target, 1).await;
        let ready = friend
            .ask(&Command::TestUnitReady, DataBuffer::None, DataBuffer::None)
            .await;
        assert_eq!(ready.status, Status::GOOD);
        target.close().await;
    });
}

#[test]
fn more_requests_than_there_are_credits_end_the_channel() {
    run(2, async |sim| {
        let unit = Arc::new(FaultUnit::new(Arc::new(
            MemoryUnit::new(1 << 20, 512).unwrap(),
        )));
        let exported = Arc::<FaultUnit>::clone(&unit);
        let target = target_of(sim, |config| config.request_limit = 2, exported).await;
        let mut raw = Raw::new(&device(sim, 2), 7).await;
        raw.settle().await;
        unit.break_blocks(0, 1, Fault::Hang);
        for _ in 0..3 {
            let verify = Command::Verify(Blocks::new(0, 1));
            raw.begin(&verify, DataBuffer::None, DataBuffer::None);
        }
        assert_eq!(reason(&mut raw).await, Some(LogoutReason::UNSPECIFIED));
        // The target waits for what a unit is doing.
        is_alone(sim, &target, 1).await;
        unit.release();
        is_alone(sim, &target, 0).await;
        target.close().await;
    });
}

#[test]
fn forged_descriptors_reach_nothing() {
    run(3, async |sim| {
        let target = target(sim, |_| ()).await;
        let device = device(sim, 2);
        let mut friend = Raw::new(&device, 1).await;
        friend.settle().await;
        let read = Command::Read(Blocks::new(0, 1));
        let write = Command::Write(Blocks::new(0, 1));
        for round in 0..5 {
            let mut raw = Raw::new(&device, 7).await;
            raw.settle().await;
            let theirs = DataBuffer::Direct(friend.piece(0, 512));
            let forged = DataBuffer::Direct(raw.forged(512));
            let mut beyond = raw.piece(0, 512);
            beyond.addr = beyond.addr.wrapping_sub(1);
            let table = raw.forged(64);
            let tables = DataBuffer::Indirect(Indirect {
                table,
                total_len: 512,
                partial: Descriptors::new(&[]),
            });
            let none = DataBuffer::None;
            let tag = match round {
                0 => raw.begin(&read, forged, none),
                1 => raw.begin(&write, none, forged),
                // The key of another initiator's memory: another domain of the same device.
                2 => raw.begin(&read, theirs, none),
                3 => raw.begin(&write, none, DataBuffer::Direct(beyond)),
                _ => raw.begin(&read, tables, none),
            };
            assert_eq!(raw.try_answer(tag).await, None, "round {round}");
        }
        is_alone(sim, &target, 1).await;
        let room = DataBuffer::Direct(friend.piece(0, 512));
        let answer = friend.ask(&read, room, DataBuffer::None).await;
        assert_eq!(answer.status, Status::GOOD);
        let mut block = [1; 512];
        friend.data.read(0, &mut block).unwrap();
        assert_eq!(block, [0; 512], "nothing was written");
        target.close().await;
    });
}

/// Data that one initiator has written through a shared buffer cannot be read from it by another.
#[test]
fn buffers_do_not_tell_what_was_in_them() {
    run(4, async |sim| {
        let target = target(sim, |config| config.buffers = 1).await;
        let device = device(sim, 2);
        let mut one = Raw::new(&device, 1).await;
        let mut two = Raw::new(&device, 2).await;
        one.settle().await;
        two.settle().await;
        // COMPARE AND WRITE passes through a buffer, and does not match.
        one.data.memory().fill(0..1024, 0x5e).unwrap();
        let secret = DataBuffer::Direct(one.piece(0, 1024));
        let compare = Command::CompareAndWrite(Blocks::new(0, 1));
        let answer = one.ask(&compare, DataBuffer::None, secret).await;
        assert_eq!(answer.sense.map(|sense| sense.code), Some(Code::MISCOMPARE));
        let room = DataBuffer::Direct(two.piece(0, 4096));
        for command in [
            Command::ReportLuns {
                select: 0,
                allocation: 4096,
            },
            Command::Inquiry {
                page: Some(0x83),
                allocation: 4096,
            },
            Command::ModeSense {
                page: 0x3f,
                subpage: 0,
                control: 0,
                no_descriptors: false,
                long: true,
                allocation: 4096,
            },
        ] {
            let answer = two.ask(&command, room, DataBuffer::None).await;
            assert_eq!(answer.status, Status::GOOD);
        }
        let mut came = vec![0; 4096];
        two.data.read(0, &mut came).unwrap();
        assert!(!came.contains(&0x5e));
        target.close().await;
    });
}

#[test]
fn the_same_tag_twice_is_told() {
    run(5, async |sim| {
        let target = target(sim, |config| config.buffers = 1).await;
        let mut raw = Raw::new(&device(sim, 2), 7).await;
        raw.settle().await;
        let list: Vec<_> = (0..8).map(|n| raw.piece(n * 512, 512)).collect();
        let cdb = Command::Write(Blocks::new(0, 8)).emit();
        let cmd = Cmd {
            tag: Tag(9),
            cdb: Cdb::new(&cdb).unwrap(),
            data_out: DataBuffer::Indirect(Indirect {
                table: raw.piece(4096, 128),
                total_len: 4096,
                partial: Descriptors::new(&list),
            }),
            ..Cmd::default()
        };
        raw.send_cmd(&cmd);
        raw.send_cmd(&cmd);
        let (one, other) = (raw.answer(Tag(9)).await, raw.answer(Tag(9)).await);
        let codes = [one, other].map(|answer| answer.sense.map(|sense| sense.code));
        assert!(
            codes.contains(&Some(Code::OVERLAPPED_COMMANDS)),
            "{codes:?}"
        );
        assert!(codes.contains(&None), "{codes:?}");
        target.close().await;
    });
}

impl Raw {
    /// Sends a valid command of some kind, with some bytes changed.
    fn send_changed(&mut self, lba: u64, kind: u8, changes: &[(usize, u8)]) {
        let list = [
            self.piece(0, 512),
            self.piece(8192, 512),
            self.piece(4096, 512),
        ];
        let command = match kind {
            1 => Command::Read(Blocks::new(lba, 3)),
            2 => Command::Write(Blocks::new(lba, 3)),
            _ => Command::ReportLuns {
                select: 0,
                allocation: 64,
            },
        };
        let buffer = DataBuffer::Indirect(Indirect {
            table: self.piece(100_000, 48),
            total_len: 1536,
            partial: Descriptors::new(&list),
        });
        let (data_in, data_out) = match kind {
            2 => (DataBuffer::None, buffer),
            _ => (buffer, DataBuffer::None),
        };
        let cdb = command.emit();
        let tag = self.tag();
        let cdb = Cdb::new(&cdb).unwrap();
        let cmd = Cmd {
            tag,
            cdb,
            data_in,
            data_out,
            ..Cmd::default()
        };
        let mut unit = [0; 116];
        cmd.emit(&mut unit).unwrap();
        for (at, byte) in changes.iter().copied() {
            unit[at] = byte;
        }
        self.send(&unit);
    }
}

/// Goal: whatever arrives, the target answers or ends the channel, and continues to serve. Method: valid commands with
/// some bytes changed, and noise, each at a target that another initiator uses afterwards.
#[test]
fn noise_does_no_harm() {
    run(6, async |sim| {
        let target = target(sim, |config| config.buffers = 2).await;
        let device = device(sim, 2);
        let mut friend = Raw::new(&device, 1).await;
        friend.settle().await;
        let mut runner = TestRunner::new_with_rng(
            Config::default(),
            proptest::test_runner::TestRng::deterministic_rng(Default::default()),
        );
        let changes = vec((0_usize..116, any::<u8>()), 0..6);
        let noise = vec(any::<u8>(), 0..200);
        let units = vec((changes, noise, 0_u8..4), 1..12);
        for round in 0..150 {
            let units = units.new_tree(&mut runner).expect("a value").current();
            let mut raw = Raw::new(&device, 7).await;
            for (changes, noise, kind) in units {
                if kind == 0 {
                    raw.send(&noise);
                    continue;
                }
                raw.send_changed(round, kind, &changes);
            }
            sim.sleep(Duration::from_micros(200)).await;
            drop(raw);
            let ready = friend
                .ask(&Command::TestUnitReady, DataBuffer::None, DataBuffer::None)
                .await;
            assert_ne!(ready.status, Status::BUSY);
        }
        let counters = target.counters();
        assert!(
            counters.bad_units > 10 && counters.commands > 300,
            "{counters:?}"
        );
        sim.sleep(Duration::from_secs(1)).await;
        is_alone(sim, &target, 1).await;
        target.close().await;
    });
}
