//! Connection management: what `rdma_cm` does, as futures.
//!
//! Two queue pairs become a connection when each knows the other's number, first packet and limits.
//! [`connect`](crate::connect()) and [`listen`](crate::listen()) see to that, by IP address, over RoCE and
//! InfiniBand, by messages of the InfiniBand connection manager (IBTA vol. 1, chapter 12) or by the provider's
//! own verbs, as iWARP has them:
//!
//! ```no_run
//! use std::pin::pin;
//! use std::time::Duration;
//! use futures::{StreamExt, future::ready};
//! use verbs_core::{Device, Pd, Cq, QpInit, Recv, Send, Mr, Wc};
//!
//! /// Answers one client, and waits until it has gone. `device` has the address 10.0.0.2.
//! async fn serve(device: &Device, pd: &Pd, cq: &mut Cq, mr: &Mr) -> Result<(), Box<dyn std::error::Error>> {
//!     let listener = verbs_cm::listen(device, "0.0.0.0:7174").await?;
//!     let mut connection = {
//!         let queue = &*cq;
//!         // Requests may be forged, and never be confirmed: they are accepted beside each other, and one that fails ends
//!         // nothing.
//!         let accepted = listener.map(|request| async move {
//!             println!("{} says {:?}", request.peer_addr(), request.private_data());
//!             let qp = pd.create_qp(QpInit::rc(queue, queue)).await.ok()?;
//!             request.accept(qp).private_data(b"welcome").await.ok()
//!         });
//!         let mut accepted = pin!(accepted.buffer_unordered(usize::MAX).filter_map(ready));
//!         accepted.next().await.ok_or("listeners never end")?
//!     };
//!     connection.post_recv(Recv::new(1).into(mr.slice(0..64)))?;
//!     cq.ready().await?;
//!     for wc in cq.poll(&mut [Wc::default(); 4]).iter() {
//!         println!("{} bytes came: {}", wc.byte_len, wc.status);
//!     }
//!     connection.closed().await?;
//!     connection.close().await?;
//!     Ok(())
//! }
//!
//! /// Sends one message.
//! async fn ask(device: &Device, pd: &Pd, cq: &mut Cq) -> Result<(), Box<dyn std::error::Error>> {
//!     let qp = pd.create_qp(QpInit::rc(cq, cq).inline(16)).await?;
//!     let connecting = verbs_cm::connect(device, "10.0.0.2:7174", qp)
//!         .private_data(b"hello")
//!         .timeout(Duration::from_secs(2));
//!     let mut connection = connecting.await?;
//!     connection.post_send(Send::new(1).inline(b"over the fabric").signaled())?;
//!     cq.ready().await?;
//!     connection.close().await?;
//!     Ok(())
//! }
//! ```
//!
//! A peer that does not answer is given up after [`CONNECT_TIMEOUT`], unless
//! [`Connecting::timeout`] or [`Resolving::timeout`] says otherwise. Sooner, if its host refuses the request twice in a row (ICMP port
//! unreachable, where the provider [reports](verbs_core::event::EventWatcher::undelivered) it): the request goes
//! again half a second after the first report, as the peer may be starting, and the second report ends the
//! attempt with [`Error::PortUnreachable`]. A peer that has answered anything is not given up for reports.
//!
//! A connection whose peer has died without a word ends too, with [`Ended::Failed`]: its address is asked once a second, except in
//! simulations, and three refusals in a row end its connections; see [`Watch`].
//!
//! - [`connect`](crate::connect()), [`listen`](crate::listen()), [`Connection`]: connections.
//! - [`listen_datagrams`], [`resolve_service`]: services for datagrams (SIDR). [`Membership`]: multicast.
//! - [`Manager`]: the manager of a port, which all of them share; connections to services by their own number.
//! - [`resolver`]: from an address to a way. [`sa`]: the client of the subnet administrator.
//!
//! Below them is the state machine, sans-IO:
//!
//! - [`wire`]: the messages.
//! - [`machine`]: the states of one end of a connection, as a table.
//! - [`Cm`]: all connections behind one port. Commands, received datagrams and the time go in;
//!   datagrams, queue pair modifies and [`Event`]s come out. It owns no queue pair, no clock and no
//!   lock, so that a device, a test or a simulation can drive it.
//!
//! Peer-to-peer connections are refused on the wire.
//!
//! The machine alone:
//!
//! ```
//! use std::net::Ipv4Addr;
//!
//! use verbs_cm::{Accept, Cm, Config, Connect, Event, Listen, Port, Route};
//! use verbs_cm::wire::{PortSpace, ServiceId};
//! use verbs_core::mad::{Address, TimeCode};
//! use verbs_core::time::Instant;
//! use verbs_core::{Av, Gid, Guid, LinkLayer, Lid, Mtu, Qpn};
//!
//! let gid = |host| Gid::from(Ipv4Addr::new(10, 0, 0, host));
//! let port = |host: u8| Port {
//!     number: 1,
//!     ca_guid: Guid(host.into()),
//!     link_layer: LinkLayer::Ethernet,
//!     lid: Lid(0),
//!     gids: vec![(0, gid(host))],
//!     mtu: Mtu::B1024,
//!     ack_delay: TimeCode::new(15),
//!     migrates: false,
//! };
//! let mut client = Cm::new(Config::default(), port(1), 1, 17);
//! let mut server = Cm::new(Config::default(), port(2), 1, 18);
//!
//! let service = ServiceId::rdma_cm(PortSpace::Tcp, 7174);
//! server.listen(Listen::new(service))?;
//! let route = Route::roce(&port(1), gid(1), gid(2)).expect("the port has this GID");
//! client.connect(Instant::ZERO, Connect::new(service, Qpn::new(0x11), route))?;
//!
//! // The wire: what one sends, the other gets, and queue pairs do what they are told.
//! let mut established = 0;
//! while established < 2 {
//!     for (host, here, there) in [(1, 1, 2), (2, 2, 1)].map(|(host, a, b)| (host, gid(a), gid(b))) {
//!         let (one, other) = match host {
//!             1 => (&mut client, &mut server),
//!             _ => (&mut server, &mut client),
//!         };
//!         while let Some((to, mad)) = one.poll_transmit() {
//!             assert_eq!(to.av.global.map(|global| global.dgid), Some(there));
//!             other.handle(Instant::ZERO, Address::gsi(Av::to_gid(1, 0, here)), &mad);
//!         }
//!         while let Some(change) = one.poll_qp_change() {
//!             one.qp_modified(Instant::ZERO, change.conn, Ok(()));
//!         }
//!         while let Some(event) = one.poll_event() {
//!             match event {
//!                 Event::ConnectRequest { conn, .. } => {
//!                     let accept = Accept { qpn: Qpn::new(0x22), ..Accept::default() };
//!                     one.accept(Instant::ZERO, conn, &accept)?;
//!                 }
//!                 Event::Established { .. } => established += 1,
//!                 other => panic!("{other:?}"),
//!             }
//!         }
//!     }
//! }
//! # Ok::<(), verbs_cm::CmError>(())
//! ```
#![forbid(unsafe_code)]

