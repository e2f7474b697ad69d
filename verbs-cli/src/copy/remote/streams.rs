//! The queue pairs of data over iWARP, which connects them itself: the client asks the service for a second connection, and
//! names by private data the end that it is for.

use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use verbs_cm::ConnectRequest;
use verbs_core::sync::{Arc, Mutex};
use verbs_core::{Device, Gid, TransportType};

use super::Seat;
use super::control::{News, Watch};
use super::message::Identity;
use crate::connecting::ConnectArgs;
use crate::copy::endpoint::Endpoint;
use crate::ending::within;
use crate::net::{NetError, PATIENCE};
use crate::wire::PORT;

/// How often a server that waits for a client's connection looks whether the client is still there.
const LOOK: Duration = Duration::from_millis(50);

/// What the private data of such a request begins with.
const MAGIC: [u8; 8] = *b"verbscpy";

/// The end that a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name([u8; 8]);

impl Name {
    /// That of the server's end, as its offer has it: a number that is hard to guess is in it.
    pub(super) fn of(end: &Identity) -> Self {
        let (qpn, psn) = (end.qpn.value(), end.psn.value());
        Self((u64::from(qpn) << 32 | u64::from(psn)).to_be_bytes())
    }

    fn emit(self) -> Vec<u8> {
        [MAGIC, self.0].concat()
    }

    fn parse(private_data: &[u8]) -> Option<Self> {
        let rest = private_data.strip_prefix(&MAGIC)?;
        rest.first_chunk().copied().map(Self)
    }
}

/// Whether a device connects its queue pairs itself, over TCP.
pub(super) fn is_of(device: &Device) -> bool {
    device.query_provider(PORT).transport == TransportType::Iwarp
}

impl Seat {
    /// On a device that the service has. Its GID is what clients and servers know each other by, no more: TCP proves
    /// addresses.
    pub(super) fn over_streams(device: Arc<Device>, local: IpAddr) -> Self {
        Self {
            device,
            index: 0,
            gid: Gid::from(local),
        }
    }
}

/// Ends that wait for their connections, each with the address that its client speaks from.
#[derive(Debug, Default)]
pub(super) struct Awaited(Mutex<BTreeMap<Name, (IpAddr, oneshot::Sender<ConnectRequest>)>>);

/// A connection that is awaited, until it is dropped.
pub(super) struct Expected<'a> {
    awaited: &'a Awaited,
    name: Name,
    peer: SocketAddr,
    request: oneshot::Receiver<ConnectRequest>,
}

impl Awaited {
    /// Awaits the connection of that end from now on.
    pub(super) fn expect(&self, end: &Identity, peer: SocketAddr) -> Expected<'_> {
        let name = Name::of(end);
        let (sender, request) = oneshot::channel();
        self.0.lock().insert(name, (peer.ip(), sender));
        Expected {
            awaited: self,
            name,
            peer,
            request,
        }
    }

    /// Gives a request to the end that it is for; one that is for none is refused. Yields it if it is no such request.
    pub(super) fn take(&self, request: ConnectRequest) -> Option<ConnectRequest> {
        let Some(name) = Name::parse(request.private_data()) else {
            return Some(request);
        };
        let from = request.peer_addr().ip();
        let waits = {
            let mut all = self.0.lock();
            let is_its = all.get(&name).is_some_and(|(peer, _)| *peer == from);
            is_its.then(|| all.remove(&name)).flatten()
        };
        if let Some((_, waits)) = waits {
            // One that waits no longer drops it, which refuses.
            let _ = waits.send(request);
        }
        None
    }
}

impl Expected<'_> {
    /// Connects the end when the client asks. Blocks, for [`PATIENCE`] at most, and no longer than the client is there.
    pub(super) fn connect(
        mut self,
        endpoint: &mut Endpoint,
        watch: &mut Watch,
    ) -> Result<(), NetError> {
        let (deadline, peer) = (Instant::now() + PATIENCE, self.peer);
        let silent = || NetError::Silent { peer };
        let request = loop {
            if let Some(request) = within(Instant::now() + LOOK, &mut self.request) {
                break request.map_err(|_| NetError::Ended(peer))?;
            }
            match watch.next_within(Duration::ZERO) {
                Some(News::Ended(error)) => return Err(error),
                Some(News::Message(_)) => {
                    let what = "it says something before it connects".into();
                    return Err(NetError::Foreign { peer, what });
                }
                Some(News::Tick) | None if Instant::now() < deadline => {}
                Some(News::Tick) | None => return Err(silent()),
            }
        };
        let connecting = endpoint.connect_with(|qp| request.accept(qp).into_future());
        let connected = within(deadline, Box::pin(connecting)).ok_or_else(silent)?;
        connected.map_err(|error| broken(peer, error))
    }
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        self.awaited.0.lock().remove(&self.name);
    }
}

