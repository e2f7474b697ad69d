//! Commands and their data: every format, sizes that do not match, and what a unit refuses.

use std::sync::Arc;

use ulp_srp::iu::{
    Cdb, Cmd, DataBuffer, Descriptors, Indirect, MemoryDescriptor, Residual, ResponseCode, Status,
};
use ulp_srp::lun::{Fault, FaultUnit, MemoryUnit, UnitError};
use ulp_srp::scsi::{
    Blocks, Capacity, Code, Command, Extent, Inquiry, Sense, SenseKey, unmap_parameters,
};

use crate::raw::{DATA, Raw, device, run, target, target_of};

/// Where in the shared memory a table is.
pub(crate) const TABLE: usize = DATA - (64 << 10);

fn pieces(raw: &Raw, count: usize, len: u32) -> Vec<MemoryDescriptor> {
    // With gaps, so that no two can be merged.
    let piece = |n| raw.piece(n * 2 * len as usize, len);
    (0..count).map(piece).collect()
}

/// A buffer in pieces, of which the command names `named`; the table is put into the shared memory.
fn indirect<'a>(raw: &Raw, pieces: &'a [MemoryDescriptor], named: usize) -> DataBuffer<'a> {
    let mut table = vec![0; pieces.len() * 16];
    Descriptors::new(pieces).emit(&mut table);
    raw.data.write(TABLE, &table).unwrap();
    DataBuffer::Indirect(Indirect {
        table: raw.piece(TABLE, table.len() as u32),
        total_len: pieces.iter().map(|piece| piece.len).sum(),
        partial: Descriptors::new(&pieces[..named]),
    })
}

pub(crate) fn bytes(raw: &Raw, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    raw.data.read(at, &mut bytes).unwrap();
    bytes
}

/// Writes blocks full of `byte` by a command that carries them.
async fn write_immediate(raw: &mut Raw, blocks: Blocks, byte: u8) {
    let bytes = 512 * blocks.count;
    let mut unit = vec![byte; 68 + bytes as usize];
    let tag = raw.tag();
    let cdb = Command::Write(blocks).emit();
    let cmd = Cmd {
        tag,
        cdb: Cdb::new(&cdb).unwrap(),
        data_out: DataBuffer::Immediate(bytes),
        ..Cmd::default()
    };
    cmd.emit(&mut unit).unwrap();
    raw.send(&unit);
    assert_eq!(raw.answer(tag).await.status, Status::GOOD);
}

#[test]
fn a_unit_says_what_it_is() {
    run(1, async |sim| {
        let target = target(sim, |_| ()).await;
        let mut raw = Raw::new(&device(sim, 2), 7).await;
        // INQUIRY is answered before unit attentions, which are reported once.
        raw.data.memory().fill(0..4096, 0xee).unwrap();
        let room = DataBuffer::Direct(raw.piece(0, 4096));
        let inquiry = Command::Inquiry {
            page: None,
            allocation: 4096,
        };
        let answer = raw.ask(&inquiry, room, DataBuffer::None).await;
        assert_eq!(answer.data_in, Residual::Under(4000));
        let said = Inquiry::parse(&bytes(&raw, 0, 96)).unwrap();
        assert_eq!((said.vendor.as_str(), said.is_there), ("VERBS", true));
        assert_eq!(bytes(&raw, 96, 4000), [0xee; 4000], "and nothing else came");
        raw.settle().await;

        let capacity = Command::ReadCapacity16 { allocation: 12 };
        let answer = raw.ask(&capacity, room, DataBuffer::None).await;
        assert_eq!(answer.data_in, Residual::Under(4096 - 12));
        let capacity = Command::ReadCapacity16 { allocation: 32 };
        raw.ask(&capacity, room, DataBuffer::None).await;
        let said = Capacity::parse16(&bytes(&raw, 0, 32)).unwrap();
        assert_eq!((said.blocks, said.block_bytes), (2048, 512));

        // An unknown operation, and a unit that does not exist.
        let tag = raw.tag();
        let unknown = Cmd {
            tag,
            cdb: Cdb::new(&[0x04, 0, 0, 0, 0, 0]).unwrap(),
            ..Cmd::default()
        };
        raw.send_cmd(&unknown);
        let answer = raw.answer(tag).await;
        assert_eq!(answer.status, Status::CHECK_CONDITION);
        assert_eq!(answer.sense, Some(Sense::illegal(Code::INVALID_OPCODE)));
        let tag = raw.tag();
        raw.send_cmd(&Cmd {
            tag,
            lun: ulp_srp::iu::Lun::new(3).unwrap(),
            cdb: Cdb::new(&[0; 6]).unwrap(),
            ..Cmd::default()
        });
        let answer = raw.answer(tag).await;
        assert_eq!(answer.sense, Some(Sense::illegal(Code::UNKNOWN_LUN)));
        assert_eq!(target.counters().check_conditions, 3);
        target.close().await;
    });
}

