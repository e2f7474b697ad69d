//! The messages of the line between a daemon and a client.
//!
//! | message | from | content |
//! |---|---|---|
//! | [`Hello`] | client | the versions that it speaks |
//! | [`Welcome`], [`No`] | daemon | its number, block and port; or why not |
//! | [`Message::Command`], [`Message::Done`] | client, daemon | a verb, [encoded](super::command); its result, with the tag of the command |
//! | [`Message::Lease`], [`Message::Return`], [`Message::Leased`] | client, client, daemon | more queue pair numbers |
//! | [`Message::Listen`], [`Message::Unlisten`], [`Message::Listening`] | client, client, daemon | a port number of the host |
//! | [`Message::Join`], [`Message::Leave`] | client | multicast groups |
//! | [`Packets`] | both | packets that the daemon sends, or has received |
//! | [`Message::Socket`] | daemon | a socket that receives what the network sends to the client |
//! | [`Message::Arrived`] | client | packets for another client that came to that socket |
//! | [`Message::Port`] | daemon | the port has changed |
//! | [`Message::Event`] | daemon | an asynchronous event, once |
//! | [`Message::Gone`] | daemon | queue pair numbers that no longer exist |
//! | [`Message::OpenChannel`], [`Channel`], [`Message::NoChannel`] | client, daemon, daemon | [memory](super::channel) to share with another client |
//! | [`Message::ChangedOver`] | both | packets of the other end come through the channel from now on |
//! | [`Message::Broken`] | client | a neighbour that breaks rules |
//! | [`Message::List`], [`Message::Listing`] | anyone, daemon | [what the daemon knows](super::list) of its clients |
//!
//! Each is one datagram: a header of 16 bytes (kind, flags, length of the body, tag), then the body. One that is not as
//! it should be ends the line.

use std::net::IpAddr;

use crate::addr::Mtu;
use crate::event::{AsyncEvent, EventType, Subject};
use crate::host::bytes::{Encode, Malformed, Reader, encode};
use crate::host::channel::Channel;
use crate::host::list::{Cursor, Listed};
use crate::host::quota::QuotaError;
use crate::object::ObjectId;

pub use crate::host::ports::{NotListening, Service};

/// Bytes of a message at most.
pub const MESSAGE_MAX: usize = 65_536;

/// Descriptors that come with a message at most.
pub const DESCRIPTORS_MAX: usize = 4;

/// A bit of [`Hello::features`] and [`Welcome::features`]: the client can receive from [sockets](Message::Socket) of the
/// network, and send to them.
pub const SOCKETS: u64 = 1 << 1;

/// All bits of features that this crate knows.
pub const FEATURES: u64 = super::channel::FEATURE | SOCKETS;

/// Bytes of the header.
pub const HEADER: usize = 16;

/// The newest version of the line that this crate speaks.
pub const VERSION: u16 = 2;

/// The oldest.
pub const VERSION_LEAST: u16 = 2;

/// Bytes of packets in one message at most.
pub const PACKETS_MAX: usize = MESSAGE_MAX - HEADER - PACKETS_HEAD;

/// Bytes in front of the packets.
pub const PACKETS_HEAD: usize = 48;

/// The first words of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The oldest version that it speaks.
    pub lowest: u16,
    /// The newest.
    pub highest: u16,
    /// Bits of features that it knows: [`channel::FEATURE`](super::channel::FEATURE), [`SOCKETS`].
    pub features: u64,
    /// Addresses that the port has to have, or else the client does not want to be one.
    pub addresses: Vec<IpAddr>,
    /// What the program is called, for lists.
    pub name: String,
    /// Of a client whose daemon has ended: the token that it got.
    pub token: Token,
    /// The blocks that it had, and wants to go on with. None if it is a new client.
    pub blocks: Vec<u16>,
}

/// Shows to the next daemon which client had a block. Only the client knows it, and those who may read the daemon's files.
pub type Token = [u8; 16];

