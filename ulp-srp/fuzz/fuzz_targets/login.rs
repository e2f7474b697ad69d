//! See `ulp_srp::iu::fuzz::login`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    ulp_srp::iu::fuzz::login(bytes);
});
