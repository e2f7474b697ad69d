//! The embedded face: an interface as a device of smoltcp, for programs with their own IP stack.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use smoltcp::iface::{Config as StackConfig, Interface as Stack, SocketSet};
//! use smoltcp::time::Instant;
//! use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};
//! use ulp_ipoib::embedded::Embedded;
//! use ulp_ipoib::{Administration, Config, Error};
//! use verbs_core::Device;
//!
//! # async fn example(device: Arc<Device>, admin: Arc<dyn Administration>) -> Result<(), Error> {
//! let config = Config::with_address([10, 0, 0, 1].into(), 24);
//! let mut link = Embedded::new(&device, admin, config).await?;
//! let now = Instant::from_millis(0);
//! let mut stack = Stack::new(StackConfig::new(HardwareAddress::Ip), &mut link, now);
//! stack.update_ip_addrs(|all| drop(all.push(IpCidr::new(IpAddress::v4(10, 0, 0, 1), 24))));
//! let mut sockets = SocketSet::new(Vec::new());
//! loop {
//!     link.readable().await;
//!     stack.poll(now, &mut link, &mut sockets);
//! }
//! # }
//! ```

use std::fmt;
use std::future::{Future, poll_fn};
use std::task::Poll;

use smoltcp::phy::{self, DeviceCapabilities, Medium};
use smoltcp::time::Instant;
use verbs_core::sync::{Arc, AtomicWaker, Mutex};
use verbs_core::{Device, task};

use crate::admin::Administration;
use crate::config::{Config, Mode};
use crate::error::{Error, SendError};
use crate::face::{Face, LinkInfo};
use crate::interface::Interface;
use crate::wire::CONNECTED_MTU;

/// Packets that wait for the stack; beyond that, new ones are dropped.
pub const INBOX: usize = 128;

/// Bytes of the longest datagram.
const DATAGRAM: usize = 4096;

/// An interface whose packets go to a stack in this process.
pub struct Embedded {
    interface: Interface,
    inbox: Arc<Inbox>,
    /// The packet that the stack reads.
    current: Box<[u8]>,
    /// The packet that the stack writes.
    outgoing: Box<[u8]>,
}

impl Embedded {
    /// As [`Interface::new`].
    ///
    /// # Errors
    /// As there.
    pub fn new(
        device: &Arc<Device>,
        admin: Arc<dyn Administration>,
        config: Config,
    ) -> impl Future<Output = Result<Self, Error>> + Send + use<> {
        let longest = match config.mode {
            Mode::Connected => CONNECTED_MTU,
            Mode::Datagram => DATAGRAM,
        };
        let inbox = Arc::new(Inbox::new(longest));
        let face: Arc<dyn Face> = Arc::<Inbox>::clone(&inbox);
        let making = Interface::new(device, admin, face, config);
        async move {
            Ok(Self {
                interface: making.await?,
                inbox,
                current: vec![0; longest].into(),
                outgoing: vec![0; longest].into(),
            })
        }
    }

    /// The interface.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// As [`Interface::close`].
    ///
    /// # Cancel safety
    /// As there.
    pub fn close(self) -> impl Future<Output = ()> + Send + use<> {
        self.interface.close()
    }

    /// Completes when a packet waits, or there is room again for a packet that could not be sent.
    ///
    /// # Cancel safety
    /// Dropping the future takes no packet.
    pub async fn readable(&self) {
        poll_fn(|cx| {
            self.inbox.waker.register(cx.waker());
            let mut packets = self.inbox.packets.lock();
            match packets.len > 0 || std::mem::take(&mut packets.has_news) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }

    /// Packets dropped because the stack did not take them in time.
    pub fn dropped(&self) -> u64 {
        self.inbox.packets.lock().dropped
    }
}

impl phy::Device for Embedded {
    type RxToken<'a> = RxToken<'a>;
    type TxToken<'a> = TxToken<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(RxToken<'_>, TxToken<'_>)> {
        let len = self.inbox.take(&mut self.current)?;
        let received = RxToken(self.current.get(..len)?);
        let answer = TxToken {
            interface: &self.interface,
            packet: &mut self.outgoing,
        };
        Some((received, answer))
    }

    fn transmit(&mut self, _now: Instant) -> Option<TxToken<'_>> {
        Some(TxToken {
            interface: &self.interface,
            packet: &mut self.outgoing,
        })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        // Before the link is up, the MTU that every link supports.
        capabilities.max_transmission_unit = self.interface.link().mtu.max(1280);
        capabilities
    }
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedded")
            .field("interface", &self.interface)
            .finish_non_exhaustive()
    }
}

