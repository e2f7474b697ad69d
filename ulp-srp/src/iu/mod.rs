//! Information units: the messages between initiator and target (T10 SRP revision 16a, clause 6; SRP-2 for
//! immediate data).
//!
//! Units of fixed length are a *view* over bytes (`TskMgmtView`, ...) and a *repr* (`TskMgmt`, ...). Units with
//! parts of variable length ([`Cmd`], [`Rsp`], [`AerReq`]) borrow these parts, so reading and writing never
//! allocates; the view of their head has a name of its own (`CmdHeaderView`, ...). Reserved bits, and bytes after
//! a unit, are ignored on receipt and sent as zero. Nothing here waits or panics.
//!
//! ```
//! use ulp_srp::iu::{Cdb, Cmd, DataBuffer, Lun, MemoryDescriptor, Tag, ToTarget};
//! use verbs_core::RKey;
//!
//! let piece = MemoryDescriptor { addr: 0x1000, rkey: RKey::new(0x205), len: 512 };
//! let inquiry = Cmd {
//!     tag: Tag(5),
//!     cdb: Cdb::new(&[0x12, 0, 0, 0, 36, 0])?,
//!     data_in: DataBuffer::Direct(piece),
//!     ..Cmd::default()
//! };
//! let mut bytes = [0; 64];
//! assert_eq!(inquiry.emit(&mut bytes)?, 64);
//! assert_eq!(ToTarget::parse(&bytes)?, ToTarget::Cmd(inquiry));
//! # Ok::<(), ulp_srp::iu::IuError>(())
//! ```

mod buffer;
mod command;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod ids;
mod login;
mod other;
mod response;

use std::fmt;

pub use buffer::{DataBuffer, Descriptors, Indirect};
pub use command::{Cdb, Cmd, CmdHeader, CmdHeaderView};
pub use error::IuError;
pub use ids::{
    BufferFormats, Delta, LoginRejectReason, LogoutReason, Lun, MemoryDescriptor, MultiChannel,
    NoPortId, PortId, ResponseCode, Status, Tag, TaskAttribute, TaskFunction,
};
pub use login::{
    InitiatorLogout, InitiatorLogoutView, LoginRej, LoginRejView, LoginReq, LoginReqView, LoginRsp,
    LoginRspView, TargetLogout, TargetLogoutView,
};
pub use other::{
    AerHeader, AerHeaderView, AerReq, AerRsp, AerRspView, CredReq, CredReqView, CredRsp,
    CredRspView, TskMgmt, TskMgmtView,
};
pub use response::{Detail, Residual, Rsp, RspHeader, RspHeaderView};

/// Kinds of information units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unit {
    /// LOGIN_REQ, in the connection manager's private data.
    LoginReq,
    /// TSK_MGMT.
    TskMgmt,
    /// CMD.
    Cmd,
    /// I_LOGOUT.
    InitiatorLogout,
    /// CRED_RSP.
    CredRsp,
    /// AER_RSP.
    AerRsp,
    /// T_LOGOUT.
    TargetLogout,
    /// CRED_REQ.
    CredReq,
    /// AER_REQ.
    AerReq,
    /// LOGIN_RSP, in the connection manager's private data.
    LoginRsp,
    /// RSP.
    Rsp,
    /// LOGIN_REJ, in the connection manager's private data.
    LoginRej,
}

impl Unit {
    /// Type on the wire, in a unit's first byte.
    pub const fn code(self) -> u8 {
        match self {
            Self::LoginReq => 0x00,
            Self::TskMgmt => 0x01,
            Self::Cmd => 0x02,
            Self::InitiatorLogout => 0x03,
            Self::CredRsp => 0x41,
            Self::AerRsp => 0x42,
            Self::TargetLogout => 0x80,
            Self::CredReq => 0x81,
            Self::AerReq => 0x82,
            Self::LoginRsp => 0xc0,
            Self::Rsp => 0xc1,
            Self::LoginRej => 0xc2,
        }
    }

    /// The name in the specification.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LoginReq => "SRP_LOGIN_REQ",
            Self::TskMgmt => "SRP_TSK_MGMT",
            Self::Cmd => "SRP_CMD",
            Self::InitiatorLogout => "SRP_I_LOGOUT",
            Self::CredRsp => "SRP_CRED_RSP",
            Self::AerRsp => "SRP_AER_RSP",
            Self::TargetLogout => "SRP_T_LOGOUT",
            Self::CredReq => "SRP_CRED_REQ",
            Self::AerReq => "SRP_AER_REQ",
            Self::LoginRsp => "SRP_LOGIN_RSP",
            Self::Rsp => "SRP_RSP",
            Self::LoginRej => "SRP_LOGIN_REJ",
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The units that an initiator sends on a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToTarget<'a> {
    /// A command.
    Cmd(Cmd<'a>),
    /// Task management.
    TskMgmt(TskMgmt),
    /// The answer to [`ToInitiator::CredReq`].
    CredRsp(CredRsp),
    /// The answer to [`ToInitiator::AerReq`].
    AerRsp(AerRsp),
    /// The end of the channel.
    Logout(InitiatorLogout),
}

/// The units that a target sends on a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToInitiator<'a> {
    /// The answer to a command or to task management.
    Rsp(Rsp<'a>),
    /// A change of the request limit.
    CredReq(CredReq),
    /// An event of a logical unit.
    AerReq(AerReq<'a>),
    /// The end of the channel.
    Logout(TargetLogout),
}

/// The answer to LOGIN_REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginAnswer {
    /// The channel is open.
    Rsp(LoginRsp),
    /// The login is refused.
    Rej(LoginRej),
}

impl<'a> ToTarget<'a> {
    /// Reads a unit that an initiator sent.
    ///
    /// # Errors
    /// [`IuError`]: the peer's variants.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, IuError> {
        match type_of(bytes) {
            0x01 => TskMgmt::read(bytes).map(Self::TskMgmt),
            0x02 => Cmd::read(bytes).map(Self::Cmd),
            0x03 => InitiatorLogout::read(bytes).map(Self::Logout),
            0x41 => CredRsp::read(bytes).map(Self::CredRsp),
            0x42 => AerRsp::read(bytes).map(Self::AerRsp),
            other => Err(IuError::Type(other)),
        }
    }

