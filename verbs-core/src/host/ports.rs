//! Port numbers of the host, as a client's connection manager asks for them.

use std::fmt;
use std::net::IpAddr;

use crate::host::bytes::{Encode, Malformed, Reader, encode};
use crate::host::quota::QuotaError;

/// A port number, of the host's port space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Service {
    /// The service id that connections to it ask for.
    pub id: u64,
    /// At which address; `None` for all.
    pub addr: Option<IpAddr>,
}

impl Service {
    /// Whether a request to one of them may mean the other.
    pub fn overlaps(&self, other: &Self) -> bool {
        let same = |(one, other)| one == other;
        self.id == other.id && self.addr.zip(other.addr).is_none_or(same)
    }
}

/// Why a client gets no port number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotListening {
    /// A program of the host has it, perhaps this one.
    #[error("another program of the host listens there")]
    InUse,
    /// As many as it may have.
    #[error("{0}")]
    Quota(QuotaError),
    /// The daemon has gone. Not said on the line.
    #[error("the host's daemon has gone; `verbs host` starts one")]
    HostLost,
}

/// Told what became of a [`HostPorts::listen`].
pub type Listened = Box<dyn FnOnce(Result<(), NotListening>) + Send>;

/// The port numbers that all processes of a host have together. A provider whose port is shared with other processes
/// [has one](crate::Provider::host_ports).
///
/// Nothing here waits.
pub trait HostPorts: Send + Sync + fmt::Debug {
    /// From its answer on, requests for that service come to this process. `done` is called once, later or at once, under
    /// NoBlock.
    fn listen(&self, service: Service, done: Listened);

    /// They do not any longer. Only after a listen that succeeded.
    fn unlisten(&self, service: Service);
}

encode! {
    struct Service { id, addr }
}

impl Encode for NotListening {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::InUse => 1_u16.put(out),
            Self::Quota(error) => {
                2_u16.put(out);
                error.put(out);
            }
            Self::HostLost => 3_u16.put(out),
        }
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        match from.read::<u16>()? {
            1 => Ok(Self::InUse),
            2 => from.read().map(Self::Quota),
            3 => Ok(Self::HostLost),
            got => Err(Malformed::Unknown {
                what: "reason",
                got: got.into(),
            }),
        }
    }
}
