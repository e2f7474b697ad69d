//! The common header of management datagrams (IBTA vol. 1, 13.4.3).

use std::fmt;

use bitflags::bitflags;

use crate::{number_fields, wire_record};

/// Bytes of every management datagram.
pub const MAD_LEN: usize = 256;

/// A management datagram in bytes.
pub type MadBytes = [u8; MAD_LEN];

wire_record! {
    /// The first 24 bytes of every management datagram.
    pub struct MadHeader, MadHeaderView: 24 bytes {
        /// Version of the base format; [`MadHeader::BASE_VERSION`] is the only one.
        base_version: u8 = (0, 0, 8),
        /// Management class.
        class: Class = (1, 0, 8),
        /// Version of the class's formats.
        class_version: u8 = (2, 0, 8),
        /// What is done, and whether this is a response.
        method: Method = (3, 0, 8),
        /// How it went, in responses; for directed routes bit 15 is the direction.
        status: Status = (4, 0, 16),
        /// What the class makes of it: directed routes have hop pointer and hop count here.
        class_specific: u16 = (6, 0, 16),
        /// Finds the request that a response belongs to.
        tid: TransactionId = (8, 0, 64),
        /// What is asked for or changed.
        attribute: AttributeId = (16, 0, 16),
        /// Which of several.
        modifier: u32 = (20, 0, 32),
    }
}

impl MadHeader {
    /// The base version there is.
    pub const BASE_VERSION: u8 = 1;

    /// The header of a response to `self`: everything is kept but the method and the status.
    #[must_use]
    pub fn response(&self, status: Status) -> Self {
        Self {
            method: self.method.response(),
            status,
            ..*self
        }
    }
}

/// The header that a datagram starts with.
pub fn header_of(mad: &MadBytes) -> MadHeaderView<'_> {
    let Some(view) = MadHeaderView::new(mad) else {
        unreachable!("a datagram is longer than its header");
    };
    view
}

/// Writes a header over the first bytes of a datagram.
pub fn emit_header(header: &MadHeader, mad: &mut MadBytes) {
    let Some(place) = mad.first_chunk_mut() else {
        unreachable!("a datagram is longer than its header");
    };
    header.emit(place);
}

