//! Management datagrams that the device itself answers.

use std::fmt;

use crate::addr::{Lid, Qpn};
use crate::mad::{Address, MadBytes};
use crate::sync::Arc;

/// Bytes of a GRH, which precedes a datagram that came with one.
pub const GRH_LEN: usize = 40;

/// A management datagram that has come, as the device gets to see it.
#[derive(Clone, Copy, Debug)]
pub struct MadArrival<'a> {
    /// The special queue pair it came to: 0 for subnet management, 1 for the general services.
    pub qpn: Qpn,
    /// The port it came to, from 1.
    pub port: u8,
    /// LID of the port it came from; 0 where there are none.
    pub slid: Lid,
    /// Service level it came with.
    pub sl: u8,
    /// The sender's queue pair.
    pub src_qpn: Qpn,
    /// Index of its partition in the port's P_Key table.
    pub pkey_index: u16,
    /// Its GRH, if it had one; of a packet over IPv4, the IP header is in the last 20 bytes.
    pub grh: Option<&'a [u8; GRH_LEN]>,
    /// The datagram.
    pub mad: &'a MadBytes,
    /// What takes a reply that comes later.
    pub later: Later<'a>,
}

/// What takes the replies of datagrams that a device answers later.
pub(crate) trait ReplySink: Send + Sync {
    /// The reply goes back to the requester, or there is none.
    fn settle(&self, to: Address, reply: Option<&MadBytes>);
}

/// Whether a datagram can be answered later, and how.
#[derive(Clone, Copy, Default)]
pub struct Later<'a>(Option<&'a (dyn Fn() -> Option<MadReply> + Sync)>);

impl<'a> Later<'a> {
    pub(crate) fn new(reply: &'a (dyn Fn() -> Option<MadReply> + Sync)) -> Self {
        Self(Some(reply))
    }

    /// Takes the datagram's answer over: the device replies when it knows the answer, from any thread, and says
    /// [`MadVerdict::Later`] now.
    ///
    /// `None`: as many datagrams as the service allows ([`LATER_MAX`]) wait for their replies already, or the caller
    /// takes no later ones. Answer at once then, or let the datagram go; the requester repeats it.
    pub fn take(self) -> Option<MadReply> {
        self.0.and_then(|reply| reply())
    }
}

impl fmt::Debug for Later<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Later({})", self.0.is_some())
    }
}

/// Datagrams of one port that may wait for their device's reply at a time: more than a subnet manager has under way to
/// one port, and few enough to be kept.
pub const LATER_MAX: usize = 128;

/// The right to answer a datagram later. Dropped, it leaves the datagram without an answer.
#[must_use = "a reply that is dropped leaves the datagram without an answer"]
pub struct MadReply {
    sink: Arc<dyn ReplySink>,
    to: Address,
    is_open: bool,
}

impl MadReply {
    pub(crate) fn new(sink: Arc<dyn ReplySink>, to: Address) -> Self {
        Self {
            sink,
            to,
            is_open: true,
        }
    }

    /// Sends the reply, all 256 bytes of it, back to where the datagram came from. Never blocks; legal in routines, and
    /// without effect when the device has gone.
    pub fn send(mut self, reply: &MadBytes) {
        self.is_open = false;
        self.sink.settle(self.to, Some(reply));
    }
}

impl Drop for MadReply {
    fn drop(&mut self) {
        if self.is_open {
            self.sink.settle(self.to, None);
        }
    }
}

impl fmt::Debug for MadReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MadReply({:?})", self.to)
    }
}

/// What the device has made of a management datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a reply has to be sent, and a datagram that the device did not want goes to others"]
pub enum MadVerdict {
    /// The reply is written, all 256 bytes of it: send it back to where the datagram came from.
    Reply,
    /// The datagram was the device's, and needs no answer.
    Consumed,
    /// The device answers later, by the [`MadReply`] that it has [taken](Later::take).
    Later,
    /// The datagram is not for this agent; the reply was not touched.
    NotMine,
}
