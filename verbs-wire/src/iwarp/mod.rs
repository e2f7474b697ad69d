//! iWARP: RDMA over a TCP stream, as formats only.
//!
//! Three layers share one frame. MPA (RFC 5044) starts a connection with [`Startup`] frames and then divides the
//! stream into FPDUs ([`Fpdu`]), each with a length, a pad and a CRC-32C. DDP (RFC 5041) says where the payload
//! of an FPDU belongs: a [`Header`] is tagged (a key and an offset) or untagged (a queue, a message and an
//! offset). RDMAP (RFC 5040, with the extensions of RFC 7306) gives it a meaning: [`RdmapOpcode`], and the bodies
//! [`ReadRequest`], [`AtomicRequest`], [`AtomicResponse`] and [`ImmediateData`]. A [`Terminate`] ends the stream
//! and names its [`Cause`]. [`MapperMessage`] is the datagram of the iWARP port mapper.
//!
//! Readers of a stream return `None` while bytes are missing, so any segmentation of the stream reads the same.
//! Reserved bits are ignored on receipt and sent as zero. [`IwarpError::cause`] gives the cause of an error that
//! must be reported to the peer.
//!
//! Markers are not supported: a peer that requests them is refused during startup, as Linux siw does.
//!
//! ```
//! use verbs_wire::iwarp::{Fpdu, Header, RdmapOpcode, Untagged};
//!
//! let header = Header::Untagged(Untagged::first(RdmapOpcode::Send, 1));
//! let mut ulpdu = [0; 64];
//! let len = header.emit(&mut ulpdu)?;
//! ulpdu[len..len + 5].copy_from_slice(b"hello");
//!
//! let mut stream = [0; 64];
//! let sent = Fpdu { ulpdu: &ulpdu[..len + 5] }.emit(true, &mut stream)?;
//! assert_eq!(Fpdu::parse(&stream[..sent - 1], true)?, None); // the last byte is missing
//!
//! let (fpdu, read) = Fpdu::parse(&stream[..sent], true)?.expect("a whole FPDU");
//! assert_eq!(read, sent);
//! assert_eq!(Header::parse(fpdu.ulpdu)?, (header, &b"hello"[..]));
//! # Ok::<(), verbs_wire::iwarp::IwarpError>(())
//! ```

mod cause;
mod ddp;
mod error;
mod fpdu;
#[doc(hidden)]
pub mod fuzz;
mod mapper;
mod rdmap;
mod startup;
mod terminate;

pub use cause::Cause;
pub use ddp::{Header, STag, Tagged, Untagged};
pub use error::{IwarpError, Part};
pub use fpdu::{Fpdu, FpduCrc};
pub use mapper::{MAPPER_PORT, MapperKind, MapperMessage};
pub use rdmap::{
    AtomicOperation, AtomicRequest, AtomicResponse, ImmediateData, RdmapOpcode, RdmapQueue,
    ReadRequest,
};
pub use startup::{Depth, Reply, Revision, Rtr, Setup, Startup, StartupKind};
pub use terminate::{Refused, Terminate};
