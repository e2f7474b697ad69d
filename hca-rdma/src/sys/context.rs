//! An open device.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use verbs_abi as abi;

use super::library::Library;
use super::{check, errno};
use crate::convert::text;
use crate::error::OpenError;

/// An open device of the library. Closed when it is dropped.
pub(crate) struct Context {
    pub(super) library: &'static Library,
    pub(super) raw: NonNull<abi::Context>,
}

// SAFETY: libibverbs locks inside; a context may be used and closed by any thread, and it is closed by its last owner.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// The devices of the system, as long as this lives.
struct List {
    library: &'static Library,
    first: NonNull<*mut abi::Device>,
    count: usize,
}

impl List {
    fn new(library: &'static Library) -> Result<Self, OpenError> {
        let mut count: c_int = 0;
        // SAFETY: `count` is written during the call.
        let first = unsafe { (library.verbs.get_device_list)(&mut count) };
        let first = NonNull::new(first).ok_or_else(|| OpenError::List(errno()))?;
        let count = usize::try_from(count).unwrap_or(0);
        Ok(Self {
            library,
            first,
            count,
        })
    }

    fn devices(&self) -> impl Iterator<Item = (NonNull<abi::Device>, String)> {
        (0..self.count).filter_map(|n| {
            // SAFETY: the list has `count` pointers and lives as long as `self`.
            let device = NonNull::new(unsafe { *self.first.add(n).as_ref() })?;
            // SAFETY: the devices of the list live as long as the list.
            let name = text(unsafe { &device.as_ref().name });
            Some((device, name))
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list came from the library, and its devices are no longer in use; open ones have references of
        // their own.
        unsafe { (self.library.verbs.free_device_list)(self.first.as_ptr()) };
    }
}

/// The names of the system's devices.
pub(crate) fn device_names(library: &'static Library) -> Result<Vec<String>, OpenError> {
    Ok(List::new(library)?
        .devices()
        .map(|(_, name)| name)
        .collect())
}

/// The subject of an asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    /// The device.
    Device,
    /// A port.
    Port(u8),
    /// The object at that address: [`super::Cq::address`] and its like.
    Object(usize),
}

/// An asynchronous event; its number is that of `ibv_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AsyncEvent {
    pub(crate) number: u32,
    pub(crate) element: Element,
}

impl Context {
    /// Opens the device of that name.
    pub(crate) fn open(library: &'static Library, name: &str) -> Result<Self, OpenError> {
        let list = List::new(library)?;
        let found = list.devices().find(|(_, other)| other == name);
        let (device, _) = found.ok_or_else(|| OpenError::NoDevice {
            name: name.into(),
            present: list.devices().map(|(_, name)| name).collect(),
        })?;
        // SAFETY: the device is one of a list that lives.
        let raw = unsafe { (library.verbs.open_device)(device.as_ptr()) };
        let failed = |errno| OpenError::Open {
            name: name.into(),
            errno,
        };
        let raw = NonNull::new(raw).ok_or_else(|| failed(errno()))?;
        let context = Self { library, raw };
        unblock(context.async_fd()).map_err(failed)?;
        Ok(context)
    }

