//! What a program does: it listens, connects to others, and sends messages that the receiver knows in advance.

use std::future::{Future, IntoFuture as _};
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use verbs_cm::{ConnParam, Connection, Manager};
use verbs_core::mad::TimeCode;
use verbs_core::sync::Arc;
use verbs_core::{Access, Cq, Device, Error, Memory, Mr, Pd, Qp, QpInit, Recv, Send, Wc, WcOpcode};

use super::flow::ELSEWHERE;
use super::place::Program;
use super::port::Process;
use super::world::World;

/// Bytes of a message at most.
pub(super) const MESSAGE: usize = 6000;
/// Receives that are posted.
const DEPTH: usize = 4;
/// The first port number of programs; each slot has one.
const PORT: u16 = 7000;
/// How long a program waits before it asks again.
const AGAIN: Duration = Duration::from_micros(300);
/// How long it waits for an answer.
const ANSWERED: Duration = Duration::from_millis(3);

/// Where a slot's program listens.
pub(super) fn address_of(ip: IpAddr, slot: usize) -> SocketAddr {
    SocketAddr::new(ip, PORT + slot as u16)
}

/// A node of the run with a device: a program of the host, or the host elsewhere. Dropped in this order.
pub(super) struct Bundle {
    manager: Manager,
    pd: Pd,
    device: Device,
    number: Program,
    /// `None` for the host elsewhere, which does not die.
    process: Option<Arc<Process>>,
}

/// One end of a connection. Dropped in this order.
struct End {
    cq: Cq,
    mr: Mr,
}

impl Bundle {
    pub(super) async fn new(
        device: Device,
        number: Program,
        process: Option<Arc<Process>>,
    ) -> Result<Self, Error> {
        Ok(Self {
            manager: Manager::of(&device),
            pd: device.alloc_pd().await?,
            device,
            number,
            process,
        })
    }

    pub(super) fn device(&self) -> (&Device, &Pd) {
        (&self.device, &self.pd)
    }

    pub(super) fn number(&self) -> Program {
        self.number
    }

    pub(super) fn process(&self) -> Option<&Arc<Process>> {
        self.process.as_ref()
    }

    async fn end(&self) -> Result<(End, Qp), Error> {
        let cq = self.device.create_cq(4 * DEPTH as u32).await?;
        let memory = Memory::alloc(2 * DEPTH * MESSAGE)?;
        let mr = self.pd.register(memory, Access::LOCAL_WRITE).await?;
        let qp = self.pd.create_qp(QpInit::rc(&cq, &cq)).await?;
        Ok((End { cq, mr }, qp))
    }
}

/// Patient for as long as a daemon may be away.
fn param() -> ConnParam {
    ConnParam {
        response_timeout: TimeCode::new(10),
        ..ConnParam::default()
    }
}

