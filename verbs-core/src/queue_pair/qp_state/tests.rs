//! The table is read by people from `table.txt`. These tests hold the file, the data and [`check`]
//! together: the printed table must equal the file, and the file, parsed by code that knows nothing
//! of the data, must predict every answer of `check`.

use std::collections::BTreeMap;
use std::path::Path;

use super::{QpAttrMask, QpState, QpType, Transition, check, printed};
use crate::Error;

const SNAPSHOT: &str = include_str!("table.txt");

/// Set to rewrite the snapshot after a wanted change; the difference is then for review.
const REWRITE: &str = "VERBS_REWRITE_SNAPSHOTS";

type Key = (String, String, String);

/// What `table.txt` says: (from, to, type) to (needs, takes).
fn parse_snapshot() -> BTreeMap<Key, (QpAttrMask, QpAttrMask)> {
    let names = |text: &str| {
        text.split_whitespace()
            .map(|name| QpAttrMask::from_name(name).expect("a name of an attribute"))
            .collect::<QpAttrMask>()
    };
    let mut rules = BTreeMap::new();
    let mut current: Vec<Key> = Vec::new();
    for line in SNAPSHOT.lines() {
        if let Some(needs) = line.strip_prefix("    needs ") {
            for key in &current {
                rules.insert(key.clone(), (names(needs), QpAttrMask::empty()));
            }
        } else if let Some(takes) = line.strip_prefix("    takes ") {
            for key in &current {
                rules.get_mut(key).expect("a row before its lists").1 = names(takes);
            }
        } else {
            let (change, types) = line.split_once(" | ").expect("a row");
            let (from, to) = change.split_once(" -> ").expect("a change of state");
            current = types
                .split(' ')
                .map(|qp_type| (from.into(), to.into(), qp_type.into()))
                .collect();
            for key in &current {
                let empty = (QpAttrMask::empty(), QpAttrMask::empty());
                assert_eq!(rules.insert(key.clone(), empty), None, "row twice: {line}");
            }
        }
    }
    rules
}

/// Runs `f` on every from, to and type.
fn for_each_change(mut f: impl FnMut(QpState, QpState, QpType)) {
    for from in QpState::ALL {
        for to in QpState::ALL {
            for qp_type in QpType::ALL {
                f(from, to, qp_type);
            }
        }
    }
}

#[test]
fn printed_table_equals_the_snapshot() {
    let now = printed().to_string();
    if std::env::var_os(REWRITE).is_some() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/queue_pair/qp_state/table.txt");
        std::fs::write(file, &now).expect("the source tree is writable");
        return;
    }
    assert!(
        now == SNAPSHOT,
        "the table changed; if that is meant, run again with {REWRITE}=1 and review the \
         difference of table.txt\n{now}"
    );
}

/// Goal: no cell of the 7 × 7 × 8 answers but as the snapshot says. Method: for each, the smallest
/// set that must pass, the largest that must pass, each required one taken away, and each single
/// bit of 32 put in, against what the parsed file predicts.
#[test]
fn every_change_of_state_answers_as_the_snapshot_says() {
    let rules = parse_snapshot();
    let mut allowed = 0;
    for_each_change(|from, to, qp_type| {
        let key = (from.to_string(), to.to_string(), qp_type.to_string());
        let Some(&(needs, takes)) = rules.get(&key) else {
            for mask in [QpAttrMask::empty(), QpAttrMask::STATE, QpAttrMask::all()] {
                let refused = check(from, to, qp_type, mask).expect_err("no such change of state");
                assert!(refused.missing.is_empty() && refused.forbidden.is_empty());
            }
            return;
        };
        allowed += 1;
        assert_eq!(check(from, to, qp_type, needs), Ok(()));
        let most = needs | takes | QpAttrMask::STATE;
        assert_eq!(check(from, to, qp_type, most), Ok(()));
        for bit in (0..32).map(|bit| QpAttrMask::from_bits_retain(1 << bit)) {
            let without = check(from, to, qp_type, most.difference(bit));
            let missing = without.map_or_else(|e| e.missing, |()| QpAttrMask::empty());
            assert_eq!(
                missing,
                needs & bit,
                "{from} -> {to} {qp_type} without {bit}"
            );

            let with = check(from, to, qp_type, needs | bit);
            let forbidden = with.map_or_else(|e| e.forbidden, |()| QpAttrMask::empty());
            assert_eq!(
                forbidden,
                bit.difference(most),
                "{from} -> {to} {qp_type} with {bit}"
            );
        }
    });
    assert_eq!(allowed, rules.len(), "rows of unknown states or types");
}

