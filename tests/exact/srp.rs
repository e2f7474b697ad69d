//! A command of the SRP initiator allocates nothing and never yields the processor, from the call to the routine: fast
//! registration, the command, RDMA by the target, its answer, the invalidate.
//!
//! The target does as little as possible: it answers each command by one RDMA WRITE and a response, in its completion
//! queue's handler, without an allocation of its own.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use futures::executor::block_on;
use futures::future::join;
use hca_sim::{Hca, Loopback};
use ulp_srp::initiator::{
    Adapter, Command, Data, Initiator, Mechanism, Options, Outcome, Session, transfer_cdb,
};
use ulp_srp::iu::{
    BufferFormats, Cdb, DataBuffer, Delta, LoginReq, LoginRsp, Lun, Rsp, TaskAttribute, ToTarget,
};
use verbs_cm::resolver::Fixed;
use verbs_cm::{Connection, Listener, Manager, listen};
use verbs_core::sync::Mutex;
use verbs_core::{
    Access, Arm, Armed, Cq, Device, Extent, Memory, Mr, Qp, QpInit, Recv, Send, Wc, WcOpcode, Write,
};

use crate::{allocator, fewest_switches};

const AT: &str = "10.0.0.2:5555";
const IU_LEN: usize = 512;
const RECVS: usize = 16;
const PAGES: usize = 16;
const TIMES: u64 = 200;

/// The minimal target.
struct Peer {
    connection: Option<Connection>,
    cq: Option<Cq>,
    units: Mr,
    data: Mr,
}

impl Peer {
    fn turn(&mut self) {
        let (Some(connection), Some(cq)) = (&mut self.connection, &mut self.cq) else {
            return;
        };
        let mut out = [Wc::default(); 4];
        loop {
            let count = cq.poll(&mut out).len();
            for wc in &out[..count] {
                // At the end of the session everything is flushed.
                if wc.is_ok() && wc.opcode == WcOpcode::Recv {
                    Self::answer(connection, &self.units, &self.data, wc.wr_id as usize);
                }
            }
            if count == 0 && cq.arm(Arm::Next) == Armed::Empty {
                return;
            }
        }
    }

    fn answer(connection: &mut Connection, units: &Mr, data: &Mr, index: usize) {
        let mut unit = [0; IU_LEN];
        units.read(index * IU_LEN, &mut unit).expect("in range");
        let again = Recv::new(index as u64).into(units.slice(index * IU_LEN..(index + 1) * IU_LEN));
        connection.post_recv(again).expect("there is room");
        let Ok(ToTarget::Cmd(cmd)) = ToTarget::parse(&unit) else {
            return;
        };
        let DataBuffer::Direct(piece) = cmd.data_in else {
            panic!("one descriptor, not {:?}", cmd.data_in);
        };
        let place = data.slice(0..piece.len as usize);
        let write = Write::new(100, piece.remote(0)).from(place).signaled();
        connection.post_send(write).expect("there is room");
        let rsp = Rsp {
            delta: Delta(1),
            tag: cmd.tag,
            ..Rsp::default()
        };
        let mut unit = [0; 64];
        let len = rsp.emit(&mut unit).expect("it fits");
        let send = Send::new(101).inline(&unit[..len]).signaled();
        connection.post_send(send).expect("there is room");
    }
}

/// Counts the commands that have ended.
#[derive(Default)]
struct Counter(AtomicU64);

impl Adapter for Counter {
    fn ended(&self, _number: u64, outcome: Outcome) {
        assert!(outcome.expect("answered").is_good());
        self.0.fetch_add(1, SeqCst);
    }
}

struct Bed {
    session: Session,
    _peer: Arc<Mutex<Peer>>,
    _devices: [Arc<Device>; 2],
    _managers: [Manager; 2],
}

/// Accepts an initiator's login.
async fn serve(listener: &mut Listener, qp: Qp) -> Connection {
    let request = listener.accept().await;
    let login = LoginReq::parse_cm(request.private_data()).expect("a login");
    let rsp = LoginRsp {
        delta: Delta(10),
        tag: login.tag,
        max_initiator_iu_len: IU_LEN as u32,
        max_target_iu_len: 64,
        formats: BufferFormats::DIRECT,
        ..LoginRsp::default()
    };
    let accepted = request.accept(qp).private_data(&rsp.unit()).await;
    accepted.expect("accepted")
}

