//! `verbs devinfo`.

use serde_json::Value;

use crate::run::Place;

/// Labels that `ibv_devinfo` prints, in its order.
const BRIEF: [&str; 15] = [
    "hca_id:",
    "transport:",
    "fw_ver:",
    "node_guid:",
    "sys_image_guid:",
    "vendor_id:",
    "vendor_part_id:",
    "hw_ver:",
    "phys_port_cnt:",
    "port:",
    "state:",
    "max_mtu:",
    "active_mtu:",
    "port_lid:",
    "link_layer:",
];
const DETAILS: [&str; 12] = [
    "max_mr_size:",
    "max_qp:",
    "device_cap_flags:",
    "max_cqe:",
    "atomic_cap:",
    "max_srq:",
    "local_ca_ack_delay:",
    "port:",
    "max_msg_sz:",
    "pkey_tbl_len:",
    "active_width:",
    "GID[  0]:",
];

#[track_caller]
fn in_order(text: &str, labels: &[&str]) {
    let mut rest = text;
    for label in labels {
        let at = rest
            .find(label)
            .unwrap_or_else(|| panic!("{label} in its place in\n{text}"));
        rest = &rest[at + label.len()..];
    }
}

#[test]
fn labels_are_those_of_ibv_devinfo() {
    let place = Place::new();
    let brief = place.verbs(&["devinfo"]).succeeded();
    in_order(&brief, &BRIEF);
    assert!(!brief.contains("max_mr_size"));
    assert!(brief.contains("PORT_ACTIVE (4)"), "{brief}");
    let all = place.verbs(&["devinfo", "-v"]).succeeded();
    in_order(&all, &BRIEF);
    in_order(&all, &DETAILS);
}

#[test]
fn json_says_the_same() {
    let place = Place::new();
    let text = place.verbs(&["devinfo", "-v"]).succeeded();
    let json: Value =
        serde_json::from_str(&place.verbs(&["devinfo", "--json"]).succeeded()).expect("JSON");
    let name = json["hca_id"].as_str().expect("a name");
    assert!(!name.is_empty() && text.contains(&format!("hca_id:\t{name}\n")));
    let max_qp = json["max_qp"].as_u64().expect("a number");
    assert!(max_qp > 0 && text.contains(&format!("max_qp:\t\t\t\t{max_qp}\n")));
    let ports = json["ports"].as_array().expect("a list");
    assert_eq!(json["phys_port_cnt"], ports.len());
    assert_eq!(ports[0]["state"], "PORT_ACTIVE");
    assert!(
        ports[0]["max_msg_sz"]
            .as_u64()
            .is_some_and(|bytes| bytes >= 1 << 20)
    );
    for flag in json["device_cap_flags"].as_array().expect("a list") {
        assert!(text.contains(flag.as_str().expect("a name")), "{flag}");
    }
}
