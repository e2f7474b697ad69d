//! A target for tests: one disk in memory, a record of everything that initiators do to it, and a script of what it
//! does wrong.
//!
//! It runs in completions as the initiator does: it has no thread.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use ulp_srp::iu::{
    BufferFormats, Cmd, CredReq, DataBuffer, Delta, Descriptors, Detail, LoginRej, LoginReq,
    LoginRsp, Lun, MemoryDescriptor, Residual, ResponseCode, Rsp, Status, Tag, TargetLogout,
    TaskFunction, ToTarget, TskMgmt,
};
use verbs_cm::{ConnectRequest, Connection, Listener, ServiceListener};
use verbs_core::sync::Mutex;
use verbs_core::{
    Access, Cq, Device, Memory, Mr, Pd, QpInit, RKey, Read, Recv, Send, Wc, WcOpcode, WcStatus,
    Write, task,
};

use crate::script::{Script, Seen, State, control, key_of};

/// Bytes of the disk, and of a block.
pub(crate) const DISK: usize = 4 << 20;
pub(crate) const BLOCK: u32 = 512;
/// The vendor-specific command: tries the key of the previous command, when that has been answered.
pub(crate) const PROBE: u8 = 0xf0;

pub(crate) const IU_LEN: usize = 8320;
const RECVS: usize = 72;

/// A target.
#[derive(Clone)]
pub(crate) struct TestTarget {
    pub(crate) state: Arc<Mutex<State>>,
    pub(crate) disk: Arc<Memory>,
    device: Arc<Device>,
    pd: Arc<Pd>,
}

impl TestTarget {
    pub(crate) async fn new(device: &Arc<Device>) -> Self {
        Self {
            state: Arc::default(),
            disk: Arc::new(Memory::alloc(DISK).unwrap()),
            device: Arc::clone(device),
            pd: Arc::new(device.alloc_pd().await.unwrap()),
        }
    }

    /// Accepts logins for ever.
    pub(crate) fn listen(&self, mut listener: Listener) {
        let target = self.clone();
        task::detach(async move {
            loop {
                let request = listener.accept().await;
                let login = LoginReq::parse_cm(request.private_data()).unwrap();
                let target = target.clone();
                task::detach(async move { target.accept(request, login).await });
            }
        });
    }

    /// Accepts logins by the InfiniBand connection manager for ever.
    pub(crate) fn listen_service(&self, mut listener: ServiceListener) {
        let target = self.clone();
        task::detach(async move {
            loop {
                let request = listener.accept().await;
                let login = LoginReq::parse_unit(request.private_data()).unwrap();
                let target = target.clone();
                task::detach(async move { target.accept(request, login).await });
            }
        });
    }

    pub(crate) fn script(&self, change: impl FnOnce(&mut Script)) {
        let mut state = self.state.lock();
        change(&mut state.script);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The status of a data command that is not carried out.
    fn refusal(&self, opcode: u8) -> Option<Status> {
        let refuses = self.state.lock().script.refuses;
        let (times, status) = refuses.filter(|_| matches!(opcode, 0x88 | 0x8a))?;
        let left = (times > 1).then(|| (times - 1, status));
        self.script(|script| script.refuses = left);
        Some(status)
    }

    /// Records that much more credit than answers granted.
    pub(crate) fn credit(&self, more: i32) {
        self.state.lock().more_credit += more;
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn take_seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.state.lock().seen)
    }