/// The client is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The version that is spoken from now on.
    pub version: u16,
    /// Bits of features that both know.
    pub features: u64,
    /// The client's number, never 0.
    pub client: u32,
    /// Its first block.
    pub block: u16,
    /// The port.
    pub port: PortNews,
    /// What it says to the next daemon, if this one ends.
    pub token: Token,
}

/// The client is none; the line ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum No {
    /// There is no version that both speak.
    #[error(
        "it speaks versions {lowest} to {highest} of its protocol, and this program {VERSION_LEAST} to {VERSION}"
    )]
    Version {
        /// The oldest that the daemon speaks.
        lowest: u16,
        /// The newest.
        highest: u16,
    },
    /// As many clients as there may be.
    #[error("{0}")]
    Quota(QuotaError),
    /// All queue pair numbers are leased, or rest.
    #[error(
        "all of its queue pair numbers are in use; numbers that were returned are free again after two minutes"
    )]
    Numbers,
    /// The port does not have the addresses that the client wants.
    #[error("it does not have the address")]
    Addresses,
    /// The client had another daemon, and this one does not know of its numbers.
    #[error("it does not know the queue pair numbers that this program has from another daemon")]
    Claim,
}

/// What a port is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortNews {
    /// The addresses; the index of each is its GID index.
    pub addresses: Vec<IpAddr>,
    /// The largest path MTU whose packets fit.
    pub mtu: Mtu,
    /// Whether it carries packets.
    pub is_up: bool,
}

/// Packets of one way, all but the last `segment` bytes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packets<'a> {
    /// Where they come from. Of a client's, one of the port's addresses.
    pub src: IpAddr,
    /// Where they go to.
    pub dst: IpAddr,
    /// Traffic class.
    pub tclass: u8,
    /// Hop limit, the TTL of IPv4.
    pub hop_limit: u8,
    /// The sender's UDP port.
    pub sport: u16,
    /// The identification in the IP header of the first one; the next has the next. `None` if the system hides it.
    pub ident: Option<u16>,
    /// Bytes of each packet, from its BTH to its ICRC; at least 1.
    pub segment: u16,
    /// The packets, one behind the other.
    pub bytes: &'a [u8],
}

impl<'a> Packets<'a> {
    /// The packets.
    pub fn packets(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        self.bytes.chunks(usize::from(self.segment.max(1)))
    }

    /// Writes the part in front of the packets, behind what is there: [`PACKETS_HEAD`] bytes.
    pub fn put_head(&self, out: &mut Vec<u8>) {
        let start = out.len();
        self.src.put(out);
        self.dst.put(out);
        self.tclass.put(out);
        self.hop_limit.put(out);
        self.sport.put(out);
        self.ident.is_none().put(out);
        0_u8.put(out);
        self.ident.unwrap_or(0).put(out);
        self.segment.put(out);
        out.resize(start + PACKETS_HEAD, 0);
    }

    /// Reads that part, and takes the rest as the packets.
    ///
    /// # Errors
    /// [`Malformed`], also if there are no packets.
    pub fn take(mut head: Reader<'a>) -> Result<Self, Malformed> {
        let mut from = Reader::new(head.bytes(PACKETS_HEAD)?);
        let (src, dst) = (from.read()?, from.read()?);
        let (tclass, hop_limit, sport) = (from.read()?, from.read()?, from.read()?);
        let (is_hidden, _): (bool, u8) = (from.read()?, from.read()?);
        let ident: u16 = from.read()?;
        let segment = from.read()?;
        from.end()?;
        let bytes = head.rest();
        if segment == 0 || bytes.is_empty() {
            return Err(Malformed::Short);
        }
        Ok(Self {
            src,
            dst,
            tclass,
            hop_limit,
            sport,
            ident: (!is_hidden).then_some(ident),
            segment,
            bytes,
        })
    }
}