    /// The library that opened it.
    pub(crate) fn library(&self) -> &'static Library {
        self.library
    }

    /// The type of node and the transport, as in `ibv_device`.
    pub(crate) fn kind(&self) -> (u32, u32) {
        // SAFETY: the context is open, and its device lives as long.
        let device = unsafe { self.raw.as_ref().device.as_ref() };
        device.map_or((0, 0), |device| (device.node_type, device.transport_type))
    }

    pub(crate) fn comp_vectors(&self) -> u32 {
        // SAFETY: the context is open; the field does not change.
        let count = unsafe { (*self.raw.as_ptr()).num_comp_vectors };
        u32::try_from(count).unwrap_or(0)
    }

    pub(crate) fn query(&self) -> Result<abi::DeviceAttr, Errno> {
        let mut attr = MaybeUninit::<abi::DeviceAttr>::zeroed();
        // SAFETY: the context is open, the attributes are written during the call.
        check(unsafe { (self.library.verbs.query_device)(self.raw.as_ptr(), attr.as_mut_ptr()) })?;
        // SAFETY: all fields are numbers, for which zero is valid.
        Ok(unsafe { attr.assume_init() })
    }

    pub(crate) fn query_port(&self, port: u8) -> Result<abi::PortAttr, Errno> {
        let mut attr = abi::PortAttr::default();
        // SAFETY: the context is open; the function writes no more than the structure holds.
        check(unsafe { (self.library.verbs.query_port)(self.raw.as_ptr(), port, &mut attr) })?;
        Ok(attr)
    }

    pub(crate) fn query_gid(&self, port: u8, index: u16) -> Result<[u8; 16], Errno> {
        let mut gid = [0; 16];
        let (raw, index) = (self.raw.as_ptr(), c_int::from(index));
        // SAFETY: the context is open, 16 bytes are written during the call.
        check(unsafe { (self.library.verbs.query_gid)(raw, port, index, &mut gid) })?;
        Ok(gid)
    }

    /// The type of an entry of the GID table, as `ibv_gid_type`; `None` if the library cannot report it, or the entry
    /// is empty.
    pub(crate) fn gid_type(&self, port: u8, index: u16) -> Option<u32> {
        let query = self.library.verbs.query_gid_ex?;
        let mut entry = MaybeUninit::<abi::GidEntry>::zeroed();
        let (raw, at, size) = (
            self.raw.as_ptr(),
            entry.as_mut_ptr(),
            size_of::<abi::GidEntry>(),
        );
        // SAFETY: the context is open; the entry, whose size is passed, is written during the call.
        let code = unsafe { query(raw, port.into(), index.into(), at, 0, size) };
        // SAFETY: all fields are numbers, for which zero is valid.
        (code == 0).then(|| unsafe { entry.assume_init() }.gid_type)
    }

    pub(crate) fn query_pkey(&self, port: u8, index: u16) -> Result<u16, Errno> {
        let mut pkey = 0;
        let (raw, index) = (self.raw.as_ptr(), c_int::from(index));
        // SAFETY: the context is open, the key is written during the call.
        check(unsafe { (self.library.verbs.query_pkey)(raw, port, index, &mut pkey) })?;
        Ok(u16::from_be(pkey))
    }

    /// Becomes readable when there is an asynchronous event.
    pub(crate) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the context is, and the field does not change.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).async_fd) }
    }

    /// The next asynchronous event, if there is one. The destroy of its subject does not wait until it has been
    /// handled: the event is acknowledged, and its subject is only named by its address.
    pub(crate) fn next_event(&self) -> Option<AsyncEvent> {
        let mut event = MaybeUninit::<abi::AsyncEvent>::zeroed();
        // SAFETY: the context is open, the event is written during the call, which does not wait: the descriptor is
        // non-blocking.
        let code =
            unsafe { (self.library.verbs.get_async_event)(self.raw.as_ptr(), event.as_mut_ptr()) };
        if code != 0 {
            return None;
        }
        // SAFETY: all fields are numbers, for which zero is valid.
        let mut event = unsafe { event.assume_init() };
        let (number, element) = (event.event_type, event.element);
        // SAFETY: the event was just taken, and is acknowledged this once; until then its object is not destroyed.
        unsafe { (self.library.verbs.ack_async_event)(&mut event) };
        let element = match number {
            0..=7 | 14..=16 | 19 => Element::Object(element as usize),
            9..=13 | 17 | 18 => Element::Port(element as u8),
            _ => Element::Device,
        };
        Some(AsyncEvent { number, element })
    }
}

/// Makes reads non-blocking.
pub(super) fn unblock(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = fcntl_getfl(fd.as_fd())?;
    fcntl_setfl(fd, flags | OFlags::NONBLOCK)
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context has no other owner: objects that were made from it hold it.
        let _ = super::destroyed("device", unsafe {
            (self.library.verbs.close_device)(self.raw.as_ptr())
        });
    }
}
