//! Endpoints on RDMA NICs.

use hca_rdma::RdmaCore;
use verbs_core::Device;
use verbs_io::{Endpoint, Error, Opening};

/// Endpoints on RDMA NICs of this machine.
pub trait RdmaEndpoint {
    /// An endpoint on the NIC of that name, such as `mlx5_0`, to be opened. The system's rdma-core drives it, which is
    /// loaded then; connections are made by the system's connection manager, from and to the addresses of the NIC's
    /// network interface.
    ///
    /// # Errors
    /// Of [`Opening::open`]: [`Error::Address`] with what is missing, as the library, the NIC, or the right to open it.
    ///
    /// # Context
    /// Opening reads files and asks the kernel on the thread that awaits it, for some milliseconds.
    ///
    /// # Examples
    /// ```no_run
    /// use verbs::prelude::*;
    ///
    /// # async fn example() -> Result<(), verbs::Error> {
    /// let net = Endpoint::rdma("mlx5_0").open().await?;
    /// let conn = net.connect("10.0.0.2:7471").await?;
    /// # conn.close().await
    /// # }
    /// ```
    fn rdma(name: impl Into<String>) -> Opening;
}

impl RdmaEndpoint for Endpoint {
    fn rdma(name: impl Into<String>) -> Opening {
        let name = name.into();
        Self::opening(async move {
            let opened = RdmaCore::load().and_then(|rdma| rdma.open(&name));
            let nic = opened.map_err(|error| Error::address(format!("rdma:{name}"), error))?;
            Ok(Device::open(nic).await?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nic_that_is_not_there_is_named() {
        let opened = crate::block_on(Endpoint::rdma("no_such_nic").open());
        let Err(error) = opened else {
            panic!("no NIC has that name");
        };
        assert!(error.to_string().contains("no_such_nic"), "{error}");
    }
}
