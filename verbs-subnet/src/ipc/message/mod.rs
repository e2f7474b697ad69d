//! The messages between a hosted subnet and its clients: whole messages, over any transport that keeps them
//! separate and in order, such as a Unix socket of type seqpacket.
//!
//! A client sends requests ([`Message::Look`], [`Message::Open`], ...) and gets one answer for each. A port that
//! it opens has a connection of its own, whose end is passed as a file with [`Message::Opened`]. That connection
//! carries [`Message::Mad`], in both directions, and no answers; requests about the port are sent only over the
//! connection that has opened it, with the number from [`Message::Opened`]. A client that has attached an HCA
//! ([`Message::Attach`]) has shared memory with the host, whose [`ring`](verbs_link::ring)s carry packets. A message
//! there has as many as fit: InfiniBand packets one after the other, each from its local route header to its
//! invariant CRC. There is no variant CRC: it guards a link, and memory does not corrupt packets. Numbers are
//! big-endian; every content of the right length is legal, everything else is refused with [`MessageError`].

mod codec;
#[cfg(all(test, not(verbs_loom)))]
mod tests;

use verbs_core::addr::{PKey, QKey, Qpn};
use verbs_core::mad::sm::BadKey;
use verbs_core::{Gid, Guid, Lid, PortState};

use verbs_link::{Change, PortTables};

use codec::{Reader, Writer};

/// Bytes of a message at most: a table of a subnet administrator with 5,000 records and more.
pub const MESSAGE_MAX: usize = (1 << 20) + 4096;

/// Messages of at least this length are passed as a file, because a socket's buffer may not hold them: a message
/// of one byte, [`BULK`], is sent with the file's descriptor.
pub const BULK_MIN: usize = 64 << 10;

/// The message that stands for one in a file.
pub const BULK: [u8; 1] = [0x7f];

/// The message that asks to look at the rings: it is sent when this end sleeps and there is something to read, or
/// when it waits for room and there is some.
pub const BELL: [u8; 1] = [0x7e];

/// Bytes of a message with packets at most: a burst, and its headers.
pub const PACKETS_MAX: usize = 72 << 10;

/// All messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Requests the adapters of a host. A host is a comma-separated list of node names; an empty one is the first
    /// adapter of the subnet. Answer: [`Message::Adapters`].
    Look {
        /// The host.
        host: String,
    },
    /// Opens a port of a host's adapter. Answer: [`Message::Opened`], with the end of a connection for the port's
    /// datagrams. The port is open until either connection ends.
    Open {
        /// The host.
        host: String,
        /// The index of the adapter, from 0.
        adapter: u8,
        /// The port, from 1.
        port: u8,
    },
    /// Registers for a class. Answer: [`Message::Registered`].
    Register {
        /// The port, which this connection has opened.
        session: u32,
        /// The registration.
        registration: Registration,
    },
    /// Ends a registration. Answer: [`Message::Done`].
    Unregister {
        /// The port, which this connection has opened.
        session: u32,
        /// The registration.
        agent: u32,
    },
    /// A datagram, in either direction, over the connection of an open port.
    Mad(MadMessage),
    /// Requests the file that a subnet manager at that port keeps open. Answer: [`Message::Path`].
    ManagerFile {
        /// The host.
        host: String,
        /// The index of the adapter, from 0.
        adapter: u8,
        /// The port, from 1.
        port: u8,
    },
    /// Pulls a cable, or puts it back; only for operators. Answer: [`Message::Done`].
    Plug {
        /// The node.
        node: String,
        /// The port.
        port: u8,
        /// Whether the cable is put in.
        is_in: bool,
    },
    /// Requests the state of the subnet. Answer: [`Message::Counts`].
    Count,
    /// Attaches an HCA to a port of a host's adapter that has none. The file of the
    /// [rings](verbs_link::ring::Rings::create) is sent with it. From then on the connection carries [`BELL`],
    /// [`Message::Changed`] and other messages about the port, and no other requests. When it ends without
    /// [`Message::Leave`], the port's link goes down until another HCA attaches. Answer: [`Message::Attached`].
    Attach {
        /// The host.
        host: String,
        /// The index of the adapter, from 0.
        adapter: u8,
        /// The port, from 1.
        port: u8,
    },
    /// An attached HCA sets and clears capability bits of its port. No answer.
    Offer {
        /// Bits of `PortInfo.CapabilityMask`.
        set: u32,
        /// The same.
        clear: u32,
    },
    /// A packet with a wrong key has arrived at an attached HCA. No answer.
    Report(BadKey),
    /// An attached HCA pulls its cable, or puts it back. No answer.
    PlugOwn {
        /// Whether the cable is put in.
        is_in: bool,
    },
    /// An attached HCA detaches; the port's link stays as it is. No answer.
    Leave,
    /// An HCA is attached, to a port in this state.
    Attached(PortTables),
    /// The port of an attached HCA has changed.
    Changed {
        /// The change.
        change: Change,
        /// The port's current state.
        tables: PortTables,
    },
    /// The adapters of a host.
    Adapters(Vec<Adapter>),
    /// A port is open. The end of its connection is sent with it.
    Opened {
        /// The port's number in requests.
        session: u32,
    },
    /// A registration was made.
    Registered {
        /// Its number: small, and valid for this connection.
        agent: u32,
    },
    /// The request was executed.
    Done,
    /// A file.
    Path(String),
    /// The state of the subnet.
    Counts {
        /// Nodes.
        nodes: u32,
        /// Physical ports whose link is up.
        linked: u32,
        /// Of these, ports in service.
        active: u32,
    },
    /// The request is refused.
    Refused(Refusal),
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no such node, adapter, port, connection or registration.
    #[error("there is none")]
    Missing,
    /// Another client has registered for that.
    #[error("somebody else has that")]
    Taken,
    /// There are too many.
    #[error("there are too many")]
    Full,
    /// The request is not valid here.
    #[error("the question makes no sense")]
    Invalid,
    /// Only operators may do that.
    #[error(
        "only `verbs subnet --plug` and `--unplug` may do that, over the host's own socket for them"
    )]
    Denied,
}

