//! Commands that a unit refuses as unsupported or over its limits: no part of them is carried out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use async_trait::async_trait;
use ulp_srp::iu::{DataBuffer, Status};
use ulp_srp::lun::{LogicalUnit, MemoryUnit, Piece, Shape, UnitError};
use ulp_srp::scsi::{
    Blocks, Code, Command, Extent, Form, Sense, SenseKey, block_limits, unmap_parameters,
};

use crate::commands::{TABLE, bytes};
use crate::raw::{Raw, device, run, target_of};

/// A read-only unit, or one with a write cache whose flushes are counted.
#[derive(Debug)]
struct Other {
    inner: MemoryUnit,
    read_only: bool,
    flushes: AtomicU32,
}

impl Other {
    fn new(read_only: bool) -> Arc<Self> {
        Arc::new(Self {
            inner: MemoryUnit::new(16 << 20, 512).unwrap(),
            read_only,
            flushes: AtomicU32::new(0),
        })
    }
}

#[async_trait]
impl LogicalUnit for Other {
    fn shape(&self) -> Shape {
        Shape {
            read_only: self.read_only,
            write_cache: true,
            unmap_granularity: 8,
            ..self.inner.shape()
        }
    }

    async fn read(&self, lba: u64, into: Piece) -> Result<(), UnitError> {
        self.inner.read(lba, into).await
    }

    async fn write(&self, lba: u64, from: Piece, durable: bool) -> Result<(), UnitError> {
        self.inner.write(lba, from, durable).await
    }

    async fn flush(&self) -> Result<(), UnitError> {
        self.flushes.fetch_add(1, Relaxed);
        Ok(())
    }

    async fn write_zeros(&self, lba: u64, count: u64, unmap: bool) -> Result<(), UnitError> {
        self.inner.write_zeros(lba, count, unmap).await
    }

    async fn compare_and_write(
        &self,
        lba: u64,
        both: Piece,
        durable: bool,
    ) -> Result<(), UnitError> {
        self.inner.compare_and_write(lba, both, durable).await
    }
}

/// Goal: a read-only unit is unchanged after every command that changes blocks, and can be read.
#[test]
fn a_read_only_unit_is_not_changed() {
    run(8, async |sim| {
        let target = target_of(sim, |_| (), Other::new(true)).await;
        let mut raw = Raw::new(&device(sim, 2), 7).await;
        raw.settle().await;
        let none = DataBuffer::None;
        let blocks = Blocks::new(0, 1);
        let list = unmap_parameters(&[Extent { lba: 0, count: 8 }]).unwrap();
        raw.data.memory().fill(0..1024, 0).unwrap();
        raw.data.write(512, &[7; 512]).unwrap();
        raw.data.write(4096, &list).unwrap();
        let both = DataBuffer::Direct(raw.piece(0, 1024));
        let seven = DataBuffer::Direct(raw.piece(512, 512));
        let length = list.len() as u16;
        let same = |unmap| Command::WriteSame { blocks, unmap };
        for (command, data) in [
            (Command::Write(blocks), seven),
            (same(false), seven),
            (same(true), seven),
            (Command::CompareAndWrite(blocks), both),
            (
                Command::Unmap { length },
                DataBuffer::Direct(raw.piece(4096, length.into())),
            ),
        ] {
            let answer = raw.ask(&command, none, data).await;
            let sense = Sense::new(SenseKey::DataProtect, Code::WRITE_PROTECTED);
            assert_eq!(answer.sense, Some(sense), "{command:?}");
        }
        let room = DataBuffer::Direct(raw.piece(8192, 512));
        let read = raw.ask(&Command::Read(blocks), room, none).await;
        assert_eq!(read.status, Status::GOOD);
        assert_eq!(bytes(&raw, 8192, 512), [0; 512]);
        let verify = raw.ask(&Command::Verify(blocks), none, none).await;
        assert_eq!(verify.status, Status::GOOD);
        target.close().await;
    });
}

