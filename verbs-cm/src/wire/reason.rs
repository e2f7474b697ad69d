//! Numbers that say what is rejected, and why.

use std::fmt;

use verbs_core::Mtu;

/// An enum over the codes of a field, with a text for each; codes without a name are kept.
macro_rules! reasons {
    (
        $(#[$doc:meta])* $name:ident($number:ty), else $other:literal {
            $($(#[$value_doc:meta])* $value:ident = $code:literal, $text:literal;)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$value_doc])* $value,)*
            /// A code that the specification gives no name.
            Other($number),
        }

        impl $name {
            /// Every one that has a name, in the order of its code.
            pub const ALL: &[Self] = &[$(Self::$value,)*];

            /// What the code stands for.
            pub const fn from_code(code: $number) -> Self {
                match code {
                    $($code => Self::$value,)*
                    other => Self::Other(other),
                }
            }

            /// The code on the wire.
            pub const fn code(self) -> $number {
                match self {
                    $(Self::$value => $code,)*
                    Self::Other(code) => code,
                }
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::from_code(0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$value => f.write_str($text),)*
                    Self::Other(code) => write!(f, concat!($other, " {}"), code),
                }
            }
        }
    };
}

reasons! {
    /// Why a connection was rejected (IBTA vol. 1, 12.6.7.2).
    RejectReason(u16), else "reject reason" {
        /// No queue pair.
        NoQp = 1, "no queue pair is available";
        /// No end-to-end context.
        NoEec = 2, "no end-to-end context is available";
        /// Some resource is short.
        NoResources = 3, "the peer has no resources for the connection";
        /// No answer in time.
        Timeout = 4, "the peer waited too long for an answer";
        /// The request is not supported.
        Unsupported = 5, "the peer does not support the request";
        /// A communication id that the peer does not know.
        InvalidCommId = 6, "the peer does not know the communication id";
        /// The ids do not belong together.
        InvalidCommInstance = 7, "the communication ids do not belong together";
        /// There is no listener.
        InvalidServiceId = 8, "nobody listens for the service id";
        /// The transport type is not the service's.
        InvalidTransportType = 9, "the service does not take this transport type";
        /// The peer believes the queue pair to be connected.
        StaleConnection = 10, "the peer takes the queue pair for connected already";
        /// No reliable datagram channel.
        NoRdc = 11, "there is no reliable datagram channel";
        /// Primary GID.
        PrimaryGid = 12, "the peer has no port with the primary path's GID";
        /// Primary LID.
        PrimaryLid = 13, "the peer has no port with the primary path's LID";
        /// Primary service level.
        PrimarySl = 14, "the primary path's service level is invalid";
        /// Primary traffic class.
        PrimaryTrafficClass = 15, "the primary path's traffic class is invalid";
        /// Primary hop limit.
        PrimaryHopLimit = 16, "the primary path's hop limit is invalid";
        /// Primary packet rate.
        PrimaryRate = 17, "the primary path's packet rate is invalid";
        /// Alternate GID.
        AlternateGid = 18, "the peer has no port with the alternate path's GID";
        /// Alternate LID.
        AlternateLid = 19, "the peer has no port with the alternate path's LID";
        /// Alternate service level.
        AlternateSl = 20, "the alternate path's service level is invalid";
        /// Alternate traffic class.
        AlternateTrafficClass = 21, "the alternate path's traffic class is invalid";
        /// Alternate hop limit.
        AlternateHopLimit = 22, "the alternate path's hop limit is invalid";
        /// Alternate packet rate.
        AlternateRate = 23, "the alternate path's packet rate is invalid";
        /// Another port, and another connection manager.
        PortAndCmRedirect = 24, "the service is at another port, with another connection manager";
        /// Another port.
        PortRedirect = 25, "the service is at another port";
        /// The path MTU is not possible.
        InvalidMtu = 26, "the path MTU is larger than the peer takes";
        /// Too few READs and atomics.
        InsufficientResponderResources = 27, "the responder resources are too few";
        /// The service's own reason, in the private data.
        Consumer = 28, "the service rejected the connection";
        /// The retry count for receiver-not-ready.
        RnrRetryCount = 29, "the receiver-not-ready retry count is invalid";
        /// The id is taken by another connection of the same peer.
        DuplicateLocalCommId = 30, "the peer's communication id is in use already";
        /// The class version.
        InvalidClassVersion = 31, "the class version is not supported";
        /// Primary flow label.
        InvalidFlowLabel = 32, "the primary path's flow label is invalid";
        /// Alternate flow label.
        InvalidAlternateFlowLabel = 33, "the alternate path's flow label is invalid";
        /// A vendor's option.
        VendorOption = 35, "the vendor's option is not supported";
    }
}

impl RejectReason {
    /// With [`RejectReason::InvalidMtu`]: the largest path MTU that the peer takes, from what belongs to the reason. `None`
    /// where the peer does not say it.
    pub(crate) fn path_mtu(self, info: &[u8]) -> Option<Mtu> {
        let code = *info.first().filter(|_| self == Self::InvalidMtu)?;
        Mtu::from_code(code.into())
    }
}

reasons! {
    /// Which message a REJ is about.
    Rejected(u8), else "message" {
        /// A request.
        Req = 0, "REQ";
        /// A reply.
        Rep = 1, "REP";
        /// None in particular.
        NoMessage = 2, "no message";
    }
}

reasons! {
    /// Which message an MRA asks more time for.
    Acknowledged(u8), else "message" {
        /// A request.
        Req = 0, "REQ";
        /// A reply.
        Rep = 1, "REP";
        /// A load of an alternate path.
        Lap = 2, "LAP";
    }
}

reasons! {
    /// Transport that a REQ asks for.
    Transport(u8), else "transport" {
        /// Reliable connection.
        Rc = 0, "RC";
        /// Unreliable connection.
        Uc = 1, "UC";
        /// Reliable datagram.
        Rd = 2, "RD";
        /// The extended transport type says which.
        Extended = 3, "an extended transport";
    }
}

reasons! {
    /// How a load of an alternate path went (IBTA vol. 1, 12.8.2).
    AprStatus(u8), else "alternate path status" {
        /// It is loaded.
        Loaded = 0, "the alternate path is loaded";
        /// A communication id that the peer does not know.
        InvalidCommId = 1, "the peer does not know the communication id";
        /// Alternate paths are not supported.
        Unsupported = 2, "the peer has no alternate paths";
        /// Rejected.
        Rejected = 3, "the alternate path was rejected";
        /// Another port.
        Redirect = 4, "another port is meant";
        /// It is the primary path.
        Duplicate = 5, "the alternate path is the primary one";
        /// The queue pair is another.
        QpnMismatch = 6, "the queue pair number does not belong to the connection";
        /// LID.
        InvalidLid = 7, "the LID is invalid";
        /// GID.
        InvalidGid = 8, "the GID is invalid";
        /// Flow label.
        InvalidFlowLabel = 9, "the flow label is invalid";
        /// Traffic class.
        InvalidTrafficClass = 10, "the traffic class is invalid";
        /// Hop limit.
        InvalidHopLimit = 11, "the hop limit is invalid";
        /// Packet rate.
        InvalidRate = 12, "the packet rate is invalid";
        /// Service level.
        InvalidSl = 13, "the service level is invalid";
    }
}

reasons! {
    /// How the resolution of a service id went (IBTA vol. 1, 12.11.2).
    SidrStatus(u8), else "resolution status" {
        /// Queue pair and Q_Key are valid.
        Valid = 0, "the service is here";
        /// There is no listener.
        Unsupported = 1, "nobody listens for the service id";
        /// The service rejected it.
        Rejected = 2, "the service rejected the request";
        /// No queue pair.
        NoQp = 3, "no queue pair is available";
        /// Another port.
        Redirect = 4, "another port is meant";
        /// The class version.
        UnsupportedVersion = 5, "the class version is not supported";
    }
}

verbs_core::number_fields! {
    RejectReason: |bits| Self::from_code(low_16(bits)), |value| u64::from(value.code());
    Rejected: |bits| Self::from_code(bits.to_le_bytes()[0]), |value| u64::from(value.code());
    Acknowledged: |bits| Self::from_code(bits.to_le_bytes()[0]), |value| u64::from(value.code());
    Transport: |bits| Self::from_code(bits.to_le_bytes()[0]), |value| u64::from(value.code());
    AprStatus: |bits| Self::from_code(bits.to_le_bytes()[0]), |value| u64::from(value.code());
    SidrStatus: |bits| Self::from_code(bits.to_le_bytes()[0]), |value| u64::from(value.code());
}

const fn low_16(bits: u64) -> u16 {
    let [low, high, ..] = bits.to_le_bytes();
    u16::from_le_bytes([low, high])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_code_and_a_text_of_its_own() {
        for code in (1..=33).chain([35]) {
            let reason = RejectReason::from_code(code);
            assert!(RejectReason::ALL.contains(&reason), "{code} has a name");
            assert_eq!(reason.code(), code);
        }
        let texts: std::collections::BTreeSet<_> =
            RejectReason::ALL.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), RejectReason::ALL.len());
        assert_eq!(RejectReason::from_code(34), RejectReason::Other(34));
        assert_eq!(RejectReason::Other(34).to_string(), "reject reason 34");
    }
}
