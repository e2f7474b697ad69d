//! `verbs sim`.

use crate::run::Place;

const SHORT: [&str; 2] = ["--time", "3ms"];

fn sim(place: &Place, arguments: &[&str]) -> crate::run::Ended {
    place.verbs(&[&["sim"], arguments, &SHORT].concat())
}

/// Goal: a run repeats. Method: twice, and once more with its packets written to a file.
#[test]
fn one_seed_prints_the_same_each_time() {
    let place = Place::new();
    let arguments = ["--seed", "7", "--mode", "packets"];
    let first = sim(&place, &arguments).succeeded();
    assert!(first.contains("clean\ndigest "), "{first}");
    assert_eq!(sim(&place, &arguments).succeeded(), first);
    let traced = [&arguments[..], &["--trace", "run.pcap"]].concat();
    assert_eq!(sim(&place, &traced).succeeded(), first);
    let capture = place.read("run.pcap");
    assert_eq!(capture[..4], [0x4d, 0x3c, 0xb2, 0xa1]);
    assert!(capture.len() > 10_000, "{} bytes", capture.len());
}

/// Goal: the shares of a switch are printed, the same each time, and its options are not those of other runs. Method: too
/// short for the bars to matter.
#[test]
fn hosts_share_a_switch() {
    let place = Place::new();
    let arguments = ["--seed", "1", "--bottleneck", "--nodes", "2"];
    let first = sim(&place, &arguments);
    assert!(
        first.stdout.contains("2 connections, Jain's index "),
        "{first:?}"
    );
    assert_eq!(sim(&place, &arguments).stdout, first.stdout);
    let mixed = sim(&place, &["--seed", "1", "--bottleneck", "--mode", "direct"]);
    assert_eq!(mixed.code, Some(2), "{mixed:?}");
}

#[test]
fn many_seeds_print_what_met_what() {
    let text = sim(&Place::new(), &["--seeds", "1..3"]).succeeded();
    for part in [
        "operation",
        "WRITE imm",
        "QP err",
        "CreateQp",
        "seeds 1..3: 3 runs, ",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

/// Goal: a failing seed can be repeated. Method: the line that it prints is run.
#[test]
fn a_mutant_is_found_and_its_replay_line_repeats_it() {
    let place = Place::new();
    let ended = sim(
        &place,
        &["--seed", "2", "--mode", "packets", "--mutant", "lost-cqe"],
    );
    assert_eq!(ended.code, Some(6), "{ended:?}");
    assert!(
        place.names().contains(&"verbs-sim-2.pcap".into()),
        "{ended:?}"
    );
    let line = |name: &str| {
        let found = ended
            .stdout
            .lines()
            .find_map(|line| line.trim().strip_prefix(name));
        found
            .unwrap_or_else(|| panic!("{name} in {}", ended.stdout))
            .trim()
            .to_owned()
    };
    let failed = ended
        .stdout
        .lines()
        .find(|line| line.contains(" failed: "))
        .expect("a verdict");
    let replay: Vec<String> = line("replay:")
        .split(' ')
        .skip(1)
        .map(str::to_owned)
        .collect();
    let again = place.verbs(&replay);
    assert_eq!(again.code, Some(6), "{again:?}");
    assert!(
        again.stdout.contains(failed),
        "{failed} in {}",
        again.stdout
    );
    let shorter: Vec<String> = line("shorter:")
        .split(' ')
        .skip(1)
        .map(str::to_owned)
        .collect();
    assert_eq!(place.verbs(&shorter).code, Some(6), "{shorter:?}");
}

#[test]
fn wrong_arguments_are_told() {
    let place = Place::new();
    for arguments in [
        &["sim"][..],
        &["sim", "--seed", "1", "--seeds", "1..2"],
        &["sim", "--seeds", "2..1"],
        &["sim", "--seed", "1", "--nodes", "1"],
        &["sim", "--seed", "1", "--mutant", "moon-phase"],
        &["sim", "--seed", "1", "--time", "61"],
    ] {
        assert_eq!(place.verbs(arguments).code, Some(2), "{arguments:?}");
    }
}
