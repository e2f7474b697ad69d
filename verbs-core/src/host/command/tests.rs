//! Golden bytes of every verb, and round trips of drawn ones.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::host::bytes::Reader;
use crate::host::fuzz;

/// The bytes of every verb, as other processes and later versions read them. A change here is a new version of the line.
const GOLDEN: &str = include_str!("golden.txt");

/// Bytes that read as a value of most kinds: few flags, small numbers.
fn drawn(seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    // Tags of options and lists of few entries are most often what is looked for.
    (0..400)
        .map(|_| match next() % 8 {
            0..=2 => 0,
            3..=5 => 1,
            6 => 2,
            _ => (next() >> 24) as u8,
        })
        .collect()
}

/// The first call and answer of each verb that drawn bytes make.
fn sample(kind: Kind, seed: u32) -> (Option<Call>, Option<Answer>) {
    let bytes = drawn(seed);
    let call = Call::take(kind, &mut Reader::new(&bytes)).ok();
    let answer = Answer::take(kind, &mut Reader::new(&bytes)).ok();
    (call, answer)
}

fn first<T>(mut of: impl FnMut(u32) -> Option<T>) -> T {
    (0..100_000).find_map(&mut of).expect("one of them reads")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Goal: the bytes of every verb, both ways, stay as they are. Method: one call and one answer of each, in a file; UPDATE_GOLDEN
/// writes it again.
#[test]
fn every_verb_has_its_bytes() {
    let mut printed = String::new();
    for &kind in Kind::ALL {
        let call = first(|seed| sample(kind, seed).0);
        let answer = first(|seed| sample(kind, seed).1);
        let call = encode_call(Handle::DEVICE, &call);
        let answer = encode_result(&Ok(answer));
        printed += &format!(
            "{kind} {}\n  > {}\n  < {}\n",
            kind.wire_id(),
            hex(&call),
            hex(&answer)
        );
        assert!(fuzz::command(&call) && fuzz::command(&answer), "{kind}");
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/host/command/golden.txt");
        std::fs::write(path, &printed).expect("the file can be written");
    }
    assert_eq!(printed, GOLDEN, "UPDATE_GOLDEN=1 writes the file anew");
}

#[test]
fn numbers_of_verbs_are_their_own() {
    let numbers: BTreeSet<_> = Kind::ALL.iter().map(|kind| kind.wire_id()).collect();
    assert_eq!(numbers.len(), Kind::ALL.len());
    assert!(!numbers.contains(&0));
    for &kind in Kind::ALL {
        assert_eq!(Kind::of_wire_id(kind.wire_id()), Some(kind));
    }
    assert_eq!(Kind::of_wire_id(0xffff), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// What is read of any bytes is written again to bytes that read the same; of all verbs.
    #[test]
    fn verbs_come_back_as_they_were(seed: u32) {
        for &kind in Kind::ALL {
            let (call, answer) = sample(kind, seed);
            if let Some(call) = call {
                let bytes = encode_call(Handle::DEVICE, &call);
                prop_assert_eq!(decode_call(&bytes), Ok((Handle::DEVICE, call.clone())));
                // Every shorter one is refused, and one that is longer only by zeros is not.
                for len in 0..bytes.len() {
                    let cut = decode_call(&bytes[..len]);
                    prop_assert!(cut.is_err(), "{} bytes of {:?}", len, call);
                }
                let grown = [&bytes[..], &[0; 9]].concat();
                prop_assert_eq!(decode_call(&grown), Ok((Handle::DEVICE, call)));
                let newer = [&bytes[..], &[0, 1]].concat();
                prop_assert_eq!(decode_call(&newer), Err(Malformed::Newer));
            }
            if let Some(answer) = answer {
                let bytes = encode_result(&Ok(answer.clone()));
                prop_assert_eq!(decode_result(&bytes), Ok(Ok(answer)));
            }
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        fuzz::command(&bytes);
        fuzz::message(&bytes);
    }
}

/// Goal: a reason arrives as the reason that it was, of every kind.
#[test]
fn failures_come_back_as_they_were() {
    let mut seen = BTreeSet::new();
    for seed in 0..40_000 {
        let bytes = drawn(seed);
        if let Ok(failure) = Failure::take(&mut Reader::new(&bytes)) {
            let result = Err(failure);
            let bytes = encode_result(&result);
            assert_eq!(decode_result(&bytes), Ok(result));
            // The name of the variant, and of the verb's error in it.
            let text = format!("{failure:?}");
            seen.insert(text.split(['{', ' ']).next().unwrap_or_default().to_owned());
        }
    }
    assert!(seen.len() >= 4, "{seen:?}");
}
