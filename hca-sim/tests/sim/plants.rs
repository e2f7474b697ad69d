//! Goal: the checkers see. Method: every planted defect is looked for, seed by seed.

use hca_sim::sim::{Mode, Options, Plant, Rule, run};

/// Seeds within which a defect has to be found.
const SEEDS: u64 = 200;

/// The seed that finds a defect, and the rule that it breaks.
fn find(plant: Plant) -> Option<(u64, Rule)> {
    let mode = plant.needs_packets().then_some(Mode::Packets);
    (1..=SEEDS).find_map(|seed| {
        let options = Options {
            mode,
            plant: Some(plant),
            ..Options::new(seed)
        };
        Some((seed, run(&options).violation?.rule))
    })
}

#[test]
fn every_planted_defect_is_found() {
    let mut missed = Vec::new();
    for &plant in Plant::ALL {
        match find(plant) {
            Some((seed, rule)) => {
                println!("{plant:<24} seed {seed:<4} {rule}");
                // The HCA has to stand whatever is done to it; a panic would hide what checkers see.
                assert_ne!(rule, Rule::Panic, "{plant}");
            }
            None => missed.push(plant.name()),
        }
    }
    assert!(missed.is_empty(), "not within {SEEDS} seeds: {missed:?}");
}

#[test]
fn names_are_read_back() {
    for &plant in Plant::ALL {
        assert_eq!(plant.name().parse(), Ok(plant));
        assert!(plant.about().ends_with('.'));
    }
    assert!("no-such-thing".parse::<Plant>().is_err());
}
