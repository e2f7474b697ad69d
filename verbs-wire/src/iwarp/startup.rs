//! The frames with which MPA starts a connection (RFC 5044, section 7.1; RFC 6581).

use super::IwarpError;
use super::error::{Part, room};

bitflags::bitflags! {
    /// The zero-length messages that can tell the responder of a peer-to-peer connection that the initiator is
    /// ready. An initiator names those that it can send, a responder the one that it wants.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Rtr: u8 {
        /// A zero-length Send.
        const SEND = 1;
        /// A zero-length RDMA Write.
        const WRITE = 2;
        /// A zero-length RDMA Read.
        const READ = 4;
    }
}

/// The key, flags, revision and private data length before the private data.
const HEAD_LEN: usize = 20;
const KEY_LEN: usize = 16;
const REQUEST_KEY: &[u8; KEY_LEN] = b"MPA ID Req Frame";
const REPLY_KEY: &[u8; KEY_LEN] = b"MPA ID Rep Frame";
const MARKERS: u8 = 0x80;
const CRC: u8 = 0x40;
const REJECT: u8 = 0x20;
const SETUP: u8 = 0x10;
/// The two highest bits of an IRD or ORD word are flags.
const WORD_HIGH: u16 = 0x8000;
const WORD_LOW: u16 = 0x4000;
const DEPTH: u16 = 0x3fff;

/// An MPA Request or Reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Startup<'a> {
    /// Its kind: Request or Reply.
    pub kind: StartupKind,
    /// The sender wants to receive markers.
    pub wants_markers: bool,
    /// The sender wants CRCs. They are used if either side wants them.
    pub wants_crc: bool,
    /// The revision, with the fields that only one of the two has.
    pub revision: Revision,
    /// The private data of the ULPs.
    pub private_data: &'a [u8],
}

/// The two kinds of startup frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StartupKind {
    /// The initiator's.
    Request,
    /// The responder's.
    Reply(Reply),
}

/// The content of a Reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// The connection is accepted.
    Accept,
    /// The connection is rejected.
    Reject,
}

/// The MPA revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Revision {
    /// Revision 1 (RFC 5044).
    One,
    /// Revision 2 (RFC 6581), with the words of the enhanced setup if the sender has them.
    Two(Option<Setup>),
}

impl Revision {
    /// Its number on the wire.
    pub const fn number(self) -> u8 {
        match self {
            Self::One => 1,
            Self::Two(_) => 2,
        }
    }
}

/// The words of the enhanced connection setup (RFC 6581, section 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Setup {
    /// RDMA Reads that the sender accepts at once.
    pub ird: Depth,
    /// RDMA Reads that the sender wants to have outstanding.
    pub ord: Depth,
    /// Either side may send first, once the initiator's ready-to-receive message has arrived.
    pub is_peer_to_peer: bool,
    /// Ready-to-receive messages.
    pub rtr: Rtr,
}

/// A number of RDMA Reads: 14 bits, of which the highest value means that no number is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Depth(u16);

impl Depth {
    /// No number is given.
    pub const NONE: Self = Self(DEPTH);
    /// The highest number.
    pub const MAX: Self = Self(DEPTH - 1);

    /// That number, or [`Depth::MAX`] if it is larger.
    pub const fn new(reads: u16) -> Self {
        if reads < DEPTH {
            Self(reads)
        } else {
            Self::MAX
        }
    }

    /// The number, if one is given.
    pub const fn value(self) -> Option<u16> {
        if self.0 == DEPTH { None } else { Some(self.0) }
    }
}

impl Setup {
    /// Bytes of the words, which are before the private data and count as private data.
    pub const LEN: usize = 4;

    fn from_bytes([i0, i1, o0, o1]: [u8; Self::LEN]) -> Self {
        let [ird, ord] = [[i0, i1], [o0, o1]].map(u16::from_be_bytes);
        let mut rtr = Rtr::empty();
        rtr.set(Rtr::SEND, ird & WORD_LOW != 0);
        rtr.set(Rtr::WRITE, ord & WORD_HIGH != 0);
        rtr.set(Rtr::READ, ord & WORD_LOW != 0);
        Self {
            ird: Depth(ird & DEPTH),
            ord: Depth(ord & DEPTH),
            is_peer_to_peer: ird & WORD_HIGH != 0,
            rtr,
        }
    }

    fn to_bytes(self) -> [u8; Self::LEN] {
        let flag = |is_set: bool, bit: u16| if is_set { bit } else { 0 };
        let ird = self.ird.0
            | flag(self.is_peer_to_peer, WORD_HIGH)
            | flag(self.rtr.contains(Rtr::SEND), WORD_LOW);
        let ord = self.ord.0
            | flag(self.rtr.contains(Rtr::WRITE), WORD_HIGH)
            | flag(self.rtr.contains(Rtr::READ), WORD_LOW);
        let ([i0, i1], [o0, o1]) = (ird.to_be_bytes(), ord.to_be_bytes());
        [i0, i1, o0, o1]
    }
}

