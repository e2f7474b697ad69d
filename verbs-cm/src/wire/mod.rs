//! Messages of the connection manager (IBTA vol. 1, 12.6) and the header of the RDMA IP connection
//! manager.
//!
//! Each message is one management datagram: the common header, then 232 bytes that are a *view*
//! (`ReqView`, ...) or a *repr* (`Req`, ...). Every content of these bytes is a message: what a
//! receiver has to object to (an unknown transport, an impossible MTU) it answers with a REJ, and so
//! must be able to read. Only a wrong class, version, method or attribute is no message at all.
//! Reserved bits are ignored on receipt and sent as zero. Nothing here allocates, waits or panics.
//!
//! ```
//! use verbs_cm::wire::{CommId, Message, Rtu};
//! use verbs_core::mad::TransactionId;
//!
//! let rtu = Message::Rtu(Rtu { local_id: CommId(1), remote_id: CommId(2), ..Rtu::default() });
//! let mad = rtu.emit(TransactionId(7));
//! assert_eq!(Message::parse(&mad)?, (TransactionId(7), rtu));
//! # Ok::<(), verbs_cm::wire::WireError>(())
//! ```

mod connect;
#[doc(hidden)]
pub mod fuzz;
mod ids;
mod ip_header;
mod other;
mod reason;

use verbs_core::mad::header::{emit_header, header_of};
use verbs_core::mad::{AttributeId, Class, MadBytes, MadHeader, Method, TransactionId};

pub use connect::{
    Mra, MraView, MtuCode, Rej, RejView, Rep, RepView, Req, ReqPath, ReqPathView, ReqView, Rtu,
    RtuView,
};
pub use ids::{CommId, PortSpace, ServiceId};
pub use ip_header::{IpFields, IpFieldsView, IpHeader, IpHeaderError, IpPair};
pub use other::{
    Apr, AprView, Drep, DrepView, Dreq, DreqView, Lap, LapView, SidrRep, SidrRepView, SidrReq,
    SidrReqView,
};
pub use reason::{Acknowledged, AprStatus, RejectReason, Rejected, SidrStatus, Transport};

/// Version of the class's formats.
pub const CLASS_VERSION: u8 = 2;

/// Bytes of a message behind the common header.
pub const MESSAGE_LEN: usize = 232;

/// Why a datagram is no message of the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The base version is not 1.
    #[error("base version {0}, expected 1")]
    BaseVersion(u8),
    /// Another class.
    #[error("class {0:?} is not the connection manager's")]
    Class(Class),
    /// Another version of the class.
    #[error("class version {0}, expected {CLASS_VERSION}")]
    ClassVersion(u8),
    /// Another method than Send.
    #[error("method {0:?}, expected Send")]
    Method(Method),
    /// No message has this attribute.
    #[error("attribute {0:?} is no message")]
    Attribute(AttributeId),
}

macro_rules! messages {
    ($($(#[$doc:meta])* $message:ident, $view:ident = $attribute:literal, $name:literal;)*) => {
        /// A message.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Message {
            $($(#[$doc])* $message($message),)*
        }

        impl Message {
            /// Reads a datagram.
            ///
            /// # Errors
            /// [`WireError`], each variant.
            pub fn parse(mad: &MadBytes) -> Result<(TransactionId, Self), WireError> {
                let header = check(mad)?;
                let body = body(mad);
                let message = match header.attribute.0 {
                    $($attribute => Self::$message($message::parse($view::of(body))),)*
                    _ => return Err(WireError::Attribute(header.attribute)),
                };
                Ok((header.tid, message))
            }

            /// The datagram.
            pub fn emit(&self, tid: TransactionId) -> MadBytes {
                let mut mad = [0; 256];
                let header = MadHeader {
                    base_version: MadHeader::BASE_VERSION,
                    class: Class::CM,
                    class_version: CLASS_VERSION,
                    method: Method::SEND,
                    attribute: AttributeId(self.attribute()),
                    tid,
                    ..MadHeader::default()
                };
                emit_header(&header, &mut mad);
                match self {
                    $(Self::$message(message) => message.emit(body_mut(&mut mad)),)*
                }
                mad
            }

            /// The message's name in the specification.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$message(_) => $name,)*
                }
            }

            const fn attribute(&self) -> u16 {
                match self {
                    $(Self::$message(_) => $attribute,)*
                }
            }

            /// The bits of a message's body that have a meaning.
            fn covered(&self) -> [u8; MESSAGE_LEN] {
                match self {
                    $(Self::$message(_) => $message::covered(),)*
                }
            }
        }

        $(impl From<$message> for Message {
            fn from(message: $message) -> Self {
                Self::$message(message)
            }
        })*
    };
}

messages! {
    /// Request for communication.
    Req, ReqView = 0x0010, "REQ";
    /// Message receipt acknowledgment.
    Mra, MraView = 0x0011, "MRA";
    /// Reject.
    Rej, RejView = 0x0012, "REJ";
    /// Reply.
    Rep, RepView = 0x0013, "REP";
    /// Ready to use.
    Rtu, RtuView = 0x0014, "RTU";
    /// Request for disconnection.
    Dreq, DreqView = 0x0015, "DREQ";
    /// Reply to it.
    Drep, DrepView = 0x0016, "DREP";
    /// Service id resolution request.
    SidrReq, SidrReqView = 0x0017, "SIDR_REQ";
    /// Service id resolution reply.
    SidrRep, SidrRepView = 0x0018, "SIDR_REP";
    /// Load alternate path.
    Lap, LapView = 0x0019, "LAP";
    /// Alternate path response.
    Apr, AprView = 0x001a, "APR";
}

/// The header of a datagram that may be a message.
fn check(mad: &MadBytes) -> Result<MadHeader, WireError> {
    let header = MadHeader::parse(header_of(mad));
    if header.base_version != MadHeader::BASE_VERSION {
        return Err(WireError::BaseVersion(header.base_version));
    }
    if header.class != Class::CM {
        return Err(WireError::Class(header.class));
    }
    if header.class_version != CLASS_VERSION {
        return Err(WireError::ClassVersion(header.class_version));
    }
    if header.method != Method::SEND {
        return Err(WireError::Method(header.method));
    }
    Ok(header)
}

/// What stands behind the common header.
fn body(mad: &MadBytes) -> &[u8; MESSAGE_LEN] {
    let Some(body) = mad.last_chunk() else {
        unreachable!("a datagram is longer than a message");
    };
    body
}

fn body_mut(mad: &mut MadBytes) -> &mut [u8; MESSAGE_LEN] {
    let Some(body) = mad.last_chunk_mut() else {
        unreachable!("a datagram is longer than a message");
    };
    body
}
