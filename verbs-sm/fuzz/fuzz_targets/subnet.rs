//! See `verbs_sm::fuzz::subnet`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    verbs_sm::fuzz::subnet(bytes);
});
