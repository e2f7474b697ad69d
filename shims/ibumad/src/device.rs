//! The adapters and ports.
//!
//! Memory for programs is allocated with `calloc`, because some programs free it themselves.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use hca_sim::link::fabric::message::{Adapter, AdapterPort, Message};
use rustix::io::Errno;

use crate::abi::{DeviceNode, NAME_LEN, PORTS_MAX, UmadCa, UmadPort, fail, put_text};
use crate::client::{ask, host};

/// State of an active port.
pub(crate) const ACTIVE: u8 = 4;

/// This host's adapters, from the first one, called `verbs0`.
pub(crate) fn adapters() -> Result<Vec<Adapter>, Errno> {
    match ask(&Message::Look { host: host() })? {
        Message::Adapters(adapters) => Ok(adapters),
        _ => Err(Errno::PROTO),
    }
}

pub(crate) fn name(index: usize) -> String {
    format!("verbs{index}")
}

/// A text of the program; `None` for null.
///
/// # Safety
/// `place` is null or a text.
pub(crate) unsafe fn text(place: *const c_char) -> Option<String> {
    if place.is_null() {
        return None;
    }
    // SAFETY: it is a text, as the caller says.
    let text = unsafe { CStr::from_ptr(place) };
    Some(text.to_string_lossy().into_owned())
}

/// Finds a port by the name of its adapter and its number: null stands for any adapter, 0 for any port, active ones
/// before others.
///
/// # Safety
/// `ca_name` is null or a text.
pub(crate) unsafe fn find(
    ca_name: *const c_char,
    number: c_int,
) -> Result<(usize, Adapter, AdapterPort), Errno> {
    // SAFETY: it is null or a text, as the caller says.
    let wanted = unsafe { text(ca_name) };
    let mut found: Option<(usize, Adapter, AdapterPort)> = None;
    for (index, adapter) in adapters()?.into_iter().enumerate() {
        if wanted.as_ref().is_some_and(|wanted| *wanted != name(index)) {
            continue;
        }
        let is_switch = adapter.node_type == 2;
        for port in &adapter.ports {
            let fits = number == c_int::from(port.number) || number == 0 && !is_switch;
            let better = found
                .as_ref()
                .is_none_or(|(_, _, best)| best.state != ACTIVE && port.state == ACTIVE);
            if fits && better || is_switch && number <= 0 && better {
                found = Some((index, adapter.clone(), port.clone()));
            }
        }
    }
    found.ok_or(Errno::NODEV)
}

/// Prepares the library. There is nothing to prepare; if the subnet cannot be reached, later calls show it.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn umad_init() -> c_int {
    0
}

/// The program is done with the library.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn umad_done() -> c_int {
    0
}

/// Writes the names of the adapters and returns how many there are.
///
/// # Safety
/// `cas` has room for `max` names of 20 bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_get_cas_names(
    cas: *mut [c_char; NAME_LEN],
    max: c_int,
) -> c_int {
    let Ok(adapters) = adapters() else { return 0 };
    let max = usize::try_from(max).unwrap_or(0);
    let count = adapters.len().min(max);
    if cas.is_null() {
        return 0;
    }
    for index in 0..count {
        let mut text = [0; NAME_LEN];
        put_text(&mut text, &name(index));
        // SAFETY: the index is below the number of names that there is room for.
        unsafe { cas.add(index).write(text) };
    }
    c_int::try_from(count).unwrap_or(0)
}

/// Writes the GUIDs of an adapter's ports, by port number, and returns how many entries that are.
///
/// # Safety
/// `ca_name` is null or a text; `portguids` has room for `max` numbers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_get_ca_portguids(
    ca_name: *const c_char,
    portguids: *mut u64,
    max: c_int,
) -> c_int {
    // SAFETY: the name is a text.
    let (_, adapter, _) = match unsafe { find(ca_name, 0) } {
        Ok(found) => found,
        Err(error) => return fail(error.raw_os_error()),
    };
    let last = adapter.ports.iter().map(|port| port.number).max();
    let count = usize::from(last.unwrap_or(0)) + 1;
    if portguids.is_null() {
        return c_int::try_from(count).unwrap_or(0);
    }
    if usize::try_from(max).unwrap_or(0) < count {
        return fail(libc::ENOMEM);
    }
    for index in 0..count {
        let mut ports = adapter.ports.iter();
        let port = ports.find(|port| usize::from(port.number) == index);
        let guid = port.map_or(0, |port| port.guid.0);
        // SAFETY: there is room for as many as are written.
        unsafe { portguids.add(index).write(guid.to_be()) };
    }
    c_int::try_from(count).unwrap_or(0)
}

