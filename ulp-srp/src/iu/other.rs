//! Task management, and the requests of a target: credit and asynchronous events.

use verbs_core::wire_record;

use crate::iu::error::{IuError, fixed, part, place};
use crate::iu::ids::{Delta, Lun, Tag, TaskFunction};
use crate::iu::{Unit, typed};

wire_record! {
    /// TSK_MGMT: task management for commands in flight.
    pub struct TskMgmt, TskMgmtView: 48 bytes {
        /// Whether a successful answer is a solicited event.
        solicit_success: bool = (1, 6, 1),
        /// Whether any other answer is a solicited event.
        solicit_failure: bool = (1, 5, 1),
        /// This request's tag.
        tag: Tag = (8, 0, 64),
        /// Logical unit.
        lun: Lun = (20, 0, 64),
        /// What to do.
        function: TaskFunction = (30, 0, 8),
        /// The command to abort, if the function aborts a single one.
        task: Tag = (32, 0, 64),
    }
}

wire_record! {
    /// CRED_REQ: changes the request limit.
    pub struct CredReq, CredReqView: 16 bytes {
        /// Solicited notification.
        solicited: bool = (1, 7, 1),
        /// By how much the limit changes.
        delta: Delta = (4, 0, 32),
        /// This request's tag.
        tag: Tag = (8, 0, 64),
    }
}

wire_record! {
    /// CRED_RSP: acknowledges the change.
    pub struct CredRsp, CredRspView: 16 bytes {
        /// The request's tag.
        tag: Tag = (8, 0, 64),
    }
}

wire_record! {
    /// AER_RSP: acknowledges the event.
    pub struct AerRsp, AerRspView: 16 bytes {
        /// The request's tag.
        tag: Tag = (8, 0, 64),
    }
}

wire_record! {
    /// The part of an [`AerReq`] before the sense data.
    pub struct AerHeader, AerHeaderView: 36 bytes {
        /// Solicited notification.
        solicited: bool = (1, 7, 1),
        /// By how much the request limit changes.
        delta: Delta = (4, 0, 32),
        /// This request's tag.
        tag: Tag = (8, 0, 64),
        /// Logical unit.
        lun: Lun = (20, 0, 64),
        /// Bytes of sense data that follow.
        sense_len: u32 = (28, 0, 32),
    }
}

/// AER_REQ: reports an event of a logical unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AerReq<'a> {
    /// Solicited notification.
    pub solicited: bool,
    /// By how much the request limit changes.
    pub delta: Delta,
    /// This request's tag.
    pub tag: Tag,
    /// Logical unit.
    pub lun: Lun,
    /// The event.
    pub sense: &'a [u8],
}

typed! {
    TskMgmt, TskMgmtView = TskMgmt;
    CredReq, CredReqView = CredReq;
    CredRsp, CredRspView = CredRsp;
    AerRsp, AerRspView = AerRsp;
}

impl<'a> AerReq<'a> {
    /// Reads a unit whose type has been checked.
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Self, IuError> {
        let head = AerHeaderView::of(fixed(Unit::AerReq, bytes)?);
        let (sense, _) = part(Unit::AerReq, bytes, AerHeader::LEN, head.sense_len())?;
        Ok(Self {
            solicited: head.solicited(),
            delta: head.delta(),
            tag: head.tag(),
            lun: head.lun(),
            sense,
        })
    }

    /// Writes the unit; returns its length.
    ///
    /// # Errors
    /// [`IuError::NoRoom`].
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, IuError> {
        let len = self.emitted_len();
        let out = place(Unit::AerReq, out, len)?;
        let head = AerHeader {
            solicited: self.solicited,
            delta: self.delta,
            tag: self.tag,
            lun: self.lun,
            sense_len: u32::try_from(self.sense.len()).unwrap_or(u32::MAX),
        };
        if let Some((place, rest)) = out.split_first_chunk_mut() {
            head.emit(place);
            place[0] = Unit::AerReq.code();
            rest.copy_from_slice(self.sense);
        }
        Ok(len)
    }

    /// Bytes on the wire.
    pub const fn emitted_len(&self) -> usize {
        AerHeader::LEN + self.sense.len()
    }
}
