//! The table behind [`check`](super::check), as data.

use std::fmt;

use super::{QpAttrMask, QpState, QpType};

/// What one change of state asks of a modify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Attributes that must be named.
    pub required: QpAttrMask,
    /// Attributes that may be named.
    pub optional: QpAttrMask,
}

impl Rule {
    /// The rule for one change of state, `None` if the service type has no such change.
    pub const fn of(from: QpState, to: QpState, qp_type: QpType) -> Option<Self> {
        INDEX[from as usize][to as usize][position(qp_type)]
    }

    /// All that may be named: required, optional, and the state itself.
    pub const fn allowed(self) -> QpAttrMask {
        self.required.union(self.optional).union(QpAttrMask::STATE)
    }
}

/// One row: a change of state, the service types it stands for, and its rule.
struct Row {
    from: QpState,
    to: QpState,
    types: &'static [QpType],
    rule: Rule,
}

/// Names the attributes of a row; an empty list is an empty mask.
macro_rules! mask {
    ($($name:ident)*) => { QpAttrMask::empty()$(.union(QpAttrMask::$name))* };
}

/// Writes rows as `From -> To, [types]: needs [...], takes [...];`.
macro_rules! rows {
    ($($from:ident -> $to:ident, $types:expr,
       needs [$($need:ident)*], takes [$($take:ident)*];)*) => {
        &[$(Row {
            from: QpState::$from,
            to: QpState::$to,
            types: &$types,
            rule: Rule { required: mask!($($need)*), optional: mask!($($take)*) },
        },)*]
    };
}

use QpType::{Gsi, RawPacket, Rc, Smi, Uc, Ud, XrcRecv, XrcSend};

/// Every change of state of every service type (IBTA vol. 1, 10.3.1 and table of 11.2.5.2, with the
/// attribute sets that Linux accepts).
const ROWS: &[Row] = rows! {
    Reset -> Reset, QpType::ALL, needs [], takes [];
    Reset -> Init, [Rc, Uc, XrcSend, XrcRecv], needs [PKEY_INDEX PORT ACCESS_FLAGS], takes [];
    Reset -> Init, [Ud], needs [PKEY_INDEX PORT QKEY], takes [];
    Reset -> Init, [Smi, Gsi], needs [PKEY_INDEX QKEY], takes [];
    Reset -> Init, [RawPacket], needs [PORT], takes [];

    Init -> Reset, QpType::ALL, needs [], takes [];
    Init -> Err, QpType::ALL, needs [], takes [];
    Init -> Init, [Rc, Uc, XrcSend, XrcRecv], needs [], takes [PKEY_INDEX PORT ACCESS_FLAGS];
    Init -> Init, [Ud], needs [], takes [PKEY_INDEX PORT QKEY];
    Init -> Init, [Smi, Gsi], needs [], takes [PKEY_INDEX QKEY];
    Init -> Init, [RawPacket], needs [], takes [];
    Init -> Rtr, [Rc, XrcRecv],
        needs [AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER],
        takes [ALT_PATH ACCESS_FLAGS PKEY_INDEX];
    Init -> Rtr, [Uc, XrcSend],
        needs [AV PATH_MTU DEST_QPN RQ_PSN], takes [ALT_PATH ACCESS_FLAGS PKEY_INDEX];
    Init -> Rtr, [Ud, Smi, Gsi], needs [], takes [PKEY_INDEX QKEY];
    Init -> Rtr, [RawPacket], needs [], takes [];

    Rtr -> Reset, QpType::ALL, needs [], takes [];
    Rtr -> Err, QpType::ALL, needs [], takes [];
    Rtr -> Rts, [Rc],
        needs [TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC],
        takes [CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE];
    Rtr -> Rts, [Uc], needs [SQ_PSN], takes [CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE];
    Rtr -> Rts, [Ud, Smi, Gsi], needs [SQ_PSN], takes [CUR_STATE QKEY];
    Rtr -> Rts, [XrcSend],
        needs [TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC],
        takes [CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE];
    Rtr -> Rts, [XrcRecv],
        needs [TIMEOUT SQ_PSN],
        takes [CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE];
    Rtr -> Rts, [RawPacket], needs [], takes [RATE_LIMIT];

    Rts -> Reset, QpType::ALL, needs [], takes [];
    Rts -> Err, QpType::ALL, needs [], takes [];
    Rts -> Rts, [Rc, XrcRecv],
        needs [], takes [CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE MIN_RNR_TIMER];
    Rts -> Rts, [Uc, XrcSend], needs [], takes [CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE];
    Rts -> Rts, [Ud, Smi, Gsi], needs [], takes [CUR_STATE QKEY];
    Rts -> Rts, [RawPacket], needs [], takes [RATE_LIMIT];
    Rts -> Sqd, [Rc, Uc, Ud, XrcSend, XrcRecv, Smi, Gsi],
        needs [], takes [EN_SQD_ASYNC_NOTIFY];
    Rts -> Sqd, [RawPacket], needs [], takes [];

    Sqd -> Reset, QpType::ALL, needs [], takes [];
    Sqd -> Err, QpType::ALL, needs [], takes [];
    Sqd -> Rts, [Rc, XrcRecv],
        needs [], takes [CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE];
    Sqd -> Rts, [Uc, XrcSend], needs [], takes [CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE];
    Sqd -> Rts, [Ud, Smi, Gsi], needs [], takes [CUR_STATE QKEY];
    Sqd -> Rts, [RawPacket], needs [], takes [];
    Sqd -> Sqd, [Rc],
        needs [],
        takes [PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC MAX_DEST_RD_ATOMIC ALT_PATH
               ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER PATH_MIG_STATE];
    Sqd -> Sqd, [Uc], needs [], takes [AV ALT_PATH ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE];
    Sqd -> Sqd, [Ud, Smi, Gsi], needs [], takes [PKEY_INDEX QKEY];
    Sqd -> Sqd, [XrcSend],
        needs [],
        takes [PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC ALT_PATH ACCESS_FLAGS
               PKEY_INDEX PATH_MIG_STATE];
    Sqd -> Sqd, [XrcRecv],
        needs [],
        takes [PORT AV TIMEOUT MAX_DEST_RD_ATOMIC ALT_PATH ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER
               PATH_MIG_STATE];
    Sqd -> Sqd, [RawPacket], needs [], takes [];

    Sqe -> Reset, QpType::ALL, needs [], takes [];
    Sqe -> Err, QpType::ALL, needs [], takes [];
    Sqe -> Rts, [Rc, XrcSend, XrcRecv, RawPacket], needs [], takes [];
    Sqe -> Rts, [Uc], needs [], takes [CUR_STATE ACCESS_FLAGS];
    Sqe -> Rts, [Ud, Smi, Gsi], needs [], takes [CUR_STATE QKEY];

    Err -> Reset, QpType::ALL, needs [], takes [];
    Err -> Err, QpType::ALL, needs [], takes [];
};

