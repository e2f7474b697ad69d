//! One end of a copy: the verbs objects on its device.

use std::fmt;
use std::future::IntoFuture;

use futures::future::try_join;
use verbs_cm::{Connection, NotConnected};
use verbs_core::sync::Arc;
use verbs_core::{
    Access, Av, BatchError, Cq, Device, DeviceCap, Error, LinkLayer, Memory, Mr, Mtu, Path, Pd,
    PortAttr, PostError, Psn, Qp, QpAttr, QpInit, QpState, Qpn, RKey, Recv, Remote, SendWr, Wc,
    Write,
};

use super::carrier::Carrier;
use super::error::{CopyError, End};
use super::message::{NUMBER_LEN, Totals};
use super::window::Plan;
use crate::wire::PORT;

/// The local ACK timeout: an end sends again after 0.27 s without an answer, and gives its peer up after 7 retries. Hosts
/// that write large files keep their processes waiting now and then, for longer than the half second of the usual 14.
const ACK_TIMEOUT: u8 = 16;

/// The same for a peer that has not shown itself: a second, as an answer that gets lost is one of three.
const ACK_TIMEOUT_UNKNOWN: u8 = 18;

/// Repetitions to such a peer. Three packets of a probe, of 60 bytes each (80 by IPv6), are less than three
/// times the 86 bytes that a client has sent before.
const RETRIES_UNKNOWN: u8 = 2;

/// How often a queue pair in SQD is asked whether it has stopped sending: far more often than an adapter takes.
const DRAINED_ASKED_MAX: u32 = 10_000;

/// The verbs objects of one end.
///
/// The control region has one piece for each receive, and one more for the message that this end
/// closes with.
pub(crate) struct Endpoint {
    pub(crate) end: End,
    carrier: Carrier,
    qpn: Qpn,
    /// Work requests that the send queue holds.
    send_depth: u32,
    cq: Cq,
    /// The slots.
    pub(crate) data: Mr,
    control: Mr,
    pd: Pd,
    device: Arc<Device>,
    port: PortAttr,
    recv_depth: u32,
    /// Whether numbers travel as immediate data.
    has_imm: bool,
    /// Whether a probe has not completed.
    probing: bool,
}

/// What a work request is for; travels through its `wr_id`, because a failed completion says nothing
/// else (IBTA vol. 1, 11.4.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The WRITE of a chunk.
    Write(u64),
    /// The SEND that says that it has been written.
    Announce(u64),
    /// The SEND that says how many chunks were drained.
    Credit(u64),
    /// The SEND that closes.
    Totals,
    /// A receive into this piece of the control region.
    Recv(u32),
    /// The WRITE of nothing that asks whether the peer is still there.
    Probe,
}

impl Purpose {
    const TAG_BITS: u32 = 3;

    /// Chunk numbers lose their top bits: no file has 2^61 chunks.
    pub(crate) fn wr_id(self) -> u64 {
        let (tag, number) = match self {
            Self::Write(number) => (0, number),
            Self::Announce(number) => (1, number),
            Self::Credit(number) => (2, number),
            Self::Totals => (3, 0),
            Self::Recv(piece) => (4, u64::from(piece)),
            Self::Probe => (5, 0),
        };
        number << Self::TAG_BITS | tag
    }

    pub(crate) fn of(wr_id: u64) -> Self {
        let number = wr_id >> Self::TAG_BITS;
        match wr_id & ((1 << Self::TAG_BITS) - 1) {
            0 => Self::Write(number),
            1 => Self::Announce(number),
            2 => Self::Credit(number),
            3 => Self::Totals,
            5 => Self::Probe,
            // Pieces are counted in 32 bits where their numbers are made.
            _ => Self::Recv(u32::try_from(number).unwrap_or(u32::MAX)),
        }
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write(chunk) => write!(f, "the WRITE of chunk {chunk}"),
            Self::Announce(chunk) => write!(f, "the announcement of chunk {chunk}"),
            Self::Credit(drained) => write!(f, "the credit for {drained} chunks"),
            Self::Totals => f.write_str("the closing message"),
            Self::Recv(_) => f.write_str("a receive"),
            Self::Probe => f.write_str("the look whether the peer is there"),
        }
    }
}

