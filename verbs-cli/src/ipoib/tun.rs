//! A TUN device in front of an interface.
//!
//! What comes from the subnet is written to the device where it arrives, in the handler of the completion;
//! what the system sends is read by the program's one loop. Neither way hands a packet to another thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use tun_rs::{DeviceBuilder, SyncDevice};
use ulp_ipoib::{Face, Interface, LinkInfo, SendError};
use verbs_core::Bounce;
use verbs_core::sync::{Arc, Mutex};

use super::args::Cidr;

/// Packets that are read in a row from one device.
const LOT: usize = 64;

/// What happens to interfaces, for a loop that waits for descriptors.
pub(super) struct News(OwnedFd);

impl News {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        Ok(Arc::new(Self(eventfd(0, flags)?)))
    }

    fn tell(&self) {
        // It is full only when nobody has looked for 2^64 times.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Has it all seen to.
    pub(super) fn take(&self) {
        // There may be none.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
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
    /// Bytes of the packet that found no room.
    held: Option<usize>,
}

/// What the interface sees of it.
pub(super) struct TunFace {
    device: Arc<SyncDevice>,
    news: Arc<News>,
    link: Mutex<Option<LinkInfo>>,
}

impl Tun {
    /// Makes a device with those addresses.
    pub(super) fn new(name: &str, addresses: &[Cidr], news: &Arc<News>) -> io::Result<Self> {
        let mut builder = DeviceBuilder::new().name(name).mtu(1500);
        for &(addr, len) in addresses {
            builder = match addr {
                std::net::IpAddr::V4(addr) => builder.ipv4(addr, len, None),
                std::net::IpAddr::V6(addr) => builder.ipv6(addr, len),
            };
        }
        let device = builder.build_sync()?;
        device.set_nonblocking(true)?;
        let device = Arc::new(device);
        Ok(Self {
            name: name.to_owned(),
            face: Arc::new(TunFace {
                device: Arc::clone(&device),
                news: Arc::clone(news),
                link: Mutex::new(None),
            }),
            device,
            packet: Bounce::new(usize::from(u16::MAX)),
            held: None,
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
        for _ in 0..LOT {
            let len = match self.held.take() {
                Some(len) => len,
                None => match self.device.recv(&mut self.packet) {
                    Ok(len) => len,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                    Err(error) => return Err(error),
                },
            };
            // As on any network, what cannot be sent is lost; the interface counts it.
            let packet = self.packet.get(..len).unwrap_or_default();
            if interface.send(packet) == Err(SendError::Full) {
                self.held = Some(len);
                return Ok(());
            }
        }
        Ok(())
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

impl Face for TunFace {
    fn deliver(&self, packet: &[u8]) {
        // The system counts what it has no room for.
        let _lost = self.device.send(packet);
    }

    fn writable(&self) {
        self.news.tell();
    }

    fn link(&self, link: &LinkInfo) {
        *self.link.lock() = Some(*link);
        self.news.tell();
    }
}