/// Goal: a piece of the initiator's memory takes one operation, in every format, and the bytes are right. Method: 64
/// KiB by every format, counted at the target.
#[test]
fn every_format_moves_the_same_bytes() {
    run(2, async |sim| {
        let target = target(sim, |config| config.iu_bytes = 16 << 10).await;
        let mut raw = Raw::new(&device(sim, 2), 7).await;
        raw.settle().await;
        let text: Vec<u8> = (0..64 << 10).map(|n| (n % 251) as u8).collect();
        let blocks = Blocks::new(5, 128);
        raw.data.write(0, &text).unwrap();
        let direct = DataBuffer::Direct(raw.piece(0, 64 << 10));
        let before = target.counters();
        let answer = raw
            .ask(&Command::Write(blocks), DataBuffer::None, direct)
            .await;
        assert_eq!(answer.status, Status::GOOD);
        let after = target.counters();
        assert_eq!(
            after.rdma_reads - before.rdma_reads,
            1,
            "16 fragments would be no more"
        );

        for named in [16, 3, 0] {
            raw.data.memory().fill(0..TABLE, 0).unwrap();
            let list = pieces(&raw, 16, 4096);
            let buffer = indirect(&raw, &list, named);
            let before = target.counters();
            let answer = raw
                .ask(&Command::Read(blocks), buffer, DataBuffer::None)
                .await;
            assert_eq!(
                (answer.status, answer.data_in),
                (Status::GOOD, Residual::None)
            );
            let after = target.counters();
            assert_eq!(after.rdma_writes - before.rdma_writes, 16);
            assert_eq!(after.descriptors - before.descriptors, 16);
            assert_eq!(
                after.tables_fetched - before.tables_fetched,
                u64::from(named < 16)
            );
            for (n, chunk) in text.chunks(4096).enumerate() {
                assert_eq!(bytes(&raw, n * 8192, 4096), chunk, "piece {n}");
                assert_eq!(bytes(&raw, n * 8192 + 4096, 4096), [0; 4096], "gap {n}");
            }
        }

        // In the command itself, and read back whole.
        write_immediate(&mut raw, Blocks::new(7, 2), 0xab).await;
        raw.ask(&Command::Read(blocks), direct, DataBuffer::None)
            .await;
        let back = bytes(&raw, 0, 64 << 10);
        assert_eq!(back[..1024], text[..1024]);
        assert_eq!(back[1024..2048], [0xab; 1024]);
        assert_eq!(back[2048..], text[2048..]);
        let counters = target.counters();
        assert_eq!((counters.immediate, counters.indirect), (1, 3));
        target.close().await;
    });
}

/// A queue of four work requests moves sixteen pieces nevertheless, for more commands than it has places.
#[test]
fn a_short_send_queue_is_enough() {
    run(3, async |sim| {
        let target = target(sim, |config| (config.send_depth, config.buffers) = (4, 1)).await;
        let mut raw = Raw::new(&device(sim, 2), 7).await;
        raw.settle().await;
        raw.data.memory().fill(0..TABLE, 0x5a).unwrap();
        let list = pieces(&raw, 16, 1024);
        let buffer = indirect(&raw, &list, 4);
        let commands = [0, 1, 2, 3, 4, 5, 6, 7].map(|n| match n % 2 {
            0 => (
                Command::Write(Blocks::new(n * 32, 32)),
                DataBuffer::None,
                buffer,
            ),
            _ => (Command::Read(Blocks::new(0, 32)), buffer, DataBuffer::None),
        });
        let tags =
            commands.map(|(command, data_in, data_out)| raw.begin(&command, data_in, data_out));
        for tag in tags {
            assert_eq!(raw.answer(tag).await.status, Status::GOOD);
        }
        target.close().await;
    });
}

