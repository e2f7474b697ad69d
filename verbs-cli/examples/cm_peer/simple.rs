//! `rdma_client` and `rdma_server`: one message each way; and some roles that fail.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use futures::StreamExt;
use verbs_cm::Manager;
use verbs_core::{QpType, Remote, Send, WcOpcode, Write};

use crate::host::{Failed, Host};

const SIZE: usize = 16;

pub(crate) async fn client(host: &mut Host, at: SocketAddr) -> Result<String, Failed> {
    let qp = host.prepared(0, 1).await?;
    let mut connection = verbs_cm::connect(&host.device, at, qp).await?;
    connection.post_send(Send::new(1).inline(&[1; SIZE]).signaled())?;
    host.completion(WcOpcode::Send).await?;
    let wc = host.completion(WcOpcode::Recv).await?;
    connection.close().await?;
    Ok(format!("{} bytes came back", wc.byte_len))
}

pub(crate) async fn server(host: &mut Host, at: SocketAddr) -> Result<String, Failed> {
    let mut listener = verbs_cm::listen(&host.device, at).await?;
    let request = listener.next().await.ok_or("a listener never ends")?;
    let qp = host.prepared(0, 1).await?;
    let mut connection = request.accept(qp).await?;
    let wc = host.completion(WcOpcode::Recv).await?;
    connection.post_send(Send::new(1).inline(&[2; SIZE]).signaled())?;
    host.completion(WcOpcode::Send).await?;
    connection.close().await?;
    Ok(format!("{} bytes came", wc.byte_len))
}

/// Rejects one request, in words.
pub(crate) async fn reject(host: &Host, at: SocketAddr) -> Result<String, Failed> {
    let mut listener = verbs_cm::listen(&host.device, at).await?;
    let request = listener.next().await.ok_or("a listener never ends")?;
    let peer = request.peer_addr();
    request.reject(b"no room today")?;
    // The peer may need to hear it twice.
    thread::sleep(Duration::from_millis(500));
    Ok(format!("rejected {peer}"))
}

/// Is there, and nobody listens.
pub(crate) async fn open(host: &Host) -> Result<String, Failed> {
    let manager = Manager::of(&host.device);
    manager.open().await?;
    // As long as it takes a peer to be refused.
    thread::sleep(Duration::from_secs(8));
    drop(manager);
    Ok("nobody listened".into())
}

/// Connects, and says how that went.
pub(crate) async fn connect(host: &Host, at: SocketAddr) -> Result<String, Failed> {
    let qp = host.qp(QpType::Rc).await?;
    let connection = verbs_cm::connect(&host.device, at, qp).await?;
    connection.close().await?;
    Ok("connected".into())
}

/// Connects, and finds out by WRITEs of nothing when the peer cannot be reached any more.
pub(crate) async fn cut(host: &mut Host, at: SocketAddr) -> Result<String, Failed> {
    let qp = host.qp(QpType::Rc).await?;
    let connecting = verbs_cm::connect(&host.device, at, qp).retry_count(1);
    let mut connection = connecting.await?;
    println!("connected");
    loop {
        connection.post_send(Write::new(1, Remote::default()).inline(b"").signaled())?;
        host.completion(WcOpcode::RdmaWrite).await?;
        thread::sleep(Duration::from_millis(200));
    }
}

/// Connects, and waits for the end: its own by a signal, or the peer's.
pub(crate) async fn hold(host: &Host, at: SocketAddr) -> Result<String, Failed> {
    let qp = host.qp(QpType::Rc).await?;
    let connection = verbs_cm::connect(&host.device, at, qp).await?;
    println!("connected");
    connection.closed().await?;
    Ok("the peer has ended it".into())
}
