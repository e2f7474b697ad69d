//! The address resolution protocol with addresses of 20 bytes (RFC 4391, section 9.1).

use std::net::Ipv4Addr;

use verbs_core::mad::Blob;
use verbs_core::wire_record;

use super::hardware::HardwareAddress;

/// InfiniBand's number among hardware types.
const HARDWARE_TYPE: u16 = 32;

wire_record! {
    /// A message in its fields.
    pub struct ArpFields, ArpFieldsView: 56 bytes {
        /// Hardware type; 32 for InfiniBand.
        hardware_type: u16 = (0, 0, 16),
        /// Protocol type; that of IPv4.
        protocol_type: u16 = (2, 0, 16),
        /// Bytes of a hardware address; 20.
        hardware_len: u8 = (4, 0, 8),
        /// Bytes of a protocol address; 4.
        protocol_len: u8 = (5, 0, 8),
        /// 1 for a request, 2 for a reply.
        operation: u16 = (6, 0, 16),
        /// The sender's hardware address.
        sender_hardware: Blob<20> = (8, 0, 160),
        /// The sender's IP address.
        sender: u32 = (28, 0, 32),
        /// The target's hardware address; meaningless in a request.
        target_hardware: Blob<20> = (32, 0, 160),
        /// The target's IP address.
        target: u32 = (52, 0, 32),
    }
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArpOperation {
    /// Who has the target address?
    Request,
    /// The sender does.
    Reply,
}

/// A message about addresses of IPv4 on InfiniBand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// Its kind.
    pub operation: ArpOperation,
    /// Its sender.
    pub sender: (HardwareAddress, Ipv4Addr),
    /// The address that it asks for, or its receiver.
    pub target: (HardwareAddress, Ipv4Addr),
}

/// Why bytes are not such a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArpError {
    /// Too few bytes.
    #[error("{got} bytes, and a message has {}", Arp::LEN)]
    Truncated {
        /// Bytes received.
        got: usize,
    },
    /// Not about InfiniBand.
    #[error("hardware type {hardware_type} with addresses of {len} bytes")]
    Hardware {
        /// The type that it names.
        hardware_type: u16,
        /// Bytes of an address.
        len: u8,
    },
    /// Not about IPv4.
    #[error("protocol type {protocol_type:#06x} with addresses of {len} bytes")]
    Protocol {
        /// The type that it names.
        protocol_type: u16,
        /// Bytes of an address.
        len: u8,
    },
    /// Neither request nor reply.
    #[error("operation {0}")]
    Operation(u16),
}

impl Arp {
    /// Bytes on the wire.
    pub const LEN: usize = ArpFields::LEN;

    /// Reads a message; bytes after it are padding.
    ///
    /// # Errors
    /// [`ArpError`] says what is wrong.
    pub fn parse(bytes: &[u8]) -> Result<Self, ArpError> {
        let view = ArpFieldsView::new(bytes).ok_or(ArpError::Truncated { got: bytes.len() })?;
        let (hardware_type, len) = (view.hardware_type(), view.hardware_len());
        if (hardware_type, usize::from(len)) != (HARDWARE_TYPE, HardwareAddress::LEN) {
            return Err(ArpError::Hardware { hardware_type, len });
        }
        let (protocol_type, len) = (view.protocol_type(), view.protocol_len());
        if (protocol_type, len) != (0x0800, 4) {
            return Err(ArpError::Protocol { protocol_type, len });
        }
        let operation = match view.operation() {
            1 => ArpOperation::Request,
            2 => ArpOperation::Reply,
            other => return Err(ArpError::Operation(other)),
        };
        let hardware = |blob: Blob<20>| HardwareAddress::parse(&blob.0);
        Ok(Self {
            operation,
            sender: (hardware(view.sender_hardware()), view.sender().into()),
            target: (hardware(view.target_hardware()), view.target().into()),
        })
    }

    /// Writes the message.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let fields = ArpFields {
            hardware_type: HARDWARE_TYPE,
            protocol_type: 0x0800,
            hardware_len: 20,
            protocol_len: 4,
            operation: match self.operation {
                ArpOperation::Request => 1,
                ArpOperation::Reply => 2,
            },
            sender_hardware: Blob(self.sender.0.emit()),
            sender: self.sender.1.into(),
            target_hardware: Blob(self.target.0.emit()),
            target: self.target.1.into(),
        };
        let mut bytes = [0; Self::LEN];
        fields.emit(&mut bytes);
        bytes
    }

    /// The reply of `own` to a request.
    pub fn reply(&self, own: HardwareAddress) -> Self {
        Self {
            operation: ArpOperation::Reply,
            sender: (own, self.target.1),
            target: self.sender,
        }
    }
}
