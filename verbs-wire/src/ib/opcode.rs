//! The opcode table: everything that follows from a packet's opcode alone (IBTA vol. 1, 9.2;
//! annex A14 for XRC, annex A17.9 for congestion notification).
//!
//! An opcode byte is a service in its upper three bits and an operation in its lower five. Reliable datagram is
//! not in the table. No specification defines masked atomics: they have opcodes in the manufacturer's ranges,
//! 0xc0 and up on reliable connections and 0xe0 and up on extended ones, and are used only between devices of
//! this project.

use std::fmt;

use bitflags::bitflags;
use verbs_core::addr::Mtu;

use crate::WireError;

/// An assigned opcode: a service and one of its operations.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode {
    service: Service,
    operation: Operation,
}

impl Opcode {
    /// Congestion notification packet.
    pub const CNP: Self = Self {
        service: Service::Congestion,
        operation: Operation::CongestionNotification,
    };

    /// The opcode of an operation in a service; `None` if the service has no such operation.
    #[inline]
    pub const fn new(service: Service, operation: Operation) -> Option<Self> {
        if operation.facts().services.contains(service.flag()) {
            Some(Self { service, operation })
        } else {
            None
        }
    }

    /// The opcode of that byte; `None` if it is not assigned.
    #[inline]
    pub fn from_u8(byte: u8) -> Option<Self> {
        BY_BYTE[usize::from(byte)]
    }

    /// The byte on the wire.
    #[inline]
    pub const fn to_u8(self) -> u8 {
        self.service.base() | self.facts().code
    }

    /// The upper three bits.
    #[inline]
    pub const fn service(self) -> Service {
        self.service
    }

    /// The lower five bits.
    #[inline]
    pub const fn operation(self) -> Operation {
        self.operation
    }

    /// The operation's line in the table.
    #[inline]
    pub const fn facts(self) -> &'static Facts {
        self.operation.facts()
    }

    /// Extended headers of the packet: those of the operation and that of the service.
    #[inline]
    pub const fn headers(self) -> Headers {
        let facts = self.facts();
        match (self.service, facts.role) {
            (Service::Ud, _) => facts.headers.union(Headers::DETH),
            (Service::Xrc | Service::OwnXrc, Role::Request) => facts.headers.union(Headers::XRCETH),
            _ => facts.headers,
        }
    }

    /// Whether requesters send it: then the responder handles it, in its receive PSN sequence.
    #[inline]
    pub const fn is_request(self) -> bool {
        matches!(self.facts().role, Role::Request)
    }

    /// Whether `len` payload bytes are allowed at this path MTU.
    ///
    /// # Errors
    /// [`WireError::PayloadLength`]: for a request, a responder answers NAK Invalid Request.
    pub fn check_payload(self, len: usize, mtu: Mtu) -> Result<(), WireError> {
        let (min, max) = self.facts().payload.range(mtu);
        match u32::try_from(len) {
            Ok(got) if min <= got && got <= max => Ok(()),
            _ => Err(WireError::PayloadLength {
                opcode: self,
                min,
                max,
                got: len,
            }),
        }
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.service {
            Service::Congestion => f.write_str(self.facts().name),
            service => write!(f, "{service} {}", self.facts().name),
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Every assigned opcode at its byte. (Conversions by `From` cannot run at compile time.)
static BY_BYTE: [Option<Opcode>; 256] = {
    let mut table = [None; 256];
    let mut i = 0;
    while i < Operation::ALL.len() {
        let mut j = 0;
        while j < Service::ALL.len() {
            if let Some(opcode) = Opcode::new(Service::ALL[j], Operation::ALL[i]) {
                table[opcode.to_u8() as usize] = Some(opcode);
            }
            j += 1;
        }
        i += 1;
    }
    table
};

/// A transport service: the upper three bits of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification, a service of one packet.
    Congestion,
    /// Extended reliable connection.
    Xrc,
    /// Operations that this crate adds to reliable connections, in a manufacturer's range.
    Own,
    /// Operations that this crate adds to extended reliable connections.
    OwnXrc,
}

impl Service {
    /// Every service.
    pub const ALL: [Self; 7] = [
        Self::Rc,
        Self::Uc,
        Self::Ud,
        Self::Congestion,
        Self::Xrc,
        Self::Own,
        Self::OwnXrc,
    ];

    /// Its opcodes' upper three bits.
    #[inline]
    pub const fn base(self) -> u8 {
        match self {
            Self::Rc => 0x00,
            Self::Uc => 0x20,
            Self::Ud => 0x60,
            Self::Congestion => 0x80,
            Self::Xrc => 0xa0,
            Self::Own => 0xc0,
            Self::OwnXrc => 0xe0,
        }
    }

    /// This service as a set.
    #[inline]
    pub const fn flag(self) -> Services {
        match self {
            Self::Rc => Services::RC,
            Self::Uc => Services::UC,
            Self::Ud => Services::UD,
            Self::Congestion => Services::CONGESTION,
            Self::Xrc => Services::XRC,
            Self::Own => Services::OWN,
            Self::OwnXrc => Services::OWN_XRC,
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Congestion => "CNP",
            Self::Xrc => "XRC",
            Self::Own => "own",
            Self::OwnXrc => "own XRC",
        })
    }
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its name in the specification.
    pub name: &'static str,
    /// The lower five bits of the opcode.
    pub code: u8,
    /// Services that have it.
    pub services: Services,
    /// Extended headers, except the one that the service adds.
    pub headers: Headers,
    /// The allowed payload lengths.
    pub payload: PayloadRule,
    /// Which side sends it.
    pub role: Role,
    /// The kind of its message.
    pub message: Message,
    /// Its place in the message.
    pub place: Place,
    /// What the responder needs to execute it.
    pub needs: Needs,
}