/// Goal: the limits in the block limits page are enforced: one block more than a limit is refused with the byte that is
/// wrong, and exactly the limit is carried out.
#[test]
fn limits_of_commands_are_kept() {
    run(9, async |sim| {
        let config = |config: &mut ulp_srp::target::TargetConfig| config.buffer_bytes = 64 << 10;
        let target = target_of(sim, config, Other::new(false)).await;
        let mut raw = Raw::new(&device(sim, 2), 7).await;
        raw.settle().await;
        let none = DataBuffer::None;
        let room = DataBuffer::Direct(raw.piece(0, 256 << 10));
        let limits = Command::Inquiry {
            page: Some(0xb0),
            allocation: 64,
        };
        raw.ask(&limits, room, none).await;
        let limits = block_limits(&bytes(&raw, 0, 64)).expect("the page");
        assert_eq!((limits.transfer, limits.compare_and_write), (128, 64));
        raw.data.memory().fill(0..256 << 10, 0).unwrap();
        let compared = u32::from(limits.compare_and_write);
        type Make = fn(Blocks) -> Command;
        let commands: [(Make, u32, Form); 3] = [
            (Command::Read, limits.transfer, Form::Ten),
            (Command::Write, limits.transfer, Form::Ten),
            (Command::CompareAndWrite, compared, Form::Sixteen),
        ];
        for (command, max, form) in commands {
            for (count, is_more) in [(max, false), (max + 1, true)] {
                let blocks = Blocks {
                    form,
                    ..Blocks::new(0, count)
                };
                let command = command(blocks);
                let answer = match command {
                    Command::Read(_) => raw.ask(&command, room, none).await,
                    _ => raw.ask(&command, none, room).await,
                };
                let code = answer.sense.map(|sense| sense.code);
                let expected = is_more.then_some(Code::INVALID_FIELD_IN_CDB);
                assert_eq!(code, expected, "{command:?}");
                if is_more && form == Form::Ten {
                    assert_eq!(answer.sense, Some(Sense::cdb_field(7)));
                }
            }
        }
        // A command that moves no data has no such limit.
        let verify = Command::Verify(Blocks::new(0, 32_768));
        assert_eq!(raw.ask(&verify, none, none).await.status, Status::GOOD);
        target.close().await;
    });
}

/// Goal: a command about no blocks does nothing and succeeds, except a WRITE SAME, whose count of 0 would mean up to the
/// end of the medium where a unit allows that (SBC-3, 5.43): it is refused, with the byte of the count. Method: each
/// command at the beginning of a unit whose blocks are not zero.
#[test]
fn no_blocks_are_no_work() {
    run(11, async |sim| {
        let unit = Other::new(false);
        let target = target_of(sim, |_| (), Arc::<Other>::clone(&unit)).await;
        let mut raw = Raw::new(&device(sim, 2), 7).await;
        raw.settle().await;
        raw.data.memory().fill(0..512, 7).unwrap();
        let (none, block) = (DataBuffer::None, DataBuffer::Direct(raw.piece(0, 512)));
        let written = raw
            .ask(&Command::Write(Blocks::new(0, 1)), none, block)
            .await;
        assert_eq!(written.status, Status::GOOD);
        raw.data.memory().fill(0..512, 0).unwrap();
        let of = |form| Blocks {
            form,
            ..Blocks::new(0, 0)
        };
        for command in [
            Command::Read(of(Form::Ten)),
            Command::Write(of(Form::Sixteen)),
            Command::Verify(of(Form::Ten)),
            Command::CompareAndWrite(of(Form::Sixteen)),
        ] {
            let answer = raw.ask(&command, none, none).await;
            assert_eq!(answer.status, Status::GOOD, "{command:?}");
        }
        for (form, byte) in [(Form::Ten, 7), (Form::Sixteen, 10)] {
            for unmap in [false, true] {
                let blocks = of(form);
                let command = Command::WriteSame { blocks, unmap };
                let answer = raw.ask(&command, none, block).await;
                assert_eq!(answer.sense, Some(Sense::cdb_field(byte)), "{command:?}");
            }
        }
        raw.ask(&Command::Read(Blocks::new(0, 1)), block, none)
            .await;
        assert_eq!(bytes(&raw, 0, 512), [7; 512], "nothing has changed");
        target.close().await;
    });
}

