//! Reliable datagrams beside a bare SEND with its receive, and beside Linux's TCP.

use std::net::{IpAddr, SocketAddr};

use futures::executor::block_on;
use hca_sim::{Hca, Loopback};
use ulp_rds::{Config, Node, RdsSocket};
use verbs_cm::Manager;
use verbs_cm::resolver::Fixed;
use verbs_core::sync::Arc;

use super::Stage;
use super::bed::{Bed, DEPTH};
use super::duel::{self, Duel, WAYS};
use super::error::BenchError;
use super::latency;
use super::machine::Patience;
use super::message;
use super::method::{Figures, Method, Subject};
use super::table::{Beside, Row};
use super::tcp;

/// Bytes of the datagrams.
const SIZES: [usize; 2] = [8, 4 << 10];

/// The sockets' port.
const PORT: u16 = 4000;

/// Measures by size: one thread that sends and receives, and half a round trip of two threads.
pub(crate) fn run(stage: &Stage) -> Result<Vec<Row>, BenchError> {
    let method = stage.method.part_of(2 * SIZES.len());
    let mut rows = Vec::new();
    for bytes in SIZES {
        let [bare, datagram] = in_one_thread(method, bytes)?;
        let beside = Beside::new("SEND/RECV", bare, datagram);
        let row = Row::new(stage.bench, "datagram, sent and received", datagram);
        rows.push(row.bytes(bytes).beside(beside));

        let duels = vec![
            latency::sends(bytes)?,
            tcp::streams(bytes)?,
            datagrams(bytes)?,
        ];
        let [bare, tcp, datagram] = duel::measure(method, &stage.machine, duels)?[..] else {
            return Err(BenchError::PeerGone);
        };
        for (what, limit) in [("SEND", bare), ("TCP", tcp)] {
            let row = Row::new(stage.bench, "datagram one way, polled", datagram);
            let beside = Beside::new(what, limit, datagram);
            rows.push(row.bytes(bytes).threads(2).beside(beside));
        }
    }
    Ok(rows)
}

/// Figures of a bare SEND with its receive, and of a datagram.
fn in_one_thread(method: Method, bytes: usize) -> Result<[Figures; 2], BenchError> {
    let place = bytes.max(128);
    let [mut a, mut b] = Bed::new()?.ends(DEPTH, 2 * place)?;
    let ours = a.mr.slice(0..bytes);
    let theirs = b.mr.slice(place..place + bytes);
    let bare = |times| message::sends(&mut a, &mut b, ours, theirs, times);

    let [mut from, mut to] = Peer::pair(bytes)?;
    let datagram = |times| {
        for _ in 0..times {
            from.send()?;
            to.receive()?;
        }
        Ok(())
    };
    let figures = method.measure(&mut [Subject::alone(1, bare), Subject::alone(1, datagram)])?;
    Ok([figures[0], figures[1]])
}

/// Datagrams to and fro; both ends poll.
fn datagrams(bytes: usize) -> Result<Duel<'static>, BenchError> {
    let [mut a, mut b] = Peer::pair(bytes)?;
    Ok(Duel {
        units: WAYS,
        here: Box::new(move |times| {
            for _ in 0..times {
                a.send()?;
                a.receive()?;
            }
            Ok(())
        }),
        there: Box::new(move |times| {
            for _ in 0..times {
                b.receive()?;
                b.send()?;
            }
            Ok(())
        }),
    })
}

/// A socket of a node of its own.
struct Peer {
    socket: RdsSocket,
    payload: Vec<u8>,
    to: SocketAddr,
    _node: Node,
    _manager: Manager,
}

impl Peer {
    /// Two on one loopback link, connected.
    fn pair(bytes: usize) -> Result<[Self; 2], BenchError> {
        block_on(async {
            let link = Loopback::default();
            let addrs = [1, 2].map(|host| IpAddr::from([10, 0, 0, host]));
            let hcas = addrs.map(|_| Hca::on(&link).build());
            let ways = addrs.iter().zip(&hcas);
            let table = ways.fold(Fixed::new(), |table, (addr, hca)| {
                table.way(*addr, hca.gid(), Some(hca.lid()))
            });
            let table = Arc::new(table);
            let [one, other] = hcas;
            let one = Self::open(one, addrs, &table, bytes).await?;
            let [here, there] = addrs;
            let other = Self::open(other, [there, here], &table, bytes).await?;
            for (from, to) in [(&one, &other), (&other, &one)] {
                from.socket.send_to(&from.payload, from.to).await?;
                to.socket.recv().await;
            }
            Ok([one, other])
        })
    }

    async fn open(
        hca: Arc<Hca>,
        [here, there]: [IpAddr; 2],
        table: &Arc<Fixed>,
        bytes: usize,
    ) -> Result<Self, BenchError> {
        let device = hca.open().await;
        let device = Arc::new(device.map_err(BenchError::verb("open a device"))?);
        let manager = Manager::of(&device);
        let resolver = Arc::<Fixed>::clone(table);
        manager.use_resolver(resolver).await?;
        let node = Node::open(&device, Config::new([here])).await?;
        Ok(Self {
            socket: RdsSocket::bind(&node, SocketAddr::new(here, PORT))?,
            payload: vec![0x5a; bytes],
            to: SocketAddr::new(there, PORT),
            _node: node,
            _manager: manager,
        })
    }

    #[inline]
    fn send(&mut self) -> Result<(), BenchError> {
        Ok(self.socket.try_send_to(&self.payload, self.to)?)
    }

    #[inline]
    fn receive(&mut self) -> Result<(), BenchError> {
        let mut patience = Patience::new("a datagram");
        loop {
            if let Some(datagram) = self.socket.try_recv() {
                let (expected, got) = (self.payload.len() as u64, datagram.payload.len() as u64);
                return match expected == got {
                    true => Ok(()),
                    false => Err(BenchError::Payload { expected, got }),
                };
            }
            patience.lose()?;
        }
    }
}
