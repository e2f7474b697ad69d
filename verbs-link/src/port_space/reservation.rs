//! A port number without a socket.

use std::fmt;
use std::net::SocketAddr;

use super::bound::BoundPort;
use super::error::PortError;
use super::table::{ClaimId, Holder};
use super::{PortUse, TcpPortSpace};

/// A port number that is held in a port space without a socket; dropping it gives the number back.
///
/// No other endpoint or reservation of the space gets the number. The host's own sockets do not know of it: the
/// kernel has no means to hold a TCP port without a socket, so that an ordinary socket may take the number
/// between [`TcpPortSpace::reserve`], which asks whether it is free, and [`PortReservation::bind`], which then
/// says [`PortError::AddrInUse`]. A number that must be kept from all is bound with [`PortUse::Reserve`].
///
/// ```
/// use verbs_link::port_space::{PortUse, TcpPortSpace};
///
/// let space = TcpPortSpace::host();
/// let reservation = space.reserve("127.0.0.1:0".parse()?)?;
/// let addr = reservation.local();
/// assert!(space.bind(addr, PortUse::Connection).is_err());
/// let port = reservation.bind(PortUse::Connection)?;
/// assert_eq!(port.local(), addr);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PortReservation {
    space: TcpPortSpace,
    /// Until it becomes a bound port.
    claim: Option<ClaimId>,
    local: SocketAddr,
    v6_only: bool,
}

/// Why a reservation did not become a bound port; it still holds its number.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotBound {
    /// What was wrong.
    pub error: PortError,
    /// The reservation.
    pub reservation: PortReservation,
}

impl PortReservation {
    /// Keeps the number of a bound port, whose sockets are closed.
    pub(super) fn of(port: BoundPort, v6_only: bool) -> Self {
        let (space, claim, local) = port.into_claim();
        space.hold_as(claim, Holder::Reserved);
        Self {
            space,
            claim: Some(claim),
            local,
            v6_only,
        }
    }

    /// The address and the number.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Binds the number: the reservation becomes a port with sockets.
    ///
    /// # Errors
    /// [`NotBound`] with the reservation, and the errors of [`TcpPortSpace::bind`].
    ///
    /// # Context
    /// As there.
    pub fn bind(mut self, usage: PortUse) -> Result<BoundPort, Box<NotBound>> {
        let bound = self
            .space
            .bind_claimed(self.claim, self.local, usage, self.v6_only);
        match bound {
            Ok(port) => {
                self.claim = None;
                Ok(port)
            }
            Err(error) => Err(Box::new(NotBound {
                error,
                reservation: self,
            })),
        }
    }
}

impl Drop for PortReservation {
    fn drop(&mut self) {
        if let Some(claim) = self.claim {
            self.space.release(claim);
        }
    }
}

impl fmt::Debug for PortReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PortReservation({})", self.local)
    }
}
