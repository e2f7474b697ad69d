//! Endpoints over UDP.

use std::net::IpAddr;

use hca_sim::link::host;
use hca_sim::{Hca, Udp};
use verbs_io::{Endpoint, Error, Opening};

/// Endpoints over UDP, as RoCEv2.
pub trait UdpEndpoint {
    /// An endpoint on a software HCA that uses UDP port 4791 of that address of this machine, to be opened. It speaks
    /// RoCEv2: the peer may be another of these, an RDMA NIC, or the kernel's `rxe`.
    ///
    /// If the daemon of the host (`verbs host`) has the address, the endpoint shares it with other programs: see
    /// [`hca_sim::link::host`] for where the daemon is looked for, and for the variable `VERBS_HOST_SOCKET`, which names it or,
    /// if it is empty, keeps the endpoint from joining. Without a daemon each process needs an address of its own: peers on
    /// one machine use 127.0.0.1, 127.0.0.2 and so on. No privileges are needed.
    ///
    /// # Errors
    /// Of [`Opening::open`]: [`Error::Address`] when the machine does not have the address, another process uses
    /// it, the daemon that the variable names is not there, or it refuses.
    ///
    /// # Context
    /// [`Opening::open`] waits for the daemon's answer in place: it comes at once, and a daemon that does not answer is given
    /// up after 5 s.
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

    /// The same at an address of 127.0.0.0/8 that no other program has, from 127.0.0.2 on, for programs and tests on one
    /// machine that do not know of each other. It joins no daemon. [`Endpoint::local_ip`] says which address that is.
    ///
    /// # Errors
    /// Of [`Opening::open`]: [`Error::Address`] when 1,022 addresses are taken.
    ///
    /// # Examples
    /// ```
    /// use verbs::prelude::*;
    ///
    /// # fn main() -> Result<(), verbs::Error> {
    /// # verbs::block_on(async {
    /// let [server, client] = [Endpoint::udp_any().open().await?, Endpoint::udp_any().open().await?];
    /// let mut listener = server.listen((server.local_ip().await?, 7471)).await?;
    /// let asked = client.connect(listener.local_addr()).into_future();
    /// let (ours, theirs) = futures::join!(asked, listener.accept());
    /// ours?.close().await?;
    /// assert!(theirs.recv().await?.is_none());
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    fn udp_any() -> Opening;
}

impl UdpEndpoint for Endpoint {
    fn udp(addr: impl Into<IpAddr>) -> Opening {
        let addr = addr.into();
        Self::opening(async move {
            let shared = host::join(&[addr]).map_err(|error| Error::address(addr, error))?;
            let builder = match shared {
                Some(link) => Hca::over(link),
                None => {
                    let link = Udp::bind(&[addr]).map_err(|error| Error::address(addr, error))?;
                    Hca::over(link)
                }
            };
            Ok(builder.open().await?)
        })
    }

    fn udp_any() -> Opening {
        Self::opening(async {
            let link = Udp::bind_loopback();
            let link = link.map_err(|error| Error::address("127.0.0.0/8", error))?;
            Ok(Hca::over(link).open().await?)
        })
    }
}
