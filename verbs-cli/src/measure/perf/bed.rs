//! What every test is made of: memory, completion queues, and queue pairs in RTS.

use std::net::TcpStream;

use hca_sim::{Adopted, adopt};
use rustix::param::page_size;
use verbs_core::{
    Access, Av, Cq, Device, Gid, Memory, Mr, Path, Payload, Pd, Qp, QpAttr, QpInit, Recv, Remote,
    SendFlags, SendOp, SendWr, Wc,
};

use super::args::{Measure, Operation, PerfArgs, Plan};
use super::error::PerfError;
use super::exchange::Agreed;
use super::key::Key;
use crate::address::same_family;
use crate::wire::{self, PORT};

/// Completions taken at once.
const POLL_MAX: usize = 16;

/// The objects of a test. For each connection there are two places in memory, of a whole number of lines: the first to
/// send from and to read into, the second for what comes.
pub(super) struct Bed {
    device: Device,
    pd: Pd,
    sent: Cq,
    received: Cq,
    qps: Vec<Qp>,
    mr: Mr,
    /// Connections.
    count: usize,
    /// Bytes of a place.
    place: usize,
    measures: Measure,
    agreed: Agreed,
    operation: Operation,
    compare_swap: bool,
    inline_max: u32,
    /// What goes inline.
    bytes: Vec<u8>,
    /// How each connection is reached.
    ours: Vec<Key>,
    theirs: Vec<Key>,
    gid_index: u16,
    traffic_class: u8,
}

impl Bed {
    /// Makes the objects, with queue pairs in INIT.
    pub(super) async fn new(
        device: Device,
        plan: &Plan,
        args: &PerfArgs,
        agreed: Agreed,
        (gid_index, gid): (u16, Gid),
    ) -> Result<Self, PerfError> {
        let (out_reads, inline_max) = limits(&device, plan, args).await?;
        let line = agreed.line as usize;
        let place = (plan.size_max().max(agreed.cycle) as usize).next_multiple_of(line);
        let pd = device.alloc_pd().await;
        let pd = pd.map_err(PerfError::verb("allocate a protection domain"))?;
        let memory = Memory::alloc(2 * plan.qps * place);
        let memory = memory.map_err(PerfError::verb("allocate the buffers"))?;
        let rights = device.read_sink(remote_right(plan.operation));
        let mr = pd.register(memory, rights).await;
        let mr = mr.map_err(PerfError::verb("register the buffers"))?;
        let count = plan.qps as u32;
        let create_cq = async |depth: u32| {
            let cq = device.create_cq(count.saturating_mul(depth)).await;
            cq.map_err(PerfError::verb("create a completion queue"))
        };
        let cap = plan.cap(inline_max);
        let sent = create_cq(cap.max_send_wr).await?;
        let received = create_cq(cap.max_recv_wr).await?;
        let mut bed = Self {
            device,
            pd,
            sent,
            received,
            qps: Vec::new(),
            mr,
            count: plan.qps,
            place,
            measures: plan.measures,
            agreed,
            operation: plan.operation,
            compare_swap: plan.compare_swap,
            inline_max,
            bytes: vec![0; inline_max as usize],
            ours: Vec::new(),
            theirs: Vec::new(),
            gid_index,
            traffic_class: args.tclass.unwrap_or(0),
        };
        for number in 0..plan.qps {
            let qp = bed
                .pd
                .create_qp(QpInit::rc(&bed.sent, &bed.received).cap(cap))
                .await;
            let qp = qp.map_err(PerfError::verb("create a queue pair"))?;
            let made = qp.init(PORT, remote_right(plan.operation)).await;
            made.map_err(PerfError::verb("initialise a queue pair"))?;
            let psn = wire::draw_psn().map_err(|error| PerfError::System {
                doing: "draw a packet sequence number",
                error,
            })?;
            bed.ours.push(Key {
                out_reads,
                qpn: qp.qpn(),
                psn,
                rkey: bed.mr.rkey(),
                vaddr: bed.mr.iova() + bed.arrives(number) as u64,
                gid,
            });
            bed.qps.push(qp);
        }
        Ok(bed)
    }

    pub(super) fn ours(&self) -> &[Key] {
        &self.ours
    }

