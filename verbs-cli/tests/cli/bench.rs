//! `verbs bench`.

use serde_json::Value;

use crate::run::Place;

const NAMES: [&str; 11] = [
    "control",
    "send",
    "write",
    "read",
    "registration",
    "latency",
    "stream",
    "qps",
    "iwarp",
    "near",
    "rds",
];

/// Runs it with `--quick --json` and these arguments.
fn quick(arguments: &[&str]) -> Value {
    let all = [&["bench", "--quick", "--json"], arguments].concat();
    serde_json::from_str(&Place::new().verbs(&all).succeeded()).expect("JSON")
}

fn rows(report: &Value) -> &[Value] {
    report["rows"].as_array().expect("a list")
}

/// Checks all numbers below, and counts them.
fn figures(value: &Value, path: &str) -> usize {
    match value {
        Value::Number(number) => {
            let number = number.as_f64().expect("a number");
            // Only this one may be zero: the machine may be too busy for any repetition to be kept.
            let may_be_zero = path.ends_with("/kept");
            assert!(
                number.is_finite() && (number > 0.0 || may_be_zero),
                "{path} is {number}"
            );
            1
        }
        // A figure that is not finite becomes null in JSON.
        Value::Null => panic!("{path} is null"),
        Value::Array(list) => list
            .iter()
            .enumerate()
            .map(|(n, item)| figures(item, &format!("{path}/{n}")))
            .sum(),
        Value::Object(map) => map
            .iter()
            .map(|(key, item)| figures(item, &format!("{path}/{key}")))
            .sum(),
        _ => 0,
    }
}

/// Goal: every benchmark runs and every figure is one. Method: all of them, in little time; each row
/// is checked against what the figures of one row must fulfil among themselves.
#[test]
fn all_figures_are_figures() {
    let report = quick(&[]);
    assert!(figures(&report, "") > 100);
    for name in NAMES {
        assert!(
            rows(&report).iter().any(|row| row["bench"] == name),
            "{name}"
        );
    }
    for row in rows(&report) {
        let number = |key: &str| {
            row[key]
                .as_f64()
                .unwrap_or_else(|| panic!("{key} in {row}"))
        };
        let [min, median, p90] = ["ns_min", "ns_median", "ns_p90"].map(number);
        assert!(min <= median && median <= p90, "{row}");
        assert!(
            (number("per_second") * median / 1e9 - 1.0).abs() < 1e-6,
            "{row}"
        );
        assert!(number("kept") <= number("taken"), "{row}");
        if let Some(rate) = row["gigabytes_per_second"].as_f64() {
            assert!(
                (rate * median / number("bytes") - 1.0).abs() < 1e-6,
                "{row}"
            );
        }
        if let Some(beside) = row["beside"].as_object() {
            let part = |key: &str| beside[key].as_f64().expect("a number");
            assert!(
                (part("ratio") * part("ns_median") / median - 1.0).abs() < 1e-6,
                "{row}"
            );
        }
    }
}

#[test]
fn only_filters() {
    let report = quick(&["--only", "qps", "--only", "control"]);
    let names: Vec<_> = rows(&report)
        .iter()
        .map(|row| row["bench"].as_str().expect("a name"))
        .collect();
    let first_of_qps = names.iter().position(|&name| name == "qps");
    let first_of_qps = first_of_qps.expect("what was asked for");
    assert!(
        first_of_qps > 0,
        "in the order of the help text, not of the arguments"
    );
    assert!(names[..first_of_qps].iter().all(|&name| name == "control"));
    assert!(names[first_of_qps..].iter().all(|&name| name == "qps"));
}

#[test]
fn a_transport_is_a_filter_too() {
    let report = quick(&["--transport", "iwarp"]);
    assert!(rows(&report).iter().all(|row| row["bench"] == "iwarp"));
    let operations: Vec<_> = rows(&report)
        .iter()
        .map(|row| (row["operation"].as_str(), row["bytes"].as_u64()))
        .collect();
    let write = Some("RDMA WRITE over iWARP, CQE");
    let wanted = [
        (write, Some(64 << 10)),
        (write, Some(256 << 10)),
        (write, Some(1 << 20)),
        (Some("SEND over iWARP, one way"), Some(64)),
        (Some("connect, accept, close"), None),
    ];
    assert_eq!(operations, wanted);
    let beside = rows(&report).iter().map(|row| &row["beside"]["what"]);
    assert!(beside.into_iter().all(|what| what == "TCP"));
}

#[test]
fn the_table_has_the_rows() {
    let text = Place::new()
        .verbs(&["bench", "--quick", "--only", "write"])
        .succeeded();
    for part in [
        "WRITE, CQE, single",
        "batch of 16",
        "x memcpy",
        "1 MiB",
        "kept",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert!(!text.contains("READ"), "{text}");
}

#[test]
fn wrong_arguments_are_refused() {
    let place = Place::new();
    let unknown = place.verbs(&["bench", "--only", "sends"]);
    assert_eq!(unknown.code, Some(2));
    for name in NAMES {
        assert!(
            unknown.stderr.contains(name),
            "{name} in {}",
            unknown.stderr
        );
    }
    for arguments in [
        ["--time", "0"],
        ["--time", "nan"],
        ["--quick", "--time=1"],
        ["--only", ""],
        ["--transport", "tcp"],
        ["--transport=iwarp", "--only=send"],
    ] {
        let refused = place.verbs(&[&["bench"][..], &arguments].concat());
        assert_eq!(refused.code, Some(2), "{arguments:?}: {}", refused.stderr);
    }
}

#[test]
fn help_has_examples() {
    let help = Place::new().verbs(&["bench", "--help"]).succeeded();
    assert!(help.contains("Examples:") && help.contains("verbs bench --only"));
    for name in NAMES {
        assert!(help.contains(name), "{name} in\n{help}");
    }
}