impl<'a> Startup<'a> {
    /// Bytes of private data at most, including the words of the enhanced setup.
    pub const PRIVATE_DATA_MAX: usize = 512;
    /// Bytes of a frame at most.
    pub const LEN_MAX: usize = HEAD_LEN + Self::PRIVATE_DATA_MAX;

    /// The Request at the front of a stream, and its length; `None` while bytes are missing. An invalid Request
    /// is refused at its first wrong byte.
    ///
    /// # Errors
    /// [`IwarpError::Key`], [`IwarpError::Revision`], [`IwarpError::PrivateData`], [`IwarpError::Truncated`] if
    /// there is less private data than the words of the enhanced setup need.
    pub fn parse_request(stream: &'a [u8]) -> Result<Option<(Self, usize)>, IwarpError> {
        Self::parse(stream, REQUEST_KEY)
    }

    /// The Reply at the front of a stream, and its length; `None` while bytes are missing.
    ///
    /// # Errors
    /// As [`Startup::parse_request`].
    pub fn parse_reply(stream: &'a [u8]) -> Result<Option<(Self, usize)>, IwarpError> {
        Self::parse(stream, REPLY_KEY)
    }

    fn parse(stream: &'a [u8], key: &[u8; KEY_LEN]) -> Result<Option<(Self, usize)>, IwarpError> {
        let mut bytes = stream.iter().zip(key).enumerate();
        if let Some((at, (&got, &expected))) = bytes.find(|(_, (got, expected))| got != expected) {
            return Err(IwarpError::Key { at, expected, got });
        }
        let Some(&[flags, revision, l0, l1]) = stream.get(KEY_LEN..HEAD_LEN) else {
            return Ok(None);
        };
        if !matches!(revision, 1 | 2) {
            return Err(IwarpError::Revision(revision));
        }
        let private_len = usize::from(u16::from_be_bytes([l0, l1]));
        if private_len > Self::PRIVATE_DATA_MAX {
            return Err(IwarpError::PrivateData {
                max: Self::PRIVATE_DATA_MAX,
                got: private_len,
            });
        }
        let has_setup = revision == 2 && flags & SETUP != 0;
        if has_setup && private_len < Setup::LEN {
            return Err(IwarpError::Truncated {
                part: Part::Startup,
                need: Setup::LEN,
                got: private_len,
            });
        }
        let len = HEAD_LEN + private_len;
        let Some(mut private_data) = stream.get(HEAD_LEN..len) else {
            return Ok(None);
        };
        let mut setup = None;
        if has_setup && let Some((words, rest)) = private_data.split_first_chunk() {
            setup = Some(Setup::from_bytes(*words));
            private_data = rest;
        }
        let kind = match (key == REQUEST_KEY, flags & REJECT != 0) {
            (true, _) => StartupKind::Request,
            (false, false) => StartupKind::Reply(Reply::Accept),
            (false, true) => StartupKind::Reply(Reply::Reject),
        };
        let startup = Self {
            kind,
            wants_markers: flags & MARKERS != 0,
            wants_crc: flags & CRC != 0,
            revision: if revision == 1 {
                Revision::One
            } else {
                Revision::Two(setup)
            },
            private_data,
        };
        Ok(Some((startup, len)))
    }

    /// Bytes of the frame.
    pub const fn wire_len(&self) -> usize {
        HEAD_LEN + self.private_len()
    }

    const fn private_len(&self) -> usize {
        let setup_len = match self.revision {
            Revision::Two(Some(_)) => Setup::LEN,
            _ => 0,
        };
        setup_len + self.private_data.len()
    }

    /// Writes the frame; returns its length.
    ///
    /// # Errors
    /// [`IwarpError::PrivateData`], [`IwarpError::NoRoom`].
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, IwarpError> {
        let got = self.private_len();
        let length = match u16::try_from(got) {
            Ok(length) if got <= Self::PRIVATE_DATA_MAX => length,
            _ => {
                let max = Self::PRIVATE_DATA_MAX;
                return Err(IwarpError::PrivateData { max, got });
            }
        };
        let out = room(out, self.wire_len(), Part::Startup)?;
        let (key, mut flags) = match self.kind {
            StartupKind::Request => (REQUEST_KEY, 0),
            StartupKind::Reply(Reply::Accept) => (REPLY_KEY, 0),
            StartupKind::Reply(Reply::Reject) => (REPLY_KEY, REJECT),
        };
        if self.wants_markers {
            flags |= MARKERS;
        }
        if self.wants_crc {
            flags |= CRC;
        }
        let mut at = HEAD_LEN;
        if let Revision::Two(Some(setup)) = self.revision {
            flags |= SETUP;
            at += Setup::LEN;
            out[HEAD_LEN..at].copy_from_slice(&setup.to_bytes());
        }
        out[..KEY_LEN].copy_from_slice(key);
        out[KEY_LEN] = flags;
        out[KEY_LEN + 1] = self.revision.number();
        out[KEY_LEN + 2..HEAD_LEN].copy_from_slice(&length.to_be_bytes());
        out[at..].copy_from_slice(self.private_data);
        Ok(out.len())
    }
}