/// The content of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Registration {
    /// Management class.
    pub class: u8,
    /// Its version.
    pub version: u8,
    /// A bit for each method whose requests the client receives; none for a client that only sends requests.
    pub methods: u128,
    /// For vendor classes, the vendor; 0 for any.
    pub oui: u32,
    /// Whether transfers of several datagrams are reassembled for the client.
    pub has_transfers: bool,
}

/// A datagram, or a transfer of several, with its destination or source.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MadMessage {
    /// Its agent.
    pub agent: u32,
    /// 0, or why a request was not answered (an error number of the system, 110 for a timeout).
    pub status: u32,
    /// How long to wait for a response; 0 if none is expected.
    pub timeout_ms: u32,
    /// How often to repeat the request.
    pub retries: u32,
    /// The queue pair at the other end.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub qkey: QKey,
    /// The port at the other end.
    pub lid: Lid,
    /// Service level.
    pub sl: u8,
    /// Low bits of the own LID, if the port has several.
    pub path_bits: u8,
    /// The GID at the other end, if there is a global route header.
    pub gid: Option<Gid>,
    /// Index of the own GID.
    pub gid_index: u8,
    /// Index of the partition.
    pub pkey_index: u16,
    /// The bytes: 256, or headers and data of a transfer.
    pub bytes: Vec<u8>,
}

/// An adapter as its host sees it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Adapter {
    /// The node's name in the topology.
    pub name: String,
    /// The node.
    pub guid: Guid,
    /// Its box.
    pub system_guid: Guid,
    /// Kind of device.
    pub device_id: u16,
    /// 1 for an adapter, 2 for a switch.
    pub node_type: u8,
    /// The ports, from 1 on; for a switch only its port 0.
    pub ports: Vec<AdapterPort>,
}

/// A port as its host sees it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct AdapterPort {
    /// The port's number.
    pub number: u8,
    /// The port.
    pub guid: Guid,
    /// Upper half of its GIDs.
    pub gid_prefix: u64,
    /// Its LID.
    pub lid: Lid,
    /// It has 2^n of them.
    pub lmc: u8,
    /// The LID of the subnet manager.
    pub sm_lid: Lid,
    /// Service level of the path to it.
    pub sm_sl: u8,
    /// State of the link, by its code.
    pub state: u8,
    /// State below that.
    pub phys_state: u8,
    /// Rate of the link, in Mb/s.
    pub rate_mbps: u32,
    /// The port's capabilities.
    pub capability_mask: u32,
    /// Its partitions.
    pub pkeys: Vec<PKey>,
}

/// A malformed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// It ends too early.
    #[error("a message ends too early")]
    Short,
    /// It has trailing bytes.
    #[error("a message has bytes behind its end")]
    Long,
    /// Its kind, or a number in it, is unknown.
    #[error("a message says {0:#04x}, which means nothing there")]
    Unknown(u8),
    /// The bytes after the last packet are not a packet.
    #[error("what should be a packet is none")]
    BadPacket,
    /// A name is not UTF-8.
    #[error("a name is no text")]
    NoText,
}

