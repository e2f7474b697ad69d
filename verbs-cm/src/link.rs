//! The two ways of being connected, seen alike: by messages of the connection manager, or by the
//! provider's own verbs.

use std::fmt;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use verbs_core::{Qp, Qpn};

use crate::endpoint::Endpoint;
use crate::event::Ended;
use crate::hub::handler::ConnHandler;

/// This end of a connection, whoever made it.
pub(crate) trait Link: Send + Sync + fmt::Debug {
    fn peer(&self) -> SocketAddr;
    fn qpn(&self) -> Option<Qpn>;
    fn is_established(&self) -> bool;
    /// Begins to end the connection. Never blocks.
    fn disconnect(&self);
    /// Which side has ended the connection, if it is being ended.
    fn ended(&self) -> Option<Ended>;
    fn poll_over(&self, cx: &mut Context<'_>) -> Poll<()>;
    fn take_qp(&self) -> Option<Qp>;
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

    fn is_established(&self) -> bool {
        Self::is_established(self)
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

    fn drained(&self) -> BoxFuture<'static, ()> {
        Self::drained(self).boxed()
    }
}
