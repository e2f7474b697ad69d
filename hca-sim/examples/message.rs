//! Messages between two queue pairs of one thread, for counting instructions:
//!
//! ```text
//! cargo build --release -p hca-sim --example message
//! for n in 10000 20000; do valgrind --tool=callgrind target/release/examples/message send 1 $n; done
//! ```
//!
//! The difference between two runs, divided by the difference of their counts, is the cost of one message: post of the
//! receive, post of the send, and both polls, calling code included. The second argument is the size of a batch: that
//! many posts of each kind, then the polls. For `many` it is the number of connections, which send in turn:
//! `--cache-sim=yes` shows their cost in cache misses.

use std::hint::black_box;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use futures::executor::block_on;
use hca_sim::Hca;
use verbs_core::{Access, Cq, Error, Memory, Mr, Pd, Qp, QpInit, Read, Recv, Send, Wc, Write};

/// Everything of a connection within one device.
struct Loop {
    pd: Pd,
    sender: Qp,
    receiver: Qp,
    send_cq: Cq,
    recv_cq: Cq,
    mr: Mr,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let operation = args.next().unwrap_or_else(|| String::from("send"));
    let batch: u64 = args.next().map_or(Ok(1), |arg| arg.parse())?;
    let count: u64 = args.next().map_or(Ok(1_000_000), |arg| arg.parse())?;
    let len: usize = args.next().map_or(Ok(8), |arg| arg.parse())?;
    let mut connection = block_on(connection())?;
    let begun = Instant::now();
    match operation.as_str() {
        "send" => send(&mut connection, batch, count, len)?,
        "inline" => inline(&mut connection, count)?,
        "write" => write(&mut connection, count, len)?,
        "read" => read(&mut connection, count, len)?,
        "many" => many(&mut connection, batch, count, len)?,
        other => return Err(format!("{other}: send, inline, write, read or many").into()),
    }
    let each = begun.elapsed() / u32::try_from(count.max(1))?;
    println!("{operation} of {len} bytes in batches of {batch}: {each:?} each");
    Ok(())
}

async fn connection() -> Result<Loop, Error> {
    let device = Hca::loopback().open().await?;
    let pd = device.alloc_pd().await?;
    let (send_cq, recv_cq) = (device.create_cq(256).await?, device.create_cq(256).await?);
    let mr = pd
        .register(
            Memory::alloc(1 << 20)?,
            Access::LOCAL_WRITE | Access::REMOTE,
        )
        .await?;
    let init = || QpInit::rc(&send_cq, &recv_cq).depth(64, 64).inline(64);
    let (mut sender, mut receiver) = (pd.create_qp(init()).await?, pd.create_qp(init()).await?);
    hca_sim::connect(&mut sender, &mut receiver).await?;
    Ok(Loop {
        pd,
        sender,
        receiver,
        send_cq,
        recv_cq,
        mr,
    })
}

/// The distance between the bytes that are sent and where they arrive: not a multiple of a page, because processors
/// confuse addresses with the same low bits.
const APART: usize = 4096 + 192;

/// The most work requests that are built before they are posted.
const MAX_BATCH: usize = 16;

/// Polls that many completions.
fn poll(cq: &mut Cq, mut count: u64, out: &mut [Wc]) {
    while count > 0 {
        let got = cq.poll(out);
        for wc in got.iter() {
            assert!(wc.is_ok());
        }
        count -= got.len() as u64;
    }
}

