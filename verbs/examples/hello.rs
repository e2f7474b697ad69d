//! Two ends of a connection within one process: no hardware, no root.
//!
//! `cargo run --example hello`

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    verbs::block_on(async {
        let (a, b) = verbs::sim::pair().await?;
        let mut hello = a.buf().await;
        hello.fill_from(b"hello");
        a.send(hello).await?;
        let message = b.recv().await?.ok_or("closed")?;
        println!("{}", String::from_utf8_lossy(&message));
        Ok(())
    })
}
