//! A work request beyond those of the verbs.

use verbs_core::extension::WorkExtension;

/// A work request that completes when everything before it on its send queue has, and the peer has acknowledged it: a
/// message of no bytes, which takes no receive and touches no memory. Reliable connections have it.
///
/// ```
/// use hca_sim::extension::Barrier;
/// use hca_sim::{Hca, connect};
/// use verbs_core::{QpInit, SendFlags, Wc};
///
/// # futures::executor::block_on(async {
/// let device = Hca::loopback().open().await?;
/// assert!(device.extension("hca_sim.barrier").is_some());
/// let (pd, mut cq) = (device.alloc_pd().await?, device.create_cq(16).await?);
/// let init = QpInit::rc(&cq, &cq);
/// let (mut qp, mut peer) = (pd.create_qp(init).await?, pd.create_qp(init).await?);
/// connect(&mut qp, &mut peer).await?;
/// qp.send_queue().unwrap().post_extension(7, &Barrier, SendFlags::SIGNALED).unwrap();
/// assert_eq!(cq.poll(&mut [Wc::default(); 1])[0].wr_id, 7);
/// # Ok::<(), verbs_core::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct Barrier;

impl WorkExtension for Barrier {
    const NAME: &'static str = "hca_sim.barrier";
}
