//! Messages between HCAs of two processes, across a subnet that a third one hosts.
//!
//! Host a subnet of two adapters and have a manager bring it up (see `docs/SUBNET.md`), then run
//! `cargo run --release -p hca-sim --example subnet_pair -- SOCKET HcaA HcaB [BYTES] [MTU]`. The program starts itself
//! once more for the other end, and prints what a reliable connection carried in some seconds.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::Path as FilePath;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hca_sim::Hca;
use verbs_core::{
    Access, Av, Cq, Device, Lid, Memory, Mr, Mtu, Path, PortState, Psn, Qp, QpAttr, QpInit, Qpn,
    Recv, Send, Wc,
};

type Failure = Box<dyn std::error::Error>;

/// Messages under way.
const DEPTH: u32 = 32;
/// Receives that are posted: more, so that none is missing while some are posted again.
const RECVS: u32 = 4 * DEPTH;
/// How long to measure.
const TIME: Duration = Duration::from_secs(3);

struct End {
    _device: Device,
    cq: Cq,
    mr: Mr,
    qp: Qp,
    lid: Lid,
}

impl End {
    fn new(socket: &str, node: &str, bytes: usize) -> Result<Self, Failure> {
        let device = Hca::subnet(FilePath::new(socket), node, 1)?.open().wait()?;
        let mut port = device.query_port(1).wait()?;
        let start = Instant::now();
        while port.state != PortState::Active {
            if start.elapsed() > Duration::from_secs(20) {
                return Err(format!("{node}: no manager has brought the port up").into());
            }
            std::thread::sleep(Duration::from_millis(20));
            port = device.query_port(1).wait()?;
        }
        let pd = device.alloc_pd().wait()?;
        let cq = device.create_cq(2 * RECVS).wait()?;
        let memory = Memory::alloc(bytes * RECVS as usize)?;
        let mr = pd.register(memory, Access::LOCAL_WRITE).wait()?;
        let init = QpInit::rc(&cq, &cq).depth(DEPTH, RECVS);
        let qp = pd.create_qp(init).wait()?;
        qp.modify(QpAttr::init(1, Access::empty())).wait()?;
        Ok(Self {
            _device: device,
            cq,
            mr,
            qp,
            lid: port.lid,
        })
    }

    /// The parameters that the other end needs.
    fn address(&self) -> String {
        format!("{} {}", self.lid.0, self.qp.qpn().value())
    }

    fn connect(&mut self, address: &str, mtu: Mtu) -> Result<(), Failure> {
        let mut numbers = address.split_whitespace();
        let mut number = || numbers.next().ok_or("a number is missing");
        let path = Path {
            av: Av::to_lid(1, Lid(number()?.parse()?)),
            dest_qpn: Qpn::new(number()?.parse()?),
            rq_psn: Psn::new(0),
            mtu,
        };
        self.qp.modify(QpAttr::rtr(&path)).wait()?;
        self.qp.ready_to_send(Psn::new(0)).wait()?;
        Ok(())
    }

    fn slot(&self, number: u64, bytes: usize) -> std::ops::Range<usize> {
        let at = number as usize * bytes;
        at..at + bytes
    }
}

fn receive(end: &mut End, bytes: usize, mtu: Mtu) -> Result<(), Failure> {
    let mut line = String::new();
    println!("{}", end.address());
    std::io::stdin().read_line(&mut line)?;
    for slot in 0..u64::from(RECVS) {
        let range = end.slot(slot, bytes);
        end.qp
            .post_recv(Recv::new(slot).into(end.mr.slice(range)))?;
    }
    end.connect(&line, mtu)?;
    println!("ready");
    let mut wcs = [Wc::default(); 32];
    let mut is_over = false;
    while !is_over {
        for wc in end.cq.poll(&mut wcs).iter() {
            is_over |= !wc.is_ok() || wc.byte_len == 1;
            let range = end.slot(wc.wr_id, bytes);
            end.qp
                .post_recv(Recv::new(wc.wr_id).into(end.mr.slice(range)))?;
        }
    }
    // The last acknowledgement is sent.
    std::thread::sleep(Duration::from_millis(100));
    Ok(())
}

fn send(end: &mut End, bytes: usize) -> Result<(u64, Duration), Failure> {
    let (mut sent, mut done) = (0, 0);
    let start = Instant::now();
    let mut wcs = [Wc::default(); 32];
    while start.elapsed() < TIME {
        while sent - done < u64::from(DEPTH) {
            let range = end.slot(sent % u64::from(DEPTH), bytes);
            let send = Send::new(sent).from(end.mr.slice(range)).signaled();
            end.qp.post_send(send)?;
            sent += 1;
        }
        for wc in end.cq.poll(&mut wcs).iter() {
            if !wc.is_ok() {
                return Err(format!("a message has failed: {}", wc.status).into());
            }
            done += 1;
        }
    }
    let took = start.elapsed();
    let measured = done;
    while done < sent {
        done += end.cq.poll(&mut wcs).iter().count() as u64;
    }
    // One byte reports the end.
    end.qp
        .post_send(Send::new(0).from(end.mr.slice(0..1)).signaled())?;
    while end.cq.poll(&mut wcs).iter().count() == 0 {}
    Ok((measured, took))
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [socket, here, there, rest @ ..] = &args[..] else {
        return Err("usage: subnet_pair SOCKET NODE NODE [BYTES] [MTU]".into());
    };
    let bytes: usize = rest.first().map_or(Ok(65_536), |bytes| bytes.parse())?;
    let mtu: u32 = rest.get(1).map_or(Ok(4096), |mtu| mtu.parse())?;
    let mtu = Mtu::ALL.into_iter().find(|known| known.bytes() == mtu);
    let mtu = mtu.ok_or("no such MTU")?;
    if rest.get(2).is_some() {
        let mut end = End::new(socket, here, bytes)?;
        return receive(&mut end, bytes, mtu);
    }
    let mut end = End::new(socket, here, bytes)?;
    let mut other = Command::new(env::current_exe()?)
        .args([socket, there, here, &bytes.to_string()])
        .args([&mtu.bytes().to_string(), "receives"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (mut to, from) = (other.stdin.take(), other.stdout.take());
    let mut from = BufReader::new(from.ok_or("no output")?);
    let mut line = String::new();
    from.read_line(&mut line)?;
    end.connect(&line, mtu)?;
    if let Some(to) = &mut to {
        writeln!(to, "{}", end.address())?;
    }
    line.clear();
    from.read_line(&mut line)?;
    let (messages, took) = send(&mut end, bytes)?;
    other.wait()?;
    let per_second = messages as f64 / took.as_secs_f64();
    println!(
        "{messages} messages of {bytes} bytes, MTU {}: {per_second:.0} messages/s, {:.3} GB/s",
        mtu.bytes(),
        per_second * bytes as f64 / 1e9
    );
    Ok(())
}
