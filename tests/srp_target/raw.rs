//! An initiator that sends whatever a test requests, right or wrong, and the two ends of a test.

use std::net::IpAddr;
use std::sync::Arc;

use hca_sim::Hca;
use ulp_srp::iu::{
    BufferFormats, Cdb, Cmd, DataBuffer, Detail, LoginAnswer, LoginRejectReason, LoginReq,
    LoginRsp, Lun, MemoryDescriptor, MultiChannel, PortId, Residual, ResponseCode, Rsp, Status,
    Tag, TaskFunction, ToInitiator, TskMgmt,
};
use ulp_srp::lun::{LogicalUnit, MemoryUnit};
use ulp_srp::scsi::{Command, Sense};
use ulp_srp::target::{Target, TargetConfig};
use verbs_cm::{Connection, Error};
use verbs_core::{
    Access, Cq, Device, Guid, Memory, Mr, Pd, QpInit, RKey, Recv, Send, Wc, WcOpcode,
};
use verbs_simulator::Sim;

pub(crate) const AT: &str = "10.0.0.1:5555";

/// The name of the target's port.
pub(crate) const TARGET: PortId = PortId {
    extension: 1,
    guid: Guid(0x0200_00ff_fe00_0001),
};

/// Bytes that an initiator shares with the target.
pub(crate) const DATA: usize = 1 << 20;

const IU: usize = 8320;
const RECEIVES: usize = 160;

/// Opens a device at that address of a simulated network.
pub(crate) fn device(sim: &Sim, host: u8) -> Arc<Device> {
    let port = sim.network().attach(&[IpAddr::from([10, 0, 0, host])]);
    let hca = Hca::over(port).clock(sim.clock().clone()).build();
    Arc::new(hca.open().wait().unwrap())
}

/// A listening target with one unit in memory.
pub(crate) async fn target(sim: &Sim, change: impl FnOnce(&mut TargetConfig)) -> Target {
    let unit = Arc::new(MemoryUnit::new(1 << 20, 512).unwrap());
    target_of(sim, change, unit).await
}

pub(crate) async fn target_of(
    sim: &Sim,
    change: impl FnOnce(&mut TargetConfig),
    unit: Arc<dyn LogicalUnit>,
) -> Target {
    let mut config = TargetConfig::new(TARGET);
    change(&mut config);
    let target = Target::open(device(sim, 1), config).await.unwrap();
    target.export(0, unit).await.unwrap();
    target.listen(AT).await.unwrap();
    target
}

/// The name of an initiator's port.
pub(crate) fn name(number: u64) -> PortId {
    PortId {
        extension: 0,
        guid: Guid(number),
    }
}

/// A login like that of Linux.
pub(crate) fn request(number: u64) -> LoginReq {
    LoginReq {
        tag: Tag(0x10),
        max_iu_len: 8260,
        formats: BufferFormats::DIRECT | BufferFormats::INDIRECT,
        immediate: true,
        immediate_offset: Cmd::IMMEDIATE_OFFSET,
        channels: MultiChannel::SINGLE,
        initiator: name(number),
        target: TARGET,
    }
}

/// What arrived for a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) tag: Tag,
    pub(crate) delta: i32,
    pub(crate) status: Status,
    pub(crate) data_in: Residual,
    pub(crate) data_out: Residual,
    pub(crate) sense: Option<Sense>,
    pub(crate) code: Option<ResponseCode>,
}

impl From<Rsp<'_>> for Answer {
    fn from(rsp: Rsp<'_>) -> Self {
        Self {
            tag: rsp.tag,
            delta: rsp.delta.0,
            status: rsp.status,
            data_in: rsp.data_in,
            data_out: rsp.data_out,
            sense: match rsp.detail {
                Detail::Sense(bytes) => Sense::parse(bytes),
                _ => None,
            },
            code: match rsp.detail {
                Detail::Response(code) => Some(code),
                _ => None,
            },
        }
    }
}

/// An initiator that is logged in.
pub(crate) struct Raw {
    // Dropped in this order.
    connection: Connection,
    cq: Cq,
    rooms: Mr,
    pub(crate) data: Mr,
    _pd: Pd,
    pub(crate) login: LoginRsp,
    /// Units that arrived without a request.
    inbox: Vec<Vec<u8>>,
    next_tag: u64,
}

