//! Goal: direct placement and packets give the same results. Method: the same work, one step after the other, in both
//! modes; every completion and every byte is compared.

use verbs_simulator::compare;

#[test]
fn both_ways_to_carry_messages_agree() {
    let mut completions = 0;
    for seed in 1..=16 {
        match compare(seed) {
            Ok(compared) => completions += compared,
            Err(disagreement) => panic!("seed {seed}: {disagreement}"),
        }
    }
    assert!(
        completions > 500,
        "{completions} are too few to prove anything"
    );
}
