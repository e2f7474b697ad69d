//! The simulator: nodes, a network and the software on them, in virtual time and determined by a seed.
//!
//! It tests protocols, those of this workspace and others: a [`Sim`] runs any future that waits only for virtual time,
//! its [`Network`] loses, duplicates, delays and damages packets as configured, its [`StreamNetwork`] splits, delays, ends
//! and resets the streams that carry iWARP, and two runs of one seed have the same [`Digest`] on every machine.
//!
//! ```
//! use std::time::Duration;
//!
//! use hca_sim::Hca;
//! use verbs_simulator::{LinkConfig, Ppm, Sim};
//! use verbs_core::{Access, Av, Error, Memory, Mr, Mtu, Path, Psn, Qp, QpInit, Recv, Send, Wc};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let sim = Sim::new(7);
//! let addresses = ["10.0.0.1".parse()?, "10.0.0.2".parse()?];
//! let hcas = addresses.map(|address| {
//!     Hca::over(sim.network().attach(&[address])).clock(sim.clock().clone()).build()
//! });
//! // One packet in five gets lost.
//! sim.network().set_all(LinkConfig { loss: Ppm::percent(20), ..LinkConfig::default() });
//!
//! let arrived = sim.run(async {
//!     let (a, b) = (hcas[0].open().await?, hcas[1].open().await?);
//!     let (pd_a, pd_b) = (a.alloc_pd().await?, b.alloc_pd().await?);
//!     let (cq_a, mut cq_b) = (a.create_cq(64).await?, b.create_cq(64).await?);
//!     let mut qp_a = pd_a.create_qp(QpInit::rc(&cq_a, &cq_a).inline(64)).await?;
//!     let mut qp_b = pd_b.create_qp(QpInit::rc(&cq_b, &cq_b)).await?;
//!     for (qp, hca, peer) in [(&qp_a, &hcas[1], &qp_b), (&qp_b, &hcas[0], &qp_a)] {
//!         let av = Av::to_gid(1, 0, hca.gid());
//!         let path = Path { av, dest_qpn: peer.qpn(), rq_psn: Psn::new(5), mtu: Mtu::B1024 };
//!         qp.init(1, Access::empty()).await?;
//!         qp.ready_to_receive(&path).await?;
//!         qp.ready_to_send(Psn::new(5)).await?;
//!     }
//!     let mr = pd_b.register(Memory::alloc(4096)?, Access::LOCAL_WRITE).await?;
//!     qp_b.post_recv(Recv::new(1).into(mr.all()))?;
//!     qp_a.post_send(Send::new(2).inline(b"through the storm"))?;
//!     cq_b.ready().await?;
//!     Ok::<_, Box<dyn std::error::Error>>(cq_b.poll(&mut [Wc::default(); 1])[0].byte_len)
//! })??;
//! assert_eq!(arrived, 17);
//! println!("{} packets in {}, digest {}", sim.counts().packets, sim.now(), sim.digest());
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod check;
mod coverage;
mod draw;
mod executor;
mod host;
mod journal;
mod mutant;
mod network;
mod run;
mod streams;

pub(crate) use network::hostile;

pub use check::{Rule, Violation};
pub use coverage::{Cell, Coverage, Operation, VerbCell};
pub use draw::{Draw, Ppm};
pub use executor::{Sim, Sleep, Stalled};
pub use host::{HostMutant, HostReport, HostRun};
pub use journal::{Counts, Digest, Sink};
pub use mutant::{Mutant, NoSuchMutant};
pub use network::{
    Bottleneck, Completion, FlowReport, FlowRun, Hits, LinkConfig, Network, NetworkPort, Pattern,
    QueueHits, Sample, Shares, Spread, SwitchQueue,
};
pub use run::{Disagreement, Mode, Options, Plan, Report, compare, run, run_with, shrink};
pub use streams::{StreamConfig, StreamHits, StreamNetwork, StreamPort};
