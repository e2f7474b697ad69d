//! Two hosts: an initiator and a target.

use std::net::IpAddr;
use std::sync::Arc;

use hca_sim::{Hca, Loopback};
use ulp_srp::initiator::{Initiator, Options, Session, Target};
use verbs_cm::resolver::Fixed;
use verbs_cm::{Manager, listen};
use verbs_core::{Device, Extent, Memory};
use verbs_simulator::Sim;

use crate::target::TestTarget;

pub(crate) const AT: &str = "10.0.0.2:5555";
pub(crate) const PAGE: usize = 4096;

pub(crate) struct Bed {
    pub(crate) hcas: [Arc<Hca>; 2],
    pub(crate) initiator: Arc<Device>,
    pub(crate) target: TestTarget,
    /// Keeps the managers open.
    _managers: [Manager; 2],
}

impl Bed {
    /// Two devices on one loopback link.
    pub(crate) async fn new() -> Self {
        let link = Loopback::with_seed(3);
        let hcas = [(); 2].map(|()| Hca::on(&link).build());
        let table = hcas
            .iter()
            .zip(1..)
            .fold(Fixed::new(), |table, (hca, number)| {
                let addr = IpAddr::from([10, 0, 0, number]);
                table.way(addr, hca.gid(), Some(hca.lid()))
            });
        Self::on(hcas, Some(Arc::new(table))).await
    }

    /// Two devices on a simulated network.
    pub(crate) async fn in_sim(sim: &Sim) -> Self {
        let host = |number: u8| {
            let addr = IpAddr::from([10, 0, 0, number]);
            let port = sim.network().attach(&[addr]);
            Hca::over(port).clock(sim.clock().clone()).build()
        };
        Self::on([host(1), host(2)], None).await
    }

    async fn on(hcas: [Arc<Hca>; 2], table: Option<Arc<Fixed>>) -> Self {
        let mut devices = Vec::new();
        for hca in &hcas {
            devices.push(Arc::new(hca.open().await.unwrap()));
        }
        let managers = [0, 1].map(|at: usize| Manager::of(&devices[at]));
        for manager in &managers {
            manager.open().await.unwrap();
            if let Some(table) = &table {
                let table = Arc::<Fixed>::clone(table);
                manager.use_resolver(table).await.unwrap();
            }
        }
        let target = TestTarget::new(&devices[1]).await;
        target.listen(listen(&devices[1], AT).await.unwrap());
        Self {
            hcas,
            initiator: Arc::clone(&devices[0]),
            target,
            _managers: managers,
        }
    }

    pub(crate) async fn login(&self, options: Options) -> Session {
        let target: Target = AT.parse().unwrap();
        Initiator::new(&self.initiator, options)
            .login(target)
            .await
            .unwrap()
    }
}

/// Seeds to run: that many, unless `VERBS_SRP_SEEDS` requests others.
pub(crate) fn seeds(usual: u64) -> u64 {
    let wanted = std::env::var("VERBS_SRP_SEEDS").ok();
    wanted.and_then(|seeds| seeds.parse().ok()).unwrap_or(usual)
}

/// Memory with known bytes.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let byte = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state.to_be_bytes()[0]
    };
    (0..len).map(byte).collect()
}

/// A scatter list of pages, every other one of the memory, from the end on.
pub(crate) fn scattered(memory: &Arc<Memory>, count: usize) -> Vec<Extent<'_>> {
    let page = |number| Extent {
        memory,
        offset: 2 * (count - 1 - number) * PAGE,
        len: PAGE as u32,
    };
    (0..count).map(page).collect()
}

/// Writes bytes to the elements of a list, in order.
pub(crate) fn put(list: &[Extent<'_>], bytes: &[u8]) {
    let mut at = 0;
    for extent in list {
        let end = at + extent.len as usize;
        extent.memory.write(extent.offset, &bytes[at..end]).unwrap();
        at = end;
    }
}

/// The bytes of a list's elements, in order.
pub(crate) fn get(list: &[Extent<'_>]) -> Vec<u8> {
    let mut all = Vec::new();
    for extent in list {
        let mut bytes = vec![0; extent.len as usize];
        extent.memory.read(extent.offset, &mut bytes).unwrap();
        all.extend(bytes);
    }
    all
}