/// The bytes of a message.
pub(super) fn text(flow: u32, number: u64) -> Vec<u8> {
    let mixed = (u64::from(flow) << 32 | number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let len = 16 + (mixed >> 17) as usize % (MESSAGE - 16);
    let mut bytes = vec![0; len];
    for (n, chunk) in (0_u64..).zip(bytes.chunks_mut(8)) {
        let word = mixed.wrapping_add(n).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
    bytes
}

/// Runs as long as the program lives.
pub(super) async fn while_alive<F: Future>(
    process: Option<&Process>,
    future: F,
) -> Option<F::Output> {
    let mut future = pin!(future);
    std::future::poll_fn(|cx| {
        if process.is_some_and(|process| process.poll_dead(cx)) {
            return Poll::Ready(None);
        }
        future.as_mut().poll(cx).map(Some)
    })
    .await
}

/// Accepts connections, for as long as the program lives.
pub(super) async fn serve(world: Rc<World>, bundle: Rc<Bundle>, at: SocketAddr) {
    let mut listener = loop {
        // A port number is free when the daemon has noticed the end of the last program.
        match bundle.manager.listen(at).backlog(8).await {
            Ok(listener) => break listener,
            Err(_) => world.sim.sleep(AGAIN).await,
        }
    };
    loop {
        let request = listener.accept().await;
        let flow = request.private_data().first_chunk().copied();
        let Some(flow) = flow.map(u32::from_be_bytes) else {
            continue;
        };
        let Ok((end, qp)) = bundle.end().await else {
            return;
        };
        let accepting = request.accept(qp).param(param()).into_future();
        let (inner, kept) = (Rc::clone(&world), Rc::clone(&bundle));
        world.sim.spawn(async move {
            let process = kept.process.as_deref();
            let receives = async {
                if let Ok(connection) = accepting.await {
                    receive(&inner, flow, connection, end).await;
                }
            };
            while_alive(process, receives).await;
        });
    }
}

/// Receives what the other end sends, until the connection is over.
async fn receive(world: &Rc<World>, flow: u32, mut connection: Connection, mut end: End) {
    world.established(flow, 1);
    let closed = connection.closed();
    let work = async {
        for slot in 0..DEPTH {
            let into = end.mr.slice(slot * MESSAGE..(slot + 1) * MESSAGE);
            if connection
                .post_recv(Recv::new(slot as u64).into(into))
                .is_err()
            {
                return;
            }
        }
        let mut next = 0;
        while end.cq.ready().await.is_ok() {
            let mut out = [Wc::default(); DEPTH];
            for wc in end.cq.poll(&mut out).to_vec() {
                if !wc.is_ok() {
                    return;
                }
                let slot = wc.wr_id as usize % DEPTH;
                let mut bytes = vec![0; wc.byte_len as usize];
                let read = end.mr.read(slot * MESSAGE, &mut bytes);
                if read.is_err() || bytes != text(flow, next) {
                    let what = format!("connection {flow}: message {next} is not what was sent");
                    world.place.violated(world.sim.now(), what);
                }
                next += 1;
                world.received(flow, next);
                let into = end.mr.slice(slot * MESSAGE..(slot + 1) * MESSAGE);
                if connection
                    .post_recv(Recv::new(wc.wr_id).into(into))
                    .is_err()
                {
                    return;
                }
            }
        }
    };
    first(work, closed.into_future()).await;
    world.over(flow, 1);
    let _ = world
        .sim
        .timeout(AGAIN, connection.close().into_future())
        .await;
}

/// Connects to others and sends, for as long as the program lives.
pub(super) async fn ask(world: Rc<World>, bundle: Rc<Bundle>) {
    let mut draw = world.sim.draw();
    loop {
        let pause = draw.duration(Duration::ZERO..=2 * AGAIN);
        world.sim.sleep(pause).await;
        let Some((to, peer)) = world.peer(&mut draw, bundle.number) else {
            continue;
        };
        let count = draw.within(1..=40);
        if let Some(sends) = connect(&world, &bundle, to, peer).await {
            let stays = draw.below(3) > 0;
            let inner = (Rc::clone(&world), Rc::clone(&bundle));
            world.sim.spawn(async move {
                let process = inner.1.process.as_deref();
                while_alive(process, sends.run(&inner.0, count, stays)).await;
            });
        }
        if world.is_over() {
            return;
        }
    }
}

/// The sending end of a connection.
pub(super) struct Sends {
    flow: u32,
    connection: Connection,
    end: End,
}

/// Connects; `None` if the other end, or a daemon on the way, has ended.
pub(super) async fn connect(
    world: &Rc<World>,
    bundle: &Bundle,
    to: SocketAddr,
    peer: Program,
) -> Option<Sends> {
    let (end, qp) = bundle.end().await.ok()?;
    let ends = [bundle.number, peer];
    let flow = world.flows.borrow_mut().begin(ends, world.place.daemon());
    let said = flow.to_be_bytes();
    let connecting = bundle.manager.connect(to, qp).param(param());
    let asked = connecting.private_data(&said).into_future();
    // A request that is lost with a daemon is repeated after a second: sooner, a program asks again.
    let connection = world.sim.timeout(ANSWERED, asked).await?.ok()?;
    world.established(flow, 0);
    Some(Sends {
        flow,
        connection,
        end,
    })
}

impl Sends {
    /// Sends so many messages. Returns how many were confirmed. Ends the connection afterwards, unless it stays until the
    /// other end does.
    pub(super) async fn run(mut self, world: &Rc<World>, count: u64, stays: bool) -> u64 {
        let closed = self.connection.closed();
        let flow = self.flow;
        let mut sent = 0;
        let work = async {
            // Nothing comes, and what becomes of it says that the connection is over.
            let into = self.end.mr.slice(0..MESSAGE);
            if self
                .connection
                .post_recv(Recv::new(u64::MAX).into(into))
                .is_err()
            {
                return;
            }
            while sent < count {
                let bytes = text(flow, sent);
                let at = MESSAGE * (1 + sent as usize % DEPTH);
                let _ = self.end.mr.write(at, &bytes);
                let from = self.end.mr.slice(at..at + bytes.len());
                let send = Send::new(sent).from(from).signaled();
                if self.connection.post_send(send).is_err() || !self.end.is_done().await {
                    return;
                }
                sent += 1;
                if let Some(flow) = world.flows.borrow_mut().get(flow) {
                    flow.sent = sent;
                }
            }
            if stays {
                self.end.is_done().await;
            }
        };
        first(work, closed.into_future()).await;
        world.over(flow, 0);
        let close = self.connection.close();
        let _ = world.sim.timeout(AGAIN, close.into_future()).await;
        sent
    }
}

impl End {
    /// Waits for a completion. False if the connection is over.
    async fn is_done(&mut self) -> bool {
        if self.cq.ready().await.is_err() {
            return false;
        }
        let mut out = [Wc::default(); 1];
        let done = self.cq.poll(&mut out).to_vec();
        done.iter()
            .all(|wc| wc.is_ok() && wc.opcode != WcOpcode::Recv)
    }
}

/// Whichever ends first.
async fn first(one: impl Future, other: impl Future) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    std::future::poll_fn(|cx| {
        let is_done = one.as_mut().poll(cx).is_ready() || other.as_mut().poll(cx).is_ready();
        if is_done {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

/// Whether a program number is one of the host's.
pub(super) fn is_local(number: Program) -> bool {
    number != ELSEWHERE
}
