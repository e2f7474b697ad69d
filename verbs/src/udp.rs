//! Endpoints over UDP.

use std::net::IpAddr;

use hca_sim::{Hca, Udp};
use verbs_io::{Endpoint, Error, Opening};

/// Endpoints over UDP, as RoCEv2.
pub trait UdpEndpoint {
    /// An endpoint on a software HCA that uses UDP port 4791 of that address of this machine, to be opened. It speaks
    /// RoCEv2: the peer may be another of these, an RDMA NIC, or the kernel's `rxe`.
    ///
    /// Each process needs an address of its own: peers on one machine use 127.0.0.1, 127.0.0.2 and so on. No
    /// privileges are needed.
    ///
    /// # Errors
    /// Of [`Opening::open`]: [`Error::Address`] when the machine does not have the address, or another process uses
    /// it.
    ///
    /// # Examples
    /// ```no_run
    /// use verbs::prelude::*;
    ///
    /// # async fn example() -> Result<(), verbs::Error> {
    /// let net = Endpoint::udp([10, 0, 0, 1]).open().await?;
    /// let conn = net.connect("10.0.0.2:7471").await?;
    /// # conn.close().await
    /// # }
    /// ```
    fn udp(addr: impl Into<IpAddr>) -> Opening;
}

impl UdpEndpoint for Endpoint {
    fn udp(addr: impl Into<IpAddr>) -> Opening {
        let addr = addr.into();
        Self::opening(async move {
            let link = Udp::bind(&[addr]).map_err(|error| Error::address(addr, error))?;
            Ok(Hca::over(link).open().await?)
        })
    }
}