    /// Writes the unit; returns its length.
    ///
    /// # Errors
    /// [`IuError`]: the caller's variants.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, IuError> {
        match self {
            Self::Cmd(unit) => unit.emit(out),
            Self::TskMgmt(unit) => unit.emit_unit(out),
            Self::CredRsp(unit) => unit.emit_unit(out),
            Self::AerRsp(unit) => unit.emit_unit(out),
            Self::Logout(unit) => unit.emit_unit(out),
        }
    }

    /// The unit's tag.
    pub const fn tag(&self) -> Tag {
        match self {
            Self::Cmd(unit) => unit.tag,
            Self::TskMgmt(unit) => unit.tag,
            Self::CredRsp(unit) => unit.tag,
            Self::AerRsp(unit) => unit.tag,
            Self::Logout(unit) => unit.tag,
        }
    }
}

impl<'a> ToInitiator<'a> {
    /// Reads a unit that a target sent.
    ///
    /// # Errors
    /// [`IuError`]: the peer's variants.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, IuError> {
        match type_of(bytes) {
            0x80 => TargetLogout::read(bytes).map(Self::Logout),
            0x81 => CredReq::read(bytes).map(Self::CredReq),
            0x82 => AerReq::read(bytes).map(Self::AerReq),
            0xc1 => Rsp::read(bytes).map(Self::Rsp),
            other => Err(IuError::Type(other)),
        }
    }

    /// Writes the unit; returns its length.
    ///
    /// # Errors
    /// [`IuError`]: the caller's variants.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, IuError> {
        match self {
            Self::Rsp(unit) => unit.emit(out),
            Self::CredReq(unit) => unit.emit_unit(out),
            Self::AerReq(unit) => unit.emit(out),
            Self::Logout(unit) => unit.emit_unit(out),
        }
    }
}

impl LoginAnswer {
    /// Reads private data, which may be longer than the unit.
    ///
    /// # Errors
    /// [`IuError::Type`], [`IuError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<Self, IuError> {
        match type_of(bytes) {
            0xc0 => LoginRsp::read(bytes).map(Self::Rsp),
            0xc2 => LoginRej::read(bytes).map(Self::Rej),
            other => Err(IuError::Type(other)),
        }
    }
}

/// The type of a unit; 0xff, which no unit has, if there are no bytes.
fn type_of(bytes: &[u8]) -> u8 {
    bytes.first().copied().unwrap_or(0xff)
}

/// Units of fixed length: reading and writing them with their type.
macro_rules! typed {
    ($($repr:ident, $view:ident = $unit:ident;)*) => {$(
        impl $repr {
            /// Reads a unit.
            ///
            /// # Errors
            #[doc = "[`IuError::Type`](crate::iu::IuError::Type), "]
            #[doc = "[`IuError::Truncated`](crate::iu::IuError::Truncated)."]
            pub fn parse_unit(bytes: &[u8]) -> Result<Self, $crate::iu::IuError> {
                match $crate::iu::type_of(bytes) {
                    code if code == Unit::$unit.code() => Self::read(bytes),
                    other => Err($crate::iu::IuError::Type(other)),
                }
            }

            /// Reads a unit whose type has been checked.
            pub(crate) fn read(bytes: &[u8]) -> Result<Self, $crate::iu::IuError> {
                let bytes = $crate::iu::error::fixed(Unit::$unit, bytes)?;
                Ok(Self::parse($view::of(bytes)))
            }

            /// The bytes of the unit.
            pub fn unit(&self) -> [u8; Self::LEN] {
                let mut bytes = [0; Self::LEN];
                self.emit(&mut bytes);
                bytes[0] = Unit::$unit.code();
                bytes
            }

            /// Writes the unit; returns its length.
            ///
            /// # Errors
            #[doc = "[`IuError::NoRoom`](crate::iu::IuError::NoRoom)."]
            pub fn emit_unit(&self, out: &mut [u8]) -> Result<usize, $crate::iu::IuError> {
                let place = $crate::iu::error::place(Unit::$unit, out, Self::LEN)?;
                place.copy_from_slice(&self.unit());
                Ok(Self::LEN)
            }
        }
    )*};
}
use typed;
