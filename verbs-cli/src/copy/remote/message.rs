//! What the two ends of a copy between hosts tell each other, over TCP, or each message in a SEND over a
//! queue pair that the connection manager has connected.
//!
//! Every message is a header of 12 bytes, `VCPY`, version (16 bits), kind (16 bits) and length of what
//! follows (32 bits, at most [`BODY_BYTES_MAX`]), and a body of fixed fields. All numbers are in network
//! order. The client opens the connection.
//!
//! ```text
//!  client                                                     server
//!    1 GET    chunk, window, GID, path                  ─▶
//!             ◀─  2 FILE   size, mode, chunk, window, end          or FAIL
//!    3 READY  end, address and key of the slots         ─▶         or FAIL
//!      ... the file, by WRITEs and SENDs between the ends ...      or FAIL at any time
//!    4 DONE   all has arrived and is acknowledged       ─▶
//! ```
//!
//! An *end* is GID (128 bits), queue pair number (32), first packet sequence number (32) and path MTU
//! (8 bits, as in the packets). Chunk and window of FILE are what the server is willing to do, at most
//! what was asked for. FAIL has a cause (8 bits) and a sentence. A connection that ends before DONE ends
//! the copy. A server that gets another version answers FAIL in its own.

use verbs_core::{Gid, Mtu, Psn, Qpn, RKey, Remote};

use crate::address::PATH_BYTES_MAX;
use crate::exit;

/// Version of the protocol.
pub(crate) const VERSION: u16 = 1;

/// Bytes of a header.
pub(crate) const HEADER_LEN: usize = 12;

/// Bytes of a body at most: a GET with the longest path fits.
pub(crate) const BODY_BYTES_MAX: usize = PATH_BYTES_MAX + 64;

/// Bytes of a sentence at most.
const TEXT_BYTES_MAX: usize = 1024;

const MAGIC: &[u8; 4] = b"VCPY";

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Get(Get),
    File(Offer),
    Ready(Ready),
    Done,
    Fail(Fail),
}

/// Asks for a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Get {
    /// Bytes of one WRITE at most.
    pub(crate) chunk: u32,
    /// WRITEs outstanding at most.
    pub(crate) window: u32,
    /// Where the data is to go.
    pub(crate) gid: Gid,
    /// Relative to what is served.
    pub(crate) path: Vec<u8>,
}

/// Offers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Bytes of the file.
    pub(crate) size: u64,
    /// Its permission bits.
    pub(crate) mode: u32,
    pub(crate) chunk: u32,
    pub(crate) window: u32,
    pub(crate) end: Identity,
}

/// Says where it is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ready {
    pub(crate) end: Identity,
    pub(crate) slots: Remote,
}

/// How an end is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) gid: Gid,
    pub(crate) qpn: Qpn,
    pub(crate) psn: Psn,
    pub(crate) mtu: Mtu,
}

/// Says why it cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fail {
    pub(crate) cause: Cause,
    pub(crate) text: String,
}

/// Whose matter a failure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Cause {
    /// The file cannot be had.
    File = 1,
    /// The request makes no sense here.
    Request = 2,
    /// There are too many others.
    Busy = 3,
    /// The file changed in the meantime.
    Changed = 4,
    /// A device failed.
    Device = 5,
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("it does not begin as messages do")]
    Magic,
    #[error("it has version {0} and this program {VERSION}")]
    Version(u16),
    #[error("there is no message of kind {0}")]
    Kind(u16),
    #[error("a body of {0} bytes is longer than any")]
    Long(u32),
    #[error("a body is too short")]
    Short,
    #[error("a body is too long")]
    Trailing,
    #[error("a field has a value that it cannot have")]
    Value,
}

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    kind: u16,
    /// Bytes of the body, at most [`BODY_BYTES_MAX`].
    pub(crate) len: usize,
}

impl Cause {
    const ALL: [Self; 5] = [
        Self::File,
        Self::Request,
        Self::Busy,
        Self::Changed,
        Self::Device,
    ];

    /// What the process ends with that is told so.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Self::File | Self::Busy => exit::FILES,
            Self::Request => exit::USAGE,
            Self::Changed => exit::CHANGED,
            Self::Device => exit::DEVICE,
        }
    }

    /// The inverse, for a failure that is to be told.
    pub(crate) fn of_exit_code(code: u8) -> Self {
        match code {
            exit::USAGE => Self::Request,
            exit::CHANGED => Self::Changed,
            exit::DEVICE => Self::Device,
            _ => Self::File,
        }
    }
}

impl Header {
    /// From what has arrived.
    pub(crate) fn parse(bytes: &[u8; HEADER_LEN]) -> Result<Self, Malformed> {
        let mut fields = Fields(bytes);
        if &fields.bytes::<4>()? != MAGIC {
            return Err(Malformed::Magic);
        }
        let (version, kind, len) = (fields.u16()?, fields.u16()?, fields.u32()?);
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        if !(1..=5).contains(&kind) {
            return Err(Malformed::Kind(kind));
        }
        let fits = usize::try_from(len)
            .ok()
            .filter(|&len| len <= BODY_BYTES_MAX);
        let len = fits.ok_or(Malformed::Long(len))?;
        Ok(Self { kind, len })
    }
}