/// The rows spread out by from, to and type, so that a modify pays one load and no search.
type Index = [[[Option<Rule>; QpType::ALL.len()]; QpState::ALL.len()]; QpState::ALL.len()];

static INDEX: Index = spread(ROWS);

/// Builds the index while compiling; two rows for one change of state do not compile.
const fn spread(rows: &[Row]) -> Index {
    let mut index: Index = [[[None; QpType::ALL.len()]; QpState::ALL.len()]; QpState::ALL.len()];
    let mut row = 0;
    while row < rows.len() {
        let Row {
            from,
            to,
            types,
            rule,
        } = &rows[row];
        let mut i = 0;
        while i < types.len() {
            let place = &mut index[*from as usize][*to as usize][position(types[i])];
            assert!(
                place.is_none(),
                "two rows speak of the same change of state"
            );
            *place = Some(*rule);
            i += 1;
        }
        row += 1;
    }
    index
}

/// Place of a service type in [`QpType::ALL`]; the numbers themselves have gaps.
const fn position(qp_type: QpType) -> usize {
    match qp_type {
        Smi => 0,
        Gsi => 1,
        Rc => 2,
        Uc => 3,
        Ud => 4,
        RawPacket => 5,
        XrcSend => 6,
        XrcRecv => 7,
    }
}

/// The whole table as text: for each change of state, and each group of service types that share a
/// rule, what it needs and takes. The changes of state that are absent are refused.
pub fn printed() -> impl fmt::Display {
    Printed
}

struct Printed;

impl fmt::Display for Printed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in ROWS {
            let types: Vec<String> = row.types.iter().map(QpType::to_string).collect();
            writeln!(f, "{} -> {} | {}", row.from, row.to, types.join(" "))?;
            for (what, mask) in [("needs", row.rule.required), ("takes", row.rule.optional)] {
                if !mask.is_empty() {
                    writeln!(f, "    {what} {mask}")?;
                }
            }
        }
        Ok(())
    }
}