impl Raw {
    pub(crate) async fn new(device: &Device, number: u64) -> Self {
        let raw = Self::login(device, &request(number)).await;
        raw.expect("the target takes it")
    }

    /// Logs in, through the RDMA connection manager.
    pub(crate) async fn login(device: &Device, req: &LoginReq) -> Result<Self, LoginRejectReason> {
        Self::login_with(device, &req.emit_cm()).await
    }

    pub(crate) async fn login_with(
        device: &Device,
        private_data: &[u8],
    ) -> Result<Self, LoginRejectReason> {
        let (pd, cq, rooms, qp) = Self::objects(device).await;
        let asked = verbs_cm::connect(device, AT, qp).private_data(private_data);
        Self::answered(asked.await, pd, cq, rooms).await
    }

    /// A queue pair whose receives are posted.
    pub(crate) async fn objects(device: &Device) -> (Pd, Cq, Mr, verbs_core::Qp) {
        let pd = device.alloc_pd().await.unwrap();
        let cq = device.create_cq(1024).await.unwrap();
        let memory = Memory::alloc(IU * (RECEIVES + 1)).unwrap();
        let rooms = pd.register(memory, Access::LOCAL_WRITE).await.unwrap();
        let init = QpInit::rc(&cq, &cq).depth(256, RECEIVES as u32);
        let mut qp = pd.create_qp(init).await.unwrap();
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        qp.init(1, access).await.unwrap();
        for at in 0..RECEIVES {
            let room = rooms.slice(at * IU..(at + 1) * IU);
            qp.post_recv(Recv::new(at as u64).into(room)).unwrap();
        }
        (pd, cq, rooms, qp)
    }

    pub(crate) async fn answered(
        connected: Result<Connection, verbs_cm::NotConnected>,
        pd: Pd,
        cq: Cq,
        rooms: Mr,
    ) -> Result<Self, LoginRejectReason> {
        let connection = match connected {
            Ok(connection) => connection,
            Err(refused) => match Error::from(refused) {
                Error::Rejected(rejection) => {
                    return match LoginAnswer::parse(&rejection.private_data) {
                        Ok(LoginAnswer::Rej(rej)) => Err(rej.reason),
                        other => panic!("{other:?}"),
                    };
                }
                error => panic!("{error}"),
            },
        };
        let Ok(LoginAnswer::Rsp(login)) = LoginAnswer::parse(connection.private_data()) else {
            panic!("{:?}", connection.private_data());
        };
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let memory = Memory::alloc(DATA).unwrap();
        Ok(Self {
            connection,
            cq,
            rooms,
            data: pd.register(memory, access).await.unwrap(),
            _pd: pd,
            login,
            inbox: Vec::new(),
            next_tag: 0x100,
        })
    }

    /// Part of the memory that is shared with the target.
    pub(crate) fn piece(&self, offset: usize, len: u32) -> MemoryDescriptor {
        let remote = self.data.remote(offset);
        MemoryDescriptor {
            addr: remote.addr,
            rkey: remote.rkey,
            len,
        }
    }

    /// Sends a unit, whatever it is.
    pub(crate) fn send(&mut self, unit: &[u8]) {
        let place = RECEIVES * IU;
        self.rooms.write(place, unit).unwrap();
        let piece = self.rooms.slice(place..place + unit.len());
        // The connection may have ended by now, as some tests intend.
        let _posted = self
            .connection
            .post_send(Send::new(u64::MAX).from(piece).signaled());
    }

    /// A number for the next command.
    pub(crate) fn tag(&mut self) -> Tag {
        self.next_tag += 1;
        Tag(self.next_tag)
    }

    pub(crate) fn send_cmd(&mut self, cmd: &Cmd<'_>) {
        let mut bytes = [0; 1024];
        let len = cmd.emit(&mut bytes).unwrap();
        self.send(&bytes[..len]);
    }

    /// Sends a command. Returns its tag.
    pub(crate) fn begin(
        &mut self,
        command: &Command,
        data_in: DataBuffer<'_>,
        data_out: DataBuffer<'_>,
    ) -> Tag {
        let tag = self.tag();
        let cdb = command.emit();
        self.send_cmd(&Cmd {
            tag,
            cdb: Cdb::new(&cdb).unwrap(),
            data_in,
            data_out,
            ..Cmd::default()
        });
        tag
    }

