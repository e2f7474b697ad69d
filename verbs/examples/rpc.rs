//! Requests and answers of 4 KiB over RoCEv2, 64 of them under way, between two processes.
//!
//! ```text
//! cargo run --release --example rpc server 127.0.0.2 &
//! cargo run --release --example rpc client 127.0.0.1 127.0.0.2:7471
//! ```

use std::{net::IpAddr, time::Instant};
use verbs::prelude::*;

async fn serve(conn: &Connection) -> Result<(), verbs::Error> {
    while let Some(mut request) = conn.recv().await? {
        request[8..].iter_mut().for_each(|byte| *byte = !*byte);
        conn.send(request).posted().await?; // the same buffer is the answer
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let args: Vec<String> = std::env::args().collect(); // server ADDR | client ADDR SERVER:PORT [COUNT]
    let here: IpAddr = args
        .get(2)
        .ok_or("say server ADDR or client ADDR SERVER:PORT")?
        .parse()?;
    let net = Endpoint::udp(here)
        .message_size(4096)
        .window(64)
        .open()
        .await?;
    if args[1] == "server" {
        let mut clients = net.listen((here, 7471)).await?;
        loop {
            let conn = clients.accept().await;
            tokio::spawn(async move { println!("over: {:?}", serve(&conn).await) });
        }
    }
    let conn = net
        .connect(args.get(3).ok_or("which server?")?.as_str())
        .await?; // 5 s; .timeout(..)
    let count = args.get(4).map_or(Ok(100_000), |count| count.parse())?;
    let begun = Instant::now();
    for id in 0..count + 64_u64 {
        let mut next = if id < 64 {
            conn.buf().await
        } else {
            conn.recv().await?.ok_or("closed")?
        };
        next[..8].copy_from_slice(&id.to_le_bytes());
        if id < count {
            conn.send(next).posted().await?;
        }
    }
    println!(
        "{:.0} requests/s",
        count as f64 / begun.elapsed().as_secs_f64()
    );
    Ok(conn.close().await?)
}
