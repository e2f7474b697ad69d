//! A filter: a provider before a provider. This one counts verbs, and lets a program have only so many queue pairs.
//! Any provider can be behind it, and any program before it; neither knows.
//!
//!     cargo run -p verbs-rdma --example filter

use std::error::Error as StdError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use verbs::control::mad::{MadArrival, MadBytes, MadVerdict};
use verbs::control::timer::Timer;
use verbs::control::{AnyCommand, Device, Error, Kind, ProviderAttr, QpInit, RequestId};
use verbs::provider::Provider;
use verbs::sim::Network;

struct Quota {
    inner: Arc<dyn Provider>,
    queue_pairs_left: AtomicU32,
    verbs: AtomicU32,
}

impl Provider for Quota {
    /// Every verb comes by here. Nothing here waits, and nothing is locked.
    fn issue(&self, command: AnyCommand<'_>) {
        self.verbs.fetch_add(1, Relaxed);
        if command.kind() == Kind::CreateQp {
            let one_less = |left: u32| left.checked_sub(1);
            let taken = self
                .queue_pairs_left
                .fetch_update(Relaxed, Relaxed, one_less);
            if taken.is_err() {
                return command.refuse(Error::NoMemory);
            }
        }
        self.inner.issue(command);
    }

    fn cancel(&self, id: RequestId) {
        self.inner.cancel(id);
    }

    // The rest is the business of the provider behind.

    fn process_mad(&self, incoming: &MadArrival<'_>, reply: &mut MadBytes) -> MadVerdict {
        self.inner.process_mad(incoming, reply)
    }

    fn query_provider(&self, port: u8) -> ProviderAttr {
        self.inner.query_provider(port)
    }

    fn seed(&self) -> Option<u64> {
        self.inner.seed()
    }

    fn timer(&self) -> Option<Arc<dyn Timer>> {
        self.inner.timer()
    }
}

fn main() -> Result<(), Box<dyn StdError + Send + Sync>> {
    let quota = Arc::new(Quota {
        inner: Network::from_env()?.provider([127, 0, 0, 1])?,
        queue_pairs_left: AtomicU32::new(2),
        verbs: AtomicU32::new(0),
    });
    verbs::block_on(async {
        let device = Device::open(Arc::clone(&quota) as Arc<dyn Provider>).await?;
        let pd = device.alloc_pd().await?;
        let cq = device.create_cq(16).await?;
        let first = pd.create_qp(QpInit::rc(&cq, &cq)).await?;
        let _second = pd.create_qp(QpInit::rc(&cq, &cq)).await?;
        match pd.create_qp(QpInit::rc(&cq, &cq)).await {
            Err(error) => println!("a third: {error}"),
            Ok(_) => return Err("there should have been no third".into()),
        }
        // Destroying the first does not give its place back: this filter counts creates.
        first.destroy().await.map_err(|refused| refused.error)?;
        println!("{} verbs went by", quota.verbs.load(Relaxed));
        Ok(())
    })
}
