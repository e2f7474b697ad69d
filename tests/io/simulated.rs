//! Awaitable operations in virtual time.

use std::net::IpAddr;
use std::process::Command;
use std::sync::Arc;

use futures::future::{join, try_join};
use hca_sim::Hca;
use verbs_io::{Connection, Endpoint, Error, Opening};
use verbs_simulator::{Digest, LinkConfig, Ppm, Sim};

use crate::pair::{message, text};

/// Hosts of the network.
pub(crate) const HOSTS: [IpAddr; 2] = [
    IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)),
    IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)),
];

/// A connection between the two hosts, with what keeps it.
pub(crate) struct Simulated {
    pub(crate) a: Connection,
    pub(crate) b: Connection,
    pub(crate) hcas: [Arc<Hca>; 2],
    pub(crate) nets: [Endpoint; 2],
}

pub(crate) async fn simulated(
    sim: &Sim,
    options: impl Fn(Opening) -> Opening,
) -> Result<Simulated, Error> {
    let hcas = HOSTS.map(|host| {
        let port = sim.network().attach(&[host]);
        Hca::over(port).clock(sim.clock().clone()).build()
    });
    let open = async |hca: &Arc<Hca>| {
        let device = hca.open().await?;
        options(Endpoint::on(device)).open().await
    };
    let nets = [open(&hcas[0]).await?, open(&hcas[1]).await?];
    let at = (HOSTS[1], 7471);
    let mut listener = nets[1].listen(at).await?;
    let accepted = async { Ok(listener.accept().await) };
    let (a, b) = try_join(nets[0].connect(at).into_future(), accepted).await?;
    Ok(Simulated { a, b, hcas, nets })
}

/// Messages both ways over a network that loses some of them, and a connection that is closed; then another one.
async fn program(sim: &Sim) -> Result<(), Error> {
    sim.network().set_all(LinkConfig {
        loss: Ppm::percent(5),
        ..LinkConfig::default()
    });
    let Simulated {
        a, b, nets, hcas, ..
    } = simulated(sim, |opening| opening).await?;
    for _ in 0..20 {
        a.send(message(&a, "ask").await).await?;
        assert_eq!(text(&b).await.unwrap(), "ask");
        b.send(message(&b, "answer").await).await?;
        assert_eq!(text(&a).await.unwrap(), "answer");
    }
    let (first, second) = join(a.close(), b.closed()).await;
    first?;
    assert!(matches!(second, Error::Closed { .. }), "{second}");
    let refused = nets[0].connect((HOSTS[1], 7471)).await;
    assert!(refused.is_err(), "nothing listens any more");
    drop(hcas);
    Ok(())
}

fn digest(seed: u64) -> Digest {
    let sim = Sim::new(seed);
    sim.run(program(&sim)).unwrap().unwrap();
    sim.digest()
}

/// Goal: a run whose connections are made by endpoints repeats by its seed, in every bit of every packet: in one
/// process, and in another.
#[test]
fn a_seed_repeats_a_run() {
    let first = digest(42);
    assert_eq!(digest(42), first);
    assert_ne!(digest(43), first);
    let myself = std::env::current_exe().unwrap();
    let other = ["--exact", "simulated::the_run_of_a_seed", "--nocapture"];
    let said = Command::new(myself).args(other).output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains(&format!("digest {first}")), "{said}");
}

/// For [`a_seed_repeats_a_run`], which calls it in another process.
#[test]
fn the_run_of_a_seed() {
    println!("digest {}", digest(42));
}
