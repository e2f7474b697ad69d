//! The states of a queue pair, and which attributes each change of state needs and takes.
//!
//! The rules are data: a table holds one row for every change of state that a service type
//! allows, [`check`] looks a change up in it, and [`printed`] shows the whole of it to a person.
//!
//! ```
//! use verbs_core::qp_state::{QpAttrMask, QpState, QpType, check};
//!
//! let given = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT;
//! let refused = check(QpState::Reset, QpState::Init, QpType::Rc, given).unwrap_err();
//! assert_eq!(refused.missing, QpAttrMask::ACCESS_FLAGS);
//! assert_eq!(
//!     refused.to_string(),
//!     "an RC queue pair cannot go from RESET to INIT like this: ACCESS_FLAGS is missing",
//! );
//! ```

use std::fmt;

use bitflags::bitflags;

mod table;
#[cfg(test)]
mod tests;

pub use table::{Rule, printed};

/// State of a queue pair (IBTA vol. 1, 10.3.1); numbers as `ibv_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum QpState {
    /// Created, or reset: nothing can be posted.
    #[default]
    Reset = 0,
    /// Initialised: receives can be posted, none is processed.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drained: no new send is started.
    Sqd = 4,
    /// Send queue error: a send of an unreliable queue pair failed.
    Sqe = 5,
    /// Error: everything posted is flushed.
    Err = 6,
}

impl QpState {
    /// Every state, in the order of its number.
    pub const ALL: [Self; 7] = [
        Self::Reset,
        Self::Init,
        Self::Rtr,
        Self::Rts,
        Self::Sqd,
        Self::Sqe,
        Self::Err,
    ];

    /// Whether a queue pair in this state refuses work requests on its send queue (IBTA vol. 1, 10.3.1):
    /// RESET, INIT and RTR. In SQD, SQE and ERR they are queued or flushed.
    pub const fn refuses_sends(self) -> bool {
        matches!(self, Self::Reset | Self::Init | Self::Rtr)
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Err => "ERR",
        })
    }
}

/// Service type of a queue pair; numbers as `ibv_qp_type`, with the kernel's 0 and 1 for the two
/// special queue pairs, which user programs cannot create.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum QpType {
    /// Subnet management interface: queue pair 0.
    Smi = 0,
    /// General services interface: queue pair 1.
    Gsi = 1,
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
    /// Whole Ethernet frames.
    RawPacket = 8,
    /// Initiator of an extended reliable connection.
    XrcSend = 9,
    /// Target of an extended reliable connection.
    XrcRecv = 10,
}

impl QpType {
    /// Every service type, in the order of its number.
    pub const ALL: [Self; 8] = [
        Self::Smi,
        Self::Gsi,
        Self::Rc,
        Self::Uc,
        Self::Ud,
        Self::RawPacket,
        Self::XrcSend,
        Self::XrcRecv,
    ];
}

impl fmt::Display for QpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Smi => "SMI",
            Self::Gsi => "GSI",
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::RawPacket => "RAW_PACKET",
            Self::XrcSend => "XRC_SEND",
            Self::XrcRecv => "XRC_RECV",
        })
    }
}

bitflags! {
    /// Which attributes a modify names, with the values of `ibv_qp_attr_mask`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct QpAttrMask: u32 {
        /// The state to go to.
        const STATE = 1 << 0;
        /// The state that the caller believes the queue pair to be in.
        const CUR_STATE = 1 << 1;
        /// Whether to raise an event when the send queue has drained.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// What the peer may do to memory through this queue pair.
        const ACCESS_FLAGS = 1 << 3;
        /// Index into the P_Key table.
        const PKEY_INDEX = 1 << 4;
        /// Port.
        const PORT = 1 << 5;
        /// Q_Key of a datagram queue pair.
        const QKEY = 1 << 6;
        /// Address vector of the peer.
        const AV = 1 << 7;
        /// Path MTU.
        const PATH_MTU = 1 << 8;
        /// Local ACK timeout.
        const TIMEOUT = 1 << 9;
        /// Transport retries.
        const RETRY_CNT = 1 << 10;
        /// Retries after receiver-not-ready.
        const RNR_RETRY = 1 << 11;
        /// First packet sequence number to expect.
        const RQ_PSN = 1 << 12;
        /// READs and atomics outstanding as requester.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// Alternate path.
        const ALT_PATH = 1 << 14;
        /// Shortest delay that a receiver-not-ready answer asks for.
        const MIN_RNR_TIMER = 1 << 15;
        /// First packet sequence number to send.
        const SQ_PSN = 1 << 16;
        /// READs and atomics outstanding as responder.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// Path migration state.
        const PATH_MIG_STATE = 1 << 18;
        /// Sizes of the queues. No change of state takes it.
        const CAP = 1 << 19;
        /// Queue pair number of the peer.
        const DEST_QPN = 1 << 20;
        /// Rate limit of packet pacing.
        const RATE_LIMIT = 1 << 25;
    }
}