impl Endpoint {
    /// Makes the objects: slots with these rights, queues for the plan, receives posted.
    pub(crate) async fn new(
        end: End,
        device: impl Into<Arc<Device>>,
        plan: &Plan,
        access: Access,
    ) -> Result<Self, CopyError> {
        let device = device.into();
        let failed = |doing| move |error| CopyError::Verb { end, doing, error };
        let port = device
            .query_port(PORT)
            .await
            .map_err(failed("query the port"))?;
        let (send_depth, recv_depth) = Self::depths(plan);
        let pd = device
            .alloc_pd()
            .await
            .map_err(failed("allocate a protection domain"))?;
        let depth = send_depth + recv_depth;
        let cq = device
            .create_cq(depth)
            .await
            .map_err(failed("create a completion queue"))?;

        let bytes = plan.buffer_bytes().ok_or(Error::NoMemory);
        let slots = bytes
            .and_then(Memory::alloc)
            .map_err(failed("allocate the chunk buffers"))?;
        let data = pd
            .register(slots, access)
            .await
            .map_err(failed("register the chunk buffers"))?;
        let messages = Memory::alloc((recv_depth as usize + 1) * Totals::LEN);
        let messages = messages.map_err(failed("allocate the message buffers"))?;
        let control = pd
            .register(messages, Access::LOCAL_WRITE)
            .await
            .map_err(failed("register the message buffers"))?;

        let has_imm = has_immediate(end, &device).await?;
        let inline = if has_imm { 0 } else { NUMBER_LEN as u32 };
        let init = QpInit::rc(&cq, &cq).depth(send_depth, recv_depth);
        let qp = pd
            .create_qp(init.inline(inline))
            .await
            .map_err(failed("create a queue pair"))?;
        // The rights of the region are what matters; the queue pair allows WRITEs at either end.
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        qp.init(PORT, rights)
            .await
            .map_err(failed("initialise the queue pair"))?;
        let mut endpoint = Self {
            end,
            qpn: qp.qpn(),
            send_depth: qp.cap().max_send_wr,
            carrier: Carrier::Apart(qp),
            cq,
            data,
            control,
            pd,
            device,
            port,
            recv_depth,
            has_imm,
            probing: false,
        };
        for piece in 0..recv_depth {
            endpoint.post_recv(piece)?;
        }
        Ok(endpoint)
    }

    /// Work requests on the send and on the receive queue.
    ///
    /// Sender: a WRITE and a SEND for each slot, one more SEND that becomes free only with the next
    /// completion, the closing one, and a probe. Receiver: a credit for each slot, the closing SEND, and a
    /// probe. Receives: a message for each slot, and the closing one.
    fn depths(plan: &Plan) -> (u32, u32) {
        (2 * plan.slots() + 3, plan.slots() + 1)
    }

    /// The inverse of [`Endpoint::depths`]: slots that queues of these depths are good for.
    pub(crate) fn slots_within(max_qp_wr: u32, max_cqe: u32) -> u32 {
        let (queue, completions) = (
            max_qp_wr.saturating_sub(3) / 2,
            max_cqe.saturating_sub(4) / 3,
        );
        queue.min(completions)
    }

    /// Connects two ends; `psns` are the numbers of the first packets that this one and the peer send.
    pub(crate) async fn connect(&self, peer: &Self, psns: [Psn; 2]) -> Result<(), CopyError> {
        let [ours, theirs] = psns;
        try_join(self.ready_for(peer, theirs), peer.ready_for(self, ours)).await?;
        try_join(self.ready_to_send(ours), peer.ready_to_send(theirs)).await?;
        Ok(())
    }

