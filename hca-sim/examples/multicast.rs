//! Sends datagrams to a multicast group, or receives as many, over the machine's own UDP sockets, as `mckey` of
//! rdma-core does on Linux, with the Q_Key of the RDMA connection manager.
//!
//! ```text
//! multicast send    ADDRESS GROUP COUNT SIZE    from that address of this machine
//! multicast receive ADDRESS GROUP COUNT SIZE    says "joined", and "received COUNT" in the end
//! ```

use std::error::Error;
use std::net::IpAddr;
use std::time::Duration;

use futures::executor::block_on;
use hca_sim::Hca;
use hca_sim::link::Udp;
use verbs_core::sync::thread;
use verbs_core::{
    Access, Av, Cq, Datagram, Lid, Memory, Mr, Pd, Psn, QKey, Qp, QpInit, Qpn, Recv, Send, Wc,
};

/// Bytes in front of a datagram.
const GRH: usize = 40;
/// The largest datagram.
const SIZE_MAX: usize = 4096;

type Anything = Box<dyn Error>;

/// The objects that datagrams need; dropped in this order.
struct End {
    qp: Qp,
    cq: Cq,
    mr: Mr,
    _pd: Pd,
}

async fn end(address: IpAddr, count: u32) -> Result<End, Anything> {
    let device = Hca::over(Udp::bind(&[address])?).open().await?;
    let pd = device.alloc_pd().await?;
    let cq = device.create_cq(2 * count).await?;
    let memory = Memory::alloc(GRH + SIZE_MAX)?;
    let mr = pd.register(memory, Access::LOCAL_WRITE).await?;
    let qp = pd
        .create_qp(QpInit::ud(&cq, &cq).depth(count, count))
        .await?;
    qp.init_datagram(1, QKey::RDMA_CM).await?;
    qp.ready_to_receive_datagrams().await?;
    qp.ready_to_send(Psn::new(0)).await?;
    Ok(End {
        qp,
        cq,
        mr,
        _pd: pd,
    })
}

impl End {
    async fn next(&mut self) -> Result<Wc, Anything> {
        loop {
            let mut one = [Wc::default()];
            if let [wc] = self.cq.poll(&mut one) {
                if !wc.is_ok() {
                    return Err(format!("ended with \"{}\"", wc.status).into());
                }
                return Ok(*wc);
            }
            self.cq.ready().await?;
        }
    }
}

async fn send(mut end: End, group: IpAddr, count: u32, size: usize) -> Result<(), Anything> {
    let av = Av::to_gid(1, 0, group.into());
    let there = Datagram::new(av, Qpn::MULTICAST, QKey::RDMA_CM);
    let piece = end.mr.slice(0..size);
    for number in 0..count {
        let wr = Send::new(number.into()).from(piece).imm(number);
        end.qp.post_send(wr.to(&there).signaled())?;
    }
    for _ in 0..count {
        end.next().await?;
    }
    println!("sent {count}");
    // The last ones have only been handed over.
    thread::sleep(Duration::from_millis(100));
    Ok(())
}

async fn receive(mut end: End, group: IpAddr, count: u32, size: usize) -> Result<(), Anything> {
    for number in 0..count {
        let piece = end.mr.slice(0..GRH + SIZE_MAX);
        end.qp.post_recv(Recv::new(number.into()).into(piece))?;
    }
    let joined = end.qp.attach_mcast(group.into(), Lid(0)).await?;
    println!("joined");
    for _ in 0..count {
        let wc = end.next().await?;
        if wc.byte_len as usize != GRH + size {
            return Err(format!("{} bytes instead of {}", wc.byte_len, GRH + size).into());
        }
    }
    println!("received {count}");
    joined.detach().await.map_err(|refused| refused.error)?;
    Ok(())
}

fn main() -> Result<(), Anything> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [what, address, group, count, size] = &args[..] else {
        return Err("usage: multicast send|receive ADDRESS GROUP COUNT SIZE".into());
    };
    let (group, count, size) = (group.parse()?, count.parse()?, size.parse()?);
    if size > SIZE_MAX {
        return Err(format!("SIZE {size} is more than {SIZE_MAX}").into());
    }
    block_on(async {
        let end = end(address.parse()?, count).await?;
        match what.as_str() {
            "send" => send(end, group, count, size).await,
            "receive" => receive(end, group, count, size).await,
            other => Err(format!("\"{other}\" is neither send nor receive").into()),
        }
    })
}
