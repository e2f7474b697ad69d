//! Wire formats of the InfiniBand transport and of RoCEv2, its encapsulation in UDP.
//!
//! Two levels. A *view* (`BthView`, `RethView`, ...) lies over bytes: its constructor checks the
//! length, its getters cannot fail afterwards, and it prints whatever it finds. A *repr* (`Bth`,
//! `Reth`, ...) is a plain value with `parse` and `emit` that holds no illegal value: the bytes that
//! follow from other fields (pad count, lengths, checksums, ICRC) are not in it.
//!
//! From the outside in: [`Envelope`] is the IP and UDP header, [`Icrc`] covers it and what follows,
//! [`Packet`] is a [`Head`] (the [`Bth`] and the extended headers that its [`Opcode`] calls for) with
//! a borrowed payload. [`Seal`] is the ICRC of a flow whose headers a socket writes. Everything that
//! depends on the opcode alone stands in one table, [`opcode`].
//!
//! Reserved bits are ignored on receipt and sent as zero. Nothing here allocates, waits or panics,
//! whatever the bytes are. What a responder has to answer with a NAK (a wrong payload length, a key,
//! a sequence) is not judged here: only what can be no packet at all is refused.
//!
//! ```
//! use std::net::Ipv4Addr;
//!
//! use hca_sim::wire::{Bth, BthFlags, Envelope, Extended, Head, Opcode, Operation, Packet, Service};
//! use verbs_core::addr::{PKey, Psn, Qpn};
//!
//! let opcode = Opcode::new(Service::Rc, Operation::SendOnly).expect("RC has SEND Only");
//! let bth = Bth {
//!     opcode,
//!     flags: BthFlags::ACK_REQ,
//!     pkey: PKey::DEFAULT,
//!     dest_qpn: Qpn::new(17),
//!     psn: Psn::new(0x12_3456),
//! };
//! let packet = Packet { head: Head::new(bth, Extended::default())?, payload: b"hello" };
//! let envelope = Envelope::v4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), 0xc000);
//!
//! let mut bytes = [0; 64];
//! let icrc = envelope.icrc(packet.wire_len())?;
//! let len = packet.emit(&mut bytes, &icrc)?;
//! assert_eq!(Packet::parse(&bytes[..len])?, packet);
//! assert_eq!(icrc.verify(&bytes[..len]), Ok(()));
//! # Ok::<(), hca_sim::wire::WireError>(())
//! ```

mod field;

pub mod aeth;
pub mod atomic;
pub mod bth;
pub mod datagram;
pub mod envelope;
pub mod error;
pub mod flush;
#[doc(hidden)]
pub mod fuzz;
pub mod grh;
pub mod icrc;
pub mod imm;
pub mod lrh;
pub mod opcode;
pub mod packet;
pub mod reth;
pub mod seal;

pub use aeth::{Aeth, AethView, CreditCode, NakCode, RnrTimer, Syndrome};
pub use atomic::{AtomicAckEth, AtomicAckEthView, AtomicEth, AtomicEthView};
pub use bth::{Bth, BthFlags, BthView};
pub use datagram::{Deth, DethView, XrcEth, XrcEthView};
pub use envelope::{Envelope, Ipv4View, Net, ROCE_PORT, UdpView};
pub use error::{HeaderName, WireError};
pub use flush::{Feth, FethView, MaskEth, MaskEthView};
pub use grh::{FlowLabel, Grh, GrhView};
pub use icrc::{Icrc, Trailer};
pub use imm::{Ieth, IethView, ImmDt, ImmDtView};
pub use lrh::{Lrh, LrhView};
pub use opcode::{
    Facts, Headers, Message, Needs, Opcode, Operation, PayloadRule, Place, Role, Service,
};
pub use packet::{Extended, Head, Packet, PacketView};
pub use reth::{Reth, RethView};
pub use seal::{Seal, Solution};