/// Payload bytes of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadRule {
    /// None.
    Empty,
    /// Exactly the path MTU: First and Middle packets.
    Full,
    /// At least one byte, at most the path MTU: Last packets.
    Rest,
    /// At most the path MTU: Only packets.
    UpToMtu,
    /// That many bytes, whatever the path MTU.
    Fixed(u32),
}

impl PayloadRule {
    /// Fewest and most bytes at this path MTU.
    pub const fn range(self, mtu: Mtu) -> (u32, u32) {
        match self {
            Self::Empty => (0, 0),
            Self::Full => (mtu.bytes(), mtu.bytes()),
            Self::Rest => (1, mtu.bytes()),
            Self::UpToMtu => (0, mtu.bytes()),
            Self::Fixed(len) => (len, len),
        }
    }
}

/// Which side sends a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The requester, to a responder; its PSN is of the request sequence.
    Request,
    /// The responder, to a requester; its PSN is that of a request.
    Response,
    /// Neither: no PSN, no answer.
    Notice,
}

/// The kind of message that a packet belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// SEND.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// COMPARE SWAP or FETCH ADD.
    Atomic,
    /// ATOMIC WRITE.
    AtomicWrite,
    /// FLUSH.
    Flush,
    /// A bare acknowledgement.
    Ack,
    /// Congestion notification.
    Congestion,
}

/// A packet's place in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The first of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last,
    /// All of it.
    Only,
}

