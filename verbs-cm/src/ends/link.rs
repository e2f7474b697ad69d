//! The two ways of being connected, seen alike: by messages of the connection manager, or by the
//! provider's own verbs.

use std::fmt;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::{self, BoxFuture};
use verbs_core::{ProviderAttr, Qp, Qpn, Target};

use crate::alternate::Alternate;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::event::Ended;
use crate::hub::handler::ConnHandler;

/// This end of a connection, whichever side made it.
pub(crate) trait Link: Send + Sync + fmt::Debug {
    fn peer(&self) -> SocketAddr;
    fn qpn(&self) -> Option<Qpn>;
    /// This end's address; none where the service has a number and no address.
    fn local(&self) -> Option<SocketAddr>;
    /// The peer's queue pair, where peers name theirs.
    fn remote_qpn(&self) -> Option<Qpn>;
    /// What the provider says of itself; none once the queue pair was taken away.
    fn provider(&self) -> Option<ProviderAttr>;
    fn is_established(&self) -> bool;
    /// Offers the peer an alternate path. Never blocks.
    fn load_path(&self, path: &Alternate) -> Result<(), Error>;
    /// What has come of the last offer.
    fn poll_path(&self, cx: &mut Context<'_>) -> Poll<Result<(), Error>>;
    /// Begins to end the connection. Never blocks.
    fn disconnect(&self);
    /// Which side has ended the connection, if it is being ended.
    fn ended(&self) -> Option<Ended>;
    fn poll_over(&self, cx: &mut Context<'_>) -> Poll<()>;
    fn take_qp(&self) -> Option<Qp>;
    /// Ends when nothing of the connection that is over holds the queue pair any longer.
    fn released(&self) -> BoxFuture<'static, ()>;
    /// Ends when what the peer was told so far is on its way.
    fn drained(&self) -> BoxFuture<'static, ()>;
}

impl Link for Endpoint {
    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn qpn(&self) -> Option<Qpn> {
        self.with_qp(Qp::qpn)
    }

    fn local(&self) -> Option<SocketAddr> {
        self.local
    }

    fn remote_qpn(&self) -> Option<Qpn> {
        Self::remote_qpn(self)
    }

    fn provider(&self) -> Option<ProviderAttr> {
        self.with_qp(|qp| qp.target().provider().query_provider(1))
    }

    fn is_established(&self) -> bool {
        Self::is_established(self)
    }

    fn load_path(&self, path: &Alternate) -> Result<(), Error> {
        Self::load_path(self, path)
    }

    fn poll_path(&self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Self::poll_path(self, cx)
    }

    fn disconnect(&self) {
        Self::disconnect(self);
    }

    fn ended(&self) -> Option<Ended> {
        Self::ended(self)
    }

    fn poll_over(&self, cx: &mut Context<'_>) -> Poll<()> {
        ConnHandler::poll_over(self, cx)
    }

    fn take_qp(&self) -> Option<Qp> {
        Self::take_qp(self)
    }

    /// The state machine holds none.
    fn released(&self) -> BoxFuture<'static, ()> {
        future::ready(()).boxed()
    }

    fn drained(&self) -> BoxFuture<'static, ()> {
        Self::drained(self).boxed()
    }
}