mod ends;
mod hub;
pub mod machine;
pub mod resolver;
pub mod sa;
mod table;
mod types;
mod user;
pub mod wire;

pub(crate) use ends::{endpoint, link, provided, refusals};
pub(crate) use types::{address, config, error, event, info, limit, listed, options, pace, params};
pub(crate) use user::{alternate, connection, manager, multicast, native, step};
pub use user::{connect, datagram, listen};

pub use alternate::Alternate;
pub use config::{Config, Watch};
pub use connect::{Connecting, connect};
pub use connection::{Connection, RecvHalf, SendHalf};
pub use datagram::{
    DatagramListener, Question, Resolving, Service, UDP_QKEY, listen_datagrams, resolve_service,
};
pub use error::{Error, NotConnected, Rejection};
pub use event::{
    CmError, ConnId, Counters, Ended, Event, Failure, ListenId, PathError, QpChange, ResolveId,
};
#[doc(hidden)]
pub use hub::{Counts, HostClaim, Modifier, Modify};
pub use info::{ConnectionInfo, ConnectionState, HostServices, connections};
pub use limit::CONNECT_TIMEOUT;
pub use listed::{Listed, listed, listed_with};
pub use listen::{Accepting, ConnectRequest, Listener, Listening, listen};
pub use manager::Manager;
pub use multicast::Membership;
pub use native::{Calling, ServiceListener};
pub use options::ConnParam;
pub use params::{Accept, Connect, Listen, Port, Resolve, Resolved, Route};
pub use resolver::Resolver;
pub use sa::SaClient;
pub use step::{CancelStep, Step, StepFuture};
pub use table::{Cm, driver};