/// Rules that hold across the rows, from the specification rather than from the table.
#[test]
fn rules_across_the_rows() {
    let cur_state = [QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe];
    for_each_change(|from, to, qp_type| {
        let bare = check(from, to, qp_type, QpAttrMask::empty());
        // Reset is reached from every state, Error from every state but Reset, by nothing but STATE.
        if to == QpState::Reset || (to == QpState::Err && from != QpState::Reset) {
            assert_eq!(bare, Ok(()), "{from} -> {to} {qp_type}");
        }
        let takes = |bit| match check(from, to, qp_type, bit) {
            Ok(()) => true,
            Err(e) => e.forbidden.is_empty() && !e.missing.is_empty(),
        };
        if takes(QpAttrMask::CUR_STATE) {
            assert!(cur_state.contains(&from), "{from} -> {to} {qp_type}");
        }
        assert!(!takes(QpAttrMask::CAP), "{from} -> {to} {qp_type}");
        if !matches!(qp_type, QpType::Ud | QpType::Smi | QpType::Gsi) {
            assert!(!takes(QpAttrMask::QKEY), "{from} -> {to} {qp_type}");
        }
    });
}

#[test]
fn refusals_name_the_attributes() {
    let say = |from, to, qp_type, mask| {
        check(from, to, qp_type, mask)
            .expect_err("a change that is refused")
            .to_string()
    };
    assert_eq!(
        say(QpState::Reset, QpState::Rts, QpType::Rc, QpAttrMask::STATE),
        "an RC queue pair cannot go from RESET to RTS, only to RESET, INIT"
    );
    assert_eq!(
        say(
            QpState::Reset,
            QpState::Init,
            QpType::Ud,
            QpAttrMask::STATE | QpAttrMask::PORT
        ),
        "a UD queue pair cannot go from RESET to INIT like this: PKEY_INDEX and QKEY are missing"
    );
    assert_eq!(
        say(
            QpState::Rtr,
            QpState::Rts,
            QpType::Uc,
            QpAttrMask::SQ_PSN | QpAttrMask::TIMEOUT
        ),
        "a UC queue pair cannot go from RTR to RTS like this: TIMEOUT is not allowed here"
    );
    assert_eq!(
        say(
            QpState::Reset,
            QpState::Init,
            QpType::Rc,
            QpAttrMask::QKEY | QpAttrMask::CAP
        ),
        "an RC queue pair cannot go from RESET to INIT like this: ACCESS_FLAGS, PKEY_INDEX and \
         PORT are missing, QKEY and CAP are not allowed here"
    );
    let unknown = QpAttrMask::from_bits_retain(1 << 31);
    assert_eq!(
        say(QpState::Err, QpState::Err, QpType::XrcRecv, unknown),
        "an XRC_RECV queue pair cannot go from ERR to ERR like this: 0x80000000 is not allowed here"
    );
}

#[test]
fn numbers_are_those_of_libibverbs() {
    assert_eq!(QpState::ALL.map(|s| s as u8), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(QpType::ALL.map(|t| t as u8), [0, 1, 2, 3, 4, 8, 9, 10]);
    assert_eq!(QpAttrMask::all().bits(), 0x21f_ffff);
    assert_eq!(QpAttrMask::DEST_QPN.bits(), 0x10_0000);
}

/// An error is passed by value on the path of every verb.
#[test]
fn a_refusal_keeps_error_within_16_bytes() {
    assert!(size_of::<Transition>() <= 12);
    assert!(size_of::<Error>() <= 16, "{}", size_of::<Error>());
}
