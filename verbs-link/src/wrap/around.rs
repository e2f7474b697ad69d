//! The wrapper of a link.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::ops::Range;

use verbs_core::host::HostPorts;
use verbs_core::sync::{Arc, Weak};
use verbs_core::{Mtu, Seed};

use crate::time::Due;
use crate::{
    Arrival, Burst, Change, Feedback, LinkCounters, Managed, PacketLink, Refusal, Route, Sent,
    Waiter,
};

/// A link around another one: it sees what is sent and what was received, and the link inside does the rest. Every
/// wrapper is a [`PacketLink`].
///
/// ```
/// use verbs_link::{Burst, Cable, CableEnd, PacketLink, Sent, Wrap};
///
/// /// Counts bursts.
/// #[derive(Debug)]
/// struct Counted {
///     link: CableEnd,
///     bursts: u64,
/// }
///
/// impl Wrap for Counted {
///     fn inner(&self) -> &dyn PacketLink {
///         &self.link
///     }
///     fn inner_mut(&mut self) -> &mut dyn PacketLink {
///         &mut self.link
///     }
///     fn transmit(&mut self, burst: &Burst<'_>) -> Sent {
///         self.bursts += 1;
///         self.link.transmit(burst)
///     }
/// }
///
/// let (link, _other) = Cable::new().plug(&["10.0.0.1".parse()?], &["10.0.0.2".parse()?]);
/// let mtu = link.mtu();
/// let link = Counted { link, bursts: 0 };
/// assert_eq!(PacketLink::mtu(&link), mtu);
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
pub trait Wrap: Send + fmt::Debug {
    /// The link inside.
    fn inner(&self) -> &dyn PacketLink;

    /// The link inside, to be used.
    fn inner_mut(&mut self) -> &mut dyn PacketLink;

    /// As [`PacketLink::transmit`].
    fn transmit(&mut self, burst: &Burst<'_>) -> Sent {
        self.inner_mut().transmit(burst)
    }

    /// As [`PacketLink::receive`].
    fn receive(&mut self, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
        self.inner_mut().receive(sink)
    }

    /// As [`PacketLink::waiter`].
    fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        self.inner().waiter()
    }
}

impl<W: Wrap> PacketLink for W {
    fn addresses(&self) -> &[IpAddr] {
        self.inner().addresses()
    }

    fn mtu(&self) -> Mtu {
        self.inner().mtu()
    }

    fn burst_limit(&self, route: &Route) -> usize {
        self.inner().burst_limit(route)
    }

    fn burst_bytes(&self) -> usize {
        self.inner().burst_bytes()
    }

    // `seals` is not passed on: what a wrapper sees is complete.

    fn transmit(&mut self, burst: &Burst<'_>) -> Sent {
        Wrap::transmit(self, burst)
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
        Wrap::receive(self, sink)
    }

    fn feedback(&mut self, route: &Route, news: Feedback) {
        self.inner_mut().feedback(route, news);
    }

    fn entropy(&mut self) -> u64 {
        self.inner_mut().entropy()
    }

    fn seed(&mut self) -> Seed {
        self.inner_mut().seed()
    }

    fn change(&mut self) -> Option<Change> {
        self.inner_mut().change()
    }

    fn refusal(&mut self) -> Option<Refusal> {
        self.inner_mut().refusal()
    }

    fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        Wrap::waiter(self)
    }

    fn attach(&mut self, listener: Weak<dyn Due>) {
        self.inner_mut().attach(listener);
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        self.inner_mut().join(group)
    }

    fn leave(&mut self, group: IpAddr) {
        self.inner_mut().leave(group);
    }

    fn fed(&mut self) -> Option<Arc<dyn Due>> {
        self.inner_mut().fed()
    }

    fn managed(&self) -> Option<Arc<dyn Managed>> {
        self.inner().managed()
    }

    fn numbers(&mut self, used: usize) -> Option<&[Range<u32>]> {
        self.inner_mut().numbers(used)
    }

    fn gone(&mut self) -> Option<Range<u32>> {
        self.inner_mut().gone()
    }

    fn host_ports(&self) -> Option<Arc<dyn HostPorts>> {
        self.inner().host_ports()
    }

    fn counters(&self) -> LinkCounters {
        self.inner().counters()
    }
}
