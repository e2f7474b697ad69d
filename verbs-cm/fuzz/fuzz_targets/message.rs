//! See `verbs_cm::wire::fuzz::message`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    verbs_cm::wire::fuzz::message(bytes);
});
