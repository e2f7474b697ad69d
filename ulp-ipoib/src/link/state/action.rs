//! The actions that follow from a change of the state, and the results of sending a packet.

use verbs_cm::Connection;
use verbs_core::Gid;

use crate::link::entry::group::Group;
use crate::wire::HardwareAddress;

/// Work to do under no lock.
pub(in crate::link) enum Action {
    /// Ask the administrator for a path.
    FindPath(Gid),
    /// Join a group.
    Join(Gid),
    /// Leave the group in the box.
    Leave(Box<Group>),
    /// Connect to a neighbour.
    Connect(HardwareAddress, verbs_cm::Route),
    /// End a connection.
    Hang(Connection),
    /// End a connection; its other end is not notified yet.
    Disconnect(u32),
    /// The queue pair for datagrams is broken.
    Restart,
    /// Wake a task that waits for a neighbour.
    Wake(std::task::Waker),
}

/// The result of sending a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::link) enum Verdict {
    /// It was posted, waits, or was dropped and counted.
    Taken,
    /// It must wait for a path.
    Waits,
    /// Its path takes only packets of that many bytes.
    TooBig(usize),
    /// The path has no room now.
    Full,
}
