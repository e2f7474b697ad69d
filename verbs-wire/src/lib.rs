//! Wire formats of InfiniBand, of RoCEv2 (its transport in UDP), and of iWARP.
//!
//! This crate only reads and writes bytes: it has no time, no sockets, no connection state. `hca-sim` and its
//! links send and receive packets with it; a sniffer or a test can use it alone. Management datagrams are in
//! `verbs_core::mad`, the connection manager's messages in `verbs-cm`. [`ib`] has the transport's headers,
//! [`route`] InfiniBand's routing headers, [`roce`] RoCEv2's replacement for them, [`iwarp`] the frames of RDMA
//! over TCP, and [`pcap`] writes captures that Wireshark reads. [`target`] is what HCAs of one host say to each other about
//! a queue pair that they share.
//!
//! Formats have two levels. A *view* (`BthView`, `RethView`, ...) borrows bytes: its constructor checks the
//! length, its getters cannot fail afterwards, and it can print any content. A *repr* (`Bth`, `Reth`, ...) is a
//! plain value with `parse` and `emit` that holds no illegal value: bytes that follow from other fields (pad
//! count, lengths, checksums, ICRC) are not in it.
//!
//! From the outside in: [`Envelope`] is the IP and UDP header, [`Icrc`] covers it and everything after it,
//! [`Packet`] is a [`Head`] (the [`Bth`] and the extended headers that its [`Opcode`] requires) with a borrowed
//! payload. On InfiniBand's own links [`Frame`] replaces the envelope, and a [`Vcrc`] ends the packet. [`Seal`]
//! is the ICRC of a flow whose headers a socket writes. Everything that depends only on the opcode is in one
//! table, [`opcode`].
//!
//! Reserved bits are ignored on receipt and sent as zero. Nothing here allocates, waits or panics, whatever the
//! bytes are. Faults that a responder must answer with a NAK (a wrong payload length, a key, a sequence) are not
//! checked here: only bytes that cannot be a packet are refused.
//!
//! ```
//! use std::net::Ipv4Addr;
//!
//! use verbs_wire::{Bth, BthFlags, Envelope, Extended, Head, Opcode, Operation, Packet, Service};
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
//! # Ok::<(), verbs_wire::WireError>(())
//! ```
#![forbid(unsafe_code)]

mod field;

pub mod error;
#[doc(hidden)]
pub mod fuzz;
pub mod ib;
pub mod iwarp;
pub mod pcap;
pub mod roce;
pub mod route;
pub mod target;

pub use ib::{aeth, atomic, bth, datagram, flush, imm, opcode, packet, reth};
pub use roce::{envelope, icrc, seal};
pub use route::{frame, grh, lrh, vcrc};

pub use aeth::{Aeth, AethView, CreditCode, NakCode, RnrTimer, Syndrome};
pub use atomic::{AtomicAckEth, AtomicAckEthView, AtomicEth, AtomicEthView};
pub use bth::{Bth, BthFlags, BthView};
pub use datagram::{Deth, DethView, XrcEth, XrcEthView};
pub use envelope::{Envelope, Ipv4View, Net, ROCE_PORT, UdpView};
pub use error::{HeaderName, WireError};
pub use flush::{Feth, FethView, MaskEth, MaskEthView};
pub use frame::Frame;
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
pub use vcrc::Vcrc;
