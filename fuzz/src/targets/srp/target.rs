//! A live target: a hostile initiator sends what the script says, beside an honest one.

use std::sync::Arc;
use std::time::Duration;

use ulp_srp::initiator::{Initiator, Options, Session, Target as Where};
use ulp_srp::iu::{
    AerRsp, BufferFormats, Cdb, Cmd, CredRsp, DataBuffer, Descriptors, Indirect, InitiatorLogout,
    LoginReq, Lun, MemoryDescriptor, MultiChannel, Tag, TaskAttribute, TaskFunction, TskMgmt,
};
use ulp_srp::lun::{LogicalUnit, MemoryUnit};
use ulp_srp::scsi::{Blocks, Command};
use ulp_srp::target::{Target, TargetConfig};
use verbs_cm::Manager;
use verbs_simulator::Sim;

use super::end::{End, Parts};
use super::units::{Fixed, byte_of};
use super::{BLOCK, Blotter, FIXED, Node, OPEN, port, read, run, write};
use crate::Script;

const AT: &str = "10.0.0.1:5555";
const BLOCKS: u64 = 24;
const CHANNELS: usize = 3;

/// Logins, units, commands, task management, invalid keys, silence and floods at a live target. The honest initiator's
/// session continues and gets the right bytes, a read-only unit stays unchanged, the target has no more channels than
/// it may, and when all have left it holds as many objects as before they came.
pub(crate) fn target(bytes: &[u8]) -> u32 {
    let mut script = Script::new(bytes);
    run(async |sim| World::new(sim, &mut script).await.play(&mut script).await);
    script.steps()
}

struct World<'s> {
    sim: &'s Sim,
    server: Node,
    client: Node,
    target: Target,
    fixed: Arc<Fixed>,
    honest: Session,
    memory: Blotter,
    hostile: Option<End>,
    tag: u64,
    /// Objects of the server before any initiator connected.
    before: [usize; 8],
}

impl<'s> World<'s> {
    async fn new(sim: &'s Sim, script: &mut Script<'_>) -> Self {
        let (server, client) = (Node::new(sim, 1).await, Node::new(sim, 2).await);
        let mut config = TargetConfig::new(port(1));
        config.request_limit = 8;
        config.channels_max = CHANNELS as u32;
        config.iu_bytes = 8260;
        config.buffers = 2;
        config.buffer_bytes = 8192;
        config.table_entries_max = 24;
        config.send_depth = 8;
        let setting = script.byte();
        config.remote_invalidate = setting & 1 != 0;
        let target = Target::open(Arc::clone(&server.device), config).await;
        let target = target.expect("a target on a new device");
        let open = MemoryUnit::new((BLOCKS * u64::from(BLOCK)) as usize, BLOCK);
        let open: Arc<dyn LogicalUnit> = Arc::new(open.expect("memory for a small unit"));
        let fixed = Arc::new(Fixed::new(BLOCKS, BLOCK, setting & 2 != 0));
        target.export(0, open).await.expect("its first unit");
        let exported = Arc::<Fixed>::clone(&fixed);
        target.export(1, exported).await.expect("its second unit");
        target.listen(AT).await.expect("a free port");
        let before = server.hca.object_counts();
        let options = Options {
            queue_depth: 2,
            runs_max: 2,
            immediate_max: 0,
            ..Options::new(port(100))
        };
        let initiator = Initiator::new(&client.device, options);
        let at = Where::at(AT.parse().expect("an address"), port(1));
        let honest = initiator.login(at).await.expect("there is room");
        Self {
            sim,
            server,
            client,
            target,
            fixed,
            honest,
            memory: Blotter::new(),
            hostile: None,
            tag: 0x100,
            before,
        }
    }

    async fn play(mut self, script: &mut Script<'_>) {
        while let Some(what) = script.step(300) {
            self.step(what, script).await;
            if let Some(end) = &mut self.hostile
                && end.received().is_none()
            {
                self.hostile = None;
            }
            assert!(
                self.target.channels().len() <= CHANNELS,
                "too many channels"
            );
        }
        self.end().await;
    }

    async fn step(&mut self, what: u8, script: &mut Script<'_>) {
        if what.is_multiple_of(16) || self.hostile.is_none() {
            return self.login(script).await;
        }
        match what % 16 {
            1..=6 => self.command(script),
            7 => self.manage(script),
            8 => self.other(script),
            9 => self.noise(script),
            10 => {
                let micros = script.pick(&[1, 20, 300, 5_000, 2_000_000]);
                self.sim.sleep(Duration::from_micros(micros)).await;
            }
            11 => self.ask_honestly(script).await,
            12 => self.administer(script),
            13 => self.leave(script).await,
            14 => {
                if let Some(end) = &mut self.hostile {
                    end.share_anew().await;
                }
            }
            _ => {
                // More requests than there are credits.
                for _ in 0..script.below(20) {
                    self.command(script);
                }
            }
        }
    }

