//! What carries the messages of a pingpong: queue pairs of one kind, with the attributes and in the order
//! of the `ibv_*_pingpong` programs.

use std::slice;

use verbs_core::{
    Access, Ah, Av, CmEndpoint, Cq, Datagram, Device, Error, Path, Pd, PostError, Psn, QKey, Qp,
    QpAttr, QpInit, QpType, Qpn, Recv, Send, Sge, Srq, Srqn, Xrcd,
};

use super::error::PingpongError;
use super::streams;
use super::text::Hello;
use crate::cli::{Kind, PingpongArgs};
use crate::wire::{self, PORT};

/// What the work requests are told apart by.
const RECV_ID: u64 = 1;
pub(super) const SEND_ID: u64 = 2;

/// Bytes in front of a datagram that has arrived.
pub(super) const GRH: usize = 40;
/// The key of `ibv_ud_pingpong`.
const QKEY: QKey = QKey(0x1111_1111);

/// Queue pairs, and how to post to them.
pub(super) struct Carrier {
    gid_index: u16,
    mtu: verbs_core::Mtu,
    /// The local ACK timeout, where there is one.
    timeout: u8,
    kind: Queues,
    /// What keeps connections over TCP.
    ends: Vec<CmEndpoint>,
}

enum Queues {
    /// RC and UC.
    Connection(Qp),
    /// UD, where the peer is, and the handle of its address.
    Datagrams(Qp, Datagram, Option<Ah>),
    /// RC whose receives come from one queue.
    Shared(Vec<Qp>, Srq),
    Extended(Extended),
}

/// One extended reliable connection each way.
struct Extended {
    sends: Qp,
    receives: Qp,
    srq: Srq,
    domain: Xrcd,
    /// The queue that the peer takes its receives from.
    theirs: Srqn,
}

fn failed(doing: &'static str) -> impl FnOnce(Error) -> PingpongError {
    PingpongError::verb(doing)
}

impl Carrier {
    /// Makes the queue pairs and takes them to INIT, so that receives can be posted.
    pub(super) async fn new(
        device: &Device,
        pd: &Pd,
        cq: &Cq,
        args: &PingpongArgs,
        gid_index: u16,
    ) -> Result<Self, PingpongError> {
        let depth = args.rx_depth;
        let kind = match args.kind {
            Kind::Rc => {
                let init = wanted(args, QpInit::rc(cq, cq));
                Queues::Connection(connection(pd, init, depth).await?)
            }
            Kind::Uc => {
                let init = wanted(args, QpInit::uc(cq, cq));
                Queues::Connection(connection(pd, init, depth).await?)
            }
            Kind::Ud => {
                let init = wanted(args, QpInit::ud(cq, cq));
                let qp = create(pd, init.depth(1, depth)).await?;
                let made = qp.init_datagram(PORT, QKEY).await;
                made.map_err(failed("initialise the queue pair"))?;
                let nobody = Datagram::new(Av::default(), Qpn::new(0), QKEY);
                Queues::Datagrams(qp, nobody, None)
            }
            Kind::Srq => {
                let srq = pd.create_srq(depth, 1).await;
                let srq = srq.map_err(failed("create a shared receive queue"))?;
                let mut qps = Vec::new();
                for _ in 0..args.connections() {
                    let init = wanted(args, QpInit::rc(cq, cq).srq(&srq));
                    qps.push(connection(pd, init, 0).await?);
                }
                Queues::Shared(qps, srq)
            }
            Kind::Xrc => Queues::Extended(Extended::new(device, pd, cq, args).await?),
        };
        Ok(Self {
            gid_index,
            mtu: args.mtu,
            timeout: args.timeout,
            kind,
            ends: Vec::new(),
        })
    }

    /// How each connection is reached: as `hello`, but for the numbers.
    pub(super) fn hellos(&self, hello: &Hello) -> Result<Vec<Hello>, PingpongError> {
        let draw = |qpn, extended| {
            let psn = wire::draw_psn().map_err(|error| PingpongError::System {
                doing: "draw a packet sequence number",
                error,
            })?;
            Ok(Hello {
                qpn,
                psn,
                extended,
                ..*hello
            })
        };
        match &self.kind {
            Queues::Connection(qp) | Queues::Datagrams(qp, ..) => Ok(vec![draw(qp.qpn(), None)?]),
            Queues::Shared(qps, _) => qps.iter().map(|qp| draw(qp.qpn(), None)).collect(),
            Queues::Extended(own) => {
                let extended = Some((own.sends.qpn(), own.srq.srqn()));
                Ok(vec![draw(own.receives.qpn(), extended)?])
            }
        }
    }

