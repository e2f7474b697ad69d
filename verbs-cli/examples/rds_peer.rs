//! Our end of the peer suite of RDS where `verbs rds` does not do: memory that is lent and borrowed, and sockets that are
//! congested, as `ci/machine/guest/rds_peer` does at the other end.
//!
//!     rds_peer lend LOCAL PORT BYTES
//!     rds_peer borrow LOCAL PEER PORT
//!     rds_peer flood LOCAL PEER PORT COUNT REQUEST
//!     rds_peer stall LOCAL PORT SECONDS COUNT
//!
//! `flood` sends requests of `verbs rds stress` as they are taken, and waits for one answer; `stall` reads nothing for some time,
//! then so many requests, and answers the last.
//!
//! The borrower sends "lend"; the lender answers with the number of bytes and a cookie. The borrower reads all of it,
//! checks it, and writes all of it with every bit inverted, before a datagram "done"; the lender checks that.

#[expect(dead_code, reason = "the whole of what the command has")]
#[path = "../src/protocols/rds/message.rs"]
mod message;

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use ulp_rds::wire::Cookie;
use ulp_rds::{Config, Local, Node, Rdma, RdmaStatus, RdsSocket, SendError, SendOptions};
use verbs_core::Memory;
use verbs_core::sync::Arc;
use verbs_core::timer::Sleep;

use message::{HEADER, Message};

