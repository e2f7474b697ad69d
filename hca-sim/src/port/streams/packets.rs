//! A port with streams has no packets.

use std::fmt;
use std::net::IpAddr;

use verbs_core::Mtu;
use verbs_core::sync::{Arc, Weak};

use super::Streams;
use super::making::OnStream;
use crate::engine::Due;
use crate::link::{Arrival, Burst, Change, Feedback, PacketLink, Route, Sent, Waiter};

/// What the driver of a port with streams has for a link: it only wakes the thread.
pub(crate) struct NoPackets<Q> {
    streams: Arc<Streams<Q>>,
    addresses: Vec<IpAddr>,
}

impl<Q: OnStream> NoPackets<Q> {
    pub(crate) fn new(streams: &Arc<Streams<Q>>) -> Self {
        Self {
            streams: Arc::clone(streams),
            addresses: streams.link.addresses(),
        }
    }
}

impl<Q: OnStream> PacketLink for NoPackets<Q> {
    fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// Messages are cut by the stream's segments; this is what queries tell.
    fn mtu(&self) -> Mtu {
        Mtu::B4096
    }

    fn burst_limit(&self, _route: &Route) -> usize {
        1
    }

    fn transmit(&mut self, _burst: &Burst<'_>) -> Sent {
        debug_assert!(false, "no machine of such a port makes packets");
        Sent::Gone
    }

    fn receive(&mut self, _sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
        0
    }

    fn feedback(&mut self, _route: &Route, _news: Feedback) {}

    fn entropy(&mut self) -> u64 {
        0
    }

    fn change(&mut self) -> Option<Change> {
        None
    }

    fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        self.streams.link.waiter()
    }

    fn attach(&mut self, listener: Weak<dyn Due>) {
        self.streams.link.attach(listener);
    }
}

impl<Q> fmt::Debug for NoPackets<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NoPackets")
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}
