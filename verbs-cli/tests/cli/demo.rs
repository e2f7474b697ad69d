//! `verbs demo`.

use serde_json::Value;

use crate::run::Place;

/// Goal: what a newcomer runs first works with nothing but the program. Method: a file that is sent, one that
/// is not there, one that is empty.
#[test]
fn a_newcomer_sees_a_subnet_come_up_and_a_file_arrive() {
    let place = Place::new();
    place.write("file", &[7; 300_000]);
    let text = place.verbs(&["demo", "--file", "file"]).succeeded();
    for part in [
        "3 nodes, 4 of 4 ports in service",
        "both interfaces are up",
        "100 echoes, none lost",
        "the file by TCP",
        "the same by RDMA",
        "arrived both times",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let text = place
        .verbs(&["demo", "--file", "file", "--json"])
        .succeeded();
    let shown: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(shown["bytes"], 300_000);
    let steps = shown["steps"].as_array().expect("a list");
    assert!(
        steps.len() == 6
            && steps
                .iter()
                .all(|step| step["seconds"].as_f64() > Some(0.0)),
        "{shown}"
    );
    let missing = place.verbs(&["demo", "--file", "nowhere"]);
    missing.failed(1, &["cannot read nowhere"]);
    place.write("empty", b"");
    let empty = place.verbs(&["demo", "--file", "empty"]);
    empty.failed(1, &["nothing to send"]);
}
