//! Single headers.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    hca_sim::wire::fuzz::header(bytes);
});