    /// Takes the queue pairs to RTS, towards those of the peer, with perftest's attributes.
    pub(super) async fn connect(&mut self, theirs: Vec<Key>, timeout: u8) -> Result<(), PerfError> {
        for ((qp, ours), theirs) in self.qps.iter().zip(&self.ours).zip(&theirs) {
            if !same_family(ours.gid, theirs.gid) {
                let (ours, theirs) = (ours.gid, theirs.gid);
                return Err(PerfError::Families { ours, theirs });
            }
            let mut av = Av::to_gid(PORT, self.gid_index, theirs.gid);
            if let Some(route) = &mut av.global {
                route.hop_limit = 255;
                route.traffic_class = self.traffic_class;
            }
            let path = Path {
                av,
                dest_qpn: theirs.qpn,
                rq_psn: theirs.psn,
                mtu: self.agreed.mtu,
            };
            let ready = qp.modify(QpAttr {
                max_dest_rd_atomic: Some(ours.out_reads),
                ..QpAttr::rtr(&path)
            });
            let ready = ready.await;
            ready.map_err(PerfError::verb("make a queue pair ready to receive"))?;
            let ready = qp.modify(QpAttr {
                timeout: Some(timeout),
                max_rd_atomic: Some(theirs.out_reads.min(ours.out_reads)),
                ..QpAttr::rts(ours.psn)
            });
            let ready = ready.await;
            ready.map_err(PerfError::verb("make a queue pair ready to send"))?;
        }
        self.theirs = theirs;
        Ok(())
    }

    /// Takes the queue pairs to RTS, each on its own TCP connection.
    pub(super) fn adopt(
        &mut self,
        theirs: Vec<Key>,
        streams: Vec<TcpStream>,
    ) -> Result<(), PerfError> {
        let keys = self.ours.iter().zip(&theirs);
        for ((qp, (ours, theirs)), stream) in self.qps.iter().zip(keys).zip(streams) {
            // Either end may send first: the ends have met before.
            let mut adopted = Adopted::new(true);
            adopted.ird = ours.out_reads;
            adopted.ord = theirs.out_reads.min(ours.out_reads);
            let taken = adopt(qp, stream, adopted);
            taken.map_err(PerfError::verb("take over the connection of a queue pair"))?;
        }
        self.theirs = theirs;
        Ok(())
    }