async fn bed() -> Bed {
    let link = Loopback::with_seed(3);
    let hcas = [(); 2].map(|()| Hca::on(&link).build());
    let table = hcas
        .iter()
        .zip(1..)
        .fold(Fixed::new(), |table, (hca, number)| {
            table.way(IpAddr::from([10, 0, 0, number]), hca.gid(), Some(hca.lid()))
        });
    let table = Arc::new(table);
    let device = Arc::new(hcas[0].open().await.expect("a device"));
    let far = Arc::new(hcas[1].open().await.expect("a device"));
    let managers = [&device, &far].map(|device| Manager::of(device));
    for manager in &managers {
        let table = Arc::<Fixed>::clone(&table);
        manager.use_resolver(table).await.expect("a manager");
    }
    let pd = far.alloc_pd().await.expect("a PD");
    let memory = |len| Memory::alloc(len).expect("memory");
    let units = pd
        .register(memory(RECVS * IU_LEN), Access::LOCAL_WRITE)
        .await;
    let data = pd.register(memory(PAGES * 4096), Access::LOCAL_WRITE).await;
    let peer = Arc::new(Mutex::new(Peer {
        connection: None,
        cq: None,
        units: units.expect("registered"),
        data: data.expect("registered"),
    }));
    let turns = Arc::clone(&peer);
    let cq = far.create_cq(64).handler(move || turns.lock().turn()).await;
    let cq = cq.expect("a CQ");
    let init = QpInit::rc(&cq, &cq).depth(64, RECVS as u32).inline(64);
    let mut qp = pd.create_qp(init).await.expect("a QP");
    qp.init(1, Access::empty()).await.expect("INIT");
    for index in 0..RECVS {
        let place = peer
            .lock()
            .units
            .slice(index * IU_LEN..(index + 1) * IU_LEN);
        qp.post_recv(Recv::new(index as u64).into(place))
            .expect("there is room");
    }
    let mut listener = listen(&far, AT).await.expect("a listener");
    let options = Options {
        mechanism: Mechanism::FastReg,
        queue_depth: 8,
        ..Options::default()
    };
    let initiator = Initiator::new(&device, options);
    let login = initiator.login(AT.parse().expect("an address"));
    let (session, connection) = join(login, serve(&mut listener, qp)).await;
    let mut locked = peer.lock();
    (locked.connection, locked.cq) = (Some(connection), Some(cq));
    locked.turn();
    drop(locked);
    Bed {
        session: session.expect("a session"),
        _peer: peer,
        _devices: [device, far],
        _managers: managers,
    }
}

#[test]
fn a_command_allocates_nothing_and_waits_for_nobody() {
    let bed = block_on(bed());
    let memory = Arc::new(Memory::alloc(2 * PAGES * 4096).expect("memory"));
    let page = |number| Extent {
        memory: &memory,
        offset: 2 * (PAGES - 1 - number) * 4096,
        len: 4096,
    };
    let list: Vec<_> = (0..PAGES).map(page).collect();
    let cdb = transfer_cdb(false, 0, 128);
    let command = Command {
        cdb: Cdb::new(&cdb).expect("a CDB"),
        lun: Lun(0),
        attribute: TaskAttribute::SIMPLE,
        data: Data::In(&list),
    };
    let counter = Arc::new(Counter::default());
    let adapter: Arc<dyn Adapter> = Arc::<Counter>::clone(&counter);
    let round = |number| {
        let begun = bed.session.command_for(&adapter, number, &command);
        begun.expect("there is room");
    };
    (0..20).for_each(round);
    assert_eq!(
        counter.0.load(SeqCst),
        20,
        "each has ended when its call returns"
    );
    let (begun, mut allocations) = (allocator::calls(), 0);
    let switches = fewest_switches(|| {
        let before = allocator::calls();
        (0..TIMES).for_each(round);
        allocations += allocator::calls() - before;
    });
    assert_eq!(allocations, 0, "of {TIMES} commands, three times");
    assert_eq!(switches, 0);
    // Reading the count of switches allocates.
    assert!(allocator::calls() > begun, "the allocator counts");
    assert_eq!(counter.0.load(SeqCst), 20 + 3 * TIMES);
}
