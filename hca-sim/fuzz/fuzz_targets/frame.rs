//! Packets of InfiniBand links, from LRH to VCRC.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    hca_sim::wire::fuzz::frame(bytes);
});
