//! See `ulp_ipoib::wire::fuzz::membership`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    ulp_ipoib::wire::fuzz::membership(bytes);
});