fn send(
    on: &mut Loop,
    batch: u64,
    count: u64,
    len: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let (from, to) = (on.mr.slice(0..len), on.mr.slice(APART..APART + len));
    let (sends, recvs) = (on.sender.send_queue()?, on.receiver.recv_queue()?);
    let (mut done, mut out) = (0, vec![Wc::default(); batch.min(16) as usize]);
    while done < count {
        if batch == 1 {
            recvs.post(Recv::new(done).into(*black_box(&to)))?;
            sends.post(Send::new(done).from(*black_box(&from)).signaled())?;
        } else {
            let recv = |i| Recv::new(i).into(*black_box(&to));
            let send = |i| Send::new(i).from(*black_box(&from)).signaled().wr;
            for first in (done..done + batch).step_by(MAX_BATCH) {
                let ids = first..(done + batch).min(first + MAX_BATCH as u64);
                recvs.post_batch(&ids.clone().map(recv).collect::<ArrayVec<_, MAX_BATCH>>())?;
                sends.post_batch(&ids.map(send).collect::<ArrayVec<_, MAX_BATCH>>())?;
            }
        }
        poll(&mut on.send_cq, batch, &mut out);
        poll(&mut on.recv_cq, batch, &mut out);
        done += batch;
    }
    Ok(())
}

fn inline(on: &mut Loop, count: u64) -> Result<(), Box<dyn std::error::Error>> {
    let to = on.mr.slice(APART..APART + 64);
    let (sends, recvs) = (on.sender.send_queue()?, on.receiver.recv_queue()?);
    let mut out = [Wc::default()];
    for i in 0..count {
        recvs.post(Recv::new(i).into(to))?;
        sends.post(Send::new(i).inline(black_box(&[7; 8])).signaled())?;
        poll(&mut on.send_cq, 1, &mut out);
        poll(&mut on.recv_cq, 1, &mut out);
    }
    Ok(())
}

fn write(on: &mut Loop, count: u64, len: usize) -> Result<(), Box<dyn std::error::Error>> {
    let (from, to) = (on.mr.slice(0..len), on.mr.remote(APART));
    let sends = on.sender.send_queue()?;
    let mut out = [Wc::default()];
    for i in 0..count {
        sends.post(
            Write::new(i, black_box(to))
                .from(black_box(from))
                .signaled(),
        )?;
        poll(&mut on.send_cq, 1, &mut out);
    }
    Ok(())
}

fn read(on: &mut Loop, count: u64, len: usize) -> Result<(), Box<dyn std::error::Error>> {
    let (to, from) = (on.mr.slice(0..len), on.mr.remote(APART));
    let sends = on.sender.send_queue()?;
    let mut out = [Wc::default()];
    for i in 0..count {
        sends.post(Read::new(i, black_box(from)).into(black_box(to)).signaled())?;
        poll(&mut on.send_cq, 1, &mut out);
    }
    Ok(())
}

/// Messages that are timed together: on a machine with other work, the lowest time shows their cost.
const BURST: u64 = 2048;

/// Connections on the same completion queues, which send in turn.
fn many(
    on: &mut Loop,
    connections: u64,
    count: u64,
    len: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let (from, to) = (on.mr.slice(0..len), on.mr.slice(APART..APART + len));
    let mut pairs = Vec::new();
    for _ in 0..connections.max(1) {
        let init = || QpInit::rc(&on.send_cq, &on.recv_cq);
        let (a, b) = (on.pd.create_qp(init()), on.pd.create_qp(init()));
        let (mut a, mut b) = block_on(async { Ok::<_, Error>((a.await?, b.await?)) })?;
        block_on(hca_sim::connect(&mut a, &mut b))?;
        pairs.push((a, b));
    }
    let mut out = [Wc::default()];
    let mut next = 0;
    let (mut least, mut begun) = (Duration::MAX, Instant::now());
    for i in 0..count {
        if i % BURST == 0 && i != 0 {
            least = least.min(begun.elapsed());
            begun = Instant::now();
        }
        let (a, b) = &mut pairs[next];
        b.post_recv(Recv::new(i).into(black_box(to)))?;
        a.post_send(Send::new(i).from(black_box(from)).signaled())?;
        poll(&mut on.send_cq, 1, &mut out);
        poll(&mut on.recv_cq, 1, &mut out);
        next = if next + 1 == pairs.len() { 0 } else { next + 1 };
    }
    if least != Duration::MAX {
        let each = least / BURST as u32;
        println!("{each:?} each in the least of all bursts of {BURST}");
    }
    Ok(())
}