/// Goal: SYNCHRONIZE CACHE writes the cache back if its blocks exist, and is refused otherwise, as every command is.
/// Method: ranges up to the end, from the end on, and across it; the flushes that the unit sees.
#[test]
fn only_blocks_that_exist_are_synchronized() {
    run(12, async |sim| {
        let unit = Other::new(false);
        let blocks = unit.shape().blocks;
        let target = target_of(sim, |_| (), Arc::<Other>::clone(&unit)).await;
        let mut raw = Raw::new(&device(sim, 2), 7).await;
        raw.settle().await;
        for (lba, count, is_there) in [
            (0, 0, true),
            (0, 1, true),
            (blocks - 1, 1, true),
            (blocks - 1, 2, false),
            (blocks, 1, false),
            (u64::from(u32::MAX), 1, false),
        ] {
            let command = Command::SynchronizeCache {
                blocks: Blocks::new(lba, count),
                immediate: false,
            };
            let before = unit.flushes.load(Relaxed);
            let answer = raw.ask(&command, DataBuffer::None, DataBuffer::None).await;
            let code = answer.sense.map(|sense| sense.code);
            let expected = (!is_there).then_some(Code::LBA_OUT_OF_RANGE);
            assert_eq!(code, expected, "{lba}, {count}");
            let flushes = unit.flushes.load(Relaxed) - before;
            assert_eq!(flushes, u32::from(is_there), "{lba}, {count}");
        }
        target.close().await;
    });
}

/// Goal: an UNMAP that is partly wrong unmaps nothing. Method: ranges beyond the end, ranges that wrap, more blocks
/// than the limit, more ranges than the limit, each behind one that is right.
#[test]
fn an_unmap_that_is_wrong_unmaps_nothing() {
    run(10, async |sim| {
        let target = target_of(sim, |_| (), Other::new(false)).await;
        let mut raw = Raw::new(&device(sim, 2), 7).await;
        raw.settle().await;
        let none = DataBuffer::None;
        raw.data.memory().fill(0..4096, 7).unwrap();
        let page = DataBuffer::Direct(raw.piece(0, 4096));
        let write = Command::Write(Blocks::new(0, 8));
        assert_eq!(raw.ask(&write, none, page).await.status, Status::GOOD);
        let right = Extent { lba: 0, count: 8 };
        // The unit has 32,768 blocks; 128 times all of them are as many as one command may name.
        let end = Extent {
            lba: 32_767,
            count: 2,
        };
        let wraps = Extent {
            lba: u64::MAX,
            count: 8,
        };
        let all = Extent {
            lba: 0,
            count: 32_768,
        };
        let cases = [
            (vec![right, end], Code::LBA_OUT_OF_RANGE),
            (vec![right, wraps], Code::LBA_OUT_OF_RANGE),
            (
                [&[right][..], &[all; 128]].concat(),
                Code::INVALID_PARAMETER,
            ),
            (vec![right; 257], Code::INVALID_PARAMETER),
        ];
        for (ranges, code) in cases {
            let answer = unmap(&mut raw, &ranges).await;
            let sense = answer.sense.expect("it is wrong");
            assert_eq!((sense.key, sense.code), (SenseKey::IllegalRequest, code));
            raw.data.memory().fill(8192..12_288, 0).unwrap();
            let room = DataBuffer::Direct(raw.piece(8192, 4096));
            raw.ask(&Command::Read(Blocks::new(0, 8)), room, none).await;
            assert_eq!(bytes(&raw, 8192, 4096), [7; 4096], "{code:?}");
        }
        for most in [vec![all; 128], vec![right; 256]] {
            assert_eq!(unmap(&mut raw, &most).await.status, Status::GOOD);
        }
        target.close().await;
    });
}

async fn unmap(raw: &mut Raw, ranges: &[Extent]) -> crate::raw::Answer {
    let list = unmap_parameters(ranges).unwrap();
    raw.data.write(TABLE, &list).unwrap();
    let length = list.len() as u16;
    let data = DataBuffer::Direct(raw.piece(TABLE, length.into()));
    raw.ask(&Command::Unmap { length }, DataBuffer::None, data)
        .await
}

/// Goal: a READ with FUA reads what is on the medium: it flushes first, and others do not.
#[test]
fn a_read_with_fua_flushes() {
    run(11, async |sim| {
        let unit = Other::new(false);
        let target = target_of(sim, |_| (), Arc::<Other>::clone(&unit)).await;
        let mut raw = Raw::new(&device(sim, 2), 7).await;
        raw.settle().await;
        let room = DataBuffer::Direct(raw.piece(0, 512));
        for (fua, flushes) in [(false, 0), (true, 1), (true, 2)] {
            let blocks = Blocks {
                fua,
                ..Blocks::new(0, 1)
            };
            let read = raw
                .ask(&Command::Read(blocks), room, DataBuffer::None)
                .await;
            assert_eq!(read.status, Status::GOOD);
            assert_eq!(unit.flushes.load(Relaxed), flushes);
        }
        target.close().await;
    });
}