    async fn ready_for(&self, peer: &Self, rq_psn: Psn) -> Result<(), CopyError> {
        let av = match peer.port.link_layer {
            LinkLayer::InfiniBand => Av::to_lid(PORT, peer.port.lid),
            LinkLayer::Ethernet => Av::to_gid(PORT, 0, peer.port.gid),
        };
        let mtu = self.port.active_mtu.min(peer.port.active_mtu);
        let path = Path {
            av,
            dest_qpn: peer.qpn,
            rq_psn,
            mtu,
        };
        self.receive_from(&path).await
    }

    /// Accepts what the peer at the end of the path sends.
    pub(crate) async fn receive_from(&self, path: &Path) -> Result<(), CopyError> {
        let doing = "make the queue pair ready to receive";
        let qp = self.carrier.apart();
        let ready = qp.map_err(|error| self.failed(doing, error))?;
        let ready = ready.ready_to_receive(path).await;
        ready.map_err(|error| self.failed(doing, error))
    }

    /// Starts sending, with that number as the first packet's.
    pub(crate) async fn ready_to_send(&self, psn: Psn) -> Result<(), CopyError> {
        let mut rts = QpAttr::rts(psn);
        rts.timeout = Some(ACK_TIMEOUT);
        self.modify("make the queue pair ready to send", rts).await
    }

    /// Starts sending to a peer that may be a third party, which has asked for nothing: what is not answered
    /// is sent three times in all, [`ACK_TIMEOUT_UNKNOWN`] apart.
    pub(crate) async fn ready_to_ask(&self, psn: Psn) -> Result<(), CopyError> {
        let mut rts = QpAttr::rts(psn);
        (rts.timeout, rts.retry_cnt) = (Some(ACK_TIMEOUT_UNKNOWN), Some(RETRIES_UNKNOWN));
        self.modify("make the queue pair ready to send", rts).await
    }

    /// The peer has answered: from now on it is as after [`Endpoint::ready_to_send`]. Nothing is outstanding.
    pub(crate) async fn trust(&self) -> Result<(), CopyError> {
        let usual = QpAttr::rts(Psn::new(0));
        let mut patient = QpAttr::to(QpState::Sqd);
        (patient.timeout, patient.retry_cnt) = (Some(ACK_TIMEOUT), usual.retry_cnt);
        let doing = "let the queue pair repeat more often";
        // These attributes change in SQD only (IBTA vol. 1, table 95), when the send queue has been drained.
        self.modify(doing, QpAttr::to(QpState::Sqd)).await?;
        self.drained(doing).await?;
        for change in [patient, QpAttr::to(QpState::Rts)] {
            self.modify(doing, change).await?;
        }
        Ok(())
    }

    /// Waits until a queue pair in SQD says that it has stopped sending. Some, such as Linux's rxe, say so a moment later
    /// even if nothing is outstanding, and refuse changes before.
    async fn drained(&self, doing: &'static str) -> Result<(), CopyError> {
        let failed = |error| self.failed(doing, error);
        let qp = self.carrier.apart().map_err(failed)?;
        for _ in 0..DRAINED_ASKED_MAX {
            if !qp.query().await.map_err(failed)?.sq_draining {
                break;
            }
        }
        Ok(())
    }

    async fn modify(&self, doing: &'static str, attr: QpAttr) -> Result<(), CopyError> {
        let failed = |error| self.failed(doing, error);
        let qp = self.carrier.apart().map_err(failed)?;
        qp.modify(attr).await.map_err(failed)
    }

    /// Has the connection manager connect it, instead of [`Endpoint::receive_from`] and [`Endpoint::ready_to_send`].
    pub(crate) async fn connect_with<C>(
        &mut self,
        connecting: impl FnOnce(Qp) -> C,
    ) -> Result<(), verbs_cm::Error>
    where
        C: IntoFuture<Output = Result<Connection, NotConnected>>,
    {
        self.carrier.connect(connecting).await
    }

