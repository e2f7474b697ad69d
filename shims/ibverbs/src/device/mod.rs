//! The list of devices. There is one: a software HCA, on an address of this host or a node of a simulated subnet.

mod context;
mod extension;
mod folder;
mod fork;
mod gid;
pub(crate) mod open;
mod place;
mod query;
mod sysfs;

use std::ffi::{c_char, c_int};
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::ptr::{null, null_mut};
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use verbs_abi as abi;
use verbs_core::sync::Arc;

use self::place::Place;
pub(crate) use self::place::{Made, Network};
use crate::call::{Errno, log, number, pointer, say_panics_in_one_line, set_errno, tell};

pub(crate) use self::context::{Context, Parts, ack_async_event, get_async_event};
pub(crate) use self::extension::{call_extension, query_extensions};
pub(crate) use self::fork::{fork_init, is_fork_initialized};
pub(crate) use self::gid::{guid_of, query_gid, query_gid_ex, query_gid_table, query_gid_type};
pub(crate) use self::query::{
    DM_MAX, get_pkey_index, query_device, query_device_ex, query_pkey, query_port, query_port_ex,
    query_rt_values,
};
pub(crate) use self::sysfs::{get_sysfs_path, read_ibdev_sysfs_file, read_sysfs_file};

/// The number of the port.
pub(crate) const PORT: u8 = 1;

/// The HCA of this process, once it has one.
static HCA: Mutex<Option<Made>> = Mutex::new(None);

/// The device as programs see it. It is made once and stays: a program may keep the pointer after it has freed the
/// list, as long as it has the device open, and few programs are careful.
static SHOWN: AtomicPtr<abi::Device> = AtomicPtr::new(null_mut());

/// The preferred address of the HCA, if the environment names none and it is not made yet.
static PREFERRED: Mutex<Option<Preferred>> = Mutex::new(None);

/// Which address a program would have, as its first calls show.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Preferred {
    /// That one.
    Only(IpAddr),
    /// Any; that one where the device is the program's own.
    Any(IpAddr),
}

impl Preferred {
    const fn address(self) -> IpAddr {
        match self {
            Self::Only(address) | Self::Any(address) => address,
        }
    }
}

/// A program binds that address: the HCA gets it, if the environment names none and it is not made yet.
pub(crate) fn prefer(address: Preferred) {
    PREFERRED.lock().get_or_insert(address);
}

/// The HCA, made by the first caller.
pub(crate) fn hca() -> Result<Made, Errno> {
    let mut hca = HCA.lock();
    if let Some(made) = &*hca {
        return Ok(made.clone());
    }
    tell::start();
    let preferred = *PREFERRED.lock();
    let made = Place::of_environment().and_then(|place| place.hca(preferred));
    match made {
        Ok(made) => {
            fork::watch();
            folder::write(&made);
            withdraw_at_exit(&made);
            Ok(hca.insert(made).clone())
        }
        Err(error) => {
            log(&error.to_string());
            Err(Errno(error.errno()))
        }
    }
}

/// What the process has published has no name any longer when it ends, unless it is killed.
fn withdraw_at_exit(made: &Made) {
    extern "C" fn withdraw() {
        // A child of a fork has published nothing of its own.
        if let Some(hca) = HCA.try_lock()
            && let Some(published) = hca.as_ref().and_then(|made| made.published.as_ref())
        {
            published.withdraw();
        }
    }
    static ONCE: Once = Once::new();
    if made.published.is_some() {
        // SAFETY: a function of this library, which is never unloaded.
        ONCE.call_once(|| unsafe {
            libc::atexit(withdraw);
        });
    }
}

/// The calling thread waits for packets and handles them, until one of `also` is readable or `timeout` is over; may return
/// early. `None` at once if another thread waits for packets: the caller then waits for its event alone.
pub(crate) fn sleep(also: &[BorrowedFd<'_>], timeout: Option<Duration>) -> Option<io::Result<()>> {
    let hca = HCA.lock().as_ref().map(|made| Arc::clone(&made.hca));
    hca?.sleep(also, timeout)
}

/// `ibv_get_device_list`: NULL at the end.
pub(crate) unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut abi::Device {
    say_panics_in_one_line();
    pointer(|| {
        let list = match hca() {
            Ok(made) => vec![shown(made.network), null_mut()],
            // Having no device is not an error.
            Err(_) => vec![null_mut()],
        };
        // SAFETY: NULL, or the program's place for the number.
        if let Some(count) = unsafe { count.as_mut() } {
            *count = (list.len() - 1) as c_int;
        }
        let bytes = size_of_val(&*list);
        // SAFETY: of that many bytes; the program frees it by free_device_list.
        let room = unsafe { libc::malloc(bytes) }.cast::<*mut abi::Device>();
        if room.is_null() {
            return Err(Errno::NOMEM);
        }
        // SAFETY: it has the requested length.
        unsafe { room.copy_from_nonoverlapping(list.as_ptr(), list.len()) };
        Ok(room)
    })
}

/// `ibv_free_device_list`.
pub(crate) unsafe extern "C" fn free_device_list(list: *mut *mut abi::Device) {
    // SAFETY: from get_device_list, or NULL.
    unsafe { libc::free(list.cast()) }
}

/// `ibv_get_device_name`.
pub(crate) unsafe extern "C" fn get_device_name(device: *const abi::Device) -> *const c_char {
    match is_ours(device) {
        // SAFETY: it is SHOWN, which stays.
        true => unsafe { (*device).name.as_ptr() },
        false => null(),
    }
}

/// `ibv_get_device_guid`, in network byte order.
pub(crate) unsafe extern "C" fn get_device_guid(device: *const abi::Device) -> u64 {
    if !is_ours(device) {
        set_errno(Errno::INVAL);
        return 0;
    }
    hca().map_or(0, |made| guid_of(&made).to_be())
}

/// `ibv_get_device_index`.
pub(crate) unsafe extern "C" fn get_device_index(device: *const abi::Device) -> c_int {
    number(|| match is_ours(device) {
        true => Ok(0),
        false => Err(Errno::INVAL),
    })
}

pub(crate) fn is_ours(device: *const abi::Device) -> bool {
    !device.is_null() && device.cast_mut() == SHOWN.load(Ordering::Acquire)
}

/// The name of the device: that of RoCE as long as there is none.
fn name() -> &'static str {
    let made = HCA.lock();
    made.as_ref()
        .map_or(Network::Roce, |made| made.network)
        .name()
}

fn shown(network: Network) -> *mut abi::Device {
    let made = SHOWN.load(Ordering::Acquire);
    if !made.is_null() {
        return made;
    }
    let name = network.name();
    // A channel adapter with InfiniBand's transport, as RoCE devices are too; or an RNIC with iWARP's.
    let (node_type, transport_type) = match network {
        Network::Roce | Network::InfiniBand => (1, 0),
        Network::Iwarp => (4, 1),
    };
    let device = Box::into_raw(Box::new(abi::Device {
        ops: [null_mut(); 2],
        node_type,
        transport_type,
        name: text(name),
        dev_name: text("uverbs0"),
        dev_path: text("/sys/class/infiniband_verbs/uverbs0"),
        ibdev_path: text(&format!("/sys/class/infiniband/{name}")),
        provider: [null_mut(); 8],
    }));
    match SHOWN.compare_exchange(null_mut(), device, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => device,
        Err(other) => {
            // SAFETY: made above, and not given out.
            drop(unsafe { Box::from_raw(device) });
            other
        }
    }
}

/// A C string in a field of that size.
fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (to, from) in field[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from.cast_signed();
    }
    field
}
