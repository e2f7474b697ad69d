//! Endpoints over TCP.

use std::net::IpAddr;

use hca_sim::Hca;
use verbs_io::{Endpoint, Error, Opening};

/// Endpoints over TCP, as iWARP.
pub trait IwarpEndpoint {
    /// An endpoint on a software RNIC that makes TCP connections from and to that address of this machine, to be opened.
    /// It speaks iWARP: the peer may be another of these, or Linux's `siw`.
    ///
    /// Processes share an address, as they do with TCP; a port number has one listener. No privileges are needed. The
    /// side that accepts a connection can send when the other side has sent something, or after 100 ms.
    ///
    /// # Errors
    /// Of [`Opening::open`]: [`Error::Address`] when the system has no descriptors left.
    ///
    /// # Examples
    /// ```
    /// use verbs::prelude::*;
    ///
    /// # fn main() -> Result<(), verbs::Error> {
    /// # futures::executor::block_on(async {
    /// let net = Endpoint::iwarp([127, 0, 0, 1]).open().await?;
    /// let mut listener = net.listen("127.0.0.1:0").await?;
    /// let addr = listener.local_addr();
    /// let (ours, theirs) = futures::join!(net.connect(addr).into_future(), listener.accept());
    /// let ours = ours?;
    ///
    /// let mut buf = ours.buf().await;
    /// buf.fill_from(b"hello");
    /// ours.send(buf).await?;
    /// let message = theirs.recv().await?.expect("it is open");
    /// assert_eq!(&message[..], b"hello");
    /// # Ok::<(), verbs::Error>(())
    /// # })
    /// # }
    /// ```
    fn iwarp(addr: impl Into<IpAddr>) -> Opening;
}

impl IwarpEndpoint for Endpoint {
    fn iwarp(addr: impl Into<IpAddr>) -> Opening {
        let addr = addr.into();
        Self::opening(async move {
            let builder = Hca::iwarp(&[addr]).map_err(|error| Error::address(addr, error))?;
            Ok(builder.open().await?)
        })
    }
}
