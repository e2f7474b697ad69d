//! A program's own test: over a network that loses and doubles packets, in virtual time and the same each time, with a
//! device that is pulled out in the middle. No privileges, and no waiting: the retries take no time.
//!
//! `cargo run --example faults_in_ci`

use std::net::IpAddr;
use std::pin::pin;

use futures::future::{Either, select, try_join};
use verbs::prelude::*;
use verbs::sim::{Digest, Hca, LinkConfig, Ppm, Sim};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// What is to be tested: it doubles the number in each message.
async fn double(conn: &Connection) -> Result<(), verbs::Error> {
    while let Some(mut message) = conn.recv().await? {
        message[0] = message[0].wrapping_mul(2);
        conn.send(message).await?;
    }
    Ok(())
}

async fn ask(conn: &Connection, number: u8) -> Result<u8, Error> {
    let mut question = conn.buf().await;
    question.fill_from(&[number]);
    conn.send(question).await?;
    Ok(conn.recv().await?.ok_or("closed")?[0])
}

async fn test(sim: &Sim) -> Result<(), Error> {
    let host = |addr: IpAddr| {
        let port = sim.network().attach(&[addr]);
        Hca::over(port).clock(sim.clock().clone()).build()
    };
    let [here, there] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
    let (hca, peer) = (host(here), host(there));
    let client = Endpoint::on(hca.open().await?).open().await?;
    let server = Endpoint::on(peer.open().await?).open().await?;
    let mut listener = server.listen((there, 7471)).await?;
    let accepted = async { Ok(listener.accept().await) };
    let asked = client.connect((there, 7471)).into_future();
    let (client, server) = try_join(asked, accepted).await?;

    sim.network().set_all(LinkConfig {
        loss: Ppm::percent(20),
        duplication: Ppm::percent(5),
        ..LinkConfig::default()
    });
    let asks = async {
        for number in 0..100 {
            assert_eq!(ask(&client, number).await?, number * 2);
        }
        hca.remove(); // surprise
        let gone = ask(&client, 1).await.expect_err("the device has gone");
        println!("all 100 answers were right; then: {gone}");
        Ok::<(), Error>(())
    };
    match select(pin!(asks), pin!(double(&server))).await {
        Either::Left((asked, _)) => asked,
        Either::Right((served, _)) => Ok(served?),
    }
}

/// The digest of all that happened, how many packets there were, and how long it took in virtual time.
fn run(seed: u64) -> Result<(Digest, u64, String), Error> {
    let sim = Sim::new(seed);
    sim.run(test(&sim))??;
    let (packets, time) = (sim.counts().packets, sim.now().to_string());
    Ok((sim.digest(), packets, time))
}

fn main() -> Result<(), Error> {
    let first = run(7)?;
    let (digest, packets, time) = &first;
    println!("{packets} packets in {time}, digest {digest}");
    assert_eq!(run(7)?, first, "the same seed, the same run");
    Ok(())
}