/// A received packet.
#[derive(Debug)]
pub struct RxToken<'a>(&'a [u8]);

impl phy::RxToken for RxToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(self.0)
    }
}

/// Room for a packet.
#[derive(Debug)]
pub struct TxToken<'a> {
    interface: &'a Interface,
    packet: &'a mut [u8],
}

impl phy::TxToken for TxToken<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let Some(packet) = self.packet.get_mut(..len) else {
            // The stack knows the smaller MTU, and sends no such packet.
            return write(&mut vec![0; len]);
        };
        let result = write(packet);
        // As on any network, a packet without room is lost; higher layers retransmit.
        match self.interface.send(packet) {
            Ok(()) => {}
            Err(error @ (SendError::Full | SendError::Down | SendError::NotIp(_))) => {
                tracing::trace!(%error, "a packet was dropped");
            }
        }
        result
    }
}

/// Packets between the interface and the stack.
#[derive(Debug)]
struct Inbox {
    packets: Mutex<Packets>,
    waker: AtomicWaker,
}

/// A ring of buffers, all allocated at the start.
#[derive(Debug)]
struct Packets {
    ring: Box<[(usize, Box<[u8]>)]>,
    first: usize,
    len: usize,
    dropped: u64,
    /// Something other than a packet must be looked at.
    has_news: bool,
}

impl Inbox {
    fn new(longest: usize) -> Self {
        let ring = (0..INBOX).map(|_| (0, vec![0; longest].into()));
        Self {
            packets: Mutex::new(Packets {
                ring: ring.collect(),
                first: 0,
                len: 0,
                dropped: 0,
                has_news: false,
            }),
            waker: AtomicWaker::new(),
        }
    }

    /// Swaps the first packet's buffer with another. Returns its length.
    fn take(&self, buffer: &mut Box<[u8]>) -> Option<usize> {
        let mut packets = self.packets.lock();
        if packets.len == 0 {
            return None;
        }
        let first = packets.first;
        packets.first = (first + 1) % INBOX;
        packets.len -= 1;
        let (len, bytes) = packets.ring.get_mut(first)?;
        std::mem::swap(bytes, buffer);
        Some(*len)
    }

    fn news(&self) {
        self.packets.lock().has_news = true;
        if let Some(waker) = self.waker.take() {
            task::wake(waker);
        }
    }
}

impl Face for Inbox {
    fn deliver(&self, packet: &[u8]) {
        let mut packets = self.packets.lock();
        let next = (packets.first + packets.len) % INBOX;
        let is_full = packets.len == INBOX;
        let place = packets.ring.get_mut(next).filter(|_| !is_full);
        let room = place.and_then(|(len, bytes)| Some((len, bytes.get_mut(..packet.len())?)));
        match room {
            Some((len, bytes)) => {
                bytes.copy_from_slice(packet);
                *len = packet.len();
                packets.len += 1;
            }
            None => packets.dropped += 1,
        }
        drop(packets);
        if let Some(waker) = self.waker.take() {
            task::wake(waker);
        }
    }

    fn writable(&self) {
        self.news();
    }

    fn link(&self, _link: &LinkInfo) {
        self.news();
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Wake, Waker};

    use verbs_core::collect;

    use super::*;

    struct Returns(Arc<Inbox>, Arc<Mutex<u32>>);

    impl Wake for Returns {
        fn wake(self: Arc<Self>) {
            *self.1.try_lock().expect("its caller has let go") += 1;
            self.0.take(&mut Box::default());
        }
    }

    /// Goal: a waker runs under no lock (K4). Method: a caller holds a lock and collects what becomes due; the
    /// waker takes the lock, and calls the inbox again.
    #[test]
    fn k4_a_waker_may_take_the_lock_of_its_caller() {
        let (inbox, lock) = (Arc::new(Inbox::new(64)), Arc::new(Mutex::new(0)));
        let news: [fn(&Inbox); 2] = [|inbox| inbox.deliver(&[0; 20]), |inbox| inbox.writable()];
        for tell in news {
            let returns = Returns(Arc::clone(&inbox), Arc::clone(&lock));
            inbox.waker.register(&Waker::from(Arc::new(returns)));
            collect(|| {
                let _held = lock.lock();
                tell(&inbox);
            });
        }
        assert_eq!(*lock.lock(), 2);
    }
}