/// A message.
#[derive(Clone, Debug, PartialEq)]
pub enum Message<'a> {
    /// See [`Hello`].
    Hello(Hello),
    /// See [`Welcome`].
    Welcome(Welcome),
    /// See [`No`].
    No(No),
    /// A verb. The daemon answers with the same tag.
    Command(u64, &'a [u8]),
    /// The result of the command with that tag.
    Done(u64, &'a [u8]),
    /// One more block.
    Lease(u64),
    /// A block that is not needed any longer.
    Return(u16),
    /// The answer to the lease with that tag.
    Leased(u64, Result<u16, No>),
    /// The client listens there, from the answer on.
    Listen(u64, Service),
    /// It does not any longer.
    Unlisten(Service),
    /// The answer to the listen with that tag.
    Listening(u64, Result<(), NotListening>),
    /// Packets to that group are for the client too.
    Join(IpAddr),
    /// They are not any longer.
    Leave(IpAddr),
    /// See [`Packets`].
    Packets(Packets<'a>),
    /// A socket for that address of the port, in place of an earlier one, comes with the message as a descriptor. It is
    /// bound to the UDP port of RoCEv2 there, and receives the packets of the network that are for the client's queue pairs.
    /// The client may send packets to other hosts by it, except those of the connection manager and of multicast groups.
    Socket(IpAddr),
    /// Packets of the network that came to the client's socket, and are not for its queue pairs.
    Arrived(Packets<'a>),
    /// What the port is from now on.
    Port(PortNews),
    /// An event.
    Event(AsyncEvent),
    /// Queue pairs with numbers of these blocks do not exist any longer.
    Gone(Vec<u16>),
    /// A channel to the owner of that block.
    OpenChannel(u16),
    /// There is none to the owner of that block: packets pass through the daemon.
    NoChannel(u16),
    /// See [`Channel`].
    Channel(Channel),
    /// All packets that were sent through the daemon before have been delivered; the following ones are in the ring of
    /// that channel.
    ChangedOver(u32),
    /// The owner of the block has sent what no correct program sends.
    Broken(u16),
    /// Asks for a piece of the list of clients. A program does not have to be a client to ask.
    List(u64, Cursor),
    /// That piece, with the tag of the question; `None` if there are no clients from there on.
    Listing(u64, Option<Box<Listed>>),
}

/// Numbers of messages, written by hand and never used again.
mod kind {
    pub(super) const HELLO: u16 = 1;
    pub(super) const WELCOME: u16 = 2;
    pub(super) const NO: u16 = 3;
    pub(super) const COMMAND: u16 = 4;
    pub(super) const DONE: u16 = 5;
    pub(super) const LEASE: u16 = 6;
    pub(super) const RETURN: u16 = 7;
    pub(super) const LEASED: u16 = 8;
    pub(super) const LISTEN: u16 = 9;
    pub(super) const UNLISTEN: u16 = 10;
    pub(super) const LISTENING: u16 = 11;
    pub(super) const JOIN: u16 = 12;
    pub(super) const LEAVE: u16 = 13;
    pub(super) const PACKETS: u16 = 14;
    pub(super) const PORT: u16 = 15;
    pub(super) const EVENT: u16 = 16;
    pub(super) const GONE: u16 = 17;
    pub(super) const BROKEN: u16 = 18;
    pub(super) const OPEN_CHANNEL: u16 = 19;
    pub(super) const NO_CHANNEL: u16 = 20;
    pub(super) const CHANNEL: u16 = 21;
    pub(super) const CHANGED_OVER: u16 = 22;
    pub(super) const LIST: u16 = 23;
    pub(super) const LISTING: u16 = 24;
    pub(super) const SOCKET: u16 = 25;
    pub(super) const ARRIVED: u16 = 26;
}

impl<'a> Message<'a> {
    /// The datagram.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode_into(&mut out);
        out
    }

    /// The datagram, behind what is in `out`.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let (kind, tag) = self.head();
        kind.put(out);
        0_u16.put(out);
        0_u32.put(out);
        tag.put(out);
        match self {
            Self::Hello(hello) => hello.put(out),
            Self::Welcome(welcome) => welcome.put(out),
            Self::No(no) => no.put(out),
            Self::Command(_, bytes) | Self::Done(_, bytes) => out.extend_from_slice(bytes),
            Self::Lease(_) => {}
            Self::Return(block)
            | Self::Broken(block)
            | Self::OpenChannel(block)
            | Self::NoChannel(block) => block.put(out),
            Self::Channel(channel) => channel.put(out),
            Self::ChangedOver(number) => number.put(out),
            Self::Leased(_, leased) => put_result(leased, out),
            Self::Listen(_, service) | Self::Unlisten(service) => service.put(out),
            Self::Listening(_, listening) => put_result(listening, out),
            Self::Join(address) | Self::Leave(address) | Self::Socket(address) => address.put(out),
            Self::Packets(packets) | Self::Arrived(packets) => {
                packets.put_head(out);
                out.extend_from_slice(packets.bytes);
            }
            Self::Port(port) => port.put(out),
            Self::Event(event) => event.put(out),
            Self::Gone(blocks) => blocks.put(out),
            Self::List(_, from) => from.put(out),
            Self::Listing(_, listed) => listed.put(out),
        }
        let len = (out.len() - start - HEADER) as u32;
        out[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
    }

    /// Reads a datagram.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        if bytes.len() > MESSAGE_MAX {
            return Err(Malformed::TooMany {
                what: "bytes of a message",
                got: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
                max: MESSAGE_MAX as u32,
            });
        }
        let mut from = Reader::new(bytes);
        let (kind, flags, len, tag): (u16, u16, u32, u64) =
            (from.read()?, from.read()?, from.read()?, from.read()?);
        if flags != 0 {
            return Err(Malformed::Newer);
        }
        if len as usize != bytes.len() - HEADER {
            return Err(Malformed::Short);
        }
        let message = match kind {
            kind::COMMAND => return Ok(Self::Command(tag, from.rest())),
            kind::DONE => return Ok(Self::Done(tag, from.rest())),
            kind::PACKETS => return Packets::take(from).map(Self::Packets),
            kind::ARRIVED => return Packets::take(from).map(Self::Arrived),
            kind::HELLO => Self::Hello(from.read()?),
            kind::WELCOME => Self::Welcome(from.read()?),
            kind::NO => Self::No(from.read()?),
            kind::LEASE => Self::Lease(tag),
            kind::RETURN => Self::Return(from.read()?),
            kind::LEASED => Self::Leased(tag, take_result(&mut from)?),
            kind::LISTEN => Self::Listen(tag, from.read()?),
            kind::UNLISTEN => Self::Unlisten(from.read()?),
            kind::LISTENING => Self::Listening(tag, take_result(&mut from)?),
            kind::JOIN => Self::Join(from.read()?),
            kind::LEAVE => Self::Leave(from.read()?),
            kind::PORT => Self::Port(from.read()?),
            kind::EVENT => Self::Event(from.read()?),
            kind::GONE => Self::Gone(from.read()?),
            kind::BROKEN => Self::Broken(from.read()?),
            kind::OPEN_CHANNEL => Self::OpenChannel(from.read()?),
            kind::NO_CHANNEL => Self::NoChannel(from.read()?),
            kind::CHANNEL => Self::Channel(from.read()?),
            kind::CHANGED_OVER => Self::ChangedOver(from.read()?),
            kind::LIST => Self::List(tag, from.read()?),
            kind::LISTING => Self::Listing(tag, from.read()?),
            kind::SOCKET => Self::Socket(from.read()?),
            got => {
                return Err(Malformed::Unknown {
                    what: "message",
                    got: got.into(),
                });
            }
        };
        from.end()?;
        Ok(message)
    }

    fn head(&self) -> (u16, u64) {
        match *self {
            Self::Hello(_) => (kind::HELLO, 0),
            Self::Welcome(_) => (kind::WELCOME, 0),
            Self::No(_) => (kind::NO, 0),
            Self::Command(tag, _) => (kind::COMMAND, tag),
            Self::Done(tag, _) => (kind::DONE, tag),
            Self::Lease(tag) => (kind::LEASE, tag),
            Self::Return(_) => (kind::RETURN, 0),
            Self::Leased(tag, _) => (kind::LEASED, tag),
            Self::Listen(tag, _) => (kind::LISTEN, tag),
            Self::Unlisten(_) => (kind::UNLISTEN, 0),
            Self::Listening(tag, _) => (kind::LISTENING, tag),
            Self::Join(_) => (kind::JOIN, 0),
            Self::Leave(_) => (kind::LEAVE, 0),
            Self::Packets(_) => (kind::PACKETS, 0),
            Self::Port(_) => (kind::PORT, 0),
            Self::Event(_) => (kind::EVENT, 0),
            Self::Gone(_) => (kind::GONE, 0),
            Self::Broken(_) => (kind::BROKEN, 0),
            Self::OpenChannel(_) => (kind::OPEN_CHANNEL, 0),
            Self::NoChannel(_) => (kind::NO_CHANNEL, 0),
            Self::Channel(_) => (kind::CHANNEL, 0),
            Self::ChangedOver(_) => (kind::CHANGED_OVER, 0),
            Self::List(tag, _) => (kind::LIST, tag),
            Self::Listing(tag, _) => (kind::LISTING, tag),
            Self::Socket(_) => (kind::SOCKET, 0),
            Self::Arrived(_) => (kind::ARRIVED, 0),
        }
    }
}

