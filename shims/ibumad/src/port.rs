//! Open ports: registering, sending, receiving.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_long, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

use hca_sim::link::fabric::message::{MadMessage, Message, Registration};
use hca_sim::link::fabric::socket::{Take, receive, send};
use parking_lot::Mutex;
use rustix::io::Errno;
use verbs_core::addr::{QKey, Qpn};
use verbs_core::{Gid, Lid};

use crate::abi::{HEADER_LEN, MadAddr, RegAttr, UserMad, fail, set_errno};
use crate::client::{ask, ask_for_file, host};
use crate::device::find;

/// The number by which the subnet's host knows each open port, in questions.
static SESSIONS: Mutex<BTreeMap<c_int, u32>> = Mutex::new(BTreeMap::new());

/// Classes whose datagrams name a vendor.
const VENDOR_CLASSES: std::ops::RangeInclusive<u8> = 0x30..=0x4f;

// libc's poll is where a thread that receives can be cancelled, which OpenSM does to its own threads. It unwinds then,
// so the function must be declared as one that may.
unsafe extern "C-unwind" {
    fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
}

/// Opens a port and returns its number, a file descriptor.
///
/// # Safety
/// `ca_name` is null or a text.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_open_port(ca_name: *const c_char, portnum: c_int) -> c_int {
    // SAFETY: the name is a text.
    let found = unsafe { find(ca_name, portnum) };
    let opened = found.and_then(|(index, _, port)| {
        let question = Message::Open {
            host: host(),
            adapter: u8::try_from(index).unwrap_or(u8::MAX),
            port: port.number,
        };
        match ask_for_file(&question)? {
            (Message::Opened { session }, Some(socket)) => Ok((socket, session)),
            _ => Err(Errno::PROTO),
        }
    });
    match opened {
        Ok((socket, session)) => {
            add_session(socket.as_raw_fd(), session);
            socket.into_raw_fd()
        }
        Err(error) => fail(error.raw_os_error()),
    }
}

/// The same, for subnet management: each adapter of a subnet has that service.
///
/// # Safety
/// As [`umad_open_port`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_open_smi_port(
    ca_name: *const c_char,
    portnum: c_int,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { umad_open_port(ca_name, portnum) }
}

/// Closes a port.
///
/// # Safety
/// The port's number is no longer used.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_close_port(portid: c_int) -> c_int {
    if SESSIONS.lock().remove(&portid).is_none() {
        return fail(libc::EINVAL);
    }
    // SAFETY: it was given out by umad_open_port and is closed once, because it was in the table.
    drop(unsafe { OwnedFd::from_raw_fd(portid) });
    0
}

/// The descriptor of an open port, which is its number.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn umad_get_fd(portid: c_int) -> c_int {
    portid
}

/// A port is open by that number.
pub(crate) fn add_session(portid: c_int, session: u32) {
    SESSIONS.lock().insert(portid, session);
}

fn register(portid: c_int, registration: Registration) -> Result<u32, Errno> {
    let session = SESSIONS.lock().get(&portid).copied().ok_or(Errno::INVAL)?;
    let question = Message::Register {
        session,
        registration,
    };
    match ask(&question)? {
        Message::Registered { agent } => Ok(agent),
        _ => Err(Errno::PROTO),
    }
}

fn agent_number(registered: Result<u32, Errno>) -> c_int {
    match registered {
        Ok(agent) => agent.cast_signed(),
        Err(error) => fail(error.raw_os_error()),
    }
}

/// The methods that a program has set in a mask, or none for null.
///
/// # Safety
/// `mask` is null or has 16 bytes.
unsafe fn methods(mask: *const c_long) -> u128 {
    if mask.is_null() {
        return 0;
    }
    // SAFETY: there are two numbers of 64 bits, or four of 32 bits: 16 bytes.
    u128::from_le_bytes(unsafe { mask.cast::<[u8; 16]>().read_unaligned() })
}

/// Registers for a class and returns the registration's number.
///
/// # Safety
/// `method_mask` is null or has 16 bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_register(
    portid: c_int,
    mgmt_class: c_int,
    mgmt_version: c_int,
    rmpp_version: u8,
    method_mask: *const c_long,
) -> c_int {
    agent_number(register(
        portid,
        Registration {
            class: mgmt_class.to_le_bytes()[0],
            version: mgmt_version.to_le_bytes()[0],
            // SAFETY: the caller has to guarantee the same.
            methods: unsafe { methods(method_mask) },
            // OpenIB's number, which vendor classes have if none is given.
            oui: 0x00_1405,
            has_transfers: rmpp_version != 0,
        },
    ))
}

