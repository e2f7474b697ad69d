//! The conformance suite of verbs-core on the whole circle: this provider, the C library, the software HCA below it. On
//! another rdma-core (`VERBS_RDMA_CORE`), `VERBS_WITHOUT` names verbs that its driver lacks.

use verbs_core::Kind;
use verbs_core::sync::Arc;
use verbs_core::testing::{Subject, conformance};

use crate::rdma_core::nic;

/// Verbs that this provider does not have.
const WITHOUT: &[Kind] = &[
    Kind::ModifyDevice,
    Kind::ModifyPort,
    Kind::AllocXrcd,
    Kind::AllocMr,
    Kind::AllocMw,
    Kind::CreateFmrPool,
    Kind::BindCm,
];

/// What the driver does not have besides.
fn lacking() -> Vec<Kind> {
    let named = std::env::var("VERBS_WITHOUT").unwrap_or_default();
    let is_named = |kind: &Kind| named.split(',').any(|name| name == kind.name());
    Kind::ALL.iter().copied().filter(is_named).collect()
}

#[test]
fn on_a_device_of_libibverbs() {
    conformance::run(|| {
        let nic = nic();
        let (removes, counts) = (Arc::clone(&nic), Arc::clone(&nic));
        Subject::new(nic)
            .live(move || counts.objects())
            .remove(move || removes.remove())
            .without(WITHOUT)
            .without(&lacking())
    });
}