fn put_result<T: Encode, E: Encode>(result: &Result<T, E>, out: &mut Vec<u8>) {
    result.is_ok().put(out);
    match result {
        Ok(value) => value.put(out),
        Err(error) => error.put(out),
    }
}

fn take_result<T: Encode, E: Encode>(from: &mut Reader<'_>) -> Result<Result<T, E>, Malformed> {
    Ok(match from.read::<bool>()? {
        true => Ok(from.read()?),
        false => Err(from.read()?),
    })
}

encode! {
    struct Hello { lowest, highest, features, addresses, name, token, blocks }
    struct Welcome { version, features, client, block, port, token }
    struct PortNews { addresses, mtu, is_up }
    struct AsyncEvent { event, subject }
    struct ObjectId { kind, number }
    enum EventType("event") {
        CqErr = 0, QpFatal = 1, QpReqErr = 2, QpAccessErr = 3, CommEst = 4, SqDrained = 5, PathMig = 6,
        PathMigErr = 7, DeviceFatal = 8, PortActive = 9, PortErr = 10, LidChange = 11, PkeyChange = 12,
        SmChange = 13, SrqErr = 14, SrqLimitReached = 15, QpLastWqeReached = 16, ClientReregister = 17,
        GidChange = 18,
    }
}

impl Encode for Subject {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Device => 0_u16.put(out),
            Self::Port(port) => {
                1_u16.put(out);
                port.put(out);
            }
            Self::Object(id) => {
                2_u16.put(out);
                id.put(out);
            }
        }
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        match from.read::<u16>()? {
            0 => Ok(Self::Device),
            1 => from.read().map(Self::Port),
            2 => from.read().map(Self::Object),
            got => Err(Malformed::Unknown {
                what: "subject",
                got: got.into(),
            }),
        }
    }
}

impl Encode for No {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Version { lowest, highest } => {
                1_u16.put(out);
                lowest.put(out);
                highest.put(out);
            }
            Self::Quota(error) => {
                2_u16.put(out);
                error.put(out);
            }
            Self::Numbers => 3_u16.put(out),
            Self::Addresses => 4_u16.put(out),
            Self::Claim => 5_u16.put(out),
        }
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        match from.read::<u16>()? {
            1 => Ok(Self::Version {
                lowest: from.read()?,
                highest: from.read()?,
            }),
            2 => from.read().map(Self::Quota),
            3 => Ok(Self::Numbers),
            4 => Ok(Self::Addresses),
            5 => Ok(Self::Claim),
            got => Err(Malformed::Unknown {
                what: "reason",
                got: got.into(),
            }),
        }
    }
}

#[cfg(test)]
mod tests;