type Failed = Box<dyn Error>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["lend", local, port, bytes] => with_node(local, |node, local| {
            block_on(lend(
                node,
                SocketAddr::new(local, port.parse()?),
                bytes.parse()?,
            ))
        }),
        ["borrow", local, peer, port] => with_node(local, |node, local| {
            block_on(borrow(
                node,
                local,
                SocketAddr::new(peer.parse()?, port.parse()?),
            ))
        }),
        ["flood", local, peer, port, count, request] => with_node(local, |node, local| {
            let peer = SocketAddr::new(peer.parse()?, port.parse()?);
            block_on(flood(node, local, peer, count.parse()?, request.parse()?))
        }),
        ["stall", local, port, seconds, count] => with_node(local, |node, local| {
            let at = SocketAddr::new(local, port.parse()?);
            let pause = Duration::from_secs(seconds.parse()?);
            block_on(stall(node, at, pause, count.parse()?))
        }),
        _ => {
            eprintln!("usage: rds_peer lend|borrow|flood|stall …, as the top of its source says");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn with_node(
    local: &str,
    work: impl FnOnce(&Node, IpAddr) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let local: IpAddr = local.parse()?;
    let hca = hca_sim::Hca::over(hca_sim::Udp::bind(&[local])?).build();
    let device = Arc::new(hca.open().wait()?);
    let node = block_on(Node::open(&device, Config::new([local])))?;
    work(&node, local)?;
    // The last datagram is acknowledged, or is not going to be.
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until && node.connections().iter().any(|of| of.unacked > 0) {
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn first(len: usize, inverted: u8) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 ^ inverted).collect()
}

async fn lend(node: &Node, at: SocketAddr, len: usize) -> Result<(), Failed> {
    let socket = RdsSocket::bind(node, at)?;
    let memory = Memory::alloc(len)?;
    memory.write(0, &first(len, 0))?;
    let mapping = socket.get_mr(memory, false).await?;
    let asked = socket.recv().await;
    if asked.payload != b"lend" {
        return Err("another datagram than was due".into());
    }
    let options = SendOptions::with_cookie(mapping.cookie());
    let bytes = (len as u64).to_be_bytes();
    socket.send_with(&bytes, asked.from, &options).await?;
    for due in [b"read", b"done"] {
        if socket.recv().await.payload != due {
            return Err("another datagram than was due".into());
        }
    }
    let mut bytes = vec![0; len];
    mapping.memory().read(0, &mut bytes)?;
    if bytes != first(len, 0xff) {
        return Err("the memory has other content".into());
    }
    println!("lent {len} bytes");
    Ok(())
}

async fn borrow(node: &Node, local: IpAddr, peer: SocketAddr) -> Result<(), Failed> {
    let socket = RdsSocket::bind(node, SocketAddr::new(local, 0))?;
    socket.send_to(b"lend", peer).await?;
    let told = socket.recv().await;
    let cookie = Cookie::of(told.cookie.ok_or("no cookie")?);
    let len = u64::from_be_bytes(told.payload[..].try_into()?) as usize;
    let mr = node.register(Memory::alloc(len)?).await?;
    let all = Local {
        mr: Arc::clone(&mr),
        range: 0..len,
    };
    operate(
        &socket,
        peer,
        b"read",
        Rdma::read(cookie, 0, all.clone()).fenced(),
    )
    .await?;
    let mut bytes = vec![0; len];
    mr.read(0, &mut bytes)?;
    if bytes != first(len, 0) {
        return Err("the memory has other content".into());
    }
    mr.write(0, &first(len, 0xff))?;
    operate(&socket, peer, b"done", Rdma::write(cookie, 0, all)).await?;
    println!("borrowed {len} bytes");
    Ok(())
}

async fn flood(
    node: &Node,
    local: IpAddr,
    peer: SocketAddr,
    count: u64,
    request: usize,
) -> Result<(), Failed> {
    let socket = RdsSocket::bind(node, SocketAddr::new(local, 0))?;
    let mut bytes = vec![0; request.max(HEADER)];
    let mut congested = false;
    for number in 0..count {
        let message = Message {
            is_answer: false,
            ack_bytes: HEADER as u32,
            number,
        };
        message.put(&mut bytes);
        if number.is_multiple_of(4) {
            // The peer, which may be slow, has time to say that it is congested.
            Sleep::new(node.timer(), Duration::from_millis(1)).await;
        }
        loop {
            match socket.try_send_to(&bytes, peer) {
                Err(SendError::Congested(_)) => congested = true,
                Err(SendError::WouldBlock) => {}
                sent => break sent?,
            }
            Sleep::new(node.timer(), Duration::from_millis(1)).await;
        }
    }
    let answer = Message::parse(&socket.recv().await.payload)?;
    if (answer.is_answer, answer.number) != (true, count - 1) {
        return Err("the answer to another request".into());
    }
    let held = if congested {
        "held back"
    } else {
        "never congested"
    };
    println!("{count} requests, {held}");
    Ok(())
}

async fn stall(node: &Node, at: SocketAddr, pause: Duration, count: u64) -> Result<(), Failed> {
    let socket = RdsSocket::bind(node, at)?;
    Sleep::new(node.timer(), pause).await;
    let mut from = at;
    for due in 0..count {
        let request = socket.recv().await;
        let said = Message::parse(&request.payload)?;
        said.check(&request.payload)?;
        if (said.is_answer, said.number) != (false, due) {
            return Err(format!("request {} where {due} was due", said.number).into());
        }
        from = request.from;
    }
    let answer = Message {
        is_answer: true,
        ack_bytes: HEADER as u32,
        number: count - 1,
    };
    let mut bytes = [0; HEADER];
    answer.put(&mut bytes);
    socket.send_to(&bytes, from).await?;
    println!("{count} requests read");
    let discarded = socket.counters().discarded;
    match discarded {
        0 => Ok(()),
        count => Err(format!("{count} were discarded").into()),
    }
}

/// Carries an operation out before a datagram, and waits for its end.
async fn operate(
    socket: &RdsSocket,
    peer: SocketAddr,
    payload: &[u8],
    rdma: Rdma,
) -> Result<(), Failed> {
    let options = SendOptions::with_rdma(rdma.notify(1));
    socket.send_with(payload, peer, &options).await?;
    match socket.notified().await.status {
        RdmaStatus::Success => Ok(()),
        status => Err(format!("the operation ended with {status:?}").into()),
    }
}
