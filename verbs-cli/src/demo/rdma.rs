//! The file by RDMA: a connection that is made by IP address, WRITEs into the other node's memory, and a
//! message that all is there.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use futures::future::try_join;
use verbs_core::{Access, Cq, Memory, Mr, Qp, QpInit, RKey, Recv, Remote, Send, Wc, Write};

use crate::demo::error::DemoError;
use crate::demo::file::Payload;
use crate::demo::node::Node;

/// The service.
const PORT: u16 = 7174;
/// Bytes of a WRITE, and how many are outstanding at a time.
const CHUNK: usize = 1 << 20;
const WINDOW: usize = 8;
/// What the receiver says when it accepts: address and key of its memory.
const WELCOME: usize = 12;

/// How long it took.
pub(crate) struct Copied {
    /// From asking for the connection until the receiver knew that all was there.
    pub(crate) took: Duration,
    /// Until there was a connection.
    pub(crate) connected: Duration,
}

/// Memory and a queue pair.
struct Ends {
    mr: Mr,
    cq: Cq,
    qp: Qp,
}

impl Ends {
    async fn new(node: &Node, bytes: usize, access: Access) -> Result<Self, DemoError> {
        let pd = node.device.alloc_pd().await?;
        let cq = node.device.create_cq(64).await?;
        let mr = pd.register(Memory::alloc(bytes)?, access).await?;
        let qp = pd.create_qp(QpInit::rc(&cq, &cq).depth(32, 4)).await?;
        Ok(Self { mr, cq, qp })
    }
}

/// Sends the file from one node to the other.
pub(crate) async fn copy(a: &Node, b: &Node, payload: &Payload) -> Result<Copied, DemoError> {
    let source = Ends::new(a, payload.len(), Access::LOCAL_WRITE).await?;
    source.mr.write(0, payload.bytes())?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let destination = Ends::new(b, payload.len(), access).await?;
    let at = SocketAddr::new(IpAddr::from(b.addr), PORT);
    let mut listener = b.manager.listen(at).await?;
    let begun = Instant::now();
    let receiving = async {
        let Ends { mr, mut cq, mut qp } = destination;
        let request = listener.accept().await;
        qp.init(1, access).await?;
        qp.post_recv(Recv::new(0))?;
        let Remote { addr, rkey } = mr.remote(0);
        let welcome = [&addr.to_be_bytes()[..], &rkey.value().to_be_bytes()].concat();
        let accepting = request.accept(qp).private_data(&welcome);
        let connection = accepting.await.map_err(verbs_cm::Error::from)?;
        completed(&mut cq, 1).await?;
        let took = begun.elapsed();
        let mut arrived = vec![0; payload.len()];
        mr.read(0, &mut arrived)?;
        payload.check(&arrived, "RDMA")?;
        // The sender ends it; whatever it says, all is here.
        let _over = connection.closed().await;
        Ok::<_, DemoError>(took)
    };
    let sending = async {
        let connecting = a.manager.connect(at, source.qp);
        let mut connection = connecting.await.map_err(verbs_cm::Error::from)?;
        let connected = begun.elapsed();
        let remote = welcome(connection.private_data());
        let remote = remote.ok_or(DemoError::TimedOut("the receiver's address"))?;
        let mut cq = source.cq;
        let mut waiting = 0;
        for start in (0..payload.len()).step_by(CHUNK) {
            if waiting == WINDOW {
                completed(&mut cq, 1).await?;
                waiting -= 1;
            }
            let end = payload.len().min(start + CHUNK);
            let to = Remote {
                addr: remote.addr + start as u64,
                ..remote
            };
            let write = Write::new(1, to)
                .from(source.mr.slice(start..end))
                .signaled();
            connection.post_send(write)?;
            waiting += 1;
        }
        completed(&mut cq, waiting).await?;
        connection.post_send(Send::new(2).signaled())?;
        completed(&mut cq, 1).await?;
        connection.close().await?;
        Ok(connected)
    };
    let (took, connected) = try_join(receiving, sending).await?;
    Ok(Copied { took, connected })
}

/// Waits for that many completions.
async fn completed(cq: &mut Cq, mut count: usize) -> Result<(), DemoError> {
    while count > 0 {
        cq.ready().await?;
        for wc in cq.poll(&mut [Wc::default(); 1]).iter() {
            if !wc.is_ok() {
                return Err(DemoError::Completion(wc.status));
            }
            count -= 1;
        }
    }
    Ok(())
}

/// Where the receiver's memory is.
fn welcome(data: &[u8]) -> Option<Remote> {
    let (addr, rest) = data.get(..WELCOME)?.split_first_chunk()?;
    Some(Remote {
        addr: u64::from_be_bytes(*addr),
        rkey: RKey::new(u32::from_be_bytes(rest.try_into().ok()?)),
    })
}