    /// Sends a command, and waits for its answer.
    pub(crate) async fn ask(
        &mut self,
        command: &Command,
        data_in: DataBuffer<'_>,
        data_out: DataBuffer<'_>,
    ) -> Answer {
        let tag = self.begin(command, data_in, data_out);
        self.answer(tag).await
    }

    /// Sends a command without data to that unit. Returns its tag.
    pub(crate) fn begin_on(&mut self, unit: u16, command: &Command) -> Tag {
        let tag = self.tag();
        let cdb = command.emit();
        self.send_cmd(&Cmd {
            tag,
            lun: Lun::new(unit).unwrap(),
            cdb: Cdb::new(&cdb).unwrap(),
            ..Cmd::default()
        });
        tag
    }

    /// Takes all unit attentions of a unit.
    pub(crate) async fn ready(&mut self, unit: u16) {
        loop {
            let tag = self.begin_on(unit, &Command::TestUnitReady);
            if self.answer(tag).await.status == Status::GOOD {
                return;
            }
        }
    }

    /// Takes the unit attentions of the unit first.
    pub(crate) async fn settle(&mut self) {
        let news = self
            .ask(&Command::TestUnitReady, DataBuffer::None, DataBuffer::None)
            .await;
        let sense = news.sense.expect("it has been switched on");
        assert_eq!(sense.code, ulp_srp::scsi::Code::POWER_ON);
    }

    /// Waits for the answer to that request.
    pub(crate) async fn answer(&mut self, tag: Tag) -> Answer {
        let answer = self.try_answer(tag).await;
        answer.expect("the channel is there")
    }

    /// As [`Raw::answer`]; `None` if the channel ends before.
    pub(crate) async fn try_answer(&mut self, tag: Tag) -> Option<Answer> {
        let is_it = |unit: &Vec<u8>| match ToInitiator::parse(unit) {
            Ok(ToInitiator::Rsp(rsp)) => rsp.tag == tag,
            other => panic!("{other:?}"),
        };
        if let Some(at) = self.inbox.iter().position(is_it) {
            return parse(&self.inbox.remove(at));
        }
        loop {
            let unit = self.next().await?;
            match ToInitiator::parse(&unit) {
                Ok(ToInitiator::Rsp(rsp)) if rsp.tag == tag => return parse(&unit),
                Ok(ToInitiator::Rsp(_)) => self.inbox.push(unit),
                Ok(ToInitiator::Logout(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// The next unit; `None` when the channel has ended.
    pub(crate) async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            let mut wcs = [Wc::default(); 1];
            let polled = self.cq.poll(&mut wcs).len();
            if polled == 0 {
                self.cq.ready().await.expect("the device is there");
                continue;
            }
            let [wc] = wcs;
            if !wc.is_ok() {
                return None;
            }
            if wc.opcode == WcOpcode::Recv {
                let place = wc.wr_id as usize * IU;
                let mut unit = vec![0; wc.byte_len as usize];
                self.rooms.read(place, &mut unit).unwrap();
                let room = self.rooms.slice(place..place + IU);
                let recv = Recv::new(wc.wr_id).into(room);
                let _over = self.connection.post_recv(recv);
                return Some(unit);
            }
        }
    }

    /// Whether the target ends the channel, after anything that it still sends.
    pub(crate) async fn is_ended(&mut self) -> bool {
        while self.next().await.is_some() {}
        true
    }

    /// Sends a task management request. Returns its tag.
    pub(crate) fn manage(&mut self, function: TaskFunction, task: Tag) -> Tag {
        let tag = self.tag();
        let unit = TskMgmt {
            tag,
            lun: Lun(0),
            function,
            task,
            ..TskMgmt::default()
        };
        self.send(&unit.unit());
        tag
    }

    /// A key that was never given out.
    pub(crate) fn forged(&self, len: u32) -> MemoryDescriptor {
        let rkey = RKey::new(self.data.rkey().value() ^ 0x00ff_0000);
        MemoryDescriptor {
            rkey,
            ..self.piece(0, len)
        }
    }
}

fn parse(unit: &[u8]) -> Option<Answer> {
    match ToInitiator::parse(unit) {
        Ok(ToInitiator::Rsp(rsp)) => Some(rsp.into()),
        _ => None,
    }
}

/// Runs a test in virtual time, on a simulation with that seed.
pub(crate) fn run(seed: u64, test: impl AsyncFnOnce(&Sim)) {
    let sim = Sim::new(seed);
    let done = sim.run(test(&sim));
    done.unwrap();
}
