//! Negotiation: what client and server agree on before the first request.

use std::io::{self, Read, Write};

use super::Shape;

const MAGIC: &[u8; 8] = b"NBDMAGIC";
const OPTION: &[u8; 8] = b"IHAVEOPT";
const REPLY: u64 = 0x0003_e889_0455_65a9;

const FIXED_NEWSTYLE: u16 = 1;
const NO_ZEROES: u16 = 2;

/// Bytes of an option at most: a name of 4 KiB and what is around it.
const OPTION_BYTES_MAX: u32 = 8192;

/// Options of clients.
mod option {
    pub(super) const EXPORT_NAME: u32 = 1;
    pub(super) const ABORT: u32 = 2;
    pub(super) const LIST: u32 = 3;
    pub(super) const INFO: u32 = 6;
    pub(super) const GO: u32 = 7;
}

/// Replies to options.
mod reply {
    pub(super) const ACK: u32 = 1;
    pub(super) const SERVER: u32 = 2;
    pub(super) const INFO: u32 = 3;
    pub(super) const UNSUPPORTED: u32 = 0x8000_0001;
    pub(super) const POLICY: u32 = 0x8000_0002;
    pub(super) const INVALID: u32 = 0x8000_0003;
}

/// Transmission flags.
mod can {
    pub(super) const FLAGS: u16 = 1;
    pub(super) const READ_ONLY: u16 = 1 << 1;
    pub(super) const FLUSH: u16 = 1 << 2;
    pub(super) const FUA: u16 = 1 << 3;
    pub(super) const TRIM: u16 = 1 << 5;
    pub(super) const ZEROES: u16 = 1 << 6;
    pub(super) const MULTI_CONN: u16 = 1 << 8;
}

/// How a negotiation ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Agreed {
    /// Requests follow.
    Transmission,
    /// The client has gone.
    Nothing,
}

/// Speaks with a client until requests follow, or it goes. The name of the export does not matter: there is
/// one.
pub(super) fn negotiate(
    from: &mut impl Read,
    to: &mut impl Write,
    shape: &Shape,
) -> io::Result<Agreed> {
    let zeroes = greet(from, to)? & u32::from(NO_ZEROES) == 0;
    loop {
        let (option, data) = next_option(from)?;
        let len = data.len();
        let mut answer = |kind, content: &[u8]| answer(to, option, kind, content);
        match option {
            option::EXPORT_NAME => {
                to.write_all(&export(shape))?;
                if zeroes {
                    to.write_all(&[0; 124])?;
                }
                to.flush()?;
                return Ok(Agreed::Transmission);
            }
            option::ABORT => {
                // The client need not wait for it.
                let _ = answer(reply::ACK, &[]).and_then(|()| to.flush());
                return Ok(Agreed::Nothing);
            }
            option::LIST if len > 0 => answer(reply::INVALID, &[])?,
            option::LIST => {
                answer(reply::SERVER, &[0; 4])?;
                answer(reply::ACK, &[])?;
            }
            option::INFO | option::GO if !is_info(&data) => answer(reply::INVALID, &[])?,
            option::INFO | option::GO => {
                answer(reply::INFO, &[&[0, 0], &export(shape)[..]].concat())?;
                answer(reply::INFO, &blocks(shape))?;
                answer(reply::ACK, &[])?;
            }
            _ => answer(reply::UNSUPPORTED, &[])?,
        }
        to.flush()?;
        if option == option::GO && is_info(&data) {
            return Ok(Agreed::Transmission);
        }
    }
}

/// Answers whatever a client wants with that text, until it goes; a client that wants an export at once is left without
/// a word, as there is none for that.
pub(super) fn refuse(from: &mut impl Read, to: &mut impl Write, text: &str) -> io::Result<()> {
    greet(from, to)?;
    loop {
        let (option, _) = next_option(from)?;
        match option {
            option::EXPORT_NAME => return Ok(()),
            option::ABORT => return answer(to, option, reply::ACK, &[]).and_then(|()| to.flush()),
            _ => answer(to, option, reply::POLICY, text.as_bytes())?,
        }
        to.flush()?;
    }
}

/// Says what this is; the client's flags.
fn greet(from: &mut impl Read, to: &mut impl Write) -> io::Result<u32> {
    to.write_all(MAGIC)?;
    to.write_all(OPTION)?;
    to.write_all(&(FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes())?;
    to.flush()?;
    let flags = u32::from_be_bytes(take(from)?);
    match flags & u32::from(FIXED_NEWSTYLE) {
        0 => Err(foreign("the client is too old")),
        _ => Ok(flags),
    }
}

/// What the client wants next, and its data.
fn next_option(from: &mut impl Read) -> io::Result<(u32, Vec<u8>)> {
    if take::<8>(from)? != *OPTION {
        return Err(foreign("no option"));
    }
    let option = u32::from_be_bytes(take(from)?);
    let len = u32::from_be_bytes(take(from)?);
    if len > OPTION_BYTES_MAX {
        return Err(foreign("a very long option"));
    }
    let mut data = vec![0; len as usize];
    from.read_exact(&mut data)?;
    Ok((option, data))
}

/// Size, and what can be done.
fn export(shape: &Shape) -> [u8; 10] {
    let mut flags = can::FLAGS | can::FLUSH | can::FUA | can::ZEROES | can::MULTI_CONN;
    if shape.can_trim {
        flags |= can::TRIM;
    }
    if shape.read_only {
        flags |= can::READ_ONLY;
    }
    let mut bytes = [0; 10];
    bytes[..8].copy_from_slice(&shape.size.to_be_bytes());
    bytes[8..].copy_from_slice(&flags.to_be_bytes());
    bytes
}

/// What requests should be like.
fn blocks(shape: &Shape) -> [u8; 14] {
    let mut bytes = [0; 14];
    bytes[1] = 3;
    let numbers = [shape.block, shape.preferred, shape.max];
    for (at, number) in numbers.iter().enumerate() {
        bytes[2 + 4 * at..6 + 4 * at].copy_from_slice(&number.to_be_bytes());
    }
    bytes
}

/// Whether that is a name and a list of what is to be told.
fn is_info(data: &[u8]) -> bool {
    let Some((len, rest)) = data.split_first_chunk::<4>() else {
        return false;
    };
    let len = u32::from_be_bytes(*len) as usize;
    let Some((count, list)) = rest.get(len..).and_then(<[u8]>::split_first_chunk::<2>) else {
        return false;
    };
    list.len() == 2 * usize::from(u16::from_be_bytes(*count))
}

fn answer(to: &mut impl Write, option: u32, kind: u32, content: &[u8]) -> io::Result<()> {
    to.write_all(&REPLY.to_be_bytes())?;
    to.write_all(&option.to_be_bytes())?;
    to.write_all(&kind.to_be_bytes())?;
    // Content of ours is short.
    to.write_all(&(content.len() as u32).to_be_bytes())?;
    to.write_all(content)
}

/// The next bytes.
pub(super) fn take<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The client does not speak the protocol.
pub(super) fn foreign(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