    /// Posts message `index` of a connection.
    pub(super) fn post(
        &mut self,
        number: usize,
        index: u64,
        size: u32,
        signaled: bool,
    ) -> Result<(), PerfError> {
        let (offset, own) = (self.offset(index, size), number * self.place);
        let theirs = &self.theirs[number];
        let remote = Remote {
            addr: theirs.vaddr.wrapping_add(offset),
            rkey: theirs.rkey,
        };
        let (op, doing) = match (self.operation, self.compare_swap) {
            (Operation::Send, _) => (SendOp::Send, "a SEND"),
            (Operation::Write, _) => (SendOp::Write(remote), "a WRITE"),
            (Operation::Read, _) => (SendOp::Read(remote), "a READ"),
            (Operation::Atomic, false) => (SendOp::FetchAdd { remote, add: 1 }, "an atomic"),
            (Operation::Atomic, true) => {
                let (compare, swap) = (0, 1);
                let op = SendOp::CompareSwap {
                    remote,
                    compare,
                    swap,
                };
                (op, "an atomic")
            }
        };
        let start = own + offset as usize;
        let is_inline = size <= self.inline_max && size != 0;
        let payload = match is_inline {
            true => Payload::Inline(&self.bytes[..size as usize]),
            false => Payload::One(self.mr.slice(start..start + size as usize)),
        };
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, signaled);
        flags.set(SendFlags::INLINE, is_inline);
        let wr = SendWr {
            wr_id: number as u64,
            op,
            flags,
            payload,
            dest: verbs_core::Dest::Peer,
        };
        self.qps[number]
            .post_send(wr)
            .map_err(PerfError::post(doing))
    }

    /// Posts a receive on a connection.
    pub(super) fn post_recv(&mut self, number: usize, size: u32) -> Result<(), PerfError> {
        let start = self.arrives(number);
        let piece = self.mr.slice(start..start + size as usize);
        let recv = Recv::new(number as u64).into(piece);
        let posted = self.qps[number].post_recv(recv);
        posted.map_err(PerfError::post("a receive"))
    }

    /// Takes completions of sends; calls with the connection of each.
    pub(super) fn poll_sent(&mut self, take: impl FnMut(usize)) -> Result<usize, PerfError> {
        poll(&mut self.sent, take)
    }

    /// The same of receives.
    pub(super) fn poll_received(&mut self, take: impl FnMut(usize)) -> Result<usize, PerfError> {
        poll(&mut self.received, take)
    }

    /// Puts a number into the last byte of the next message, which the peer waits for.
    pub(super) fn stamp(&mut self, size: u32, stamp: u8) -> Result<(), PerfError> {
        let last = size as usize - 1;
        if size <= self.inline_max {
            self.bytes[last] = stamp;
            return Ok(());
        }
        let written = self.mr.write(last, &[stamp]);
        written.map_err(PerfError::verb("write to the buffer"))
    }

    /// The number in the last byte of what has come.
    pub(super) fn arrived_stamp(&self, size: u32) -> Result<u8, PerfError> {
        let mut byte = [0];
        let last = self.arrives(0) + size as usize - 1;
        let read = self.mr.read(last, &mut byte);
        read.map_err(PerfError::verb("read the buffer"))?;
        Ok(byte[0])
    }

    /// Destroys everything, in the order in which nothing is Busy.
    pub(super) async fn close(self) -> Result<(), PerfError> {
        for qp in self.qps {
            let done = qp.destroy().await;
            done.map_err(|refused| PerfError::verb("destroy a queue pair")(refused.error))?;
        }
        for cq in [self.sent, self.received] {
            let done = cq.destroy().await;
            done.map_err(|refused| PerfError::verb("destroy a completion queue")(refused.error))?;
        }
        let done = self.mr.dereg().await;
        done.map_err(|refused| PerfError::verb("deregister the buffers")(refused.error))?;
        let done = self.pd.dealloc().await;
        done.map_err(|refused| PerfError::verb("deallocate the protection domain")(refused.error))?;
        let done = self.device.close().await;
        done.map_err(|refused| PerfError::verb("close the device")(refused.error))
    }

    /// Where messages of that connection arrive.
    fn arrives(&self, number: usize) -> usize {
        (self.count + number) * self.place
    }

    /// Small messages go to one line after the other, and from the first one again; where not the bandwidth is measured, to
    /// the first.
    fn offset(&self, index: u64, size: u32) -> u64 {
        let Agreed { cycle, line, .. } = self.agreed;
        if self.measures != Measure::Bandwidth || size > cycle / 2 {
            return 0;
        }
        let step = u64::from(size.max(1)).next_multiple_of(line.into());
        let steps = (u64::from(cycle) / step).max(1);
        index % steps * step
    }
}

/// READs and atomics at a time, and bytes that go inline: what was asked for, if the device can.
async fn limits(device: &Device, plan: &Plan, args: &PerfArgs) -> Result<(u8, u32), PerfError> {
    let limits = device.query().await;
    let limits = limits.map_err(PerfError::verb("query the device"))?;
    let max = limits.max_qp_rd_atom;
    let out_reads = match (plan.is_remembered(), args.outs) {
        (false, _) => 1,
        (true, None) => max.max(1),
        (true, Some(got)) if got > max => return Err(PerfError::Outs { got, max }),
        (true, Some(wanted)) => wanted,
    };
    Ok((out_reads, plan.inline(limits.max_inline_data)?))
}

fn remote_right(operation: Operation) -> Access {
    match operation {
        Operation::Send => Access::empty(),
        Operation::Write => Access::REMOTE_WRITE,
        Operation::Read => Access::REMOTE_READ,
        Operation::Atomic => Access::REMOTE_ATOMIC,
    }
}

fn poll(cq: &mut Cq, mut take: impl FnMut(usize)) -> Result<usize, PerfError> {
    let mut entries = [Wc::default(); POLL_MAX];
    let completions = cq.poll(&mut entries).len();
    for wc in &entries[..completions] {
        wc.result().map_err(PerfError::Completion)?;
        take(wc.wr_id as usize);
    }
    Ok(completions)
}

/// What this end would take; the larger one of both ends' counts.
pub(super) fn agreement(mtu: verbs_core::Mtu) -> Agreed {
    Agreed {
        cycle: u32::try_from(page_size()).unwrap_or(4096),
        line: 64,
        mtu,
    }
}
