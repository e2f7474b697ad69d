//! The events, and what is heard of them.

use std::fmt;

use crate::addr::Gid;
use crate::mad::TransactionId;
use crate::object::ObjectId;

macro_rules! events {
    ($($(#[$doc:meta])* $Event:ident = $number:literal, $name:literal;)*) => {
        /// What happened; numbers as `ibv_event_type`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum EventType { $($(#[$doc])* $Event = $number),* }

        impl EventType {
            /// Every event.
            pub const ALL: &'static [Self] = &[$(Self::$Event),*];
        }

        impl fmt::Display for EventType {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$Event => $name),* })
            }
        }
    };
}

events! {
    /// A completion queue lost completions; its queue pairs are in Error.
    CqErr = 0, "CQ error";
    /// A queue pair failed and is in Error.
    QpFatal = 1, "local work queue catastrophic error";
    /// The peer sent a request that cannot be right; the queue pair is in Error.
    QpReqErr = 2, "invalid request local work queue error";
    /// The peer reached for memory that it may not touch; the queue pair is in Error.
    QpAccessErr = 3, "local access violation work queue error";
    /// The first packet came on a queue pair that is not in RTS yet.
    CommEst = 4, "communication established";
    /// The send queue has drained in state SQD.
    SqDrained = 5, "send queue drained";
    /// The connection moved to its alternate path.
    PathMig = 6, "path migration successful";
    /// It could not.
    PathMigErr = 7, "path migration request error";
    /// The device has failed or was removed; nothing works on it any longer.
    DeviceFatal = 8, "local catastrophic error";
    /// A port's link is in service.
    PortActive = 9, "port active";
    /// A port's link is out of service.
    PortErr = 10, "port error";
    /// A port has another LID.
    LidChange = 11, "LID change";
    /// A port's P_Key table changed.
    PkeyChange = 12, "P_Key change";
    /// Another subnet manager is in charge.
    SmChange = 13, "SM change";
    /// A shared receive queue failed.
    SrqErr = 14, "SRQ catastrophic error";
    /// A shared receive queue fell below its limit.
    SrqLimitReached = 15, "SRQ limit reached";
    /// A queue pair on a shared receive queue has consumed its last receive.
    QpLastWqeReached = 16, "last WQE reached";
    /// The subnet manager asks clients to register again.
    ClientReregister = 17, "client reregistration";
    /// A port's GID table changed.
    GidChange = 18, "GID table change";
}

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// The device.
    Device,
    /// A port, numbered from 1.
    Port(u8),
    /// A queue pair, completion queue or shared receive queue.
    Object(ObjectId),
}

/// An asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// What happened.
    pub event: EventType,
    /// To what.
    pub subject: Subject,
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.subject {
            Subject::Device => write!(f, "{}", self.event),
            Subject::Port(port) => write!(f, "{} (port {port})", self.event),
            Subject::Object(id) => write!(f, "{} ({id})", self.event),
        }
    }
}

/// A management datagram that did not get to its queue pair: the destination's host refused it (ICMP
/// port unreachable, RFC 792 and RFC 4443). The report is a hint and no proof. It quotes the datagram, so
/// a host that has not seen the datagram cannot forge a report with its transaction id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undelivered {
    /// The port that it was sent from.
    pub port: u8,
    /// Where it was sent to.
    pub dgid: Gid,
    /// Its transaction id.
    pub tid: TransactionId,
}

/// Sees events besides the client; see [`DeviceCore::watch_events`](crate::device::DeviceCore::watch_events).
pub trait EventWatcher: Send + Sync {
    /// Runs under NoBlock, when the provider has raised the event.
    fn event(&self, event: AsyncEvent);

    /// The network reports that a management datagram was not delivered. This is no event of the client's.
    /// Runs under NoBlock.
    fn undelivered(&self, _mad: Undelivered) {}

    /// The device has been removed, and there are no events any longer. Runs under NoBlock.
    fn removed(&self) {}
}
