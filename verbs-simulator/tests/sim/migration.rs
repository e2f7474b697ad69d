//! Goal: connections of runs are given alternate paths and move to them, and the run's checks hold. Method: seeds, and how often
//! a queue pair has moved.

use verbs_simulator::{Mode, Options, run};

#[test]
fn connections_move_to_their_alternate_paths() {
    let runs = (1..=40).map(|seed| {
        let report = run(&Options {
            mode: Some(Mode::Packets),
            ..Options::new(seed)
        });
        assert_eq!(report.violation, None, "{}", report.options);
        report.counts.migrations
    });
    let moved: Vec<_> = runs.collect();
    let runs = moved.iter().filter(|&&times| times > 0).count();
    assert!(runs >= 4, "{moved:?}");
}
