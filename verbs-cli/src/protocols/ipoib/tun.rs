//! A TUN device in front of an interface.
//!
//! What comes from the subnet is written to the device where it arrives, in the handler of the completion;
//! what the system sends is read by the program's one loop. Neither way hands a packet to another thread.
//!
//! The device has `IFF_VNET_HDR`: one call may carry many packets of TCP or UDP, see [`ulp_ipoib::offload`].

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::task::Wake;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use tun_rs::{DeviceBuilder, SyncDevice};
use ulp_ipoib::offload::{Head, Join, Split, VNET_LEN, VnetHeader};
use ulp_ipoib::{Batch, Face, Interface, LinkInfo, SendError};
use verbs_core::Bounce;
use verbs_core::sync::{Arc, Mutex};

use super::args::Cidr;

/// Packets that are sent in a row from one device, before others have their turn. The last ones read may be as many as
/// one packet of the system stands for.
const LOT: usize = 64;

/// Packets of the system that wait to be read; beyond that, it drops them. The program may not run for some milliseconds
/// where others want the processor, and the system's default of 500 packets is sent in less.
const QUEUE: u32 = 2048;

/// Bytes of a packet of the system at most, with the device's header.
const PACKET_MAX: usize = VNET_LEN + 40 + u16::MAX as usize;

/// What happens to interfaces, for a loop that waits for descriptors.
pub(super) struct News(OwnedFd);

impl News {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        Ok(Arc::new(Self(eventfd(0, flags)?)))
    }

    fn tell(&self) {
        // It is full only after 2^64 wakes without a look.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Has it all seen to.
    pub(super) fn take(&self) {
        // There may be none.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

/// A task that waits on it is the loop that takes it.
impl Wake for News {
    fn wake(self: Arc<Self>) {
        self.tell();
    }
}

impl AsFd for News {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The system's side of an interface.
pub(super) struct Tun {
    pub(super) name: String,
    device: Arc<SyncDevice>,
    face: Arc<TunFace>,
    packet: Bounce,
    /// The packet that was read, and what of it found no room.
    held: Option<Held>,
    head: Head,
}

/// A packet behind the device's header.
struct Held {
    len: usize,
    split: Split,
}

/// What the interface sees of it.
pub(super) struct TunFace {
    device: Arc<SyncDevice>,
    news: Arc<News>,
    link: Mutex<Option<LinkInfo>>,
    /// Received packets that may be given to the system as one.
    join: Mutex<Join>,
}

impl Tun {
    /// Makes a device with those addresses.
    pub(super) fn new(name: &str, addresses: &[Cidr], news: &Arc<News>) -> io::Result<Self> {
        let builder = DeviceBuilder::new().name(name).mtu(1500);
        let mut builder = builder.with(|linux| {
            linux.offload(true);
        });
        for &(addr, len) in addresses {
            builder = match addr {
                std::net::IpAddr::V4(addr) => builder.ipv4(addr, len, None),
                std::net::IpAddr::V6(addr) => builder.ipv6(addr, len),
            };
        }
        let device = builder.build_sync()?;
        device.set_nonblocking(true)?;
        device.set_tx_queue_len(QUEUE)?;
        let device = Arc::new(device);
        Ok(Self {
            name: name.to_owned(),
            face: Arc::new(TunFace {
                device: Arc::clone(&device),
                news: Arc::clone(news),
                link: Mutex::new(None),
                join: Mutex::new(Join::new(device.udp_gso())),
            }),
            device,
            packet: Bounce::new(PACKET_MAX),
            held: None,
            head: Head::default(),
        })
    }

    pub(super) fn face(&self) -> Arc<dyn Face> {
        Arc::<TunFace>::clone(&self.face)
    }

    /// Whether it is to be read from: not while a packet of it waits for room.
    pub(super) fn reads(&self) -> bool {
        self.held.is_none()
    }

    /// The link's last change, if there was one since the last time. The device has its MTU then.
    pub(super) fn link_change(&self) -> io::Result<Option<LinkInfo>> {
        let change = self.face.link.lock().take();
        if let Some(link) = change.filter(|link| link.is_up) {
            let mtu = u16::try_from(link.mtu).unwrap_or(u16::MAX);
            self.device.set_mtu(mtu)?;
        }
        Ok(change)
    }

    /// Carries what the system has sent to the interface.
    pub(super) fn carry(&mut self, interface: &Interface) -> io::Result<()> {
        // What the system has sent in a row leaves in a row.
        let mut batch = interface.batch();
        let mut sent = 0;
        while sent < LOT {
            if self.held.is_none() {
                match self.read() {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
            match self.send(&mut batch) {
                Some(packets) => sent += packets,
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Reads a packet. One that makes no sense is lost, as on any network.
    fn read(&mut self) -> io::Result<()> {
        let len = self.device.recv(&mut self.packet)?;
        let bytes = self.packet.get_mut(..len).unwrap_or_default();
        let begun = VnetHeader::split(bytes)
            .and_then(|(header, packet)| Split::begin(&header, packet))
            .inspect_err(|error| tracing::debug!(%error, "a packet of the system is lost"));
        self.held = begun.ok().map(|split| Held { len, split });
        Ok(())
    }

    /// Sends what is left of the packet that was read. Returns how many packets it was; `None` if there is no room for
    /// the rest.
    fn send(&mut self, batch: &mut Batch<'_>) -> Option<usize> {
        let Some(Held { len, split }) = &mut self.held else {
            return Some(1);
        };
        let packet = self.packet.get(VNET_LEN..*len).unwrap_or_default();
        let mut sent = 0;
        while let Some((head, payload)) = split.next(packet, &mut self.head) {
            // What cannot be sent is lost; the interface counts it.
            if batch.send_parts(head, payload) == Err(SendError::Full) {
                return None;
            }
            split.advance();
            sent += 1;
        }
        self.held = None;
        Some(sent)
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

impl TunFace {
    /// Gives a packet to the system, which counts what it has no room for. The call does not wait.
    fn write(&self) -> impl FnMut(&[u8; VNET_LEN], &[u8]) {
        |header, packet| {
            let parts = [IoSlice::new(header), IoSlice::new(packet)];
            let _lost = self.device.send_vectored(&parts);
        }
    }
}

impl Face for TunFace {
    fn deliver(&self, packet: &[u8]) {
        self.join.lock().push(packet, self.write());
    }

    fn delivered(&self) {
        self.join.lock().flush(self.write());
    }

    fn writable(&self) {
        self.news.tell();
    }

    fn link(&self, link: &LinkInfo) {
        *self.link.lock() = Some(*link);
        self.news.tell();
    }
}
