//! Why a copy failed, each with the exit code it ends in.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use blake3::Hash;
use verbs_core::{Error, Gid, PostError, WcStatus};

use super::remote::{Cause, Message};
use super::window::Breach;
use crate::cli::Fault;
use crate::exit;
use crate::net::NetError;
use crate::places::Full;
use crate::wire::WireError;

/// Why a copy failed. Each is one sentence without its full stop.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyError {
    // --- the files ---
    /// The system refused something.
    #[error("cannot {doing} {}: {error}", path.display())]
    File {
        doing: &'static str,
        path: PathBuf,
        error: io::Error,
    },
    /// A path names something that a copy cannot start from or end in.
    #[error("{} is {what}; {right}", path.display())]
    Unfit {
        path: PathBuf,
        what: &'static str,
        right: &'static str,
    },
    /// Both paths name one file.
    #[error("{} and {} are the same file; name another target", src.display(), dst.display())]
    SameFile { src: PathBuf, dst: PathBuf },
    /// A file of that name was made in the meantime.
    #[error(
        "{} was created by another program during the copy and is left as that made it; nothing was copied to it",
        .0.display()
    )]
    Appeared(PathBuf),
    /// The copy is complete and has its name, which a power failure may take from it again.
    #[error("{} is complete, but its name is not yet safe on disk: {error}", path.display())]
    NotDurable { path: PathBuf, error: io::Error },

    // --- the arguments, known to be wrong only now ---
    /// The fault names a chunk that the file does not have.
    #[error(
        "--fault {fault} cannot happen: {} has {chunks} chunks, so N is at most {max}",
        path.display()
    )]
    NoSuchChunk {
        fault: Fault,
        path: PathBuf,
        chunks: u64,
        max: u64,
    },
    /// There is no chunk that a fault could strike.
    #[error("--fault {fault} cannot happen: {} is empty and has no chunks", path.display())]
    NoChunks { fault: Fault, path: PathBuf },
    /// The device cannot do what the arguments ask for.
    #[error("{option} {got} is more than the {end} can do; at most {max} would be right")]
    BeyondDevice {
        option: &'static str,
        got: u64,
        end: End,
        max: u64,
    },
    /// The buffers do not fit the machine.
    #[error(
        "--chunk and --window ask for {slots} buffers of {chunk} bytes at each of two ends; \
         half the machine's {machine} bytes of memory is the most for one end"
    )]
    Buffers {
        slots: u32,
        chunk: u32,
        machine: u64,
    },

    // --- what was copied ---
    /// What arrived is not what was sent.
    #[error(
        "digest mismatch: {} has blake3 {sent}, but what arrived has {arrived}", path.display()
    )]
    Mismatch {
        path: PathBuf,
        sent: Hash,
        arrived: Hash,
    },
    /// The source is not what it was when the copy began.
    #[error("{} changed while it was being copied: {change}", path.display())]
    Changed { path: PathBuf, change: Change },

    // --- the devices ---
    /// A verb failed.
    #[error("{end}: cannot {doing}: {error}")]
    Verb {
        end: End,
        doing: &'static str,
        error: Error,
    },
    /// A work request was not accepted.
    #[error("{end}: cannot post {doing}: {error}")]
    Post {
        end: End,
        doing: &'static str,
        error: PostError,
    },
    /// A work request ended badly.
    #[error("{end}: {what} ended with \"{status}\" ({} in ibv_wc_status)", *status as u8)]
    Completion {
        end: End,
        what: String,
        status: WcStatus,
    },
    /// The device has gone.
    #[error("the {end} was removed when {arrived} of {chunks} chunks had arrived")]
    Removed { end: End, arrived: u64, chunks: u64 },

    // --- the other host ---
    /// The connection over which the ends find each other failed.
    #[error(transparent)]
    Net(#[from] NetError),
    /// No device could be had on the wire.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The peer ended while the copy was under way.
    #[error("the {end} went away when {done} of {chunks} chunks were through: {error}")]
    PeerGone {
        end: End,
        done: u64,
        chunks: u64,
        error: NetError,
    },
    /// The peer is there but does nothing.
    #[error(
        "the {end} has done nothing for {seconds} s when {done} of {chunks} chunks were through"
    )]
    Stuck {
        end: End,
        seconds: u64,
        done: u64,
        chunks: u64,
    },
    /// The peer says why it cannot go on.
    #[error("the {end} says: {}", printable(text))]
    Said {
        end: End,
        cause: Cause,
        text: String,
    },
    /// The peer said something at the wrong time.
    #[error("the {end} sent {} when it was not its turn", got.name())]
    OutOfTurn { end: End, got: Box<Message> },
    /// The peer offers what was not asked for.
    #[error("the {end} {what}")]
    Offer { end: End, what: &'static str },
    /// A server that captures must know its addresses.
    #[error("--pcap needs to know the addresses: name them with --bind, or one with --listen")]
    CaptureOfAny,
    /// Clients came to too many addresses.
    #[error("clients came to {0} addresses of this host, which is the most; --bind names more")]
    ManyAddresses(usize),
    /// Too many others are being served.
    #[error(transparent)]
    Full(Full),
    /// Others wanted the place.
    #[error("it did nothing, and gave its place to others")]
    GaveWay,
    /// What is to get the data does not answer.
    #[error(
        "no device answers at {}, where the data is to go; the {end} is at another address",
        IpAddr::from(*gid)
    )]
    Unproven { end: End, gid: Gid },
    /// No address of ours fits the peer's.
    #[error("no address here reaches {}; --bind adds one of the same family", IpAddr::from(*peer))]
    NoRoute { peer: Gid },
    /// The system does not tell signals.
    #[error("cannot be told of INT and TERM: {0}")]
    Signals(io::Error),
    /// The system gives no random numbers.
    #[error("cannot draw a packet sequence number: {0}")]
    Random(io::Error),
    /// An option that needs a wire, or must not have one.
    #[error("{option} is of use only when SRC {when}")]
    Useless {
        option: &'static str,
        when: &'static str,
    },

    // --- ourselves ---
    /// One end said something that it cannot mean.
    #[error("{end}: {breach} (a defect of a program or a device)")]
    Protocol { end: End, breach: Breach },
    /// A message that neither end sends.
    #[error("{end}: a message of {len} bytes arrived that nobody sends (a defect of the device)")]
    Message { end: End, len: u32 },
    /// The fault that was asked for left no trace.
    #[error(
        "--fault {0} was asked for, but the copy went through undamaged (a defect of the device)"
    )]
    FaultMissed(Fault),
}