    /// Logs in, mostly correctly.
    async fn login(&mut self, script: &mut Script<'_>) {
        // A channel that is dropped reports it, or dies without notice.
        self.hostile = None;
        let mut req = LoginReq {
            tag: Tag(0x10),
            max_iu_len: 1024,
            formats: BufferFormats::DIRECT | BufferFormats::INDIRECT,
            immediate: true,
            immediate_offset: Cmd::IMMEDIATE_OFFSET,
            channels: MultiChannel::SINGLE,
            initiator: port(200 + script.below(3) as u64),
            target: port(1),
        };
        match script.below(12) {
            6 => req.channels = MultiChannel::INDEPENDENT,
            7 => req.immediate = false,
            8 => req.max_iu_len = script.pick(&[0, 63, 64, 128, 1025, u32::MAX]),
            9 => req.formats = BufferFormats::from_bits_retain(script.u16()),
            10 => req.immediate_offset = script.u16(),
            _ => {}
        }
        let mut data = req.emit_cm().to_vec();
        if script.once_in(6) {
            script.change(&mut data);
            // The size that a request has room for.
            data.truncate(56);
        }
        let (parts, qp) = Parts::new(&self.client.device).await;
        let asked = verbs_cm::connect(&self.client.device, AT, qp).private_data(&data);
        if let Ok(connection) = asked.await {
            self.hostile = Some(End::new(connection, parts));
        }
    }

    /// A command, right or with an error.
    fn command(&mut self, script: &mut Script<'_>) {
        let Some(end) = &mut self.hostile else { return };
        if !script.once_in(8) {
            self.tag += 1;
        }
        let command = a_command(script);
        let mut cdb = command.emit().to_vec();
        if script.once_in(8) {
            script.change(&mut cdb);
            cdb.truncate(32);
        }
        let pieces: Vec<_> = (0..script.below(7)).map(|_| end.piece(script)).collect();
        let buffer = a_buffer(script, end, &pieces);
        let (data_in, data_out) = match (script.below(8), &command) {
            (7, _) => (buffer, buffer),
            (6, _) | (_, Command::Write(_) | Command::CompareAndWrite(_)) => {
                (DataBuffer::None, buffer)
            }
            (_, Command::WriteSame { .. } | Command::Unmap { .. }) => (DataBuffer::None, buffer),
            _ => (buffer, DataBuffer::None),
        };
        let Ok(cdb) = Cdb::new(&cdb) else { return };
        let cmd = Cmd {
            tag: Tag(self.tag),
            lun: a_lun(script),
            attribute: TaskAttribute::from_code(script.below(8) as u8),
            cdb,
            data_in,
            data_out,
            ..Cmd::default()
        };
        let mut unit = vec![0; 1152];
        let Ok(len) = cmd.emit(&mut unit) else { return };
        let mut sent = len;
        if let DataBuffer::Immediate(bytes) = data_out {
            sent = usize::from(Cmd::IMMEDIATE_OFFSET) + bytes as usize;
        }
        unit.truncate(sent.clamp(len, 1152));
        if script.once_in(6) {
            script.change(&mut unit);
        }
        end.send(&unit);
    }

    /// Task management, for a task that exists, or not.
    fn manage(&mut self, script: &mut Script<'_>) {
        let Some(end) = &mut self.hostile else { return };
        let functions = [
            TaskFunction::ABORT_TASK,
            TaskFunction::ABORT_TASK_SET,
            TaskFunction::CLEAR_TASK_SET,
            TaskFunction::LUN_RESET,
            TaskFunction::CLEAR_ACA,
            TaskFunction::from_code(0x55),
        ];
        let request = TskMgmt {
            tag: Tag(self.tag.wrapping_sub(script.below(2) as u64) ^ 1 << 40),
            lun: a_lun(script),
            function: script.pick(&functions),
            task: Tag(self.tag.wrapping_sub(script.below(6) as u64)),
            ..TskMgmt::default()
        };
        end.send(&request.unit());
    }

    /// Answers that no request waits for, and a logout.
    fn other(&mut self, script: &mut Script<'_>) {
        let Some(end) = &mut self.hostile else { return };
        let tag = Tag(script.u16().into());
        match script.below(4) {
            0 => end.send(&CredRsp { tag }.unit()),
            1 => end.send(&AerRsp { tag }.unit()),
            2 => end.send(&InitiatorLogout { tag }.unit()),
            // RDMA at a target, which has no memory that could be accessed.
            _ => {
                let piece = end.piece(script);
                let local = end.data().slice(0..512);
                end.post(
                    verbs_core::Write::new(1, piece.remote(0))
                        .from(local)
                        .signaled(),
                );
            }
        }
    }

    fn noise(&mut self, script: &mut Script<'_>) {
        let Some(end) = &mut self.hostile else { return };
        let mut unit = vec![script.byte()];
        let len = script.below(128);
        unit.extend_from_slice(script.take(len));
        unit.resize(len + 1, 0);
        end.send(&unit);
    }

