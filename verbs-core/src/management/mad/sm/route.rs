//! Directed routes: where a datagram is on its path, in the datagram (IBTA vol. 1, 14.2.1.2).

use crate::mad::header::{MadBytes, Status, header_of};

/// Bytes of each path.
pub const PATH_LEN: usize = 64;

/// Hops that a path has at most: byte 0 of a path is not used.
pub const HOPS_MAX: u8 = 63;

/// The bit of the status that says that a datagram is on its way back.
pub const DIRECTION: Status = Status::from_bits_retain(0x8000);

/// Where the status, the hop pointer and count, and the two paths stand.
const STATUS_AT: usize = 4;
const POINTER_AT: usize = 6;
const COUNT_AT: usize = 7;
const INITIAL_AT: usize = 128;
const RETURN_AT: usize = 192;

/// How far a directed datagram is on its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hops {
    /// Where it is: 0 at the requester.
    pub pointer: u8,
    /// Hops of the path.
    pub count: u8,
    /// Whether it is on its way back.
    pub returns: bool,
}

impl Hops {
    /// What the datagram says.
    pub fn of(mad: &MadBytes) -> Self {
        let [pointer, count] = header_of(mad).class_specific().to_be_bytes();
        Self {
            pointer,
            count,
            returns: header_of(mad).status().contains(DIRECTION),
        }
    }

    /// Writes pointer, count and direction into the datagram, and nothing else.
    pub fn put(self, mad: &mut MadBytes) {
        for (at, value) in [(POINTER_AT, self.pointer), (COUNT_AT, self.count)] {
            if let Some(byte) = mad.get_mut(at) {
                *byte = value;
            }
        }
        if let Some(byte) = mad.get_mut(STATUS_AT) {
            *byte = *byte & 0x7f | u8::from(self.returns) << 7;
        }
    }

    /// The port that hop `hop` leaves through.
    pub fn initial(mad: &MadBytes, hop: u8) -> Option<u8> {
        path_byte(mad, INITIAL_AT, hop)
    }

    /// The port that hop `hop` came in through, which is the way back.
    pub fn back(mad: &MadBytes, hop: u8) -> Option<u8> {
        path_byte(mad, RETURN_AT, hop)
    }

    /// Notes the port that hop `hop` came in through.
    pub fn note_back(mad: &mut MadBytes, hop: u8, port: u8) {
        put_path_byte(mad, RETURN_AT, hop, port);
    }

    /// Writes the ports to leave through, hop by hop, and their number; `None`, with nothing
    /// written, when there are more than [`HOPS_MAX`].
    pub fn put_path(mad: &mut MadBytes, ports: &[u8]) -> Option<()> {
        let count = u8::try_from(ports.len()).ok().filter(|&n| n <= HOPS_MAX)?;
        Self {
            pointer: 0,
            count,
            returns: false,
        }
        .put(mad);
        for (hop, &port) in (1..=HOPS_MAX).zip(ports) {
            put_path_byte(mad, INITIAL_AT, hop, port);
        }
        Some(())
    }
}

fn path_byte(mad: &MadBytes, path: usize, hop: u8) -> Option<u8> {
    (hop <= HOPS_MAX)
        .then(|| mad.get(path + usize::from(hop)).copied())
        .flatten()
}

fn put_path_byte(mad: &mut MadBytes, path: usize, hop: u8, port: u8) {
    if hop <= HOPS_MAX
        && let Some(byte) = mad.get_mut(path + usize::from(hop))
    {
        *byte = port;
    }
}
