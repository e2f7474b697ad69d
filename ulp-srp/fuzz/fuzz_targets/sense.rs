//! See `ulp_srp::scsi::fuzz::sense`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    ulp_srp::scsi::fuzz::sense(bytes);
});
