//! What carries the messages of an end: a queue pair, which the ends connect themselves, or which the connection manager
//! has connected.

use std::future::IntoFuture;

use verbs_cm::{Connection, NotConnected};
use verbs_core::{BatchError, Error, PostError, Qp, Recv, SendWr};

/// See the module's documentation.
#[derive(Debug)]
pub(super) enum Carrier {
    /// The ends connect it themselves.
    Apart(Qp),
    /// The connection manager has connected it.
    Managed(Connection),
    /// The connection manager has lost it.
    Gone,
}

impl Carrier {
    /// The queue pair, for the modifies of ends that connect it themselves.
    ///
    /// # Errors
    /// [`Error::Closing`] for one that the connection manager has.
    pub(super) fn apart(&self) -> Result<&Qp, Error> {
        match self {
            Self::Apart(qp) => Ok(qp),
            Self::Managed(_) | Self::Gone => Err(Error::Closing),
        }
    }

    /// Has the connection manager connect it.
    ///
    /// # Errors
    /// Why there is no connection; [`verbs_cm::Error::Disconnected`] if there was one before.
    pub(super) async fn connect<C>(
        &mut self,
        connecting: impl FnOnce(Qp) -> C,
    ) -> Result<(), verbs_cm::Error>
    where
        C: IntoFuture<Output = Result<Connection, NotConnected>>,
    {
        let Self::Apart(qp) = std::mem::replace(self, Self::Gone) else {
            return Err(verbs_cm::Error::Disconnected);
        };
        match connecting(qp).await {
            Ok(connection) => {
                *self = Self::Managed(connection);
                Ok(())
            }
            Err(NotConnected { error, qp }) => {
                *self = qp.map_or(Self::Gone, Self::Apart);
                Err(error)
            }
        }
    }

    pub(super) fn post_send<'w>(&mut self, wr: impl Into<SendWr<'w>>) -> Result<(), PostError> {
        match self {
            Self::Apart(qp) => qp.post_send(wr),
            Self::Managed(connection) => connection.post_send(wr),
            Self::Gone => Err(PostError::Destroyed),
        }
    }

    pub(super) fn post_recv(&mut self, wr: Recv<'_>) -> Result<(), PostError> {
        match self {
            Self::Apart(qp) => qp.post_recv(wr),
            Self::Managed(connection) => connection.post_recv(wr),
            Self::Gone => Err(PostError::Destroyed),
        }
    }

    /// With one doorbell, where that is the end's own.
    pub(super) fn post_batch(&mut self, wrs: &[SendWr<'_>]) -> Result<(), BatchError> {
        if let Self::Apart(qp) = self {
            let queue = qp.send_queue();
            return queue
                .map_err(|error| BatchError { posted: 0, error })?
                .post_batch(wrs);
        }
        for (posted, wr) in wrs.iter().enumerate() {
            let result = self.post_send(*wr);
            result.map_err(|error| BatchError { posted, error })?;
        }
        Ok(())
    }

    /// Ends the connection, if there is one, and destroys the queue pair.
    pub(super) async fn close(self) -> Result<(), Error> {
        match self {
            Self::Apart(qp) => qp.destroy().await.map_err(|refused| refused.error),
            Self::Managed(connection) => match connection.close().await {
                Err(verbs_cm::Error::Verb(error)) => Err(error),
                _ => Ok(()),
            },
            Self::Gone => Ok(()),
        }
    }
}
