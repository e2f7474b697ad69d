//! Queue pairs over TCP, as iWARP: each has a connection of its own, beside the one on which the ends talk.
//!
//! The client makes it, to where it has found the server, and says which one it is where perftest says a packet sequence
//! number: by its port number. Nothing has been sent on it when both ends take it over. perftest has no such way.

use std::net::{SocketAddr, TcpListener, TcpStream};

use verbs_core::Psn;

use crate::connecting::ConnectArgs;
use crate::net::{self, Connection};
use crate::perf::error::PerfError;
use crate::perf::key::Key;

/// The connections of queue pairs, in their order.
pub(in crate::measure::perf) struct Streams {
    side: Side,
    made: Vec<TcpStream>,
}

enum Side {
    Client(SocketAddr, ConnectArgs),
    Server(TcpListener, SocketAddr),
}

impl Streams {
    /// Those of the end that has found its peer by this connection.
    pub(in crate::measure::perf) fn to(connection: &Connection, connect: ConnectArgs) -> Self {
        Self::of(Side::Client(connection.peer(), connect))
    }

    /// Those of the end that its peer has found by this listener.
    pub(in crate::measure::perf) fn at(listener: TcpListener, connection: &Connection) -> Self {
        Self::of(Side::Server(listener, connection.peer()))
    }

    fn of(side: Side) -> Self {
        let made = Vec::new();
        Self { side, made }
    }

    /// Before the next queue pair is told of: the client makes its connection.
    pub(in crate::measure::perf) fn begin(&mut self, ours: &mut Key) -> Result<(), PerfError> {
        if let Side::Client(server, connect) = &self.side {
            let made = connect.connect_tcp(server).and_then(|stream| {
                let port = stream.local_addr()?.port();
                Ok((stream, port))
            });
            let (stream, port) = made.map_err(|error| PerfError::System {
                doing: "make the connection of a queue pair",
                error,
            })?;
            ours.psn = Psn::new(port.into());
            self.made.push(stream);
        }
        Ok(())
    }

    /// When it has heard of the peer's: the server takes its connection.
    pub(in crate::measure::perf) fn end(&mut self, theirs: &Key) -> Result<(), PerfError> {
        if let Side::Server(listener, client) = &self.side {
            let port = u16::try_from(theirs.psn.value()).unwrap_or_default();
            let from = SocketAddr::new(client.ip(), port);
            let stream = net::accept_from(listener, from);
            let stream = stream.map_err(|error| PerfError::System {
                doing: "accept the connection of a queue pair (do both ends have --transport iwarp?)",
                error,
            })?;
            self.made.push(stream);
        }
        Ok(())
    }

    pub(in crate::measure::perf) fn into_made(self) -> Vec<TcpStream> {
        self.made
    }
}
