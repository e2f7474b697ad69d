//! Goal: direct placement and packets come to the same. Method: the same work, one step after the other,
//! both ways; every completion and every byte is compared.

use hca_sim::sim::compare;

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