impl Message {
    /// What it is called.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Get(_) => "GET",
            Self::File(_) => "FILE",
            Self::Ready(_) => "READY",
            Self::Done => "DONE",
            Self::Fail(_) => "FAIL",
        }
    }

    /// As it travels.
    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let kind: u16 = match self {
            Self::Get(get) => {
                put_all(
                    &mut body,
                    &[&get.chunk.to_be_bytes(), &get.window.to_be_bytes()],
                );
                put_all(&mut body, &[&get.gid.0, &get.path]);
                1
            }
            Self::File(offer) => {
                put_all(
                    &mut body,
                    &[&offer.size.to_be_bytes(), &offer.mode.to_be_bytes()],
                );
                put_all(
                    &mut body,
                    &[&offer.chunk.to_be_bytes(), &offer.window.to_be_bytes()],
                );
                offer.end.emit(&mut body);
                2
            }
            Self::Ready(ready) => {
                ready.end.emit(&mut body);
                let Remote { addr, rkey } = ready.slots;
                put_all(
                    &mut body,
                    &[&addr.to_be_bytes(), &rkey.value().to_be_bytes()],
                );
                3
            }
            Self::Done => 4,
            Self::Fail(fail) => {
                let text = fail.text.as_bytes();
                put_all(
                    &mut body,
                    &[&[fail.cause as u8], &text[..text.len().min(TEXT_BYTES_MAX)]],
                );
                5
            }
        };
        debug_assert!(
            body.len() <= BODY_BYTES_MAX,
            "paths are bounded where they come in"
        );
        let len = u32::try_from(body.len()).unwrap_or(u32::MAX);
        let mut bytes = Vec::with_capacity(HEADER_LEN + body.len());
        put_all(
            &mut bytes,
            &[MAGIC, &VERSION.to_be_bytes(), &kind.to_be_bytes()],
        );
        put_all(&mut bytes, &[&len.to_be_bytes(), &body]);
        bytes
    }

    /// From the header and the body that have arrived.
    pub(crate) fn parse(header: Header, body: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(body);
        let message = match header.kind {
            1 => Self::Get(Get {
                chunk: fields.positive()?,
                window: fields.positive()?,
                gid: Gid(fields.bytes()?),
                path: fields.rest(PATH_BYTES_MAX)?.to_vec(),
            }),
            2 => Self::File(Offer {
                size: u64::from_be_bytes(fields.bytes()?),
                mode: fields.u32()?,
                chunk: fields.positive()?,
                window: fields.positive()?,
                end: Identity::parse(&mut fields)?,
            }),
            3 => Self::Ready(Ready {
                end: Identity::parse(&mut fields)?,
                slots: Remote {
                    addr: u64::from_be_bytes(fields.bytes()?),
                    rkey: RKey::new(fields.u32()?),
                },
            }),
            4 => Self::Done,
            5 => {
                let [number] = fields.bytes()?;
                let mut causes = Cause::ALL.into_iter();
                let cause = causes.find(|&cause| cause as u8 == number);
                let text = fields.rest(TEXT_BYTES_MAX)?;
                Self::Fail(Fail {
                    cause: cause.ok_or(Malformed::Value)?,
                    // A sentence may have been cut within a character.
                    text: String::from_utf8_lossy(text).into_owned(),
                })
            }
            kind => return Err(Malformed::Kind(kind)),
        };
        match fields.0 {
            [] => Ok(message),
            _ => Err(Malformed::Trailing),
        }
    }
}

impl Identity {
    fn emit(&self, into: &mut Vec<u8>) {
        let (qpn, psn) = (
            self.qpn.value().to_be_bytes(),
            self.psn.value().to_be_bytes(),
        );
        put_all(into, &[&self.gid.0, &qpn, &psn, &[self.mtu as u8]]);
    }

    fn parse(fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        let (gid, qpn, psn) = (Gid(fields.bytes()?), fields.u32()?, fields.u32()?);
        let [code] = fields.bytes()?;
        let mtu = Mtu::from_code(code.into());
        let end = Self {
            gid,
            qpn: Qpn::new(qpn),
            psn: Psn::new(psn),
            mtu: mtu.ok_or(Malformed::Value)?,
        };
        // Numbers of 24 bits have no others.
        match (end.qpn.value(), end.psn.value()) == (qpn, psn) {
            true => Ok(end),
            false => Err(Malformed::Value),
        }
    }
}

/// What is left of a body.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.bytes().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.bytes().map(u32::from_be_bytes)
    }

    fn positive(&mut self) -> Result<u32, Malformed> {
        match self.u32()? {
            0 => Err(Malformed::Value),
            number => Ok(number),
        }
    }

    fn rest(&mut self, max: usize) -> Result<&'a [u8], Malformed> {
        let rest = std::mem::take(&mut self.0);
        match rest.len() <= max {
            true => Ok(rest),
            false => Err(Malformed::Trailing),
        }
    }
}