    /// Takes all queue pairs to RTS.
    pub(super) async fn connect(
        &mut self,
        pd: &Pd,
        ours: &[Hello],
        theirs: &[Hello],
    ) -> Result<(), PingpongError> {
        let (gid_index, mtu, timeout) = (self.gid_index, self.mtu, self.timeout);
        let path = |theirs: &Hello, dest_qpn| Path {
            av: Av::to_gid(PORT, gid_index, theirs.gid),
            dest_qpn,
            rq_psn: theirs.psn,
            mtu,
        };
        let pairs = ours.iter().zip(theirs);
        match &mut self.kind {
            Queues::Connection(qp) => {
                for (ours, theirs) in pairs {
                    up(qp, &path(theirs, theirs.qpn), ours.psn, timeout).await?;
                }
            }
            Queues::Shared(qps, _) => {
                for ((ours, theirs), qp) in pairs.zip(qps) {
                    up(qp, &path(theirs, theirs.qpn), ours.psn, timeout).await?;
                }
            }
            Queues::Datagrams(qp, there, handle) => {
                for (ours, theirs) in pairs {
                    there.av = Av::to_gid(PORT, gid_index, theirs.gid);
                    there.qpn = theirs.qpn;
                    let made = pd.create_ah(there.av).await;
                    *handle = Some(made.map_err(failed("create an address handle"))?);
                    let ready = qp.ready_to_receive_datagrams().await;
                    ready.map_err(failed("make the queue pair ready to receive"))?;
                    let ready = qp.ready_to_send(ours.psn).await;
                    ready.map_err(failed("make the queue pair ready to send"))?;
                }
            }
            Queues::Extended(own) => {
                for (ours, theirs) in pairs {
                    let (sends, srqn) = theirs.extended.unwrap_or_default();
                    own.theirs = srqn;
                    up(&own.receives, &path(theirs, sends), ours.psn, timeout).await?;
                    up(&own.sends, &path(theirs, theirs.qpn), ours.psn, timeout).await?;
                }
            }
        }
        Ok(())
    }

    /// The queue pairs that can be connected over TCP.
    pub(super) fn connections(&self) -> &[Qp] {
        match &self.kind {
            Queues::Connection(qp) => slice::from_ref(qp),
            Queues::Shared(qps, _) => qps,
            Queues::Datagrams(..) | Queues::Extended(_) => &[],
        }
    }

    /// They are connected, as long as these are kept.
    pub(super) fn keep(&mut self, ends: Vec<CmEndpoint>) {
        self.ends = ends;
    }

    /// Posts a message on that connection.
    pub(super) fn post_send(&mut self, number: usize, piece: Sge) -> Result<(), PostError> {
        let send = Send::new(SEND_ID).from(piece).signaled();
        match &mut self.kind {
            Queues::Connection(qp) => qp.post_send(send),
            Queues::Datagrams(qp, there, _) => qp.post_send(send.to(there)),
            Queues::Shared(qps, _) => match qps.get_mut(number) {
                Some(qp) => qp.post_send(send),
                None => Ok(()),
            },
            Queues::Extended(own) => own.sends.post_send(send.srq(own.theirs)),
        }
    }

    /// Posts a receive for any of them.
    pub(super) fn post_recv(&mut self, piece: Sge) -> Result<(), PostError> {
        let recv = Recv::new(RECV_ID).into(piece);
        match &mut self.kind {
            Queues::Connection(qp) | Queues::Datagrams(qp, ..) => qp.post_recv(recv),
            Queues::Shared(_, srq) => srq.post_recv(recv),
            Queues::Extended(own) => own.srq.post_recv(recv),
        }
    }

    /// Which connection the queue pair of a completion belongs to.
    pub(super) fn number(&self, qpn: Qpn) -> usize {
        match &self.kind {
            Queues::Shared(qps, _) => qps.iter().position(|qp| qp.qpn() == qpn).unwrap_or(0),
            _ => 0,
        }
    }

