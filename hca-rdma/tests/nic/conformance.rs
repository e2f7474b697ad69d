//! The conformance suite of verbs-core through all layers: this provider, the C library, the software HCA below it.
//! With another rdma-core (`VERBS_RDMA_CORE`), `VERBS_WITHOUT` names verbs that its driver lacks.

use verbs_core::Kind;
use verbs_core::sync::Arc;
use verbs_core::testing::{Subject, conformance};

use crate::rdma_core::{address, nic};

/// Verbs that this provider does not have.
const WITHOUT: &[Kind] = &[
    Kind::ModifyDevice,
    Kind::ModifyPort,
    Kind::QueryCq,
    Kind::ResizeQp,
    Kind::RegSharedMr,
    Kind::RegPages,
    Kind::AllocMr,
    Kind::QueryMw,
    Kind::CreateFmrPool,
];

/// More verbs that the driver lacks.
fn lacking() -> Vec<Kind> {
    let named = std::env::var("VERBS_WITHOUT").unwrap_or_default();
    let is_named = |kind: &Kind| named.split(',').any(|name| name == kind.name());
    Kind::ALL.iter().copied().filter(is_named).collect()
}

#[test]
fn on_a_device_of_libibverbs() {
    conformance::run(|| {
        let nic = nic();
        let [removes, counts, made] = [0; 3].map(|_| Arc::clone(&nic));
        Subject::new(made)
            .live(move || counts.objects())
            .remove(move || removes.remove())
            .address(address(&nic))
            .without(WITHOUT)
            .without(&lacking())
    });
}