/// Registers for a vendor's class and returns the registration's number.
///
/// # Safety
/// `oui` has three bytes, `method_mask` is null or has 16.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_register_oui(
    portid: c_int,
    mgmt_class: c_int,
    rmpp_version: u8,
    oui: *const u8,
    method_mask: *const c_long,
) -> c_int {
    let class = mgmt_class.to_le_bytes()[0];
    if !VENDOR_CLASSES.contains(&class) || oui.is_null() {
        return fail(libc::EINVAL);
    }
    // SAFETY: there are three bytes.
    let [a, b, c] = unsafe { oui.cast::<[u8; 3]>().read() };
    agent_number(register(
        portid,
        Registration {
            class,
            version: 1,
            // SAFETY: the caller has to guarantee the same.
            methods: unsafe { methods(method_mask) },
            oui: u32::from_be_bytes([0, a, b, c]),
            has_transfers: rmpp_version != 0,
        },
    ))
}

/// Registers for a class; the registration's number is written to `agent_id`. Returns the number of an error, positive
/// as in libibumad.
///
/// # Safety
/// `attr` and `agent_id` are null or valid.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_register2(
    port_fd: c_int,
    attr: *mut RegAttr,
    agent_id: *mut u32,
) -> c_int {
    // Program flags: the program itself handles transfers.
    const USER_RMPP: u32 = 1;
    if attr.is_null() || agent_id.is_null() {
        return libc::EINVAL;
    }
    // SAFETY: the caller's description.
    let attr = unsafe { attr.read() };
    if attr.flags & !USER_RMPP != 0 {
        return libc::EINVAL;
    }
    let [low, high] = attr.method_mask;
    let registration = Registration {
        class: attr.mgmt_class,
        version: attr.mgmt_class_version,
        methods: u128::from(high) << 64 | u128::from(low),
        oui: attr.oui & 0xff_ffff,
        has_transfers: attr.rmpp_version != 0 && attr.flags & USER_RMPP == 0,
    };
    match register(port_fd, registration) {
        Ok(agent) => {
            // SAFETY: the caller's place for one number.
            unsafe { agent_id.write(agent) };
            0
        }
        Err(error) => error.raw_os_error(),
    }
}

/// Ends a registration.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn umad_unregister(portid: c_int, agentid: c_int) -> c_int {
    let Some(session) = SESSIONS.lock().get(&portid).copied() else {
        return fail(libc::EINVAL);
    };
    let agent = agentid.cast_unsigned();
    match ask(&Message::Unregister { session, agent }) {
        Ok(_) => 0,
        Err(error) => fail(error.raw_os_error()),
    }
}

/// Sends a datagram, or a transfer of several.
///
/// # Safety
/// `umad` is a buffer with a header and `length` bytes behind it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_send(
    portid: c_int,
    agentid: c_int,
    umad: *mut c_void,
    length: c_int,
    timeout_ms: c_int,
    retries: c_int,
) -> c_int {
    let Ok(length) = usize::try_from(length) else {
        return fail(libc::EINVAL);
    };
    if umad.is_null() || !SESSIONS.lock().contains_key(&portid) {
        return fail(libc::EINVAL);
    }
    // SAFETY: the caller's buffer begins with a header.
    let header = unsafe { umad.cast::<UserMad>().read_unaligned() };
    let data = umad.cast::<u8>().wrapping_add(HEADER_LEN);
    // SAFETY: that many bytes follow it, and no other thread changes them during the call.
    let bytes = unsafe { std::slice::from_raw_parts(data, length) }.to_vec();
    let addr = header.addr;
    let message = Message::Mad(MadMessage {
        agent: agentid.cast_unsigned(),
        status: 0,
        timeout_ms: timeout_ms.max(0).cast_unsigned(),
        retries: retries.max(0).cast_unsigned(),
        qpn: Qpn::new(u32::from_be(addr.qpn)),
        qkey: QKey(u32::from_be(addr.qkey)),
        lid: Lid(u16::from_be(addr.lid)),
        sl: addr.sl,
        path_bits: addr.path_bits,
        gid: (addr.grh_present != 0).then_some(Gid(addr.gid)),
        gid_index: addr.gid_index,
        pkey_index: addr.pkey_index,
        bytes,
    });
    // SAFETY: the port is open, as the table says, and its user does not close it while using it.
    let socket = unsafe { BorrowedFd::borrow_raw(portid) };
    match send(socket, &message.encode(), true) {
        Ok(()) => 0,
        Err(error) => fail(error.raw_os_error()),
    }
}

