//! Nodes, clients and managers that send arbitrary bytes: see [`verbs_sm::fuzz`].

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use verbs_sm::fuzz;

/// Bytes of which many are small, as in real attributes.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![select(vec![0_u8, 1, 2, 3, 4, 7, 0xff]), any::<u8>()];
    vec(byte, 0..3_000)
}

proptest! {
    // Each round has thousands of steps.
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn nothing_that_is_said_breaks_the_manager(bytes in bytes()) {
        fuzz::subnet(&bytes);
    }
}
