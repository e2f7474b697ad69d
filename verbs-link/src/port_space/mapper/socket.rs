//! A port mapper on a UDP socket of this host.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use verbs_wire::iwarp::{MAPPER_PORT, MapperMessage};

use super::PortMapper;
use crate::time::Clock;

/// Datagrams that are taken in by one call.
const DATAGRAMS: usize = 256;

/// A [`PortMapper`] with its socket. Nothing here blocks: its owner calls [`MapperSocket::turn`] when
/// [`MapperSocket::socket`] has something, and when [`PortMapper::poll_timeout`] says so.
///
/// ```
/// use verbs_link::port_space::TcpPortSpace;
/// use verbs_link::port_space::mapper::{MapperEvent, MapperSocket, PortMapper};
/// use verbs_link::time::Clock;
///
/// let here = std::net::IpAddr::from([127, 0, 0, 1]);
/// let mapper = || PortMapper::new(TcpPortSpace::host(), 1);
/// let mut server = MapperSocket::at((here, 0).into(), mapper(), Clock::wall())?;
/// let mut client = MapperSocket::at((here, 0).into(), mapper(), Clock::wall())?;
/// let service = (here, 7174).into();
/// let mapped = server.mapper.map(service)?;
/// let caller = (here, 4000).into();
/// client.mapper.map(caller)?;
/// let now = client.now();
/// client.mapper.ask_at(server.local()?, caller, service, now)?;
/// let answer = loop {
///     client.turn()?;
///     server.turn()?;
///     if let Some(answer) = client.mapper.poll_event() {
///         break answer;
///     }
/// };
/// assert_eq!(answer, MapperEvent::Mapped { local: caller, remote: service, mapped });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MapperSocket {
    /// The mapper: its commands and events are the owner's business.
    pub mapper: PortMapper,
    socket: UdpSocket,
    clock: Clock,
}

impl MapperSocket {
    /// At the port of port mappers, UDP port 3935 of that address.
    ///
    /// # Errors
    /// The system's: a port mapper is there already, for example.
    pub fn on(address: IpAddr, mapper: PortMapper) -> io::Result<Self> {
        Self::at((address, MAPPER_PORT).into(), mapper, Clock::wall())
    }

    /// At any address, with any clock.
    ///
    /// # Errors
    /// The system's.
    pub fn at(address: SocketAddr, mapper: PortMapper, clock: Clock) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            mapper,
            socket,
            clock,
        })
    }

    /// The address of the socket.
    ///
    /// # Errors
    /// The system's.
    pub fn local(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The socket, to be waited for.
    pub fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// The time on its clock, which the mapper's commands take.
    pub fn now(&self) -> crate::time::Instant {
        self.clock.now()
    }

    /// Takes in what has come, does what is due, and sends what is to be sent. A message that cannot be sent now is sent
    /// again when it is not answered.
    ///
    /// # Errors
    /// The system's; that a peer has no mapper is no error.
    pub fn turn(&mut self) -> io::Result<()> {
        let mut datagram = [0; MapperMessage::REQUEST_LEN];
        for _ in 0..DATAGRAMS {
            match self.socket.recv_from(&mut datagram) {
                Ok((len, from)) => {
                    let now = self.clock.now();
                    self.mapper.handle_datagram(from, &datagram[..len], now);
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => break,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionRefused => {}
                    _ => return Err(error),
                },
            }
        }
        self.mapper.handle_timeout(self.clock.now());
        while let Some((to, message)) = self.mapper.poll_output() {
            if let Ok(len) = message.emit(&mut datagram) {
                // UDP promises nothing either.
                let _ = self.socket.send_to(&datagram[..len], to);
            }
        }
        Ok(())
    }
}

impl fmt::Debug for MapperSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapperSocket")
            .field("mapper", &self.mapper)
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}