    /// Status of the RDMA READ of a probe, when it has ended.
    pub(crate) async fn probed(&self) -> WcStatus {
        poll_fn(|cx| {
            let mut state = self.state.lock();
            if let Some(status) = state.probed.take() {
                return Poll::Ready(status);
            }
            state.probing = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    async fn accept(self, request: ConnectRequest, login: LoginReq) {
        let script = {
            let mut state = self.state.lock();
            state.logins.push(login);
            state.script.clone()
        };
        if let Some(reason) = script.rejects {
            let rej = LoginRej {
                reason,
                tag: login.tag,
                formats: BufferFormats::DIRECT,
            };
            request.reject(&rej.unit()).unwrap();
            return;
        }
        let cq = self.device.create_cq(512).await.unwrap();
        let init = QpInit::rc(&cq, &cq).depth(128, RECVS as u32).inline(64);
        let qp = self.pd.create_qp(init).await.unwrap();
        qp.init(1, Access::empty()).await.unwrap();
        let room = Memory::alloc(RECVS * IU_LEN).unwrap();
        let units = self.pd.register(room, Access::LOCAL_WRITE).await.unwrap();
        let disk = Arc::clone(&self.disk);
        let disk = self.pd.register(disk, Access::LOCAL_WRITE).await.unwrap();
        let answer = LoginRsp {
            delta: Delta(script.limit),
            tag: login.tag,
            max_initiator_iu_len: script.iu_len_max,
            max_target_iu_len: 512,
            formats: login.formats,
            immediate: login.immediate && script.immediate,
            ..LoginRsp::default()
        };
        let mut qp = qp;
        for index in 0..RECVS {
            qp.post_recv(recv(&units, index)).unwrap();
        }
        let accepted = request.accept(qp).private_data(&answer.unit()).await;
        let Ok(connection) = accepted else { return };
        let channel = Channel {
            connection,
            cq,
            units,
            disk,
            backlog: VecDeque::new(),
            held: Vec::new(),
            keys: Vec::new(),
            credit: script.limit,
            outstanding: 0,
            owed: 0,
            last: None,
            done: None,
            target: self,
        };
        channel.serve().await;
    }
}

fn recv(units: &Mr, index: usize) -> Recv<'static> {
    let at = index * IU_LEN;
    Recv::new(index as u64).into(units.slice(at..at + IU_LEN))
}

struct Channel {
    connection: Connection,
    cq: Cq,
    units: Mr,
    disk: Mr,
    /// Units that arrived while data were moved.
    backlog: VecDeque<(usize, u32)>,
    /// Commands without an answer.
    held: Vec<(Tag, Vec<u8>)>,
    /// Keys of commands that were answered.
    keys: Vec<RKey>,
    /// Credits that were granted and not used.
    credit: i32,
    /// Commands and task management without an answer.
    outstanding: i32,
    /// Credits that were not granted.
    owed: u32,
    /// The memory that the last data command named.
    last: Option<MemoryDescriptor>,
    /// The result of the RDMA operation that was waited for.
    done: Option<WcStatus>,
    target: TestTarget,
}

/// The channel has ended.
struct Over;

impl Channel {
    async fn serve(mut self) {
        while self.step().await.is_ok() {}
    }

    /// Takes completions until there is a unit, or an RDMA operation has ended.
    async fn turn(&mut self) -> Result<(), Over> {
        let Self { cq, target, .. } = self;
        let mut released = false;
        poll_fn(|cx| {
            target.state.lock().wakers.push(cx.waker().clone());
            if !std::mem::replace(&mut released, true) && cq.poll_ready(cx).is_pending() {
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
        let mut out = [Wc::default(); 8];
        let out = self.cq.poll(&mut out);
        for wc in out.iter() {
            match (wc.opcode, wc.status) {
                (WcOpcode::Recv, WcStatus::Success) => {
                    self.backlog.push_back((wc.wr_id as usize, wc.byte_len));
                }
                (WcOpcode::RdmaRead | WcOpcode::RdmaWrite, status) => self.done = Some(status),
                (_, WcStatus::Success) => {}
                _ if wc.wr_id >= 1000 => self.done = Some(wc.status),
                _ => return Err(Over),
            }
        }
        Ok(())
    }

    async fn step(&mut self) -> Result<(), Over> {
        while self.backlog.is_empty() {
            let holds = self.target.state.lock().script.holds;
            if !holds && !self.held.is_empty() {
                let held = std::mem::take(&mut self.held);
                self.keys = held.iter().filter_map(|(_, unit)| key_of(unit)).collect();
                for (tag, unit) in held {
                    self.data(tag, &unit).await?;
                }
                continue;
            }
            self.turn().await?;
        }
        let Some((index, len)) = self.backlog.pop_front() else {
            return Ok(());
        };
        let mut unit = vec![0; len as usize];
        self.units.read(index * IU_LEN, &mut unit).unwrap();
        let again = recv(&self.units, index);
        self.connection.post_recv(again).map_err(|_| Over)?;
        let parsed = ToTarget::parse(&unit).unwrap();
        let tag = parsed.tag();
        self.account(&parsed);
        match parsed {
            ToTarget::Cmd(_) => {
                let script = self.target.state.lock().script.clone();
                if let Some(reason) = script.logs_out {
                    let bye = TargetLogout {
                        reason,
                        ..TargetLogout::default()
                    };
                    return self.send(&bye.unit());
                }
                if script.hangs_up {
                    return Err(Over);
                }
                if script.holds {
                    self.held.push((tag, unit));
                    return Ok(());
                }
                self.data(tag, &unit).await
            }
            ToTarget::TskMgmt(task) => self.manage(&task),
            ToTarget::CredRsp(_) => {
                self.target.state.lock().credit_answers += 1;
                Ok(())
            }
            ToTarget::AerRsp(_) => {
                self.target.state.lock().event_answers += 1;
                Ok(())
            }
            ToTarget::Logout(_) => {
                self.target.state.lock().logouts += 1;
                Err(Over)
            }
        }
    }

    /// Ends tasks that are held, and reports that.
    fn manage(&mut self, task: &TskMgmt) -> Result<(), Over> {
        let held = self.held.len();
        match task.function {
            TaskFunction::ABORT_TASK => self.held.retain(|(tag, _)| *tag != task.task),
            _ if task.lun == Lun(0) => self.held.clear(),
            // All commands are for the first unit.
            _ => {}
        }
        let ended = (held - self.held.len()) as i32;
        self.credit += ended;
        self.outstanding -= ended;
        let mut state = self.target.state.lock();
        state.managed += 1;
        state.aborted += ended.cast_unsigned();
        state.resets += u32::from(task.function == TaskFunction::LUN_RESET);
        drop(state);
        let rsp = Rsp {
            tag: task.tag,
            delta: Delta(1 + ended),
            detail: Detail::Response(ResponseCode::COMPLETE),
            ..Rsp::default()
        };
        self.send_rsp(&rsp, None)
    }

    /// Checks that the initiator keeps to the request limit.
    fn account(&mut self, unit: &ToTarget<'_>) {
        let kept_back = match unit {
            ToTarget::Cmd(_) => 1,
            ToTarget::TskMgmt(_) => 0,
            _ => return,
        };
        let mut state = self.target.state.lock();
        state.overdrawn += u32::from(self.credit + state.more_credit <= kept_back);
        self.credit -= 1;
        self.outstanding += 1;
        state.outstanding_max = state.outstanding_max.max(self.outstanding);
    }

    /// Executes a command and answers it.
    async fn data(&mut self, tag: Tag, unit: &[u8]) -> Result<(), Over> {
        let Ok(ToTarget::Cmd(cmd)) = ToTarget::parse(unit) else {
            return Err(Over);
        };
        let mut rsp = Rsp {
            tag,
            delta: Delta(1),
            ..Rsp::default()
        };
        let mut key = None;
        let opcode = cmd.cdb.opcode();
        let fua = matches!(opcode, 0x88 | 0x8a) && cmd.cdb.bytes()[1] & 0x08 != 0;
        let script = self.target.state.lock().script.clone();
        if let Some(status) = self.target.refusal(opcode) {
            rsp.status = status;
            return self.send_rsp(&rsp, None);
        }
        match opcode {
            0x8a if fua && !script.fua => return self.refuse(&rsp, 0x24),
            0x88 => {
                key = self.move_data(&cmd, unit, &cmd.data_in).await?;
            }
            0x8a => {
                key = self.move_data(&cmd, unit, &cmd.data_out).await?;
            }
            0x12 | 0x5a | 0x9e | 0xa0 => {
                let Some(answer) = control(cmd.cdb.bytes(), &script) else {
                    return self.refuse(&rsp, 0x24);
                };
                let room = cmd.data_in.len();
                self.target.disk.write(DISK - 4096, &answer).unwrap();
                let len = (answer.len() as u32).min(room);
                if let DataBuffer::Direct(piece) = cmd.data_in {
                    self.rdma(false, piece.remote(0), DISK - 4096, len).await?;
                }
                rsp.data_in = match room - len {
                    0 => Residual::None,
                    unused => Residual::Under(unused),
                };
            }
            PROBE => {
                let last = self.last.unwrap();
                let status = self
                    .rdma(true, last.remote(0), DISK - 4096, 64.min(last.len))
                    .await;
                let status = match status {
                    Ok(()) => WcStatus::Success,
                    Err(Over) => self.done.take().unwrap_or(WcStatus::GeneralErr),
                };
                let mut state = self.target.state.lock();
                state.probed = Some(status);
                let probing = state.probing.take();
                drop(state);
                probing.into_iter().for_each(Waker::wake);
                if status != WcStatus::Success {
                    return Err(Over);
                }
            }
            0x00 | 0x35 => {}
            _ => return self.refuse(&rsp, 0x20),
        }
        let mut state = self.target.state.lock();
        state.executed += 1;
        state.opcodes.push((opcode, fua));
        drop(state);
        self.send_rsp(&rsp, key)
    }

    /// Refuses a command as an illegal request.
    fn refuse(&mut self, rsp: &Rsp<'_>, code: u8) -> Result<(), Over> {
        let mut sense = [0; 18];
        (sense[0], sense[2], sense[7], sense[12]) = (0x70, 5, 10, code);
        let rsp = Rsp {
            status: Status::CHECK_CONDITION,
            detail: Detail::Sense(&sense),
            ..*rsp
        };
        self.send_rsp(&rsp, None)
    }

    async fn move_data(
        &mut self,
        cmd: &Cmd<'_>,
        unit: &[u8],
        buffer: &DataBuffer<'_>,
    ) -> Result<Option<RKey>, Over> {
        let is_write = cmd.cdb.opcode() == 0x8a;
        let lba = u64::from_be_bytes(*cmd.cdb.bytes()[2..].first_chunk().unwrap());
        let mut at = lba as usize * BLOCK as usize;
        let (format, pieces) = match buffer {
            DataBuffer::None => (0, Vec::new()),
            DataBuffer::Direct(piece) => (1, vec![*piece]),
            DataBuffer::Indirect(indirect) => {
                assert!(indirect.is_complete());
                assert_eq!(indirect.partial.total_len(), u64::from(indirect.total_len));
                self.check_table(indirect.table, indirect.partial).await?;
                (2, indirect.partial.iter().collect())
            }
            DataBuffer::Immediate(_) => {
                let data = cmd.immediate(unit, Cmd::IMMEDIATE_OFFSET).unwrap();
                self.target.disk.write(at, data).unwrap();
                (3, Vec::new())
            }
        };
        let mut operations = 0;
        for piece in &pieces {
            self.rdma(is_write, piece.remote(0), at, piece.len).await?;
            at += piece.len as usize;
            operations += 1;
        }
        self.last = pieces.first().copied();
        let seen = Seen {
            format,
            total: buffer.len(),
            operations,
            pieces,
        };
        let mut state = self.target.state.lock();
        state.seen.push(seen);
        let script = &state.script;
        let key = match self.last {
            Some(_) if script.invalidates_wrong => Some(RKey::new(0x77)),
            Some(piece) if script.invalidates_other => {
                self.keys.iter().find(|key| **key != piece.rkey).copied()
            }
            Some(piece) if script.invalidates && format == 1 => Some(piece.rkey),
            _ => None,
        };
        Ok(key)
    }

    /// Checks that the table that the command names is the one that it carries.
    async fn check_table(
        &mut self,
        table: MemoryDescriptor,
        partial: Descriptors<'_>,
    ) -> Result<(), Over> {
        self.rdma(true, table.remote(0), DISK - 8192, table.len)
            .await?;
        let mut bytes = vec![0; table.len as usize];
        self.target.disk.read(DISK - 8192, &mut bytes).unwrap();
        assert_eq!(Descriptors::of_table(&bytes), Some(partial));
        Ok(())
    }

    /// One RDMA operation between the disk and the initiator's memory: a READ for data to be written.
    async fn rdma(
        &mut self,
        fetches: bool,
        remote: verbs_core::Remote,
        at: usize,
        len: u32,
    ) -> Result<(), Over> {
        let place = self.disk.slice(at..at + len as usize);
        self.done = None;
        let posted = match fetches {
            true => {
                let read = Read::new(1000, remote).into(place).signaled();
                self.connection.post_send(read)
            }
            false => {
                let write = Write::new(1000, remote).from(place).signaled();
                self.connection.post_send(write)
            }
        };
        posted.map_err(|_| Over)?;
        while self.done.is_none() {
            self.turn().await?;
        }
        match self.done {
            Some(WcStatus::Success) => Ok(()),
            _ => Err(Over),
        }
    }

    fn send_rsp(&mut self, rsp: &Rsp<'_>, key: Option<RKey>) -> Result<(), Over> {
        let script = self.target.state.lock().script.clone();
        let mut rsp = *rsp;
        self.outstanding -= 1;
        if script.withhold.is_none() {
            self.credit += 1;
        }
        if let Some(after) = script.withhold {
            rsp.delta = Delta(0);
            self.owed += 1;
            if self.owed >= after {
                let credit = CredReq {
                    delta: Delta(self.owed.cast_signed()),
                    tag: Tag(0xc4ed),
                    ..CredReq::default()
                };
                self.credit += self.owed.cast_signed();
                self.owed = 0;
                self.send_unit(&rsp, key)?;
                return self.send(&credit.unit());
            }
        }
        if script.reports {
            self.target.script(|script| script.reports = false);
            let event = ulp_srp::iu::AerReq {
                tag: Tag(0xae7),
                delta: Delta(script.reported_credit),
                sense: &[0x70, 0, 6],
                ..Default::default()
            };
            let mut unit = [0; 64];
            let len = event.emit(&mut unit).unwrap();
            self.send(&unit[..len])?;
        }
        if script.wrong_tag {
            rsp.tag = Tag(0xdead_beef_0000_0000);
        }
        if script.twice {
            self.send_unit(&rsp, None)?;
        }
        self.send_unit(&rsp, key)
    }

    fn send_unit(&mut self, rsp: &Rsp<'_>, key: Option<RKey>) -> Result<(), Over> {
        let mut unit = [0; 64];
        let mut len = rsp.emit(&mut unit).unwrap();
        if let Some(cut) = self.target.state.lock().script.cut_to {
            len = cut;
        }
        let send = Send::new(1).inline(&unit[..len]).signaled();
        let send = match key {
            Some(key) => send.invalidate(key),
            None => send,
        };
        self.connection.post_send(send).map_err(|_| Over)
    }

    fn send(&mut self, unit: &[u8]) -> Result<(), Over> {
        let send = Send::new(1).inline(unit).signaled();
        self.connection.post_send(send).map_err(|_| Over)
    }
}