impl Place {
    /// The place of a packet with which a message begins, ends, neither or both.
    #[inline]
    pub const fn of(is_first: bool, is_last: bool) -> Self {
        match (is_first, is_last) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, false) => Self::Middle,
            (false, true) => Self::Last,
        }
    }

    /// Whether a message begins here.
    #[inline]
    pub const fn is_first(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether a message ends here.
    #[inline]
    pub const fn is_last(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

bitflags! {
    /// A set of services.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Services: u8 {
        /// Reliable connection.
        const RC = 1 << 0;
        /// Unreliable connection.
        const UC = 1 << 1;
        /// Unreliable datagram.
        const UD = 1 << 2;
        /// Congestion notification.
        const CONGESTION = 1 << 3;
        /// Extended reliable connection.
        const XRC = 1 << 4;
        /// What this crate adds to reliable connections.
        const OWN = 1 << 5;
        /// What this crate adds to extended reliable connections.
        const OWN_XRC = 1 << 6;
    }
}

bitflags! {
    /// A set of extended headers; on the wire they follow the BTH in this order.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Headers: u16 {
        /// XRC extended header.
        const XRCETH = 1 << 0;
        /// Datagram extended header.
        const DETH = 1 << 1;
        /// FLUSH extended header.
        const FETH = 1 << 2;
        /// RDMA extended header.
        const RETH = 1 << 3;
        /// Atomic extended header.
        const ATOMIC_ETH = 1 << 4;
        /// The masks of a masked atomic, this crate's own.
        const MASK_ETH = 1 << 5;
        /// ACK extended header.
        const AETH = 1 << 6;
        /// Atomic ACK extended header.
        const ATOMIC_ACK_ETH = 1 << 7;
        /// Immediate data.
        const IMMDT = 1 << 8;
        /// Invalidate extended header.
        const IETH = 1 << 9;
    }
}

bitflags! {
    /// What a responder needs to execute a packet.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Needs: u8 {
        /// A receive; without one: RNR NAK, or a lost datagram.
        const RECV_ENTRY = 1 << 0;
        /// One of the resources that remember READs and atomics (`max_dest_rd_atomic`).
        const READ_RESOURCE = 1 << 1;
    }
}

/// Services with connections.
const CONNECTED: Services = Services::RC.union(Services::UC).union(Services::XRC);
/// Services with acknowledgements.
const RELIABLE: Services = Services::RC.union(Services::XRC);
/// Services with SEND.
const EVERY: Services = CONNECTED.union(Services::UD);
const NONE: Headers = Headers::empty();
const RETH_IMM: Headers = Headers::RETH.union(Headers::IMMDT);
const FETH_RETH: Headers = Headers::FETH.union(Headers::RETH);
/// Services that no specification defines.
const OURS: Services = Services::OWN.union(Services::OWN_XRC);
const ATOMIC_MASK: Headers = Headers::ATOMIC_ETH.union(Headers::MASK_ETH);
const AETH_ATOMIC: Headers = Headers::AETH.union(Headers::ATOMIC_ACK_ETH);
const NOTHING: Needs = Needs::empty();

macro_rules! operations {
    ($($variant:ident = $code:literal, $name:literal, $services:expr, $headers:expr, $payload:expr,
       $role:ident, $message:ident, $place:ident, $needs:expr;)*) => {
        /// An operation: the lower five bits of an opcode.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Operation {
            $(#[doc = concat!($name, ".")] $variant,)*
        }

        impl Operation {
            /// Every operation.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Its row in the table.
            #[inline]
            pub const fn facts(self) -> &'static Facts {
                match self {
                    $(Self::$variant => {
                        const FACTS: &Facts = &Facts {
                            name: $name,
                            code: $code,
                            services: $services,
                            headers: $headers,
                            payload: $payload,
                            role: Role::$role,
                            message: Message::$message,
                            place: Place::$place,
                            needs: $needs,
                        };
                        FACTS
                    })*
                }
            }
        }
    };
}

use PayloadRule::{Empty, Fixed, Full, Rest, UpToMtu};

