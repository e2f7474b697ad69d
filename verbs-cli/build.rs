//! Says where cargo puts the C libraries, which it builds before the command, so that the command can have them inside.

use std::env;
use std::fs::File;
use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(libraries_inside)");
    // What is given away has them. Builds for tests have them beside the command, which is faster to link.
    let is_wanted = env::var_os("CARGO_FEATURE_LIBRARIES").is_some();
    let is_for_tests = env::var_os("CARGO_CFG_DEBUG_ASSERTIONS").is_some();
    let own = env::var_os("OUT_DIR").map(PathBuf::from);
    // PROFILE/build/verbs-cli-HASH/out, and PROFILE/deps.
    let profile = own.as_deref().and_then(|own| own.ancestors().nth(3));
    if let (true, false, Some(profile)) = (is_wanted, is_for_tests, profile) {
        let folder = profile.join("deps");
        // `cargo check` builds no libraries, and what has them inside must read something all the same.
        for name in ["libibverbs.so", "librspreload.so"] {
            let _there = File::create_new(folder.join(name));
        }
        println!("cargo::rustc-env=VERBS_LIBRARIES={}", folder.display());
        println!("cargo::rustc-cfg=libraries_inside");
    }
}
