//! A live SRP target and a live SRP initiator, each behind a login, in virtual time.

mod end;
mod initiator;
mod target;
mod units;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hca_sim::Hca;
use ulp_srp::initiator::{ScsiError, Session};
use ulp_srp::iu::{Lun, PortId};
use verbs_core::{Device, Extent, Guid, Memory};
use verbs_simulator::Sim;

pub(crate) use initiator::initiator;
pub(crate) use target::target;

/// Bytes of a block.
const BLOCK: u32 = 512;

/// The unit that all initiators write, and the one that is read-only.
const OPEN: Lun = Lun(0);
const FIXED: Lun = Lun(1 << 48);

/// The contents of an honest initiator's memory around the places that it names.
const CANARY: u8 = 0xa5;

/// An adapter of a simulated network.
struct Node {
    hca: Arc<Hca>,
    device: Arc<Device>,
}

impl Node {
    async fn new(sim: &Sim, host: u8) -> Self {
        let port = sim.network().attach(&[address(host)]);
        let hca = Hca::over(port).clock(sim.clock().clone()).build();
        let device = hca.open().await.expect("a device on a simulated network");
        Self {
            hca,
            device: Arc::new(device),
        }
    }
}

fn address(host: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, host])
}

/// The name of a port.
const fn port(number: u64) -> PortId {
    PortId {
        extension: 1,
        guid: Guid(0x0200_00ff_fe00_0000 + number),
    }
}

/// Runs a world until it has ended; fails after an hour of its own time, or if it waits for ever.
fn run(world: impl AsyncFnOnce(&Sim)) {
    let sim = Sim::new(1);
    let end = sim.now() + Duration::from_secs(3600);
    let ended = sim.run_until(end, world(&sim));
    ended.expect("every request ends");
}

/// An honest initiator's memory: one block in the middle that commands name, and canaries around it.
struct Blotter(Arc<Memory>);

impl Blotter {
    const LEN: usize = 3 * BLOCK as usize;

    fn new() -> Self {
        let memory = Memory::alloc(Self::LEN).expect("memory for three blocks");
        memory.fill(0..Self::LEN, CANARY).expect("it is in range");
        Self(Arc::new(memory))
    }

    fn block(&self) -> [Extent<'_>; 1] {
        [Extent {
            memory: &self.0,
            offset: BLOCK as usize,
            len: BLOCK,
        }]
    }

    fn put(&self, block: &[u8; BLOCK as usize]) {
        self.0.write(BLOCK as usize, block).expect("it is in range");
    }

    /// The block, if nothing around it was touched.
    fn get(&self) -> [u8; BLOCK as usize] {
        let mut all = [0; Self::LEN];
        self.0.read(0, &mut all).expect("it is in range");
        let (before, rest) = all.split_at(BLOCK as usize);
        let (block, behind) = rest.split_at(BLOCK as usize);
        let are_untouched = before.iter().chain(behind).all(|&byte| byte == CANARY);
        assert!(are_untouched, "memory that no command named was written");
        block.try_into().expect("it is as long")
    }
}

/// An honest session reads a block, after unit attentions if there are any.
async fn read(session: &Session, lun: Lun, lba: u64, memory: &Blotter) -> [u8; BLOCK as usize] {
    honestly(async || session.read(lun, lba, 1, &memory.block()).await).await;
    memory.get()
}

/// An honest session writes a block.
async fn write(session: &Session, lun: Lun, lba: u64, memory: &Blotter) {
    honestly(async || session.write(lun, lba, 1, &memory.block()).await).await;
}

/// Repeats an operation until it succeeds. Unit attentions may be reported instead, and other initiators may end what
/// is under way by resets; but not for ever.
async fn honestly(ask: impl AsyncFn() -> Result<(), ScsiError>) {
    let mut last = None;
    for _ in 0..40 {
        match ask().await {
            Ok(()) => return,
            Err(error @ ScsiError::Status(_)) => last = Some(error),
            Err(error) => panic!("the honest session is served no longer: {error}"),
        }
    }
    panic!("the honest session is not served: {last:?}");
}