    /// What the target's own program does in the meantime.
    fn administer(&mut self, script: &mut Script<'_>) {
        let channels = self.target.channels();
        let own = channels
            .iter()
            .find(|channel| channel.initiator != port(100));
        match (script.below(4), own) {
            (0, Some(channel)) => self
                .target
                .adjust(channel.id, i32::from(script.byte()) - 64),
            (1, Some(channel)) => self.target.end(channel.id),
            (2, _) => self.target.capacity_changed(script.below(3) as u16),
            _ => {}
        }
    }

    /// Leaves: with a DREQ, or without notice and for good.
    async fn leave(&mut self, script: &mut Script<'_>) {
        let Some(end) = self.hostile.take() else {
            return;
        };
        if script.once_in(2) {
            // The peer may have left, which has the same effect.
            let _gone = end.connection().disconnect().await;
        }
    }

    async fn ask_honestly(&mut self, script: &mut Script<'_>) {
        let lba = script.below(BLOCKS as usize) as u64;
        let block = read(&self.honest, FIXED, lba, &self.memory).await;
        assert!(
            block.iter().all(|&byte| byte == byte_of(lba)),
            "wrong bytes of block {lba}"
        );
    }

    /// The hostile one leaves, the honest one writes and reads, leaves too, and nothing is left.
    async fn end(mut self) {
        self.hostile = None;
        // The keys of initiators that died without notice are released when the connection's retries are exhausted.
        self.sim.sleep(Duration::from_secs(60)).await;
        assert_eq!(self.target.channels().len(), 1, "channels that nobody uses");
        let marks = std::array::from_fn(|at| (at % 253) as u8);
        self.memory.put(&marks);
        write(&self.honest, OPEN, 3, &self.memory).await;
        self.memory.put(&[0; BLOCK as usize]);
        assert_eq!(read(&self.honest, OPEN, 3, &self.memory).await, marks);
        read(&self.honest, FIXED, 1, &self.memory).await;
        self.fixed.check();
        self.honest.logout().await;
        self.sim.sleep(Duration::from_secs(300)).await;
        assert_eq!(self.target.channels().len(), 0, "channels that nobody uses");
        assert_eq!(
            self.server.hca.object_counts(),
            self.before,
            "objects of those who left"
        );
        let counts = Manager::of(&self.server.device).count().await;
        let connections = counts.map(|counts| counts.connections);
        assert_eq!(connections.ok(), Some(0), "connections of those who left");
        self.target.close().await;
        assert!(self.server.device.in_flight().is_empty());
    }
}

fn a_lun(script: &mut Script<'_>) -> Lun {
    match script.below(8) {
        0..=3 => OPEN,
        4 | 5 => FIXED,
        6 => Lun(script.below(4) as u64),
        _ => Lun(script.u64()),
    }
}

fn a_command(script: &mut Script<'_>) -> Command {
    let lba = match script.below(4) {
        0..=2 => script.below(BLOCKS as usize + 1) as u64,
        _ => script.u64(),
    };
    let count = match script.below(4) {
        0..=2 => script.below(18) as u32,
        _ => script.u32(),
    };
    let blocks = Blocks::new(lba, count);
    let allocation = script.byte();
    let page = script.byte();
    match script.below(14) {
        0 | 1 => Command::Read(blocks),
        2 | 3 => Command::Write(blocks),
        4 => Command::CompareAndWrite(blocks),
        5 => Command::WriteSame {
            blocks,
            unmap: allocation & 1 != 0,
        },
        6 => Command::Unmap {
            length: u16::from(allocation) * 4,
        },
        7 => Command::Verify(blocks),
        8 => Command::SynchronizeCache {
            blocks,
            immediate: allocation & 1 != 0,
        },
        9 => Command::Inquiry {
            page: (page & 1 != 0).then_some(page & 0xbe | 0x80),
            allocation: allocation.into(),
        },
        10 => Command::ReportLuns {
            select: page % 4,
            allocation: allocation.into(),
        },
        11 => Command::ModeSense {
            page: page & 0x3f,
            subpage: 0,
            control: page >> 6,
            no_descriptors: false,
            long: true,
            allocation: allocation.into(),
        },
        12 => Command::ReadCapacity16 {
            allocation: allocation.into(),
        },
        _ => Command::TestUnitReady,
    }
}

fn a_buffer<'p>(
    script: &mut Script<'_>,
    end: &End,
    pieces: &'p [MemoryDescriptor],
) -> DataBuffer<'p> {
    match script.below(8) {
        0..=2 => DataBuffer::Direct(end.piece(script)),
        3..=5 => {
            let said: u32 = pieces
                .iter()
                .fold(0, |sum, piece| sum.wrapping_add(piece.len));
            let mut table = end.piece(script);
            if !script.once_in(3) {
                table.len = pieces.len() as u32 * 16;
            }
            DataBuffer::Indirect(Indirect {
                table,
                total_len: if script.once_in(4) {
                    script.u32()
                } else {
                    said
                },
                partial: Descriptors::new(
                    &pieces[..pieces.len() - script.below(2).min(pieces.len())],
                ),
            })
        }
        6 => DataBuffer::Immediate(script.pick(&[0, 1, 512, 513, 1024, 2048, u32::MAX])),
        _ => DataBuffer::None,
    }
}
