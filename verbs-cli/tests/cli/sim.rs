//! `verbs sim`.

use std::collections::BTreeSet;

use serde_json::Value;
use verbs_wire::pcap::reader::Capture;

use crate::run::Place;

const SHORT: [&str; 2] = ["--time", "3ms"];

fn sim(place: &Place, arguments: &[&str]) -> crate::run::Ended {
    place.verbs(&[&["sim"], arguments, &SHORT].concat())
}

/// Goal: a run repeats. Method: twice, and once more with its packets written to a file.
#[test]
fn one_seed_prints_the_same_each_time() {
    let place = Place::new();
    let arguments = ["--seed", "2", "--mode", "packets"];
    let first = sim(&place, &arguments).succeeded();
    assert!(first.contains("clean\ndigest "), "{first}");
    assert_eq!(sim(&place, &arguments).succeeded(), first);
    let traced = [&arguments[..], &["--trace", "run.pcapng"]].concat();
    assert_eq!(sim(&place, &traced).succeeded(), first);
    let capture = Capture::parse("run", &place.read("run.pcapng"));
    let told = |word| {
        let packets = capture.packets.iter();
        packets.filter(|it| it.comment.contains(word)).count()
    };
    // Of each fault some, and by far not all.
    for word in ["lost on purpose", "arrives 2 times", "damaged on purpose"] {
        let (some, all) = (told(word), capture.packets.len());
        assert!(some > 0 && some < all / 4, "{word}: {some} of {all}");
    }
    let interfaces: BTreeSet<_> = capture.packets.iter().map(|it| &it.interface).collect();
    assert!(interfaces.len() > 1, "{interfaces:?}");
}

/// Goal: all kinds of runs are for programs too. Method: the figures of one seed are in the sum of several; a mutant is among
/// the failures, with the line that repeats it.
#[test]
fn results_are_json() {
    let place = Place::new();
    let run = |arguments: &[&str]| -> Value {
        let ended = sim(&place, &[arguments, &["--json"]].concat());
        serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{ended:?}"))
    };
    let all = run(&["--seeds", "1..2"]);
    assert_eq!((&all["runs"], &all["failed"]), (&2.into(), &0.into()));
    let ones = [run(&["--seed", "1"]), run(&["--seed", "2"])];
    let sum: u64 = ones
        .iter()
        .filter_map(|it| it["work_requests"].as_u64())
        .sum();
    assert_eq!(all["work_requests"], sum, "{all}");
    assert!(ones[0]["digest"].is_string() && ones[0]["failure"].is_null());

    let mutant = ["--mutant", "stale-key", "--mode", "direct"];
    let failed = run(&[&["--seeds", "1..40"], &mutant[..]].concat());
    let failures = failed["failures"].as_array().expect("a list");
    assert_eq!(failed["failed"].as_u64(), Some(failures.len() as u64));
    let replay = failures.first().and_then(|it| it["replay"].as_str());
    assert!(replay.is_some_and(|it| it.starts_with("verbs sim --seed")));

    let host = run(&["--seeds", "1..2", "--mode", "host"]);
    assert_eq!((&host["runs"], &host["failed"]), (&2.into(), &0.into()));
    let shares = run(&["--seed", "1", "--bottleneck", "--nodes", "2"]);
    assert_eq!(shares["runs"][0]["connections"], 2, "{shares}");
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

/// Goal: how hosts share a switch can be seen. Method: pictures of hosts that react and of others that do not, in which the queue
/// is at its limit; an end that cannot be written, and options without their run.
#[test]
fn a_switch_that_is_shared_is_drawn() {
    let place = Place::new();
    let draw = |options: &[&str]| {
        let common = ["--seed", "1", "--congestion"];
        sim(&place, &[&common, options].concat())
    };
    let picture = |name: &str| {
        let text = String::from_utf8(place.read(name)).expect("text");
        assert!(
            text.starts_with("<svg") && text.contains("Gbit/s"),
            "{text}"
        );
        text
    };
    let reacting = draw(&["--plot", "reacting.svg"]);
    assert!(reacting.stdout.contains(" 0 lost"), "{reacting:?}");
    let blind = draw(&["--plot", "blind.svg", "--dcqcn", "off"]);
    assert_eq!(blind.code, Some(6), "{blind:?}");
    assert!(!blind.stdout.contains(" 0 lost"), "{blind:?}");
    assert_ne!(picture("reacting.svg"), picture("blind.svg"));
    let nowhere = draw(&["--plot", "no/where.svg"]);
    nowhere.failed(1, &["cannot draw no/where.svg"]);
    for options in [&["--plot", "x.svg"][..], &["--dcqcn", "off"]] {
        let alone = sim(&place, &[&["--seed", "1"], options].concat());
        assert_eq!(alone.code, Some(2), "{alone:?}");
    }
}

/// Goal: flows in the large are printed, for people and programs, the same each time. Method: each pattern; numbers that go
/// together; a tree that there is not.
#[test]
fn flows_through_a_tree_are_measured() {
    let place = Place::new();
    let flows =
        |options: &[&str]| place.verbs(&[&["sim", "--seed", "3", "--flows"], options].concat());
    let incast = ["incast", "--fan-in", "8", "--size", "64k"];
    let first = flows(&incast).succeeded();
    assert!(
        first.starts_with("seed 3: 64 hosts, 63 flows of 65536 bytes, DCQCN: "),
        "{first}"
    );
    assert!(first.contains("\n  of bystanders  mean "), "{first}");
    assert_eq!(flows(&incast).succeeded(), first);
    for (pattern, count) in [("permutation", 16), ("all-to-all", 240)] {
        let options = [
            pattern, "--hosts", "16", "--size", "10k", "--dcqcn", "off", "--json",
        ];
        let shown: Value = serde_json::from_str(&flows(&options).succeeded()).expect("JSON");
        let run = &shown["runs"][0];
        assert_eq!(
            (&run["slowdown"]["flows"], &run["dcqcn"]),
            (&count.into(), &false.into())
        );
        let slowdown = |of: &str| run["slowdown"][of].as_f64().expect("a number");
        let ascending = ["median", "percentile_99", "max"].map(slowdown);
        assert!(ascending[0] >= 1.0 && ascending.is_sorted(), "{shown}");
    }
    flows(&["permutation", "--hosts", "65"]).failed(2, &["--hosts is a square"]);
    assert_eq!(flows(&["permutation", "--bottleneck"]).code, Some(2));
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
        place.names().contains(&"verbs-sim-2.pcapng".into()),
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