fn put_all(into: &mut Vec<u8>, fields: &[&[u8]]) {
    into.extend(fields.iter().copied().flatten());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(bytes: &[u8]) -> Result<Message, Malformed> {
        let (header, body) = bytes.split_first_chunk().ok_or(Malformed::Short)?;
        let header = Header::parse(header)?;
        match header.len == body.len() {
            true => Message::parse(header, body),
            false => Err(Malformed::Short),
        }
    }

    fn identity() -> impl Strategy<Value = Identity> {
        (any::<[u8; 16]>(), any::<u32>(), any::<u32>(), 0..5_usize).prop_map(
            |(gid, qpn, psn, mtu)| {
                let (qpn, psn, mtu) = (Qpn::new(qpn), Psn::new(psn), Mtu::ALL[mtu]);
                Identity {
                    gid: Gid(gid),
                    qpn,
                    psn,
                    mtu,
                }
            },
        )
    }

    fn message() -> impl Strategy<Value = Message> {
        let get = (
            1..=u32::MAX,
            1..=u32::MAX,
            any::<[u8; 16]>(),
            any::<Vec<u8>>(),
        );
        let file = (
            any::<u64>(),
            any::<u32>(),
            1..=u32::MAX,
            1..=u32::MAX,
            identity(),
        );
        let ready = (identity(), any::<u64>(), any::<u32>());
        prop_oneof![
            get.prop_map(|(chunk, window, gid, path)| {
                Message::Get(Get {
                    chunk,
                    window,
                    gid: Gid(gid),
                    path,
                })
            }),
            file.prop_map(|(size, mode, chunk, window, end)| {
                Message::File(Offer {
                    size,
                    mode,
                    chunk,
                    window,
                    end,
                })
            }),
            ready.prop_map(|(end, addr, rkey)| {
                let slots = Remote {
                    addr,
                    rkey: RKey::new(rkey),
                };
                Message::Ready(Ready { end, slots })
            }),
            Just(Message::Done),
            (0..5_usize, "[a-z ]{0,40}").prop_map(|(cause, text)| {
                Message::Fail(Fail {
                    cause: Cause::ALL[cause],
                    text,
                })
            }),
        ]
    }

    #[test]
    fn strange_headers_are_refused() {
        let right = Message::Done.emit();
        assert_eq!(right, b"VCPY\0\x01\0\x04\0\0\0\0");
        let with = |at: usize, byte| {
            let mut bytes = right.clone();
            bytes[at] = byte;
            parse(&bytes)
        };
        assert_eq!(with(0, b'X'), Err(Malformed::Magic));
        assert_eq!(with(5, 2), Err(Malformed::Version(2)));
        assert_eq!(with(7, 0), Err(Malformed::Kind(0)));
        assert_eq!(with(7, 6), Err(Malformed::Kind(6)));
        assert_eq!(with(8, 0xff), Err(Malformed::Long(0xff00_0000)));
    }

    #[test]
    fn long_sentences_are_cut() {
        let (cause, text) = (Cause::Busy, "ä".repeat(2000));
        let parsed = parse(&Message::Fail(Fail { cause, text }).emit());
        let Ok(Message::Fail(fail)) = parsed else {
            panic!("{parsed:?}");
        };
        assert_eq!(fail.text.len(), TEXT_BYTES_MAX);
    }

    proptest! {
        /// Goal: messages come back, and no shorter or longer one is taken for one. Method: also cut
        /// and extend the body, with a length that says so.
        #[test]
        fn every_message_comes_back(message in message(), cut in 1..8_usize) {
            let bytes = message.emit();
            prop_assert_eq!(parse(&bytes), Ok(message.clone()));
            let has_rest = matches!(message, Message::Get(_) | Message::Fail(_));
            let resized = |len: usize| {
                let mut bytes = bytes.clone();
                bytes.resize(HEADER_LEN + len, 0);
                bytes[8..12].copy_from_slice(&u32::try_from(len).unwrap().to_be_bytes());
                parse(&bytes)
            };
            let len = bytes.len() - HEADER_LEN;
            if !has_rest {
                prop_assert_eq!(resized(len + cut), Err(Malformed::Trailing));
                if len >= cut {
                    prop_assert_eq!(resized(len - cut), Err(Malformed::Short));
                }
            }
        }

        #[test]
        fn any_bytes_are_taken_or_refused(
            kind in 0..8_u16, body in proptest::collection::vec(any::<u8>(), 0..100),
            header: [u8; HEADER_LEN], message in message(), at: usize, byte: u8,
        ) {
            let _ = Header::parse(&header);
            if let Ok(message) = Message::parse(Header { kind, len: body.len() }, &body) {
                prop_assert_eq!(parse(&message.emit()), Ok(message));
            }
            let mut bytes = message.emit();
            let at = at % bytes.len();
            bytes[at] = byte;
            if let Ok(message) = parse(&bytes) {
                prop_assert_eq!(parse(&message.emit()), Ok(message));
            }
        }
    }
}
