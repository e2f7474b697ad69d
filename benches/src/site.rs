//! A device for many threads, and the control verbs that benches ask of it, by each front end.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use verbs_core::qp::CreateQp;
use verbs_core::{Cq, Device, Pd, Provider, QpInit, Request};

use crate::control::{Delayed, Inline};

/// A device and the parents of queue pairs.
#[derive(Debug)]
pub struct Site {
    /// The device.
    pub device: Device,
    pd: Pd,
    cq: Mutex<Cq>,
}

impl Site {
    /// Over a provider that answers at once, or whose commands take that long.
    pub fn taking(time: Option<Duration>) -> Arc<Self> {
        match time {
            None => Self::over(Arc::new(Inline::new())),
            Some(time) => Self::over(Delayed::by(time)),
        }
    }

    fn over(provider: Arc<dyn Provider>) -> Arc<Self> {
        let device = Device::open(provider).wait().expect("a device");
        let pd = device.alloc_pd().wait().expect("a PD");
        let cq = Mutex::new(device.create_cq(4).wait().expect("a CQ"));
        Arc::new(Self { device, pd, cq })
    }

    /// A request for a queue pair.
    pub fn create_qp(&self) -> Request<'_, CreateQp> {
        let cq = self.cq.lock().unwrap_or_else(PoisonError::into_inner);
        self.pd.create_qp(QpInit::rc(&*cq, &*cq))
    }
}

/// The operations that are requested.
#[derive(Clone, Copy, Debug)]
pub enum Ask {
    /// A query of a port.
    Query,
    /// A queue pair, created and destroyed.
    CreateDestroy,
}

impl Ask {
    /// Finished by routines, the last of which counts in `done`.
    pub fn routine(self, site: &Site, done: &Arc<AtomicU64>) {
        let done = Arc::clone(done);
        let count = move || {
            done.fetch_add(1, SeqCst);
        };
        let _ = match self {
            Self::Query => site.device.query_port(1).issue(move |port| {
                black_box(port).expect("port 1");
                count();
            }),
            Self::CreateDestroy => site.create_qp().issue(move |qp| {
                let destroy = qp.expect("a QP").destroy();
                let _ = destroy.issue(move |destroyed| {
                    destroyed.expect("idle");
                    count();
                });
            }),
        };
    }

    /// Waited for.
    pub fn blocking(self, site: &Site) {
        match self {
            Self::Query => {
                black_box(site.device.query_port(1).wait()).expect("port 1");
            }
            Self::CreateDestroy => {
                let qp = site.create_qp().wait().expect("a QP");
                qp.destroy().wait().expect("idle");
            }
        }
    }

    /// Awaited.
    pub async fn future(self, site: Arc<Site>) {
        match self {
            Self::Query => {
                black_box(site.device.query_port(1).await).expect("port 1");
            }
            Self::CreateDestroy => {
                let create = site.create_qp();
                let qp = create.await.expect("a QP");
                qp.destroy().await.expect("idle");
            }
        }
    }
}
