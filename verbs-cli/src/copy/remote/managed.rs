//! Messages over a queue pair that the connection manager has connected: one SEND each.
//!
//! The peer's end of the connection flushes the receives here, so that it is noticed like the end of a
//! stream. A peer that is killed says nothing; only a sender finds out.

use std::future::{IntoFuture, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use futures::future::{AbortRegistration, Abortable, Aborted};
use verbs_cm::{ConnectRequest, Connection, RecvHalf, SendHalf};
use verbs_core::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};
use verbs_core::sync::{Arc, AtomicWaker, Mutex};
use verbs_core::{
    Access, Cq, Device, Error, Gid, Memory, Mr, Pd, Qp, QpInit, Recv, Send, Wc, WcStatus,
};

use super::message::{BODY_BYTES_MAX, HEADER_LEN};
use crate::connecting::ConnectArgs;
use crate::ending::within;
use crate::net::{NetError, PATIENCE};
use crate::places::HangUp;
use crate::wire::PORT;

/// Receives that are posted. Either end says little before it hears something.
const RECEIVES: u32 = 4;

/// Bytes of a message at most.
const MESSAGE_MAX: usize = HEADER_LEN + BODY_BYTES_MAX;

/// How long an end that leaves waits for the peer to know.
const PARTING: Duration = Duration::from_millis(500);

/// One end of such a connection. Clones are the same end; when the last goes, the connection does.
#[derive(Clone, Debug)]
pub(crate) struct Managed {
    mouth: Arc<Mutex<Mouth>>,
    ears: Arc<Mutex<Ears>>,
    deaf: Arc<Deaf>,
    peer: SocketAddr,
    /// Of a client.
    peer_gid: Option<Gid>,
    local: SocketAddr,
}

#[derive(Debug)]
struct Mouth {
    half: SendHalf,
    cq: Cq,
    /// One message.
    mr: Mr,
    peer: SocketAddr,
    _pd: Arc<Pd>,
}

#[derive(Debug)]
struct Ears {
    half: RecvHalf,
    cq: Cq,
    /// A message for each receive.
    mr: Mr,
    peer: SocketAddr,
    _pd: Arc<Pd>,
}

/// Whether nothing is to be heard any longer.
#[derive(Debug, Default)]
struct Deaf {
    is: AtomicBool,
    waker: AtomicWaker,
}

impl Deaf {
    fn be(&self) {
        self.is.store(true, Release);
        self.waker.wake();
    }
}

/// The objects of an end before it is connected.
struct Objects {
    pd: Arc<Pd>,
    cqs: [Cq; 2],
    mrs: [Mr; 2],
    qp: Qp,
}

impl Objects {
    async fn make(device: &Device) -> Result<Self, NetError> {
        let failed = |doing| move |error| NetError::Verb { doing, error };
        let pd = device.alloc_pd().await;
        let pd = pd.map_err(failed("allocate a protection domain"))?;
        let cq = |depth| async move {
            let cq = device.create_cq(depth).await;
            cq.map_err(failed("create a completion queue"))
        };
        let cqs = [cq(2).await?, cq(RECEIVES).await?];
        let mr = |messages: usize| {
            let (pd, doing) = (&pd, "register the message buffers");
            async move {
                let memory = Memory::alloc(messages * MESSAGE_MAX).map_err(failed(doing))?;
                let mr = pd.register(memory, Access::LOCAL_WRITE).await;
                mr.map_err(failed(doing))
            }
        };
        let mrs = [mr(1).await?, mr(RECEIVES as usize).await?];
        let init = QpInit::rc(&cqs[0], &cqs[1]).depth(2, RECEIVES);
        let qp = pd.create_qp(init).await;
        let mut qp = qp.map_err(failed("create a queue pair"))?;
        let ready = qp.init(PORT, Access::empty()).await;
        ready.map_err(failed("initialise the queue pair"))?;
        for piece in 0..u64::from(RECEIVES) {
            let posted = qp.post_recv(receive(&mrs[1], piece));
            posted.map_err(|_| failed("post a receive")(Error::NoMemory))?;
        }
        Ok(Self {
            pd: Arc::new(pd),
            cqs,
            mrs,
            qp,
        })
    }

    fn connected(self, with: impl FnOnce(Qp) -> Result<Connection, NetError>) -> Parted {
        let Self { pd, cqs, mrs, qp } = self;
        let connection = with(qp)?;
        Ok((pd, cqs, mrs, connection))
    }
}

type Parted = Result<(Arc<Pd>, [Cq; 2], [Mr; 2], Connection), NetError>;

impl Managed {
    /// Connects to a service in time. Blocks.
    pub(crate) fn open(
        device: &Device,
        host: &str,
        peer: SocketAddr,
        local: SocketAddr,
        connect: ConnectArgs,
    ) -> Result<Self, NetError> {
        let failed = |error| NetError::Manager {
            host: host.into(),
            port: peer.port(),
            error: Box::new(error),
        };
        let objects = block_on(Objects::make(device))?;
        let parted = objects.connected(|qp| {
            let connecting = verbs_cm::connect(device, peer, qp).timeout(connect.connect_timeout);
            let connecting = connect.await_connection(device, peer, connecting.into_future());
            block_on(connecting).map_err(|error| failed(error.into()))
        });
        Ok(Self::new(parted?, peer, None, local))
    }