/// Pieces of memory that programs have received and not released. Those that a program frees itself, as it may, stay
/// counted: only fuzzing reads the count.
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn allocated() -> usize {
    ALLOCATED.load(Relaxed)
}

/// Allocates zeroed memory for a value; `None` if none is available.
fn allocate<T>(count: usize) -> Option<*mut T> {
    // SAFETY: any sizes are fine.
    let place = unsafe { libc::calloc(count.max(1), size_of::<T>()) };
    ALLOCATED.fetch_add(usize::from(!place.is_null()), Relaxed);
    (!place.is_null()).then_some(place.cast())
}

/// Frees memory from [`allocate`], or nothing.
///
/// # Safety
/// `place` is null or was allocated so, and is not used afterwards.
unsafe fn free<T>(place: *mut T) {
    ALLOCATED.fetch_sub(usize::from(!place.is_null()), Relaxed);
    // SAFETY: as the caller says.
    unsafe { libc::free(place.cast::<c_void>()) };
}

/// A port as programs see it. The program frees the list of partitions.
fn umad_port(index: usize, port: &AdapterPort) -> Option<UmadPort> {
    let keys = allocate::<u16>(port.pkeys.len())?;
    for (at, key) in port.pkeys.iter().enumerate() {
        // SAFETY: room for that many was allocated.
        unsafe { keys.add(at).write(key.0) };
    }
    let mut text = UmadPort {
        ca_name: [0; NAME_LEN],
        portnum: port.number.into(),
        base_lid: port.lid.0.into(),
        lmc: port.lmc.into(),
        sm_lid: port.sm_lid.0.into(),
        sm_sl: port.sm_sl.into(),
        state: port.state.into(),
        phys_state: port.phys_state.into(),
        rate: port.rate_mbps / 1000,
        capmask: port.capability_mask.to_be(),
        gid_prefix: port.gid_prefix.to_be(),
        port_guid: port.guid.0.to_be(),
        pkeys_size: u32::try_from(port.pkeys.len()).unwrap_or(0),
        pkeys: keys,
        link_layer: [0; NAME_LEN],
    };
    put_text(&mut text.ca_name, &name(index));
    put_text(&mut text.link_layer, "InfiniBand");
    Some(text)
}

/// Describes a port.
///
/// # Safety
/// `ca_name` is null or a text; `port` has room for a `umad_port_t`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_get_port(
    ca_name: *const c_char,
    portnum: c_int,
    port: *mut UmadPort,
) -> c_int {
    if port.is_null() {
        return fail(libc::EINVAL);
    }
    // SAFETY: the name is a text.
    let (index, _, found) = match unsafe { find(ca_name, portnum) } {
        Ok(found) => found,
        Err(error) => return fail(error.raw_os_error()),
    };
    let Some(described) = umad_port(index, &found) else {
        return fail(libc::ENOMEM);
    };
    // SAFETY: there is room for one.
    unsafe { port.write(described) };
    0
}

/// Frees the memory of a port's description.
///
/// # Safety
/// `port` is null or was described by [`umad_get_port`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_release_port(port: *mut UmadPort) -> c_int {
    if port.is_null() {
        return -libc::ENODEV;
    }
    // SAFETY: the list was allocated with calloc, or is null; it is not freed twice, because it is
    // null from now on.
    unsafe {
        free((*port).pkeys);
        (*port).pkeys = ptr::null_mut();
        (*port).pkeys_size = 0;
    }
    0
}

/// Describes an adapter and its ports.
///
/// # Safety
/// `ca_name` is null or a text; `ca` has room for a `umad_ca_t`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_get_ca(ca_name: *const c_char, ca: *mut UmadCa) -> c_int {
    if ca.is_null() {
        return fail(libc::EINVAL);
    }
    // SAFETY: the name is a text.
    let (index, adapter, _) = match unsafe { find(ca_name, 0) } {
        Ok(found) => found,
        Err(error) => return fail(error.raw_os_error()),
    };
    let mut described = UmadCa {
        ca_name: [0; NAME_LEN],
        node_type: adapter.node_type.into(),
        numports: c_int::try_from(adapter.ports.len()).unwrap_or(0),
        fw_ver: [0; 20],
        ca_type: [0; 40],
        hw_ver: [0; 20],
        node_guid: adapter.guid.0.to_be(),
        system_guid: adapter.system_guid.0.to_be(),
        ports: [ptr::null_mut(); PORTS_MAX],
    };
    put_text(&mut described.ca_name, &name(index));
    put_text(&mut described.fw_ver, env!("CARGO_PKG_VERSION"));
    put_text(&mut described.ca_type, "verbs subnet");
    put_text(&mut described.hw_ver, "0");
    for port in &adapter.ports {
        // A port that the list has no room for, or that the host names twice, is not described.
        let entry = described.ports.get_mut(usize::from(port.number));
        let Some(entry) = entry.filter(|entry| entry.is_null()) else {
            continue;
        };
        let Some(place) = allocate::<UmadPort>(1) else {
            break;
        };
        let Some(port) = umad_port(index, port) else {
            // SAFETY: it was allocated here, and no other code has seen it.
            unsafe { free(place) };
            break;
        };
        // SAFETY: it was allocated for one.
        unsafe { place.write(port) };
        *entry = place;
    }
    // SAFETY: there is room for one.
    unsafe { ca.write(described) };
    0
}