#[test]
fn what_does_not_fit_is_told_in_bytes() {
    run(4, async |sim| {
        let target = target(sim, |_| ()).await;
        let mut raw = Raw::new(&device(sim, 2), 7).await;
        raw.settle().await;
        let long = DataBuffer::Direct(raw.piece(0, 4096));
        let short = DataBuffer::Direct(raw.piece(0, 512));
        let none = DataBuffer::None;
        let two = Blocks::new(0, 2);
        raw.data.memory().fill(0..4096, 0xee).unwrap();
        let answer = raw.ask(&Command::Read(two), short, none).await;
        assert_eq!(
            (answer.status, answer.data_in),
            (Status::GOOD, Residual::Over(512))
        );
        assert_eq!(bytes(&raw, 0, 1024), [[0; 512], [0xee; 512]].concat());
        let answer = raw.ask(&Command::Read(two), long, none).await;
        assert_eq!(answer.data_in, Residual::Under(3072));
        let answer = raw.ask(&Command::Write(two), none, long).await;
        assert_eq!(
            (answer.status, answer.data_out),
            (Status::GOOD, Residual::Under(3072))
        );
        // Too few bytes are not written: the rest would be undefined.
        let answer = raw.ask(&Command::Write(two), none, short).await;
        assert_eq!(answer.status, Status::CHECK_CONDITION);
        assert_eq!(answer.data_out, Residual::Over(512));
        let answer = raw.ask(&Command::TestUnitReady, long, none).await;
        assert_eq!(
            (answer.status, answer.data_in),
            (Status::GOOD, Residual::Under(4096))
        );

        let far = raw
            .ask(&Command::Read(Blocks::new(2047, 2)), long, none)
            .await;
        let sense = far.sense.expect("beyond the end");
        assert_eq!(
            (sense.code, sense.information),
            (Code::LBA_OUT_OF_RANGE, Some(2048))
        );
        let wraps = raw
            .ask(&Command::Read(Blocks::new(u64::MAX, 1)), long, none)
            .await;
        assert_eq!(
            wraps.sense.map(|sense| sense.code),
            Some(Code::LBA_OUT_OF_RANGE)
        );
        let empty = raw
            .ask(&Command::Read(Blocks::new(2048, 0)), none, none)
            .await;
        assert_eq!(empty.status, Status::GOOD);
        target.close().await;
    });
}

#[test]
fn buffers_that_contradict_themselves_are_told() {
    run(7, async |sim| {
        let target = target(sim, |_| ()).await;
        let mut raw = Raw::new(&device(sim, 2), 7).await;
        raw.settle().await;
        let short = DataBuffer::Direct(raw.piece(0, 512));
        let (none, two) = (DataBuffer::None, Blocks::new(0, 2));
        // Both directions at once, a table with a false length, and one that is not a table.
        let list = pieces(&raw, 2, 512);
        let DataBuffer::Indirect(right) = indirect(&raw, &list, 2) else {
            panic!("it is");
        };
        let lies = DataBuffer::Indirect(Indirect {
            total_len: 1025,
            ..right
        });
        let odd = DataBuffer::Indirect(Indirect {
            table: raw.piece(TABLE, 33),
            ..right
        });
        for (data_in, data_out) in [(short, short), (lies, none), (odd, none)] {
            let answer = raw.ask(&Command::Read(two), data_in, data_out).await;
            assert_eq!(answer.code, Some(ResponseCode::INVALID_FIELDS));
        }
        assert_eq!(target.counters().invalid_fields, 3);
        target.close().await;
    });
}

