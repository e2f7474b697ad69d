//! What follows from a change of the state, and what became of a packet.

use verbs_cm::Connection;
use verbs_core::Gid;

use crate::link::entry::group::Group;
use crate::wire::HardwareAddress;

/// What is done under no lock.
pub(in crate::link) enum Action {
    /// Ask the administrator for a path.
    FindPath(Gid),
    /// Join a group.
    Join(Gid),
    /// Leave what is in there.
    Leave(Box<Group>),
    /// Connect to a neighbour.
    Connect(HardwareAddress, verbs_cm::Route),
    /// End a connection.
    Hang(Connection),
    /// End a connection whose other end still has to see it.
    Disconnect(u32),
    /// The queue pair for datagrams is broken.
    Restart,
    /// Somebody waits for a neighbour.
    Wake(std::task::Waker),
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::link) enum Verdict {
    /// It was posted, waits, or was dropped and counted.
    Taken,
    /// It has to wait for a path.
    Waits,
    /// Its way takes only packets of that many bytes.
    TooBig(usize),
    /// The way has no room at this moment.
    Full,
}
