//! Streams over TCP sockets of this host.

mod mapped;
mod poller;
mod socket;
#[cfg(all(test, not(verbs_loom)))]
mod tests;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;

use rustix::rand::{GetRandomFlags, getrandom};
use verbs_core::Seed;
use verbs_core::sync::Arc;

use super::link::{Bound, Stream, StreamLink, Token};
use crate::port_space::{PortError, PortUse, TcpPortSpace};
use crate::sys;
use crate::time::Waiter;
use crate::udp::interfaces::Interfaces;
use mapped::{ANSWERS, Answers};
use poller::Poller;
use socket::{Port, Socket};

/// The TCP of this host, on some of its addresses. Port numbers are the host's: what an endpoint has is refused to
/// ordinary sockets, and the reverse ([`TcpPortSpace`]).
///
/// ```
/// use std::net::SocketAddr;
///
/// use verbs_link::stream::{StreamLink, Tcp};
///
/// let link = Tcp::on(&["127.0.0.1".parse()?])?;
/// let bound = link.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
/// assert_ne!(bound.local().port(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Tcp {
    addresses: Vec<IpAddr>,
    space: TcpPortSpace,
    poller: Arc<Poller>,
    /// With a port mapper.
    answers: Option<Arc<Answers>>,
}

impl Tcp {
    /// On those addresses, which are this host's; others cannot be bound.
    ///
    /// # Errors
    /// The system's, when it has no descriptors left.
    pub fn on(addresses: &[IpAddr]) -> io::Result<Self> {
        let space = TcpPortSpace::of(addresses.iter().copied());
        Self::with(addresses.to_vec(), space)
    }

    /// On all addresses of this host. [`StreamLink::addresses`] are those that its interfaces have now; those of the
    /// loopback interface only if there are no others.
    ///
    /// # Errors
    /// The system's.
    pub fn on_interfaces() -> io::Result<Self> {
        let interfaces = Interfaces::read()?;
        let mut addresses = interfaces.usable(false);
        if addresses.is_empty() {
            addresses = interfaces.usable(true);
        }
        Self::with(addresses, TcpPortSpace::host())
    }

    fn with(addresses: Vec<IpAddr>, space: TcpPortSpace) -> io::Result<Self> {
        Ok(Self {
            addresses,
            space,
            poller: Arc::new(Poller::new()?),
            answers: None,
        })
    }

    /// Has peers found whose ports a port mapper names, such as `iwpmd` on the hosts of RNICs with a TCP of their own. A connect
    /// asks the mapper of the peer's host first, at UDP port 3935; a host that has none says so at once, and one that says nothing
    /// costs two seconds. Questions of such hosts about own listeners are answered at that port of each address, unless
    /// another mapper has it: the numbers of this link are real.
    #[must_use]
    pub fn with_port_mapper(mut self) -> Self {
        let addresses = self.addresses.clone();
        self.answers = Some(Answers::new(addresses, Arc::clone(&self.poller)));
        self
    }
}

/// A few bytes that nobody can guess.
fn drawn<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // So few come whole or not at all, and only a kernel older than 3.17 has none.
    let _ = getrandom(&mut bytes, GetRandomFlags::empty());
    bytes
}

impl StreamLink for Tcp {
    fn addresses(&self) -> Vec<IpAddr> {
        self.addresses.clone()
    }

    fn bind(&self, local: SocketAddr) -> Result<Box<dyn Bound>, PortError> {
        let port = self.space.bind(local, PortUse::Connection)?;
        Ok(Box::new(Port::new(
            port,
            &self.poller,
            self.answers.as_ref(),
        )))
    }

    fn port_space(&self) -> Option<&TcpPortSpace> {
        Some(&self.space)
    }

    fn is_offloaded(&self) -> bool {
        false
    }

    fn adopt(&self, stream: TcpStream) -> io::Result<(Box<dyn Stream>, usize)> {
        let in_flight = sys::unsent(stream.as_fd())?;
        Ok((Box::new(Socket::of(stream, &self.poller)?), in_flight))
    }

    fn ready(&self, tokens: &mut Vec<Token>) {
        self.poller.ready(tokens);
        if let Some(answers) = &self.answers {
            let all = tokens.len();
            tokens.retain(|&token| token != ANSWERS);
            if tokens.len() != all {
                answers.turn();
            }
        }
    }

    fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        Some(Arc::clone(&self.poller) as Arc<dyn Waiter>)
    }

    fn seed(&self) -> Seed {
        Seed::secret(drawn())
    }
}

impl fmt::Debug for Tcp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tcp")
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}
