//! Why a device cannot be opened.

use std::path::PathBuf;

use rustix::io::Errno;

/// A device cannot be opened. One sentence without its full stop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// rdma-core is not installed.
    #[error(
        "cannot load {}: {reason}; the package rdma-core has it (Debian: libibverbs1, librdmacm1, ibverbs-providers)",
        library.display()
    )]
    NoLibrary {
        /// The library.
        library: PathBuf,
        /// The loader's message.
        reason: String,
    },
    /// rdma-core is too old.
    #[error("{} has no {function}; it is older than what is needed, or not of rdma-core", library.display())]
    NoFunction {
        /// The library.
        library: PathBuf,
        /// The missing function.
        function: &'static str,
    },
    /// The system does not list its devices.
    #[error("cannot list the RDMA devices: {0}; is the kernel module ib_uverbs loaded?")]
    List(Errno),
    /// There is no device of that name.
    #[error("there is no RDMA device {name:?}; {}", known(present))]
    NoDevice {
        /// The name.
        name: String,
        /// The names of the existing devices.
        present: Vec<String>,
    },
    /// The device exists and cannot be used.
    #[error("cannot open {name}: {errno}; /dev/infiniband/uverbs* must be readable and writable")]
    Open {
        /// The device.
        name: String,
        /// The system's error.
        errno: Errno,
    },
    /// The device does not answer a query.
    #[error("{name} does not answer: {errno}")]
    Query {
        /// The device.
        name: String,
        /// The system's error.
        errno: Errno,
    },
    /// No thread or descriptor is available.
    #[error("the system gives no thread or descriptor: {0}")]
    Resources(Errno),
}

fn known(present: &[String]) -> String {
    match present {
        [] => "there is none at all (`rdma link` shows what the kernel has)".into(),
        names => format!("there is {}", names.join(", ")),
    }
}
