//! RSP: the answer to a command or to task management.

use verbs_core::wire_record;

use crate::iu::Unit;
use crate::iu::error::{IuError, fixed, part, place};
use crate::iu::ids::{Delta, ResponseCode, Status, Tag};

wire_record! {
    /// The part of a [`Rsp`] before the response data and the sense data.
    pub struct RspHeader, RspHeaderView: 36 bytes {
        /// Solicited notification.
        solicited: bool = (1, 7, 1),
        /// By how much the request limit changes.
        delta: Delta = (4, 0, 32),
        /// The request's tag.
        tag: Tag = (8, 0, 64),
        /// Fewer data than the data-in buffer holds.
        data_in_under: bool = (18, 2, 1),
        /// More data than the data-in buffer holds.
        data_in_over: bool = (18, 3, 1),
        /// Fewer data needed than the data-out buffer has.
        data_out_under: bool = (18, 4, 1),
        /// More data needed than the data-out buffer has.
        data_out_over: bool = (18, 5, 1),
        /// There are sense data.
        sense_valid: bool = (18, 6, 1),
        /// There are response data.
        response_valid: bool = (18, 7, 1),
        /// SCSI status.
        status: Status = (19, 0, 8),
        /// Difference between the length of the data-out buffer and the data, in bytes.
        data_out_residual: u32 = (20, 0, 32),
        /// Difference between the length of the data-in buffer and the data, in bytes.
        data_in_residual: u32 = (24, 0, 32),
        /// Bytes of sense data.
        sense_len: u32 = (28, 0, 32),
        /// Bytes of response data.
        response_len: u32 = (32, 0, 32),
    }
}

/// The answer to a command or to task management.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Rsp<'a> {
    /// Solicited notification.
    pub solicited: bool,
    /// By how much the request limit changes.
    pub delta: Delta,
    /// The request's tag.
    pub tag: Tag,
    /// SCSI status; meaningless with [`Detail::Response`].
    pub status: Status,
    /// The difference between the data-out buffer and the data needed.
    pub data_out: Residual,
    /// The difference between the data-in buffer and the data available.
    pub data_in: Residual,
    /// Response data or sense data: never both.
    pub detail: Detail<'a>,
}

/// The difference between a buffer's length and that of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Residual {
    /// They are equal.
    #[default]
    None,
    /// This many bytes of the buffer were not used.
    Under(u32),
    /// The data had this many bytes more than the buffer.
    Over(u32),
}

/// The data of an answer besides its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Detail<'a> {
    /// Nothing.
    #[default]
    None,
    /// Response data: the result of task management, or the error in the request's unit.
    Response(ResponseCode),
    /// Sense data: the condition of the logical unit.
    Sense(&'a [u8]),
}

/// Bytes of response data; the code is the last one.
const RESPONSE_LEN: u32 = 4;

impl Residual {
    fn read(under: bool, over: bool, count: u32) -> Result<Self, IuError> {
        match (under, over) {
            (false, false) => Ok(Self::None),
            (true, false) => Ok(Self::Under(count)),
            (false, true) => Ok(Self::Over(count)),
            (true, true) => Err(IuError::Contradiction("too few and too many data")),
        }
    }

    const fn count(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Under(count) | Self::Over(count) => count,
        }
    }

    const fn is_under(self) -> bool {
        matches!(self, Self::Under(_))
    }

    const fn is_over(self) -> bool {
        matches!(self, Self::Over(_))
    }
}

impl<'a> Rsp<'a> {
    /// Reads a unit whose type has been checked.
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Self, IuError> {
        let head = RspHeader::parse(RspHeaderView::of(fixed(Unit::Rsp, bytes)?));
        let detail = match (head.response_valid, head.sense_valid) {
            (false, false) => Detail::None,
            (true, false) => {
                let (data, _) = part(Unit::Rsp, bytes, RspHeader::LEN, head.response_len)?;
                let data: &[u8; RESPONSE_LEN as usize] = data.first_chunk().ok_or(
                    IuError::Contradiction("response data of fewer than four bytes"),
                )?;
                Detail::Response(ResponseCode::from_code(data[3]))
            }
            (false, true) => {
                // Response data may take space even if they are not valid.
                let (_, at) = part(Unit::Rsp, bytes, RspHeader::LEN, head.response_len)?;
                Detail::Sense(part(Unit::Rsp, bytes, at, head.sense_len)?.0)
            }
            (true, true) => return Err(IuError::Contradiction("response data and sense data")),
        };
        let out = (head.data_out_under, head.data_out_over);
        let into = (head.data_in_under, head.data_in_over);
        Ok(Self {
            solicited: head.solicited,
            delta: head.delta,
            tag: head.tag,
            status: head.status,
            data_out: Residual::read(out.0, out.1, head.data_out_residual)?,
            data_in: Residual::read(into.0, into.1, head.data_in_residual)?,
            detail,
        })
    }

    /// Writes the unit; returns its length.
    ///
    /// # Errors
    /// [`IuError::NoRoom`].
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, IuError> {
        let len = self.emitted_len();
        let out = place(Unit::Rsp, out, len)?;
        let head = self.header();
        if let Some((place, rest)) = out.split_first_chunk_mut() {
            head.emit(place);
            place[0] = Unit::Rsp.code();
            match self.detail {
                Detail::None => {}
                Detail::Response(code) => rest.copy_from_slice(&[0, 0, 0, code.code()]),
                Detail::Sense(sense) => rest.copy_from_slice(sense),
            }
        }
        Ok(len)
    }

    /// Bytes on the wire.
    pub const fn emitted_len(&self) -> usize {
        RspHeader::LEN
            + match self.detail {
                Detail::None => 0,
                Detail::Response(_) => RESPONSE_LEN as usize,
                Detail::Sense(sense) => sense.len(),
            }
    }

    pub(crate) fn header(&self) -> RspHeader {
        let (response_len, sense_len) = match self.detail {
            Detail::None => (0, 0),
            Detail::Response(_) => (RESPONSE_LEN, 0),
            Detail::Sense(sense) => (0, u32::try_from(sense.len()).unwrap_or(u32::MAX)),
        };
        RspHeader {
            solicited: self.solicited,
            delta: self.delta,
            tag: self.tag,
            data_in_under: self.data_in.is_under(),
            data_in_over: self.data_in.is_over(),
            data_out_under: self.data_out.is_under(),
            data_out_over: self.data_out.is_over(),
            sense_valid: matches!(self.detail, Detail::Sense(_)),
            response_valid: matches!(self.detail, Detail::Response(_)),
            status: self.status,
            data_out_residual: self.data_out.count(),
            data_in_residual: self.data_in.count(),
            sense_len,
            response_len,
        }
    }
}