/// A number with names for some of its values; any other prints as the number.
macro_rules! code {
    (
        $(#[$doc:meta])* $name:ident($number:ty), $width:literal digits {
            $($(#[$value_doc:meta])* $value:ident = $code:literal, $text:literal;)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $number);

        impl $name {
            $($(#[$value_doc])* pub const $value: Self = Self($code);)*

            /// Its name, if it has one.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some($text),)*
                    _ => None,
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!(stringify!($name), "({:#0", $width, "x})"), self.0),
                }
            }
        }
    };
}

pub(crate) use code;

code! {
    /// Management class (IBTA vol. 1, 13.4.4).
    Class(u8), "4" digits {
        /// Subnet management, routed by LID.
        SUBN_LID = 0x01, "SubnLid";
        /// Subnet administration.
        SA = 0x03, "SubnAdm";
        /// Performance management.
        PERF = 0x04, "Perf";
        /// Baseboard management.
        BM = 0x05, "BM";
        /// Device management.
        DEV_MGT = 0x06, "DevMgt";
        /// Communication management.
        CM = 0x07, "ComMgt";
        /// SNMP tunnelling.
        SNMP = 0x08, "SNMP";
        /// Subnet management, directed route.
        SUBN_DIRECTED = 0x81, "SubnDirected";
    }
}

code! {
    /// What a datagram does; bit 7 marks responses (IBTA vol. 1, 13.4.5).
    Method(u8), "4" digits {
        /// Asks for an attribute.
        GET = 0x01, "Get";
        /// Changes an attribute.
        SET = 0x02, "Set";
        /// A datagram that no response belongs to.
        SEND = 0x03, "Send";
        /// Reports an event, unasked.
        TRAP = 0x05, "Trap";
        /// Forwards an event to a subscriber.
        REPORT = 0x06, "Report";
        /// Stops repeated traps.
        TRAP_REPRESS = 0x07, "TrapRepress";
        /// Asks for a table.
        GET_TABLE = 0x12, "GetTable";
        /// Asks for the trace of a path.
        GET_TRACE_TABLE = 0x13, "GetTraceTable";
        /// Asks for several kinds of records at once.
        GET_MULTI = 0x14, "GetMulti";
        /// Deletes an attribute.
        DELETE = 0x15, "Delete";
        /// Answers [`GET`](Self::GET) and [`SET`](Self::SET).
        GET_RESP = 0x81, "GetResp";
        /// Answers [`REPORT`](Self::REPORT).
        REPORT_RESP = 0x86, "ReportResp";
        /// Answers [`GET_TABLE`](Self::GET_TABLE).
        GET_TABLE_RESP = 0x92, "GetTableResp";
        /// Answers [`GET_MULTI`](Self::GET_MULTI).
        GET_MULTI_RESP = 0x94, "GetMultiResp";
        /// Answers [`DELETE`](Self::DELETE).
        DELETE_RESP = 0x95, "DeleteResp";
    }
}

impl Method {
    /// Marks responses.
    const RESPONSE: u8 = 0x80;

    /// Whether this is the method of a response. A [`TRAP_REPRESS`](Self::TRAP_REPRESS) answers a
    /// trap without being marked as a response.
    pub const fn is_response(self) -> bool {
        self.0 & Self::RESPONSE != 0
    }

    /// The method of the response to this one. A Set is answered with GetResp.
    #[must_use]
    pub const fn response(self) -> Self {
        match self {
            Self::SET => Self::GET_RESP,
            Self(code) => Self(code | Self::RESPONSE),
        }
    }
}

code! {
    /// What is asked for or changed; the same number means different things in different classes.
    AttributeId(u16), "6" digits {
        /// What a class can do, at this port.
        CLASS_PORT_INFO = 0x0001, "ClassPortInfo";
        /// An event.
        NOTICE = 0x0002, "Notice";
        /// A subscription to events.
        INFORM_INFO = 0x0003, "InformInfo";
    }
}

bitflags! {
    /// How a request went (IBTA vol. 1, 13.4.7): the bits that all classes share. Bits 2 to 4 are
    /// a number, see [`Status::invalid_field`]; the high byte belongs to the class.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Status: u16 {
        /// Try again later.
        const BUSY = 0x0001;
        /// Ask another manager.
        const REDIRECT = 0x0002;
        /// The class or its version is unknown.
        const BAD_VERSION = 0x0004;
        /// The method is unknown.
        const BAD_METHOD = 0x0008;
        /// The method does not go with the attribute.
        const BAD_METHOD_ATTRIBUTE = 0x000c;
        /// A value in the attribute or its modifier is bad.
        const BAD_VALUE = 0x001c;
        /// What the class defines.
        const CLASS_SPECIFIC = 0xff00;
        /// All other bits.
        const _ = 0x00e0;
    }
}

impl Status {
    /// All is well.
    pub const OK: Self = Self::empty();

    /// Bits 2 to 4: 0 nothing invalid, 1 version, 2 method, 3 method with attribute, 7 value.
    pub const fn invalid_field(self) -> u16 {
        (self.bits() & Self::BAD_VALUE.bits()) >> 2
    }

    /// The class's part.
    pub const fn class_specific(self) -> u8 {
        self.bits().to_be_bytes()[0]
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({:#06x})", self.bits())
    }
}

/// Finds the request that a response belongs to (IBTA vol. 1, 13.4.6.4). The upper half names the
/// client of the port's service, the lower one counts its requests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TransactionId(pub u64);

impl TransactionId {
    /// That request of that client.
    pub const fn new(client: u32, request: u32) -> Self {
        let [a, b, c, d] = client.to_be_bytes();
        let [e, f, g, h] = request.to_be_bytes();
        Self(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }

    /// The client.
    pub const fn client(self) -> u32 {
        let [a, b, c, d, ..] = self.0.to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }

    /// The client's request.
    pub const fn request(self) -> u32 {
        let [.., a, b, c, d] = self.0.to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }
}

impl fmt::Debug for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TID({:#018x})", self.0)
    }
}

number_fields! {
    Class: |bits| Self(bits.to_le_bytes()[0]), |value| u64::from(value.0);
    Method: |bits| Self(bits.to_le_bytes()[0]), |value| u64::from(value.0);
    AttributeId: |bits| Self(two(bits)), |value| u64::from(value.0);
    Status: |bits| Self::from_bits_retain(two(bits)), |value| u64::from(value.bits());
    TransactionId: |bits| Self(bits), |value| value.0;
}

const fn two(bits: u64) -> u16 {
    let [low, high, ..] = bits.to_le_bytes();
    u16::from_le_bytes([low, high])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header of a REQ as Linux sent it.
    const REQ: [u8; 24] = [
        1, 7, 2, 3, 0, 0, 0, 0, 0, 0, 0, 2, 0xf9, 0x89, 0xb6, 0x0f, 0, 0x10, 0, 0, 0, 0, 0, 0,
    ];

    #[test]
    fn a_captured_header_is_read_and_written() {
        let header = MadHeader::parse(MadHeaderView::of(&REQ));
        assert_eq!((header.class, header.method), (Class::CM, Method::SEND));
        assert_eq!(header.tid, TransactionId::new(2, 0xf989_b60f));
        assert_eq!(
            (header.tid.client(), header.tid.request()),
            (2, 0xf989_b60f)
        );
        let mut bytes = [0xff; 24];
        header.emit(&mut bytes);
        assert_eq!(bytes, REQ);
        let text = format!("{:?}", MadHeaderView::of(&REQ));
        assert!(text.contains("ComMgt") && text.contains("Send"), "{text}");
    }

    #[test]
    fn responses_keep_all_but_method_and_status() {
        let request = MadHeader {
            class: Class::SA,
            method: Method::SET,
            tid: TransactionId(7),
            ..MadHeader::default()
        };
        let response = request.response(Status::BAD_VALUE);
        assert_eq!(response.method, Method::GET_RESP);
        assert_eq!(response.status.invalid_field(), 7);
        assert_eq!(Method::GET_TABLE.response(), Method::GET_TABLE_RESP);
        assert_eq!(
            format!("{:?} {:?}", Method(0x44), Class(0x0a)),
            "Method(0x44) Class(0x0a)"
        );
    }
}
