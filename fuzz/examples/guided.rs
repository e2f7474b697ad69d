//! Hands a target to libFuzzer, which keeps inputs that reach new code: `ci/fuzz --guided TARGET`. `VERBS_FUZZ_TARGET`
//! names the target; `seeded list` prints the names.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use verbs_fuzz::{Target, find};

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("VERBS_FUZZ_TARGET").unwrap_or_default();
    find(&name).unwrap_or_else(|| panic!("VERBS_FUZZ_TARGET is '{name}', and no target"))
});

fuzz_target!(|bytes: &[u8]| {
    (TARGET.run)(bytes);
});
