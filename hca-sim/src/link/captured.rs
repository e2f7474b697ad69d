//! A link whose packets are written to a file that Wireshark reads.

use std::fmt;
use std::io::{self, Write};
use std::net::IpAddr;
use std::time::Duration;

use verbs_core::Mtu;
use verbs_core::sync::Arc;

use crate::clock::Clock;
use crate::link::pcap::PcapWriter;
use crate::link::{
    Arrival, Burst, Change, Feedback, Ident, LinkCounters, PacketLink, Route, Sent, Waiter,
};
use crate::wire::{Envelope, Net, ROCE_PORT, Seal};

/// A link with a capture of all that it sends and receives, IP and UDP headers included.
///
/// The headers are those on the wire as far as a socket tells: a hidden identification is solved for,
/// but hop limits of received packets are written as 64, flow labels as 0 and UDP checksums as none.
/// What a link refuses for want of room is not written; what it loses is.
///
/// When the sink fails, the capture ends, the link goes on, and [`Captured::finish`] tells.
pub struct Captured<L, W: Write> {
    link: L,
    capture: Capture<W>,
}

impl<L: PacketLink, W: Write + Send> Captured<L, W> {
    /// Captures the packets of `link`. They are stamped with the time of `clock`, which started so
    /// long after the Unix epoch.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use hca_sim::clock::{Clock, VirtualClock};
    /// use hca_sim::link::pcap::{LinkType, PcapWriter};
    /// use hca_sim::link::{Cable, Captured};
    ///
    /// let (link, _other_end) = Cable::new().plug(&["10.0.0.1".parse()?], &["10.0.0.2".parse()?]);
    /// let pcap = PcapWriter::new(Vec::new(), LinkType::RawIp)?;
    /// let link = Captured::new(link, pcap, VirtualClock::new().into(), Duration::ZERO);
    /// let (_link, file) = link.finish();
    /// assert_eq!(file?.len(), 24, "the header of an empty capture");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(link: L, pcap: PcapWriter<W>, clock: Clock, epoch: Duration) -> Self {
        let capture = Capture {
            pcap: Ok(pcap),
            clock,
            epoch,
        };
        Self { link, capture }
    }

    /// The link again, and the capture's sink, or why it ended early.
    pub fn finish(self) -> (L, io::Result<W>) {
        (self.link, self.capture.pcap.and_then(PcapWriter::finish))
    }
}

struct Capture<W> {
    pcap: io::Result<PcapWriter<W>>,
    clock: Clock,
    epoch: Duration,
}

impl<W: Write> Capture<W> {
    fn write(&mut self, envelope: &Envelope, packet: &[u8]) {
        let at = self
            .epoch
            .saturating_add(Duration::from_nanos(self.clock.now().as_nanos()));
        if let Ok(pcap) = &mut self.pcap
            && let Err(error) = pcap.roce(at, envelope, &[packet])
        {
            tracing::warn!(%error, "the capture ends here");
            self.pcap = Err(error);
        }
    }

    fn sent(&mut self, burst: &Burst<'_>) {
        let Route {
            src,
            dst,
            tclass,
            hop_limit,
        } = burst.route;
        for (k, packet) in (0..).zip(burst.packets()) {
            if let Some(mut envelope) = envelope(src, dst, ROCE_PORT, k, true) {
                envelope.traffic_class = tclass;
                envelope.hop_limit = hop_limit;
                self.write(&envelope, packet);
            }
        }
    }

    fn came(&mut self, arrival: &Arrival<'_>) {
        let Arrival {
            src, dst, sport, ..
        } = *arrival;
        let (identification, dont_fragment) = match arrival.ident {
            Ident::Known(identification) => (identification, true),
            Ident::Hidden => Seal::new(src, dst, sport)
                .and_then(|seal| seal.solve(arrival.bytes))
                .map_or((0, true), |found| {
                    (found.identification, found.dont_fragment)
                }),
        };
        if let Some(mut envelope) = envelope(src, dst, sport, identification, dont_fragment) {
            envelope.traffic_class = arrival.tclass;
            self.write(&envelope, arrival.bytes);
        }
    }
}

/// Headers between these addresses; `None` if only one of them is IPv4.
fn envelope(
    src: IpAddr,
    dst: IpAddr,
    sport: u16,
    identification: u16,
    dont_fragment: bool,
) -> Option<Envelope> {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Envelope {
            net: Net::V4 {
                src,
                dst,
                identification,
                dont_fragment,
            },
            ..Envelope::v4(src, dst, sport)
        }),
        (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Envelope::v6(src, dst, sport)),
        _ => None,
    }
}

impl<L: PacketLink, W: Write + Send> PacketLink for Captured<L, W> {
    fn addresses(&self) -> &[IpAddr] {
        self.link.addresses()
    }

    fn mtu(&self) -> Mtu {
        self.link.mtu()
    }

    fn burst_limit(&self, route: &Route) -> usize {
        self.link.burst_limit(route)
    }

    fn transmit(&mut self, burst: &Burst<'_>) -> Sent {
        let sent = self.link.transmit(burst);
        if sent == Sent::Gone {
            self.capture.sent(burst);
        }
        sent
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
        let Self { link, capture } = self;
        link.receive(&mut |arrival| {
            capture.came(arrival);
            sink(arrival);
        })
    }

    fn feedback(&mut self, route: &Route, news: Feedback) {
        self.link.feedback(route, news);
    }

    fn entropy(&mut self) -> u64 {
        self.link.entropy()
    }

    fn change(&mut self) -> Option<Change> {
        self.link.change()
    }

    fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        self.link.waiter()
    }

    fn counters(&self) -> LinkCounters {
        self.link.counters()
    }
}

impl<L: fmt::Debug, W: Write> fmt::Debug for Captured<L, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Captured")
            .field("link", &self.link)
            .field("is_capturing", &self.capture.pcap.is_ok())
            .finish()
    }
}