impl fmt::Display for QpAttrMask {
    /// The names, joined by spaces; bits without a name follow in hexadecimal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for (name, _) in self.iter_names() {
            write!(f, "{between}{name}")?;
            between = " ";
        }
        match self.difference(Self::all()).bits() {
            0 => Ok(()),
            unknown => write!(f, "{between}{unknown:#x}"),
        }
    }
}

/// Whether a queue pair of type `qp_type` may go from `from` to `to` when a modify names exactly the
/// attributes in `mask` (IBTA vol. 1, 11.2.5.2).
///
/// `to == from` is a modify that leaves the state as it is. [`QpAttrMask::STATE`] itself is always
/// taken and never asked for. The *values* of the attributes are the caller's to check.
///
/// # Errors
/// The [`Transition`], which names all that is missing and all that is forbidden at once.
///
/// # Context
/// Never blocks; callable from a routine.
pub const fn check(
    from: QpState,
    to: QpState,
    qp_type: QpType,
    mask: QpAttrMask,
) -> Result<(), Transition> {
    let (missing, forbidden) = match Rule::of(from, to, qp_type) {
        Some(rule) => (
            rule.required.difference(mask),
            mask.difference(rule.allowed()),
        ),
        None => {
            return Err(Transition {
                from,
                to,
                qp_type,
                missing: QpAttrMask::empty(),
                forbidden: QpAttrMask::empty(),
            });
        }
    };
    if missing.is_empty() && forbidden.is_empty() {
        return Ok(());
    }
    Err(Transition {
        from,
        to,
        qp_type,
        missing,
        forbidden,
    })
}

/// A change of state that is not allowed: from, to, what was missing, what was forbidden.
///
/// Both masks are empty when no set of attributes would allow the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The state the queue pair is in.
    pub from: QpState,
    /// The state that was asked for.
    pub to: QpState,
    /// The service type of the queue pair.
    pub qp_type: QpType,
    /// Attributes that this change needs and the modify did not name.
    pub missing: QpAttrMask,
    /// Attributes that the modify named and this change does not take.
    pub forbidden: QpAttrMask,
}

impl fmt::Display for Transition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let article = match self.qp_type {
            QpType::Uc | QpType::Ud | QpType::Gsi | QpType::RawPacket => "a",
            QpType::Rc | QpType::Smi | QpType::XrcSend | QpType::XrcRecv => "an",
        };
        let Self { from, to, .. } = self;
        write!(
            f,
            "{article} {} queue pair cannot go from {from} to {to}",
            self.qp_type
        )?;
        if self.missing.is_empty() && self.forbidden.is_empty() {
            return self.fmt_reachable(f);
        }
        f.write_str(" like this:")?;
        fmt_names(f, self.missing, "missing")?;
        if !self.missing.is_empty() && !self.forbidden.is_empty() {
            f.write_str(",")?;
        }
        fmt_names(f, self.forbidden, "not allowed here")
    }
}

impl Transition {
    /// Says where the queue pair could go instead.
    fn fmt_reachable(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(", only to")?;
        let mut between = " ";
        for to in QpState::ALL {
            if Rule::of(self.from, to, self.qp_type).is_some() {
                write!(f, "{between}{to}")?;
                between = ", ";
            }
        }
        Ok(())
    }
}

/// Writes " A is {what}" or " A and B are {what}", or nothing for an empty mask.
fn fmt_names(f: &mut fmt::Formatter<'_>, mask: QpAttrMask, what: &str) -> fmt::Result {
    if mask.is_empty() {
        return Ok(());
    }
    let names = mask.to_string();
    let mut names = names.split(' ').peekable();
    let mut count = 0;
    while let Some(name) = names.next() {
        let before = match (count, names.peek()) {
            (0, _) => " ",
            (_, Some(_)) => ", ",
            (_, None) => " and ",
        };
        write!(f, "{before}{name}")?;
        count += 1;
    }
    write!(f, " {} {what}", if count == 1 { "is" } else { "are" })
}
