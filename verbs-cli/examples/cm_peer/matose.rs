//! `ucmatose`: several connections; the server sends on each, the client replies, the server ends them.

use std::net::SocketAddr;

use futures::StreamExt;
use verbs_cm::Connection;
use verbs_core::{Send, WcOpcode};

use crate::host::{Failed, Host};

/// As its options -c, -C and -S are given in the suite.
const CONNECTIONS: usize = 3;
const MESSAGES: usize = 5;
const SIZE: usize = 100;

pub(crate) async fn client(host: &mut Host, at: SocketAddr) -> Result<String, Failed> {
    let mut all = Vec::new();
    for n in 0..CONNECTIONS {
        let qp = host.prepared(n * MESSAGES, MESSAGES).await?;
        all.push(verbs_cm::connect(&host.device, at, qp).await?);
    }
    receive(host).await?;
    send(host, &mut all).await?;
    for connection in &all {
        connection.closed().await?;
    }
    finish(all).await
}

pub(crate) async fn server(host: &mut Host, at: SocketAddr) -> Result<String, Failed> {
    let mut listener = verbs_cm::listen(&host.device, at).await?;
    let mut all = Vec::new();
    while all.len() < CONNECTIONS {
        let request = listener.next().await.ok_or("a listener never ends")?;
        let qp = host.prepared(all.len() * MESSAGES, MESSAGES).await?;
        all.push(request.accept(qp).await?);
    }
    send(host, &mut all).await?;
    receive(host).await?;
    finish(all).await
}

async fn receive(host: &mut Host) -> Result<(), Failed> {
    for _ in 0..CONNECTIONS * MESSAGES {
        let wc = host.completion(WcOpcode::Recv).await?;
        if wc.byte_len as usize != SIZE {
            return Err(format!("a message of {} bytes", wc.byte_len).into());
        }
    }
    Ok(())
}

async fn send(host: &mut Host, all: &mut [Connection]) -> Result<(), Failed> {
    for connection in &mut *all {
        for n in 0..MESSAGES {
            connection.post_send(Send::new(n as u64).inline(&[7; SIZE]).signaled())?;
        }
    }
    for _ in 0..all.len() * MESSAGES {
        host.completion(WcOpcode::Send).await?;
    }
    Ok(())
}

async fn finish(all: Vec<Connection>) -> Result<String, Failed> {
    let n = all.len();
    for connection in all {
        connection.close().await?;
    }
    Ok(format!("{n} connections, {MESSAGES} messages each way"))
}