/// Connects the client's end to the server's.
pub(super) async fn connect(
    endpoint: &mut Endpoint,
    device: &Device,
    peer: SocketAddr,
    theirs: &Identity,
    args: ConnectArgs,
) -> Result<(), NetError> {
    let name = Name::of(theirs).emit();
    let connected = endpoint.connect_with(|qp| {
        let connecting = verbs_cm::connect(device, peer, qp).private_data(&name);
        connecting.timeout(args.connect_timeout).into_future()
    });
    connected.await.map_err(|error| broken(peer, error))
}

fn broken(peer: SocketAddr, error: verbs_cm::Error) -> NetError {
    let error = io::Error::other(error);
    NetError::Broken { peer, error }
}

#[cfg(test)]
mod tests {
    use verbs_core::{Mtu, Psn, Qpn};

    use super::*;

    #[test]
    fn names_come_back() {
        let end = Identity {
            gid: Gid::default(),
            qpn: Qpn::new(0x12_3456),
            psn: Psn::new(0xab_cdef),
            mtu: Mtu::B1024,
        };
        let name = Name::of(&end);
        let bytes = name.emit();
        assert_eq!(Name::parse(&bytes), Some(name));
        assert_eq!(
            Name::parse(&[bytes.clone(), vec![0; 9]].concat()),
            Some(name)
        );
        for wrong in [&bytes[1..], &bytes[..15], &[]] {
            assert_eq!(Name::parse(wrong), None);
        }
        let others = [(0x12_3457, 0xab_cdef), (0x12_3456, 0xab_cdee)];
        for (qpn, psn) in others {
            let (qpn, psn) = (Qpn::new(qpn), Psn::new(psn));
            assert_ne!(Name::of(&Identity { qpn, psn, ..end }), name);
        }
    }

    /// Goal: a request for data is for one end, and only from where its client speaks from; others are refused, and those that
    /// are no requests for data go on. Method: a service over TCP that gives its requests to [`Awaited`].
    #[test]
    fn a_connection_is_for_the_end_that_it_names() {
        let ip = |n| IpAddr::from([127, 9, 40, n]);
        let device = |n| {
            let hca = hca_sim::Hca::iwarp(&[ip(n)]).expect("TCP").build();
            hca.open().wait().expect("a device")
        };
        let end = Identity {
            gid: Gid::from(ip(1)),
            qpn: Qpn::new(7),
            psn: Psn::new(9),
            mtu: Mtu::B1024,
        };
        let server = device(1);
        let mut listener = verbs_cm::listen(&server, SocketAddr::new(ip(1), 0))
            .wait()
            .expect("a number");
        let at = listener.local_addr();
        let awaited = Awaited::default();
        let asked = |from: u8, data: &[u8], listener: &mut verbs_cm::Listener| {
            let client = device(from);
            let objects = (
                client.alloc_pd().wait().unwrap(),
                client.create_cq(4).wait().unwrap(),
            );
            let init = verbs_core::QpInit::rc(&objects.1, &objects.1);
            let qp = objects.0.create_qp(init).wait().unwrap();
            let connecting = verbs_cm::connect(&client, at, qp).private_data(data);
            let arrives = async { awaited.take(listener.accept().await).is_some() };
            let both = futures::future::join(connecting.into_future(), arrives);
            let (connected, goes_on) = futures::executor::block_on(both);
            assert!(connected.is_err(), "nobody accepts");
            goes_on
        };
        let name = Name::of(&end).emit();
        assert!(!asked(2, &name, &mut listener), "nobody waits");
        let mut expected = awaited.expect(&end, SocketAddr::new(ip(2), 5));
        assert!(asked(2, b"hello", &mut listener), "it is for no end");
        assert!(!asked(3, &name, &mut listener), "another address");
        assert_eq!(
            expected.request.try_recv().map(|it| it.is_some()),
            Ok(false)
        );
        assert_eq!(awaited.0.lock().len(), 1);
        drop(expected);
        assert_eq!(awaited.0.lock().len(), 0);
    }
}
