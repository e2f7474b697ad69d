//! Hosts whose programs and daemons are killed.

use verbs_simulator::{HostMutant, HostRun};

/// Seeds of each run of the tests; ci/seeds runs more.
const SEEDS: u64 = 4;

/// Seeds that find a defect, and how many others are tried if that one does no longer.
const FOUND: [(HostMutant, u64); 6] = [
    (HostMutant::TailFirst, 34),
    (HostMutant::GoneFirst, 18),
    (HostMutant::Unrested, 8),
    (HostMutant::ForeignBlock, 3),
    (HostMutant::ForgottenDreq, 0),
    (HostMutant::SkippedRequest, 0),
];
const OTHERS: u64 = 60;

fn run(seed: u64, mutant: Option<HostMutant>) -> verbs_simulator::HostReport {
    let report = HostRun {
        mutant,
        ..HostRun::new(seed)
    }
    .run();
    println!("seed {seed} {mutant:?}: {report}");
    report
}

#[test]
fn programs_and_daemons_are_killed_and_nothing_breaks() {
    let (mut daemons, mut kills, mut messages, mut shared) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        let report = run(seed, None);
        assert_eq!(report.violation, None, "seed {seed}");
        daemons += report.daemons;
        kills += report.kills;
        messages += report.messages;
        shared += report.shared;
    }
    assert!(daemons > 0 && kills > SEEDS && messages > 100 * SEEDS && shared > 100 * SEEDS);
}

#[test]
fn a_run_repeats() {
    assert_eq!(run(3, None), run(3, None));
}

/// Goal: the checkers find each defect. Method: seeds with it, one of which has to fail.
#[test]
fn every_defect_is_found() {
    assert_eq!(FOUND.map(|(mutant, _)| mutant), *HostMutant::ALL);
    for (mutant, first) in FOUND {
        let mut seeds = [first].into_iter().chain(0..OTHERS);
        let found = seeds.find(|&seed| run(seed, Some(mutant)).violation.is_some());
        assert!(found.is_some(), "{mutant} is not found");
    }
}