    /// Accepts a client, unless that is given up. Blocks, for [`PATIENCE`] at most.
    pub(crate) fn accept(
        device: &Device,
        request: ConnectRequest,
        local: SocketAddr,
        giving_up: AbortRegistration,
    ) -> Result<Self, NetError> {
        let (peer, peer_gid) = (request.peer_addr(), request.peer_gid());
        let broken = |error: verbs_cm::Error| NetError::Broken {
            peer,
            error: io::Error::other(error),
        };
        let objects = block_on(Objects::make(device))?;
        let local = match request.local_addr() {
            Some(address) => (address, local.port()).into(),
            None => local,
        };
        let parted = objects.connected(|qp| {
            let accepting = request.accept(qp).into_future();
            let accepting = Abortable::new(accepting, giving_up);
            match within(Instant::now() + PATIENCE, accepting) {
                Some(Ok(connected)) => connected.map_err(|error| broken(error.into())),
                Some(Err(Aborted)) => Err(broken(verbs_cm::Error::Cancelled)),
                None => Err(broken(verbs_cm::Error::TimedOut(peer))),
            }
        });
        Ok(Self::new(parted?, peer, peer_gid, local))
    }

    fn new(
        (pd, cqs, mrs, connection): (Arc<Pd>, [Cq; 2], [Mr; 2], Connection),
        peer: SocketAddr,
        peer_gid: Option<Gid>,
        local: SocketAddr,
    ) -> Self {
        let ((send, recv), [send_cq, recv_cq], [sent, received]) = (connection.split(), cqs, mrs);
        let mouth = Mouth {
            half: send,
            cq: send_cq,
            mr: sent,
            peer,
            _pd: Arc::clone(&pd),
        };
        let ears = Ears {
            half: recv,
            cq: recv_cq,
            mr: received,
            peer,
            _pd: pd,
        };
        Self {
            mouth: Arc::new(Mutex::new(mouth)),
            ears: Arc::new(Mutex::new(ears)),
            deaf: Arc::default(),
            peer,
            peer_gid,
            local,
        }
    }

    /// Where packets to a client go.
    pub(crate) fn peer_gid(&self) -> Option<Gid> {
        self.peer_gid
    }

    /// What tells the listening thread that the connection has ended; it keeps no connection.
    pub(super) fn hang_up(&self) -> HangUp {
        let deaf = Arc::clone(&self.deaf);
        Arc::new(move || deaf.be())
    }

    /// The other end.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// This end.
    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Sends a message. Blocks until the peer has it, for [`PATIENCE`] at most.
    pub(crate) fn send(&self, message: &[u8]) -> Result<(), NetError> {
        self.mouth.lock().send(message)
    }

    /// The next message; `None` if none comes before the deadline. Blocks.
    pub(crate) fn receive(&self, deadline: Instant) -> Result<Option<Vec<u8>>, NetError> {
        let mut ears = self.ears.lock();
        within(deadline, pin!(ears.next(&self.deaf))).transpose()
    }

    /// Listeners, present and future ones, are told that the connection has ended.
    pub(crate) fn deafen(&self) {
        self.deaf.be();
    }

    /// Ends the connection, and gives the peer a moment to notice.
    pub(crate) fn end(&self) {
        let leaving = self.mouth.lock().half.disconnect();
        let _ = within(Instant::now() + PARTING, leaving);
    }
}

impl Mouth {
    fn send(&mut self, message: &[u8]) -> Result<(), NetError> {
        let peer = self.peer;
        let written = self.mr.write(0, message);
        written.map_err(|error| NetError::Verb {
            doing: "write a message",
            error,
        })?;
        let wr = Send::new(0).from(self.mr.slice(0..message.len()));
        // A queue that takes nothing is that of a connection which is over.
        let posted = self.half.post(wr.signaled());
        posted.map_err(|_| NetError::Ended(peer))?;
        let sent = within(Instant::now() + PATIENCE, pin!(completion(&mut self.cq)));
        match sent {
            None => Err(NetError::Silent { peer }),
            Some(wc) => judge(peer, &wc?),
        }
    }
}

impl Ears {
    async fn next(&mut self, deaf: &Deaf) -> Result<Vec<u8>, NetError> {
        let peer = self.peer;
        let wc = {
            let mut heard = pin!(completion(&mut self.cq));
            poll_fn(|cx| {
                deaf.waker.register(cx.waker());
                match deaf.is.load(Acquire) {
                    true => Poll::Ready(None),
                    false => heard.as_mut().poll(cx).map(Some),
                }
            })
            .await
        };
        let wc = wc.ok_or(NetError::Ended(peer))??;
        judge(peer, &wc)?;
        let mut message = vec![0; (wc.byte_len as usize).min(MESSAGE_MAX)];
        let read = self.mr.read(wc.wr_id as usize * MESSAGE_MAX, &mut message);
        read.map_err(|error| NetError::Verb {
            doing: "read a message",
            error,
        })?;
        // Where the connection has ended in the meantime, the next look tells.
        let _ = self.half.post(receive(&self.mr, wc.wr_id));
        Ok(message)
    }
}

/// A receive of one message into that piece.
fn receive(mr: &Mr, piece: u64) -> Recv<'static> {
    let start = piece as usize * MESSAGE_MAX;
    Recv::new(piece).into(mr.slice(start..start + MESSAGE_MAX))
}

/// The next completion.
async fn completion(cq: &mut Cq) -> Result<Wc, NetError> {
    loop {
        let mut entry = [Wc::default()];
        if let Some(&wc) = cq.poll(&mut entry).first() {
            return Ok(wc);
        }
        cq.ready().await.map_err(|error| NetError::Verb {
            doing: "wait for completions",
            error,
        })?;
    }
}

fn judge(peer: SocketAddr, wc: &Wc) -> Result<(), NetError> {
    match wc.status {
        WcStatus::Success => Ok(()),
        WcStatus::WrFlushErr => Err(NetError::Ended(peer)),
        WcStatus::RetryExcErr => Err(NetError::Silent { peer }),
        status => Err(NetError::Broken {
            peer,
            error: io::Error::other(status.to_string()),
        }),
    }
}
