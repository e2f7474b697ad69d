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
        /// Which library.
        library: PathBuf,
        /// What the loader says.
        reason: String,
    },
    /// rdma-core is too old.
    #[error("{} has no {function}; it is older than what is needed, or not of rdma-core", library.display())]
    NoFunction {
        /// Which library.
        library: PathBuf,
        /// What it lacks.
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
        /// The names of those that there are.
        present: Vec<String>,
    },
    /// The device is there and cannot be used.
    #[error("cannot open {name}: {errno}; /dev/infiniband/uverbs* must be readable and writable")]
    Open {
        /// The device.
        name: String,
        /// What the system says.
        errno: Errno,
    },
    /// The device does not say what it is.
    #[error("{name} does not answer: {errno}")]
    Query {
        /// The device.
        name: String,
        /// What the system says.
        errno: Errno,
    },
    /// There is no thread or descriptor to be had.
    #[error("the system gives no thread or descriptor: {0}")]
    Resources(Errno),
}

fn known(present: &[String]) -> String {
    match present {
        [] => "there is none at all (`rdma link` shows what the kernel has)".into(),
        names => format!("there is {}", names.join(", ")),
    }
}