impl Message {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::new());
        match self {
            Self::Look { host } => out.byte(1).text(host),
            Self::Open {
                host,
                adapter,
                port,
            } => out.byte(2).text(host).byte(*adapter).byte(*port),
            Self::Register {
                session,
                registration,
            } => out.byte(3).word(*session).registration(registration),
            Self::Unregister { session, agent } => out.byte(4).word(*session).word(*agent),
            Self::Mad(mad) => out.byte(5).mad(mad),
            Self::ManagerFile {
                host,
                adapter,
                port,
            } => out.byte(6).text(host).byte(*adapter).byte(*port),
            Self::Plug { node, port, is_in } => {
                out.byte(7).text(node).byte(*port).byte(u8::from(*is_in))
            }
            Self::Count => out.byte(8),
            Self::Attach {
                host,
                adapter,
                port,
            } => out.byte(9).text(host).byte(*adapter).byte(*port),
            Self::Offer { set, clear } => out.byte(11).word(*set).word(*clear),
            Self::Report(key) => out.byte(12).bad_key(key),
            Self::PlugOwn { is_in } => out.byte(13).byte(u8::from(*is_in)),
            Self::Leave => out.byte(14),
            Self::Attached(tables) => out.byte(0x89).tables(tables),
            Self::Changed { change, tables } => {
                let (kind, state) = change_code(*change);
                out.byte(0x8a).byte(kind).byte(state).tables(tables)
            }
            Self::Adapters(adapters) => out.byte(0x81).list(adapters, Writer::adapter),
            Self::Opened { session } => out.byte(0x82).word(*session),
            Self::Registered { agent } => out.byte(0x83).word(*agent),
            Self::Done => out.byte(0x84),
            Self::Path(path) => out.byte(0x86).text(path),
            Self::Counts {
                nodes,
                linked,
                active,
            } => out.byte(0x88).word(*nodes).word(*linked).word(*active),
            Self::Refused(refusal) => out.byte(0xff).byte(refusal.code()),
        };
        out.0
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// [`MessageError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let mut from = Reader(bytes);
        let message = match from.byte()? {
            1 => Self::Look { host: from.text()? },
            2 => Self::Open {
                host: from.text()?,
                adapter: from.byte()?,
                port: from.byte()?,
            },
            3 => Self::Register {
                session: from.word()?,
                registration: from.registration()?,
            },
            4 => Self::Unregister {
                session: from.word()?,
                agent: from.word()?,
            },
            5 => Self::Mad(from.mad()?),
            6 => Self::ManagerFile {
                host: from.text()?,
                adapter: from.byte()?,
                port: from.byte()?,
            },
            7 => Self::Plug {
                node: from.text()?,
                port: from.byte()?,
                is_in: from.flag()?,
            },
            8 => Self::Count,
            9 => Self::Attach {
                host: from.text()?,
                adapter: from.byte()?,
                port: from.byte()?,
            },
            11 => Self::Offer {
                set: from.word()?,
                clear: from.word()?,
            },
            12 => Self::Report(from.bad_key()?),
            13 => Self::PlugOwn {
                is_in: from.flag()?,
            },
            14 => Self::Leave,
            0x89 => Self::Attached(from.tables()?),
            0x8a => Self::Changed {
                change: change_of(from.byte()?, from.byte()?)?,
                tables: from.tables()?,
            },
            0x81 => Self::Adapters(from.list(Reader::adapter)?),
            0x82 => Self::Opened {
                session: from.word()?,
            },
            0x83 => Self::Registered {
                agent: from.word()?,
            },
            0x84 => Self::Done,
            0x86 => Self::Path(from.text()?),
            0x88 => Self::Counts {
                nodes: from.word()?,
                linked: from.word()?,
                active: from.word()?,
            },
            0xff => Self::Refused(Refusal::from_code(from.byte()?)?),
            kind => return Err(MessageError::Unknown(kind)),
        };
        let is_all = from.0.is_empty();
        is_all.then_some(message).ok_or(MessageError::Long)
    }
}

/// A change, and the state that goes with it.
const fn change_code(change: Change) -> (u8, u8) {
    match change {
        Change::Addresses => (1, 0),
        Change::Down => (2, 0),
        Change::Up => (3, 0),
        Change::State(state) => (4, state as u8),
        Change::Lids => (5, 0),
        Change::PKeys => (6, 0),
        Change::SubnetManager => (7, 0),
        Change::Reregister => (8, 0),
    }
}

fn change_of(kind: u8, state: u8) -> Result<Change, MessageError> {
    Ok(match (kind, state) {
        (1, 0) => Change::Addresses,
        (2, 0) => Change::Down,
        (3, 0) => Change::Up,
        (4, 0) => Change::State(PortState::Nop),
        (4, 1) => Change::State(PortState::Down),
        (4, 2) => Change::State(PortState::Init),
        (4, 3) => Change::State(PortState::Armed),
        (4, 4) => Change::State(PortState::Active),
        (4, 5) => Change::State(PortState::ActiveDefer),
        (5, 0) => Change::Lids,
        (6, 0) => Change::PKeys,
        (7, 0) => Change::SubnetManager,
        (8, 0) => Change::Reregister,
        (1..=8, other) | (other, _) => return Err(MessageError::Unknown(other)),
    })
}

impl Refusal {
    const fn code(self) -> u8 {
        match self {
            Self::Missing => 1,
            Self::Taken => 2,
            Self::Full => 3,
            Self::Invalid => 4,
            Self::Denied => 5,
        }
    }

    fn from_code(code: u8) -> Result<Self, MessageError> {
        Ok(match code {
            1 => Self::Missing,
            2 => Self::Taken,
            3 => Self::Full,
            4 => Self::Invalid,
            5 => Self::Denied,
            other => return Err(MessageError::Unknown(other)),
        })
    }
}
