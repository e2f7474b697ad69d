//! rdma-core for tests: the C libraries of `shims/ibverbs`, which are a software HCA.

use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::{env, fs};

use hca_rdma::{Nic, RdmaCore};
use verbs_core::sync::Arc;

/// The libraries: those of the folder that `VERBS_RDMA_CORE` names, or else our own.
pub(crate) fn rdma_core() -> RdmaCore {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| match env::var_os("VERBS_RDMA_CORE") {
        Some(folder) => folder.into(),
        None => own_libraries(),
    });
    // SAFETY: they are our own, which cargo has built with this test for the ABI of rdma-core, or the rdma-core that whoever
    // runs the test has named.
    unsafe { RdmaCore::load_from(folder) }.unwrap()
}

/// Whether the libraries are our own.
pub(crate) fn is_our_own() -> bool {
    env::var_os("VERBS_RDMA_CORE").is_none()
}

/// The first device of the libraries.
pub(crate) fn nic() -> Arc<Nic> {
    let rdma = rdma_core();
    let names = rdma.devices().unwrap();
    rdma.open(names.first().expect("there is a device"))
        .unwrap()
}

/// An address of the device: the first of IPv4.
pub(crate) fn address(nic: &Nic) -> IpAddr {
    let gids = nic.gids(1).unwrap();
    let mut addresses = gids.iter().map(|&(_, gid)| IpAddr::from(gid));
    addresses.find(IpAddr::is_ipv4).expect("it has one")
}

/// A folder with our C libraries under the names that the loader knows. The library is a dependency of these tests, so
/// cargo has built it before them, with the same options, and it lies where they do: in `deps` of their profile.
fn own_libraries() -> PathBuf {
    let itself = env::current_exe().unwrap();
    let library = itself.with_file_name("libibverbs.so");
    assert!(library.exists(), "cargo has not built {library:?}");
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("rdma-core-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        let _ = fs::remove_file(folder.join(name));
        symlink(&library, folder.join(name)).unwrap();
    }
    folder
}
