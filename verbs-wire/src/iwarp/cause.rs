//! Why a stream is terminated: layer, error type and error code of a Terminate (RFC 5040, section 4.8; IANA's
//! registry of RDDP error codes; RFC 6581).

use std::fmt;

/// Layer, error type and error code. Each assigned combination is a constant; a peer can send others, which print
/// as numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cause {
    layer: u8,
    etype: u8,
    code: u8,
}

macro_rules! causes {
    ($($(#[$doc:meta])* $name:ident = $layer:literal, $etype:literal, $code:literal, $text:literal;)*) => {
        impl Cause {
            $($(#[$doc])* pub const $name: Self = Self { layer: $layer, etype: $etype, code: $code };)*

            /// Every assigned cause and its meaning.
            pub const ASSIGNED: &'static [(Self, &'static str)] = &[$((Self::$name, $text)),*];
        }
    };
}

causes! {
    /// RDMAP cannot continue.
    RDMAP_CATASTROPHIC = 0, 0, 0x00, "RDMAP: local catastrophic error";
    /// Remote protection: invalid STag.
    RDMAP_STAG = 0, 1, 0x00, "RDMAP: invalid STag";
    /// Remote protection: base or bounds.
    RDMAP_BOUNDS = 0, 1, 0x01, "RDMAP: base or bounds violation";
    /// Remote protection: access rights.
    RDMAP_ACCESS = 0, 1, 0x02, "RDMAP: access rights violation";
    /// Remote protection: the STag is of another protection domain or stream.
    RDMAP_STREAM = 0, 1, 0x03, "RDMAP: STag not associated with the stream";
    /// Remote protection: the tagged offset wraps.
    RDMAP_WRAP = 0, 1, 0x04, "RDMAP: tagged offset wraps";
    /// Remote protection: the STag cannot be invalidated.
    RDMAP_PROTECTION_INVALIDATE = 0, 1, 0x09, "RDMAP: STag cannot be invalidated (protection)";
    /// Remote protection, not further specified.
    RDMAP_PROTECTION = 0, 1, 0xff, "RDMAP: unspecific remote protection error";
    /// Remote operation: invalid RDMAP version.
    RDMAP_VERSION = 0, 2, 0x05, "RDMAP: invalid version";
    /// Remote operation: unexpected opcode.
    RDMAP_OPCODE = 0, 2, 0x06, "RDMAP: unexpected opcode";
    /// Remote operation: the stream cannot continue.
    RDMAP_STREAM_CATASTROPHIC = 0, 2, 0x07, "RDMAP: catastrophic error of the stream";
    /// Remote operation: the device cannot continue.
    RDMAP_GLOBAL_CATASTROPHIC = 0, 2, 0x08, "RDMAP: global catastrophic error";
    /// Remote operation: the STag cannot be invalidated.
    RDMAP_INVALIDATE = 0, 2, 0x09, "RDMAP: STag cannot be invalidated";
    /// Remote operation, not further specified.
    RDMAP_OPERATION = 0, 2, 0xff, "RDMAP: unspecific remote operation error";
    /// DDP cannot continue.
    DDP_CATASTROPHIC = 1, 0, 0x00, "DDP: local catastrophic error";
    /// Tagged buffer: invalid STag.
    DDP_STAG = 1, 1, 0x00, "DDP: invalid STag";
    /// Tagged buffer: base or bounds.
    DDP_BOUNDS = 1, 1, 0x01, "DDP: base or bounds violation";
    /// Tagged buffer: the STag is of another protection domain or stream.
    DDP_STREAM = 1, 1, 0x02, "DDP: STag not associated with the stream";
    /// Tagged buffer: the tagged offset wraps.
    DDP_WRAP = 1, 1, 0x03, "DDP: tagged offset wraps";
    /// Tagged buffer: invalid DDP version.
    DDP_TAGGED_VERSION = 1, 1, 0x04, "DDP: invalid version of a tagged segment";
    /// Untagged buffer: invalid queue number.
    DDP_QUEUE = 1, 2, 0x01, "DDP: invalid queue number";
    /// Untagged buffer: no receive is posted.
    DDP_NO_BUFFER = 1, 2, 0x02, "DDP: invalid message number: no buffer available";
    /// Untagged buffer: the message number is not the next one.
    DDP_MSN_RANGE = 1, 2, 0x03, "DDP: invalid message number: out of range";
    /// Untagged buffer: invalid message offset.
    DDP_OFFSET = 1, 2, 0x04, "DDP: invalid message offset";
    /// Untagged buffer: the message is longer than its buffer.
    DDP_TOO_LONG = 1, 2, 0x05, "DDP: message too long for the buffer";
    /// Untagged buffer: invalid DDP version.
    DDP_UNTAGGED_VERSION = 1, 2, 0x06, "DDP: invalid version of an untagged segment";
    /// The TCP connection was closed or lost.
    LLP_LOST = 2, 0, 0x01, "MPA: TCP connection closed or lost";
    /// The CRC of an FPDU is wrong.
    LLP_CRC = 2, 0, 0x02, "MPA: CRC error";
    /// Length field and marker, or length field and content, disagree.
    LLP_FRAMING = 2, 0, 0x03, "MPA: marker and ULPDU length mismatch";
    /// An invalid Request or Reply frame.
    LLP_STARTUP = 2, 0, 0x04, "MPA: invalid startup frame";
    /// MPA cannot continue.
    LLP_CATASTROPHIC = 2, 0, 0x05, "MPA: local catastrophic error";
    /// The responder wants more READs outstanding than the initiator accepts.
    LLP_IRD = 2, 0, 0x06, "MPA: insufficient IRD";
    /// The two sides have no ready-to-receive type in common.
    LLP_RTR = 2, 0, 0x07, "MPA: no matching RTR option";
}

impl Cause {
    /// The cause with those numbers; the upper four bits of layer and error type are dropped.
    pub const fn new(layer: u8, etype: u8, code: u8) -> Self {
        Self {
            layer: layer & 0xf,
            etype: etype & 0xf,
            code,
        }
    }

    /// The layer: 0 RDMAP, 1 DDP, 2 MPA.
    pub const fn layer(self) -> u8 {
        self.layer
    }

    /// The error type; its meaning depends on the layer.
    pub const fn etype(self) -> u8 {
        self.etype
    }

    /// The error code; its meaning depends on the error type.
    pub const fn code(self) -> u8 {
        self.code
    }

    /// Its meaning, if it is assigned. All codes of a local catastrophic error of RDMAP have the same meaning.
    pub fn meaning(self) -> Option<&'static str> {
        let assigned = match (self.layer, self.etype) {
            (0, 0) => Self::RDMAP_CATASTROPHIC,
            _ => self,
        };
        let mut all = Self::ASSIGNED.iter();
        all.find(|(cause, _)| *cause == assigned)
            .map(|&(_, meaning)| meaning)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { layer, etype, code } = self;
        match self.meaning() {
            Some(meaning) => write!(f, "{meaning} ({layer}/{etype}/{code:#04x})"),
            None => write!(f, "not assigned ({layer}/{etype}/{code:#04x})"),
        }
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