    /// The queue pair's number.
    pub(crate) fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// The largest path MTU that the port has now.
    pub(crate) fn mtu(&self) -> Mtu {
        self.port.active_mtu
    }

    /// Credits that the send queue has room for: it keeps some for the closing message and a probe.
    pub(crate) fn credits_max(&self) -> u32 {
        self.send_depth.saturating_sub(2)
    }

    /// Posts to the send queue.
    pub(crate) fn post<'w>(
        &mut self,
        doing: &'static str,
        wr: impl Into<SendWr<'w>>,
    ) -> Result<(), CopyError> {
        let end = self.end;
        self.carrier
            .post_send(wr)
            .map_err(|error| CopyError::Post { end, doing, error })
    }

    /// Posts several to the send queue, with one doorbell.
    ///
    /// Fails with how many were accepted, and why the next was not.
    pub(crate) fn post_batch(&mut self, wrs: &[SendWr<'_>]) -> Result<(), BatchError> {
        self.carrier.post_batch(wrs)
    }

    /// Posts the receive of one message into a piece of the control region.
    pub(crate) fn post_recv(&mut self, piece: u32) -> Result<(), CopyError> {
        let recv =
            Recv::new(Purpose::Recv(piece).wr_id()).into(self.control.slice(message_at(piece)));
        let end = self.end;
        self.carrier
            .post_recv(recv)
            .map_err(|error| CopyError::Post {
                end,
                doing: "a receive",
                error,
            })
    }

    /// Asks whether the peer is still there, unless that is being asked. [`Endpoint::poll`] fails if it does not
    /// answer, within eight times [`ACK_TIMEOUT`].
    ///
    /// An end that waits has no other way to know of a peer that is killed: only the sender finds out. What it
    /// asks with needs no receive and no key at the peer, and its device answers, however busy the program is
    /// (IBTA vol. 1, C9-88: the key of a WRITE of no bytes is not looked at).
    pub(crate) fn probe(&mut self) -> Result<(), CopyError> {
        if self.probing {
            return Ok(());
        }
        let nowhere = Remote {
            addr: 0,
            rkey: RKey::new(0),
        };
        let probe = Write::new(Purpose::Probe.wr_id(), nowhere).signaled();
        match self.post("a probe", probe) {
            Ok(()) => self.probing = true,
            // Work that was posted before finds out as well.
            Err(CopyError::Post {
                error: PostError::Full { .. },
                ..
            }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// A message that says a number; `bytes` is where it is, if it does not travel as immediate data.
    pub(crate) fn say<'b>(
        &self,
        purpose: Purpose,
        number: u32,
        bytes: &'b mut [u8; NUMBER_LEN],
    ) -> verbs_core::Send<'b> {
        let message = verbs_core::Send::new(purpose.wr_id());
        if self.has_imm {
            return message.imm(number);
        }
        *bytes = number.to_be_bytes();
        message.inline(bytes)
    }

    /// The number that a message says; `None` for the closing one.
    pub(crate) fn said(&self, piece: u32, wc: &Wc) -> Result<Option<u32>, CopyError> {
        if self.has_imm || wc.byte_len as usize != NUMBER_LEN {
            return Ok(wc.immediate());
        }
        let mut number = [0; NUMBER_LEN];
        let read = self.control.read(message_at(piece).start, &mut number);
        read.map_err(|error| self.failed("read a message", error))?;
        Ok(Some(u32::from_be_bytes(number)))
    }

    /// Sends the message that this end closes with.
    pub(crate) fn close_with(&mut self, totals: &Totals) -> Result<(), CopyError> {
        let place = message_at(self.recv_depth);
        let written = self.control.write(place.start, &totals.emit());
        written.map_err(|error| self.failed("write the closing message", error))?;
        let message =
            verbs_core::Send::new(Purpose::Totals.wr_id()).from(self.control.slice(place));
        self.post("the closing message", message.signaled())
    }

    /// The message that a receive took, when it is the peer's closing one.
    pub(crate) fn totals(&self, piece: u32, wc: &Wc) -> Result<Totals, CopyError> {
        if wc.byte_len as usize != Totals::LEN {
            return Err(CopyError::Message {
                end: self.end,
                len: wc.byte_len,
            });
        }
        let mut message = [0; Totals::LEN];
        let read = self.control.read(message_at(piece).start, &mut message);
        read.map_err(|error| self.failed("read the closing message", error))?;
        Ok(Totals::parse(&message))
    }

    /// Takes the next completion; a failed one is an error. That of a probe is not told: it is no progress.
    pub(crate) fn poll(&mut self) -> Result<Option<(Purpose, Wc)>, CopyError> {
        let mut entry = [Wc::default()];
        while let Some(&wc) = self.cq.poll(&mut entry).first() {
            let purpose = Purpose::of(wc.wr_id);
            if !wc.is_ok() {
                return Err(CopyError::Completion {
                    end: self.end,
                    what: purpose.to_string(),
                    status: wc.status,
                });
            }
            match purpose {
                Purpose::Probe => self.probing = false,
                _ => return Ok(Some((purpose, wc))),
            }
        }
        Ok(None)
    }

    /// Whether [`Endpoint::probe`] has not been answered.
    pub(crate) fn is_probing(&self) -> bool {
        self.probing
    }

    /// Waits for the next completion. A device that is gone makes none.
    pub(crate) async fn ready(&mut self) -> Result<(), CopyError> {
        let end = self.end;
        self.cq.ready().await.map_err(|error| CopyError::Verb {
            end,
            doing: "wait for completions",
            error,
        })
    }

    /// Whether the device has gone.
    pub(crate) async fn is_removed(&self) -> bool {
        self.device.query().await == Err(Error::DeviceRemoved)
    }

    /// Destroys everything, in the order in which nothing is Busy.
    pub(crate) async fn close(self) -> Result<(), CopyError> {
        let Self {
            end,
            carrier,
            cq,
            data,
            control,
            pd,
            device,
            ..
        } = self;
        let failed = |doing| move |error| CopyError::Verb { end, doing, error };
        carrier
            .close()
            .await
            .map_err(failed("destroy the queue pair"))?;
        cq.destroy()
            .await
            .map_err(|refused| failed("destroy the completion queue")(refused.error))?;
        data.dereg()
            .await
            .map_err(|refused| failed("deregister the chunk buffers")(refused.error))?;
        control
            .dereg()
            .await
            .map_err(|refused| failed("deregister the message buffers")(refused.error))?;
        pd.dealloc()
            .await
            .map_err(|refused| failed("deallocate the protection domain")(refused.error))?;
        // The last one closes it.
        let Some(device) = Arc::into_inner(device) else {
            return Ok(());
        };
        device
            .close()
            .await
            .map_err(|refused| failed("close the device")(refused.error))
    }

    pub(crate) fn failed(&self, doing: &'static str, error: Error) -> CopyError {
        CopyError::Verb {
            end: self.end,
            doing,
            error,
        }
    }
}

/// Whether SENDs of the device have immediate data.
async fn has_immediate(end: End, device: &Device) -> Result<bool, CopyError> {
    let attr = device.query().await.map_err(|error| {
        let doing = "query the device";
        CopyError::Verb { end, doing, error }
    })?;
    Ok(attr.caps.contains(DeviceCap::SEND_WITH_IMM))
}

/// Where a message lies in the control region.
fn message_at(piece: u32) -> std::ops::Range<usize> {
    let start = piece as usize * Totals::LEN;
    start..start + Totals::LEN
}

#[cfg(test)]
mod tests;