/// Waits until something has arrived: 0, or the negative number of an error.
///
/// No value with a destructor lives in this function, because a thread that is cancelled leaves it by unwinding.
fn wait(portid: c_int, timeout_ms: c_int) -> c_int {
    let mut entry = libc::pollfd {
        fd: portid,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry, which lives until the call is over.
    let ready = unsafe { poll(&raw mut entry, 1, timeout_ms) };
    if ready == 0 {
        fail(libc::ETIMEDOUT)
    } else if ready < 0 {
        // SAFETY: the calling thread's own errno.
        unsafe { -*libc::__errno_location() }
    } else {
        0
    }
}

/// The subnet no longer exists: nothing will arrive any longer, and a program that waits for something waits as it
/// would at a port without a cable. If every call failed at once, a thread that receives in an endless loop would do
/// nothing else; OpenSM could not end its thread.
fn silence(timeout_ms: c_int) -> c_int {
    // SAFETY: no entries, so that nothing is read or written.
    unsafe { poll(std::ptr::null_mut(), 0, timeout_ms) };
    fail(libc::ETIMEDOUT)
}

/// Waits until a datagram can be received, `timeout_ms` long, for ever if that is negative.
#[unsafe(no_mangle)]
pub(crate) extern "C-unwind" fn umad_poll(portid: c_int, timeout_ms: c_int) -> c_int {
    wait(portid, timeout_ms)
}

/// Receives a datagram and returns the registration that it is for. If it does not fit, it stays, and `length` says how
/// long it is.
///
/// # Safety
/// `umad` is a buffer with room for a header and `*length` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn umad_recv(
    portid: c_int,
    umad: *mut c_void,
    length: *mut c_int,
    timeout_ms: c_int,
) -> c_int {
    if umad.is_null() || length.is_null() {
        return fail(libc::EINVAL);
    }
    if timeout_ms != 0 {
        let waited = wait(portid, timeout_ms);
        if waited < 0 {
            return waited;
        }
    }
    // SAFETY: the caller has to guarantee the same.
    let taken = unsafe { take(portid, umad, length) };
    if taken == -GONE {
        return silence(timeout_ms);
    }
    taken
}

/// The status of a receive after the subnet has ended.
const GONE: c_int = libc::ESHUTDOWN;

/// Takes what has arrived.
///
/// # Safety
/// As for [`umad_recv`], and nothing is null.
unsafe fn take(portid: c_int, umad: *mut c_void, length: *mut c_int) -> c_int {
    if !SESSIONS.lock().contains_key(&portid) {
        return fail(libc::EINVAL);
    }
    // SAFETY: the port is open, as the table says, and its user does not close it while using it.
    let socket = unsafe { BorrowedFd::borrow_raw(portid) };
    let mad = match look(socket, Take::Look) {
        Ok(mad) => mad,
        Err(error) => return fail(error.raw_os_error()),
    };
    // SAFETY: the caller passes a valid number.
    let room = usize::try_from(unsafe { length.read() }).unwrap_or(0);
    let len = mad.bytes.len();
    let header = header_of(&mad);
    // SAFETY: there is room for a header.
    unsafe { umad.cast::<UserMad>().write_unaligned(header) };
    // SAFETY: the caller passes a valid number.
    unsafe { length.write(c_int::try_from(len).unwrap_or(c_int::MAX)) };
    if len > room {
        return fail(libc::ENOSPC);
    }
    // All threads that receive at a port take from the same messages; another thread may have been faster.
    let mad = match look(socket, Take::Away) {
        Ok(mad) if mad.bytes.len() <= room => mad,
        Ok(_) => return fail(libc::ENOSPC),
        Err(error) => return fail(error.raw_os_error()),
    };
    let data = umad.cast::<u8>().wrapping_add(HEADER_LEN);
    // SAFETY: there is room for as many bytes behind the header, which are not the message's own.
    unsafe {
        umad.cast::<UserMad>().write_unaligned(header_of(&mad));
        std::ptr::copy_nonoverlapping(mad.bytes.as_ptr(), data, mad.bytes.len());
    }
    mad.agent.cast_signed()
}

fn look(socket: BorrowedFd<'_>, take: Take) -> Result<MadMessage, Errno> {
    let bytes = match receive(socket, take, false) {
        Ok(None) | Err(Errno::CONNRESET) => return Err(Errno::SHUTDOWN),
        other => other?.unwrap_or_default(),
    };
    match Message::decode(&bytes) {
        Ok(Message::Mad(mad)) => Ok(mad),
        _ => Err(Errno::PROTO),
    }
}

fn header_of(mad: &MadMessage) -> UserMad {
    let length = u32::try_from(HEADER_LEN + mad.bytes.len()).unwrap_or(u32::MAX);
    UserMad {
        agent_id: mad.agent,
        status: mad.status,
        timeout_ms: mad.timeout_ms,
        retries: mad.retries,
        length,
        addr: MadAddr {
            qpn: mad.qpn.value().to_be(),
            qkey: mad.qkey.0.to_be(),
            lid: mad.lid.0.to_be(),
            sl: mad.sl,
            path_bits: mad.path_bits,
            grh_present: u8::from(mad.gid.is_some()),
            gid_index: mad.gid_index,
            gid: mad.gid.unwrap_or_default().0,
            pkey_index: mad.pkey_index,
            ..MadAddr::default()
        },
    }
}

/// Sets the level of debug output, of which there is none. Returns the level before.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn umad_debug(_level: c_int) -> c_int {
    set_errno(0);
    0
}
