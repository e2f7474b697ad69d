//! Transport packets from BTH to ICRC.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    hca_sim::wire::fuzz::packet(bytes);
});
