//! `--device rdma:NAME` where there is no such NIC: what works with one is in the peer suite `rdma`.

use crate::run::Place;

/// A name that no NIC has.
const NOBODY: &str = "rdma:nobody_has_it";

#[test]
fn a_nic_that_is_not_there_is_said_to_be_missing() {
    let place = Place::new();
    // With the library or without, with other devices or with none: the command's name, and a reason.
    place
        .verbs(&["devinfo", "--device", NOBODY])
        .failed(5, &["verbs devinfo: ", "; "]);
    place
        .verbs(&["serve", ".", "--device", NOBODY, "--bind", "127.0.0.1"])
        .failed(1, &["verbs serve: ", "; "]);
}

#[test]
fn commands_that_need_the_connection_manager_refuse_a_nic() {
    let place = Place::new();
    place
        .verbs(&["rping", "-c", "-a", "127.0.0.1", "--device", NOBODY])
        .failed(
            1,
            &["--device works with copy, serve, pingpong and devinfo"],
        );
}
