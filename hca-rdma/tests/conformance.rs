//! The conformance suite of verbs-core on the whole circle: this provider, the C library, the software HCA below it.

mod common;

use verbs_core::Kind;
use verbs_core::sync::Arc;
use verbs_core::testing::{Subject, conformance};

use common::nic;

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

#[test]
fn over_our_own_libibverbs() {
    conformance::run(|| {
        let nic = nic();
        let (removes, counts) = (Arc::clone(&nic), Arc::clone(&nic));
        Subject::new(nic)
            .live(move || counts.objects())
            .remove(move || removes.remove())
            .without(WITHOUT)
    });
}