/// What a peer says, without what a terminal would obey.
fn printable(text: &str) -> String {
    let quotes = |c| matches!(c, '\'' | '"' | '\\');
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if quotes(c) => shown.push(c),
            c => shown.extend(c.escape_debug()),
        }
    }
    shown
}

/// How the source changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It ended before its size.
    Ended { at: u64, size: u64 },
    /// There is something behind its end.
    Grew { size: u64 },
    /// It has another size.
    Size { was: u64, is: u64 },
    /// It was written to.
    Modified,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended { at, size } => write!(f, "it had {size} bytes and now ends at byte {at}"),
            Self::Grew { size } => write!(
                f,
                "there is more in it than the {size} bytes that it said it had"
            ),
            Self::Size { was, is } => write!(f, "it had {was} bytes and now has {is}"),
            Self::Modified => write!(f, "it was written to (its time of modification is another)"),
        }
    }
}

/// Which of the two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Source,
    Destination,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Source => "source device",
            Self::Destination => "destination device",
        })
    }
}

impl CopyError {
    /// What the process ends with.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::File { .. }
            | Self::Unfit { .. }
            | Self::SameFile { .. }
            | Self::Appeared(_)
            | Self::NotDurable { .. }
            | Self::Net(_)
            | Self::ManyAddresses(_)
            | Self::Full(_)
            | Self::GaveWay
            | Self::Wire(_) => exit::FILES,
            Self::NoSuchChunk { .. }
            | Self::NoChunks { .. }
            | Self::BeyondDevice { .. }
            | Self::Buffers { .. }
            | Self::NoRoute { .. }
            | Self::Useless { .. }
            | Self::CaptureOfAny => exit::USAGE,
            Self::Said { cause, .. } => cause.exit_code(),
            Self::Mismatch { .. } => exit::DIGEST,
            Self::Changed { .. } => exit::CHANGED,
            Self::Verb { .. }
            | Self::Post { .. }
            | Self::Completion { .. }
            | Self::Removed { .. }
            | Self::Protocol { .. }
            | Self::Message { .. }
            | Self::PeerGone { .. }
            | Self::Stuck { .. }
            | Self::OutOfTurn { .. }
            | Self::Unproven { .. }
            | Self::Offer { .. }
            | Self::Random(_)
            | Self::Signals(_)
            | Self::FaultMissed(_) => exit::DEVICE,
        }
    }

    /// Whether the target is as it was before, and the error does not say yet what became of it.
    pub(crate) fn spares_target(&self) -> bool {
        !matches!(self, Self::NotDurable { .. } | Self::Appeared(_))
    }

    /// Whether a device may be behind it, so that it is worth asking the devices.
    pub(crate) fn is_of_device(&self) -> bool {
        self.exit_code() == exit::DEVICE
    }
}