#[test]
fn blocks_are_compared_repeated_and_given_back() {
    run(5, async |sim| {
        let target = target(sim, |_| ()).await;
        let mut raw = Raw::new(&device(sim, 2), 7).await;
        raw.settle().await;
        let none = DataBuffer::None;
        let one = Blocks::new(9, 1);
        let both = DataBuffer::Direct(raw.piece(0, 1024));
        raw.data.write(512, &[7; 512]).unwrap();
        let compare = Command::CompareAndWrite(one);
        assert_eq!(raw.ask(&compare, none, both).await.status, Status::GOOD);
        let answer = raw.ask(&compare, none, both).await;
        let sense = answer.sense.expect("it has been written");
        assert_eq!(
            (sense.key, sense.information),
            (SenseKey::Miscompare, Some(0))
        );

        let many = Blocks::new(100, 200);
        let block = DataBuffer::Direct(raw.piece(512, 512));
        let same = Command::WriteSame {
            blocks: many,
            unmap: false,
        };
        assert_eq!(raw.ask(&same, none, block).await.status, Status::GOOD);
        let room = DataBuffer::Direct(raw.piece(4096, 202 * 512));
        raw.ask(&Command::Read(Blocks::new(99, 202)), room, none)
            .await;
        let back = bytes(&raw, 4096, 202 * 512);
        assert_eq!((back[511], back[201 * 512]), (0, 0));
        assert!(back[512..201 * 512].iter().all(|byte| *byte == 7));

        let list =
            unmap_parameters(&[Extent { lba: 100, count: 1 }, Extent { lba: 299, count: 1 }]);
        let list = list.unwrap();
        raw.data.write(0, &list).unwrap();
        let length = list.len() as u16;
        let buffer = DataBuffer::Direct(raw.piece(0, length.into()));
        let unmap = Command::Unmap { length };
        assert_eq!(raw.ask(&unmap, none, buffer).await.status, Status::GOOD);
        raw.ask(&Command::Read(Blocks::new(99, 202)), room, none)
            .await;
        let back = bytes(&raw, 4096, 202 * 512);
        assert!(back[512..1024].iter().all(|byte| *byte == 0));
        assert!(back[1024..200 * 512].iter().all(|byte| *byte == 7));
        assert!(back[200 * 512..].iter().all(|byte| *byte == 0));
        let synchronize = Command::SynchronizeCache {
            blocks: Blocks::new(0, 0),
            immediate: false,
        };
        assert_eq!(raw.ask(&synchronize, none, none).await.status, Status::GOOD);
        let verify = Command::Verify(Blocks::new(0, 2048));
        assert_eq!(raw.ask(&verify, none, none).await.status, Status::GOOD);
        target.close().await;
    });
}

#[test]
fn bad_blocks_are_told_as_a_disk_does() {
    run(6, async |sim| {
        let unit = MemoryUnit::new(1 << 20, 512).unwrap();
        let unit = Arc::new(FaultUnit::new(Arc::new(unit)));
        let target = target_of(sim, |_| (), Arc::<FaultUnit>::clone(&unit)).await;
        let mut raw = Raw::new(&device(sim, 2), 7).await;
        raw.settle().await;
        let none = DataBuffer::None;
        let room = DataBuffer::Direct(raw.piece(0, 4096));
        unit.break_blocks(12, 1, Fault::Error(UnitError::Read(12)));
        unit.break_blocks(50, 1, Fault::Error(UnitError::Busy));
        let blocks = Blocks::new(8, 8);
        let answer = raw.ask(&Command::Read(blocks), room, none).await;
        let sense = Sense::new(SenseKey::MediumError, Code::UNRECOVERED_READ_ERROR).at(12);
        assert_eq!(answer.sense, Some(sense));
        assert_eq!(answer.data_in, Residual::Under(4096), "nothing came");
        let answer = raw
            .ask(&Command::Write(Blocks::new(50, 1)), none, room)
            .await;
        assert_eq!((answer.status, answer.sense), (Status::BUSY, None));
        unit.release();
        let answer = raw.ask(&Command::Read(blocks), room, none).await;
        assert_eq!(answer.status, Status::GOOD);
        target.close().await;
    });
}