/// Frees the memory of an adapter's description.
///
/// # Safety
/// `ca` is null or was described by [`umad_get_ca`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_release_ca(ca: *mut UmadCa) -> c_int {
    if ca.is_null() {
        return -libc::ENODEV;
    }
    // SAFETY: the caller's description, which nothing else uses during the call.
    let ports = unsafe { &mut (*ca).ports };
    for port in ports {
        if !port.is_null() {
            // SAFETY: the port was allocated and described by us, and is forgotten here.
            unsafe {
                umad_release_port(*port);
                free(*port);
            }
            *port = ptr::null_mut();
        }
    }
    0
}

/// A list of the adapters.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn umad_get_ca_device_list() -> *mut DeviceNode {
    let Ok(adapters) = adapters() else {
        return ptr::null_mut();
    };
    let mut head: *mut DeviceNode = ptr::null_mut();
    for index in (0..adapters.len()).rev() {
        let Some((node, text)) = allocate::<DeviceNode>(1).zip(allocate::<[c_char; NAME_LEN]>(1))
        else {
            return head;
        };
        // SAFETY: both were allocated for what is written.
        unsafe {
            put_text(&mut *text, &name(index));
            node.write(DeviceNode {
                next: head,
                ca_name: text.cast::<c_char>(),
            });
        }
        head = node;
    }
    head
}

/// Frees a list.
///
/// # Safety
/// `head` is null or came from [`umad_get_ca_device_list`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_free_ca_device_list(head: *mut DeviceNode) {
    let mut next = head;
    while !next.is_null() {
        // SAFETY: an entry that we allocated, with its name; it is not used afterwards.
        unsafe {
            let node = next.read();
            free(node.ca_name.cast_mut());
            free(next);
            next = node.next;
        }
    }
}

/// Sorts a list by name.
///
/// # Safety
/// `head` is null or points to a list from [`umad_get_ca_device_list`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_sort_ca_device_list(
    head: *mut *mut DeviceNode,
    _size: usize,
) -> c_int {
    if head.is_null() {
        return -libc::EINVAL;
    }
    let mut nodes = Vec::new();
    // SAFETY: the caller's list.
    let mut next = unsafe { head.read() };
    while !next.is_null() {
        nodes.push(next);
        // SAFETY: an entry of the list.
        next = unsafe { (*next).next };
    }
    // SAFETY: entries have names.
    nodes.sort_by(|&a, &b| unsafe {
        CStr::from_ptr((*a).ca_name).cmp(CStr::from_ptr((*b).ca_name))
    });
    let mut behind = ptr::null_mut();
    for node in nodes.into_iter().rev() {
        // SAFETY: an entry of the list, whose order this function may change.
        unsafe { (*node).next = behind };
        behind = node;
    }
    // SAFETY: the caller's pointer.
    unsafe { head.write(behind) };
    0
}

/// Writes the path of the file that a subnet manager keeps open as long as it manages that port.
///
/// # Safety
/// `ca_name` is null or a text; `path` has room for `max` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_get_issm_path(
    ca_name: *const c_char,
    portnum: c_int,
    path: *mut c_char,
    max: c_int,
) -> c_int {
    // SAFETY: the name is a text.
    let (index, _, port) = match unsafe { find(ca_name, portnum) } {
        Ok(found) => found,
        Err(error) => return fail(error.raw_os_error()),
    };
    let question = Message::ManagerFile {
        host: host(),
        adapter: u8::try_from(index).unwrap_or(u8::MAX),
        port: port.number,
    };
    let found = match ask(&question) {
        Ok(Message::Path(found)) => found,
        Ok(_) => return fail(libc::EPROTO),
        Err(error) => return fail(error.raw_os_error()),
    };
    let max = usize::try_from(max).unwrap_or(0);
    if path.is_null() || found.len() >= max {
        return fail(libc::EINVAL);
    }
    let bytes = found.as_bytes();
    // SAFETY: there is room for the text and the zero behind it.
    unsafe {
        ptr::copy_nonoverlapping(bytes.as_ptr(), path.cast::<u8>(), bytes.len());
        path.add(bytes.len()).write(0);
    }
    0
}
