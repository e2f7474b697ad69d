//! Tasks of a runtime with several threads share a connection: no driver is spawned, futures may be dropped by timeouts,
//! and streams of bytes go through `tokio`'s tasks as any other.
//!
//! `cargo run --example tokio`

use std::time::Duration;

use futures::{AsyncReadExt, AsyncWriteExt};
use verbs::prelude::*;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Counts what comes, and answers each message by the count.
async fn count(conn: Connection) -> Result<u64, verbs::Error> {
    let mut count = 0_u64;
    while let Some(mut message) = conn.recv().await? {
        count += 1;
        message.fill_from(&count.to_le_bytes());
        conn.send(message).posted().await?;
    }
    Ok(count)
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let network = verbs::sim::Network::from_env()?;
    let server = network.host([127, 0, 0, 1]).open().await?;
    let client = network.host([127, 0, 0, 2]).open().await?;
    let mut clients = server.listen("127.0.0.1:7471").await?;

    let asked = client.connect("127.0.0.1:7471").into_future();
    let (asked, accepted) = tokio::join!(asked, clients.accept());
    let conn = asked?;
    let counting = tokio::spawn(count(accepted));
    // Nothing was sent, so nothing comes; what is dropped by the timeout takes no message with it.
    let early = tokio::time::timeout(Duration::from_millis(10), conn.recv()).await;
    println!("an answer without a question: {}", early.is_ok());
    let tasks = (0..10).map(|_| {
        let conn = conn.clone();
        tokio::spawn(async move {
            for _ in 0..100 {
                let buf = conn.buf().await;
                conn.send(buf).await?;
                conn.recv().await?;
            }
            Ok::<(), verbs::Error>(())
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await??;
    }
    conn.close().await?;
    println!("messages counted: {}", counting.await??);

    // The next connection is a stream of bytes.
    let asked = client.connect("127.0.0.1:7471").into_future();
    let (asked, accepted) = tokio::join!(asked, clients.accept());
    let (mut near, mut far) = (asked?.into_stream(), accepted.into_stream());
    let reading = tokio::spawn(async move {
        let mut text = String::new();
        far.read_to_string(&mut text).await.map(|_| text)
    });
    near.write_all(b"bytes, ").await?;
    near.write_all(b"then the end").await?;
    near.close().await?;
    println!("{}", reading.await??);
    Ok(())
}