    /// Whether the peer may wait for an acknowledgement; over TCP the system's answers.
    pub(super) fn answers(&self) -> bool {
        if !self.ends.is_empty() {
            return false;
        }
        match &self.kind {
            Queues::Connection(qp) => qp.qp_type() == QpType::Rc,
            Queues::Datagrams(..) => false,
            Queues::Shared(..) | Queues::Extended(_) => true,
        }
    }

    /// Destroys them.
    pub(super) async fn close(self) -> Result<(), PingpongError> {
        let closed = streams::close(self.ends).await;
        closed.map_err(failed("end the connections"))?;
        match self.kind {
            Queues::Connection(qp) => destroy(qp).await,
            Queues::Datagrams(qp, _, handle) => {
                if let Some(handle) = handle {
                    let gone = handle.destroy().await;
                    gone.map_err(|refused| failed("destroy an address handle")(refused.error))?;
                }
                destroy(qp).await
            }
            Queues::Shared(qps, srq) => {
                for qp in qps {
                    destroy(qp).await?;
                }
                close_srq(srq).await
            }
            Queues::Extended(own) => {
                destroy(own.sends).await?;
                destroy(own.receives).await?;
                close_srq(own.srq).await?;
                let done = own.domain.dealloc().await;
                done.map_err(|refused| failed("deallocate the XRC domain")(refused.error))
            }
        }
    }
}

impl Extended {
    async fn new(
        device: &Device,
        pd: &Pd,
        cq: &Cq,
        args: &PingpongArgs,
    ) -> Result<Self, PingpongError> {
        let domain = device.alloc_xrcd().await;
        let domain = domain.map_err(failed("allocate an XRC domain"))?;
        let srq = pd.create_xrc_srq(&domain, cq, args.rx_depth, 1).await;
        let srq = srq.map_err(failed("create a shared receive queue"))?;
        let receives = domain.create_target_qp().await;
        let receives = receives.map_err(failed("create a target queue pair"))?;
        let made = receives.init(PORT, Access::empty()).await;
        made.map_err(failed("initialise the target queue pair"))?;
        let sends = connection(pd, wanted(args, QpInit::xrc(cq)), 0).await?;
        Ok(Self {
            sends,
            receives,
            srq,
            domain,
            theirs: Srqn::default(),
        })
    }
}

fn wanted<'a>(args: &PingpongArgs, init: QpInit<'a>) -> QpInit<'a> {
    match args.low_latency {
        true => init.low_latency(),
        false => init,
    }
}

async fn create(pd: &Pd, init: QpInit<'_>) -> Result<Qp, PingpongError> {
    let qp = pd.create_qp(init).await;
    qp.map_err(failed("create a queue pair"))
}

/// A queue pair of a connection, in INIT.
async fn connection(pd: &Pd, init: QpInit<'_>, depth: u32) -> Result<Qp, PingpongError> {
    let qp = create(pd, init.depth(1, depth)).await?;
    let made = qp.init(PORT, Access::empty()).await;
    made.map_err(failed("initialise the queue pair"))?;
    Ok(qp)
}

/// To RTS, with one READ each way where there are any, and that timeout.
async fn up(qp: &Qp, path: &Path, psn: Psn, timeout: u8) -> Result<(), PingpongError> {
    let rtr = QpAttr::rtr_of(qp.qp_type(), path);
    let one = |max: Option<u8>| max.map(|_| 1);
    let ready = qp.modify(QpAttr {
        max_dest_rd_atomic: one(rtr.max_dest_rd_atomic),
        ..rtr
    });
    let ready = ready.await;
    ready.map_err(failed("make the queue pair ready to receive"))?;
    let rts = QpAttr::rts_of(qp.qp_type(), psn);
    let ready = qp.modify(QpAttr {
        max_rd_atomic: one(rts.max_rd_atomic),
        timeout: rts.timeout.map(|_| timeout),
        ..rts
    });
    let ready = ready.await;
    ready.map_err(failed("make the queue pair ready to send"))
}

async fn destroy(qp: Qp) -> Result<(), PingpongError> {
    let done = qp.destroy().await;
    done.map_err(|refused| failed("destroy the queue pair")(refused.error))
}

async fn close_srq(srq: Srq) -> Result<(), PingpongError> {
    let done = srq.destroy().await;
    done.map_err(|refused| failed("destroy the shared receive queue")(refused.error))
}