operations! {
    SendFirst            = 0x00, "SEND First",                   CONNECTED, NONE,                Full,      Request,  Send,        First,  Needs::RECV_ENTRY;
    SendMiddle           = 0x01, "SEND Middle",                  CONNECTED, NONE,                Full,      Request,  Send,        Middle, NOTHING;
    SendLast             = 0x02, "SEND Last",                    CONNECTED, NONE,                Rest,      Request,  Send,        Last,   NOTHING;
    SendLastImm          = 0x03, "SEND Last with Immediate",     CONNECTED, Headers::IMMDT,      Rest,      Request,  Send,        Last,   NOTHING;
    SendOnly             = 0x04, "SEND Only",                    EVERY,     NONE,                UpToMtu,   Request,  Send,        Only,   Needs::RECV_ENTRY;
    SendOnlyImm          = 0x05, "SEND Only with Immediate",     EVERY,     Headers::IMMDT,      UpToMtu,   Request,  Send,        Only,   Needs::RECV_ENTRY;
    WriteFirst           = 0x06, "RDMA WRITE First",             CONNECTED, Headers::RETH,       Full,      Request,  Write,       First,  NOTHING;
    WriteMiddle          = 0x07, "RDMA WRITE Middle",            CONNECTED, NONE,                Full,      Request,  Write,       Middle, NOTHING;
    WriteLast            = 0x08, "RDMA WRITE Last",              CONNECTED, NONE,                Rest,      Request,  Write,       Last,   NOTHING;
    WriteLastImm         = 0x09, "RDMA WRITE Last with Immediate", CONNECTED, Headers::IMMDT,    Rest,      Request,  Write,       Last,   Needs::RECV_ENTRY;
    WriteOnly            = 0x0a, "RDMA WRITE Only",              CONNECTED, Headers::RETH,       UpToMtu,   Request,  Write,       Only,   NOTHING;
    WriteOnlyImm         = 0x0b, "RDMA WRITE Only with Immediate", CONNECTED, RETH_IMM,          UpToMtu,   Request,  Write,       Only,   Needs::RECV_ENTRY;
    ReadRequest          = 0x0c, "RDMA READ Request",            RELIABLE,  Headers::RETH,       Empty,     Request,  Read,        Only,   Needs::READ_RESOURCE;
    ReadResponseFirst    = 0x0d, "RDMA READ Response First",     RELIABLE,  Headers::AETH,       Full,      Response, Read,        First,  NOTHING;
    ReadResponseMiddle   = 0x0e, "RDMA READ Response Middle",    RELIABLE,  NONE,                Full,      Response, Read,        Middle, NOTHING;
    ReadResponseLast     = 0x0f, "RDMA READ Response Last",      RELIABLE,  Headers::AETH,       Rest,      Response, Read,        Last,   NOTHING;
    ReadResponseOnly     = 0x10, "RDMA READ Response Only",      RELIABLE,  Headers::AETH,       UpToMtu,   Response, Read,        Only,   NOTHING;
    Acknowledge          = 0x11, "Acknowledge",                  RELIABLE,  Headers::AETH,       Empty,     Response, Ack,         Only,   NOTHING;
    AtomicAcknowledge    = 0x12, "ATOMIC Acknowledge",           RELIABLE,  AETH_ATOMIC,         Empty,     Response, Atomic,      Only,   NOTHING;
    CompareSwap          = 0x13, "COMPARE SWAP",                 RELIABLE,  Headers::ATOMIC_ETH, Empty,     Request,  Atomic,      Only,   Needs::READ_RESOURCE;
    FetchAdd             = 0x14, "FETCH ADD",                    RELIABLE,  Headers::ATOMIC_ETH, Empty,     Request,  Atomic,      Only,   Needs::READ_RESOURCE;
    SendLastInv          = 0x16, "SEND Last with Invalidate",    RELIABLE,  Headers::IETH,       Rest,      Request,  Send,        Last,   NOTHING;
    SendOnlyInv          = 0x17, "SEND Only with Invalidate",    RELIABLE,  Headers::IETH,       UpToMtu,   Request,  Send,        Only,   Needs::RECV_ENTRY;
    Flush                = 0x1c, "FLUSH",                        RELIABLE,  FETH_RETH,           Empty,     Request,  Flush,       Only,   Needs::READ_RESOURCE;
    AtomicWrite          = 0x1d, "ATOMIC WRITE",                 RELIABLE,  Headers::RETH,       Fixed(8),  Request,  AtomicWrite, Only,   Needs::READ_RESOURCE;
    MaskedCompareSwap    = 0x13, "MASKED COMPARE SWAP", OURS,               ATOMIC_MASK,         Empty,     Request,  Atomic,      Only,   Needs::READ_RESOURCE;
    MaskedFetchAdd       = 0x14, "MASKED FETCH ADD",    OURS,               ATOMIC_MASK,         Empty,     Request,  Atomic,      Only,   Needs::READ_RESOURCE;
    CongestionNotification = 0x01, "CNP",             Services::CONGESTION, NONE,                Fixed(16), Notice,   Congestion,  Only,   NOTHING;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every assigned byte stands for one opcode and vice versa. Method: all 256 bytes, and all pairs.
    #[test]
    fn bytes_and_opcodes_match_one_to_one() {
        let mut assigned = 0;
        for byte in 0..=u8::MAX {
            if let Some(opcode) = Opcode::from_u8(byte) {
                assert_eq!(opcode.to_u8(), byte);
                assigned += 1;
            }
        }
        let pairs = Service::ALL.into_iter().flat_map(|s| {
            Operation::ALL
                .iter()
                .filter_map(move |&o| Opcode::new(s, o))
        });
        assert_eq!(pairs.count(), assigned, "two opcodes share a byte");
        assert_eq!(assigned, 25 + 12 + 2 + 1 + 25 + 2 + 2);
    }

    /// Goal: the bytes of the specification. Method: a sample from every service.
    #[test]
    fn opcodes_have_the_specified_bytes() {
        for (service, operation, byte) in [
            (Service::Rc, Operation::SendOnly, 0x04),
            (Service::Rc, Operation::Acknowledge, 0x11),
            (Service::Uc, Operation::SendOnly, 0x24),
            (Service::Ud, Operation::SendOnly, 0x64),
            (Service::Ud, Operation::SendOnlyImm, 0x65),
            (Service::Xrc, Operation::SendFirst, 0xa0),
            (Service::Xrc, Operation::Acknowledge, 0xb1),
        ] {
            assert_eq!(Opcode::new(service, operation).unwrap().to_u8(), byte);
        }
        assert_eq!(Opcode::CNP.to_u8(), 0x81);
        assert_eq!(Opcode::from_u8(0x81), Some(Opcode::CNP));
        assert_eq!(Opcode::new(Service::Uc, Operation::ReadRequest), None);
        assert_eq!(Opcode::new(Service::Uc, Operation::SendOnlyInv), None);
        assert_eq!(Opcode::from_u8(0x15), None, "RESYNC is reliable datagram");
    }

    /// Goal: responses are the codes from 0x0d to 0x12 and nothing else.
    #[test]
    fn responses_are_a_range() {
        for &operation in Operation::ALL {
            let facts = operation.facts();
            let in_range = (0x0d..=0x12).contains(&facts.code);
            assert_eq!(facts.role == Role::Response, in_range, "{}", facts.name);
        }
    }

    /// Goal: header lengths are those of rxe's own table, with the service's header in front.
    #[test]
    fn header_lengths_add_up() {
        let len = |byte| Opcode::from_u8(byte).unwrap().headers().wire_len();
        assert_eq!(len(0x04), 0);
        assert_eq!(len(0x0b), 20);
        assert_eq!(len(0x12), 12);
        assert_eq!(len(0x13), 28);
        assert_eq!(len(0x65), 12);
        assert_eq!(
            len(0xa1),
            4,
            "XRC requests name their queue in every packet"
        );
        assert_eq!(len(0xb3), 32);
        assert_eq!(len(0xb1), 4, "XRC responses do not");
    }

    #[test]
    fn payload_lengths_follow_the_place() {
        let check = |byte, len| Opcode::from_u8(byte).unwrap().check_payload(len, Mtu::B256);
        assert_eq!(check(0x00, 256), Ok(()));
        assert!(check(0x00, 255).is_err() && check(0x00, 257).is_err());
        assert_eq!(check(0x02, 1), Ok(()));
        assert!(check(0x02, 0).is_err());
        assert_eq!(check(0x04, 0), Ok(()));
        assert_eq!(check(0x1d, 8), Ok(()));
        assert_eq!(
            check(0x0c, 4),
            Err(WireError::PayloadLength {
                opcode: Opcode::from_u8(0x0c).unwrap(),
                min: 0,
                max: 0,
                got: 4,
            })
        );
    }
}
