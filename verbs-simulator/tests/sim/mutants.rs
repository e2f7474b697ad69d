//! Goal: the checkers detect defects. Method: every mutant is looked for, seed by seed.

use verbs_simulator::{Mode, Mutant, Options, Rule, run};

/// Seeds within which a defect has to be found.
const SEEDS: u64 = 200;

/// The seed that finds a defect, and the rule that it breaks.
fn find(mutant: Mutant) -> Option<(u64, Rule)> {
    let mode = match (mutant.needs_packets(), mutant.needs_streams()) {
        (true, _) => Some(Mode::Packets),
        (_, true) => Some(Mode::Streams),
        _ => None,
    };
    (1..=SEEDS).find_map(|seed| {
        let options = Options {
            mode,
            mutant: Some(mutant),
            ..Options::new(seed)
        };
        Some((seed, run(&options).violation?.rule))
    })
}

#[test]
fn every_mutant_is_found() {
    let mut missed = Vec::new();
    for &mutant in Mutant::ALL {
        match find(mutant) {
            Some((seed, rule)) => {
                println!("{mutant:<24} seed {seed:<4} {rule}");
                // The HCA has to survive whatever is done to it; a panic would hide what checkers see.
                assert_ne!(rule, Rule::Panic, "{mutant}");
            }
            None => missed.push(mutant.name()),
        }
    }
    assert!(missed.is_empty(), "not within {SEEDS} seeds: {missed:?}");
}

#[test]
fn names_are_read_back() {
    for &mutant in Mutant::ALL {
        assert_eq!(mutant.name().parse(), Ok(mutant));
        assert!(mutant.about().ends_with('.'));
    }
    assert!("no-such-thing".parse::<Mutant>().is_err());
}
