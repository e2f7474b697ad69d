//! Links: the carriers of packets between ports, their wrappers, and the clocks that they run on.
//!
//! [`PacketLink`] is the trait of a link. A link moves bytes and knows nothing of queue pairs: packets that it sends
//! are complete, from the BTH to the ICRC, and packets that it hands up have not been checked. [`Udp`] carries RoCEv2
//! over sockets, [`Cable`] carries packets within a process; [`Captured`] and [`Faulty`] wrap any link ([`Wrap`]), to
//! write captures and to lose, damage and reorder packets. [`Verifier`] checks ICRCs. [`time`] has the two clocks, the
//! wall clock and a virtual one, and the engine that calls what is due on either. [`port_space`] shares the host's TCP
//! port numbers.
//!
//! `hca-sim` runs queue pairs over these links. The simulated subnet is such a link too, in a crate above this one.
//! Formats are in `verbs-wire`.
//!
//! ```
//! use std::time::Duration;
//!
//! use verbs_link::time::VirtualClock;
//! use verbs_link::{Cable, Captured, PacketLink};
//! use verbs_wire::pcap::{LinkType, PcapNgWriter};
//!
//! // One end of a cable, whose packets are written to a capture with virtual time stamps.
//! let (link, _other) = Cable::new().plug(&["10.0.0.1".parse()?], &["10.0.0.2".parse()?]);
//! let pcap = PcapNgWriter::with_interface(Vec::new(), "port 1", LinkType::RawIp)?;
//! let clock = VirtualClock::new();
//! let link = Captured::new(link, pcap, clock.clone().into(), Duration::ZERO);
//! assert_eq!(link.addresses().len(), 1);
//! clock.advance(Duration::from_millis(1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

mod joined;
mod packet;
pub mod port_space;
pub mod ring;
#[doc(hidden)]
pub mod rng;
pub mod stream;
#[doc(hidden)]
#[expect(
    unsafe_code,
    reason = "a door: socket calls with control messages, which no safe crate offers as links need them"
)]
pub mod sys;
pub mod time;
mod udp;
mod wrap;

pub use joined::{Answer, JoinError, Joined, Joining, arrived, channel_files, clients_of};
#[doc(hidden)]
pub use joined::{Bounds, Inbound, Taken};
pub use packet::cable::{Cable, CableEnd};
pub use packet::counters::{GsoOff, LinkCounters};
pub use packet::managed::{Managed, PortTables};
pub use packet::verifier::{IcrcCounters, Verdict, Verifier};
pub use packet::{
    Arrival, Burst, Change, Feedback, FillWindow, Ident, Local, LongPacket, PacketLink, Refusal,
    Route, Sent, Waiter,
};
pub use udp::steering::{PROGRAMS_MAX, SHARED_MAX, Seat, SteeredSocket, Steering};
pub use udp::{ADDRESSES_MAX, GROUPS_MAX, LinkError, Udp, loopback_addresses};
pub use wrap::{Captured, FaultCounters, Faults, Faulty, NotPerMille, PerMille, Remarks, Wrap};
