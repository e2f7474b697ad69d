//! Our end of the peer suite of RDS where it is about RDMA: memory that is lent and borrowed, as
//! `ci/machine/guest/rds_peer/rdma.c` does at the other end.
//!
//!     rds_peer lend LOCAL PORT BYTES
//!     rds_peer borrow LOCAL PEER PORT
//!
//! The borrower sends "lend"; the lender answers with the number of bytes and a cookie. The borrower reads all of it,
//! checks it, and writes all of it with every bit inverted, before a datagram "done"; the lender checks that.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use ulp_rds::wire::Cookie;
use ulp_rds::{Config, Local, Node, Rdma, RdmaStatus, RdsSocket, SendOptions};
use verbs_core::Memory;
use verbs_core::sync::Arc;

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
        _ => {
            eprintln!("usage: rds_peer lend LOCAL PORT BYTES | borrow LOCAL PEER PORT");
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
    let len = u64::from_be_bytes(told.payload.as_slice().try_into()?) as usize;
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
