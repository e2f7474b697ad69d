//! Properties of management datagrams over random bytes: see [`verbs_core::mad::fuzz`].

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use verbs_core::mad::fuzz;

/// Bytes of which many are small, as in real headers.
fn bytes(len: usize) -> impl Strategy<Value = Vec<u8>> {
    vec(
        prop_oneof![select(vec![0_u8, 1, 2, 3, 4, 7]), any::<u8>()],
        0..len,
    )
}

/// An RMPP header that is nearly right: version, kind, flags, status, segment, length.
fn rmpp() -> impl Strategy<Value = Vec<u8>> {
    let kind = select(vec![1_u8, 1, 1, 2, 3, 4, 9]);
    let flags = select(vec![1_u8, 3, 5, 7]);
    let segment = 0..6_u8;
    let length = select(vec![0_u8, 19, 20, 60, 220, 221]);
    (kind, flags, segment, length, any::<bool>()).prop_map(
        |(kind, flags, segment, length, is_wide)| {
            vec![
                1,
                kind,
                flags,
                0,
                0,
                0,
                0,
                segment,
                0,
                0,
                u8::from(is_wide),
                length,
            ]
        },
    )
}

/// A response or request, with an RMPP header, for [`fuzz::service`].
fn answer() -> impl Strategy<Value = Vec<u8>> {
    (any::<u8>(), rmpp()).prop_map(|(tid, rmpp)| [vec![tid], rmpp, vec![0; 3]].concat())
}

proptest! {
    #[test]
    fn records_come_back_but_for_bits_without_a_meaning(bytes in bytes(200)) {
        fuzz::records(&bytes);
    }

    #[test]
    fn receivers_end_at_most_once(headers in vec(rmpp(), 0..60), noise in bytes(600)) {
        fuzz::transfer(&headers.concat());
        fuzz::transfer(&noise);
    }

    #[test]
    fn every_request_ends_once(answers in vec(answer(), 0..40), noise in bytes(600)) {
        fuzz::service(&answers.concat());
        fuzz::service(&noise);
    }
}
