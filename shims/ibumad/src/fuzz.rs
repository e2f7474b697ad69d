//! The fuzz target of this library as a plain function over bytes: the answers of the subnet's host, and the arguments
//! of a C program. It panics when a promise is broken.
//!
//! No connection to a host is made: the other ends of the sockets are here, and hold the answers before the questions
//! are sent.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::ptr;

use hca_sim::link::fabric::message::{Adapter, AdapterPort, MadMessage, Message, Refusal};
use hca_sim::link::fabric::socket::{Take, receive, send};
use parking_lot::Mutex;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use verbs_core::{Gid, Guid, Lid, PKey, QKey, Qpn};

use crate::abi::{CaPair, HEADER_LEN, MadAddr, NAME_LEN, PORTS_MAX, RegAttr, UmadCa, UmadPort};
use crate::{client, datagram, device, pair, port, text};

/// The most calls of a script.
const CALLS_MAX: u32 = 64;

/// The bytes around the buffers that a program passes.
const CANARY: u8 = 0xa5;
/// Bytes of it behind a buffer.
const BEHIND: usize = 64;

/// The session of the port that is open.
const SESSION: u32 = 7;

/// Names that a program may pass.
const NAMES: [Option<&CStr>; 4] = [None, Some(c"verbs0"), Some(c"verbs1"), Some(c"mlx5_0")];

/// The library's state is the process's: one script at a time.
static TURN: Mutex<()> = Mutex::new(());

/// Calls of the library in any order, with answers of a host that may be invalid. Nothing is written outside the
/// program's buffers, texts end, an open port stays usable, and what was allocated for the program is freed when it has
/// released it. Returns how many calls there were.
pub fn calls(bytes: &[u8]) -> u32 {
    let turn = TURN.lock();
    let before = device::allocated();
    let mut script = Script { bytes };
    let mut open = Open::new();
    let mut calls = 0;
    while !script.bytes.is_empty() && calls < CALLS_MAX {
        calls += 1;
        let what = script.byte();
        match what % 16 {
            0..=2 => open.hear(&mut script),
            3 | 4 => open.take(&mut script),
            5 => open.send(&mut script),
            _ => asked(&mut script, |script| match what % 16 {
                6 => describe_adapter(script),
                7 => describe_port(script),
                8 => list(),
                9 if script.below(2) == 1 => pairs(script),
                9 => names(script),
                10 => guids(script),
                11 => path(script),
                12 | 13 => open.register(script),
                14 => {
                    // The port's number, or another.
                    let portid = script.number(&[open.portid, -1, 0]);
                    port::umad_unregister(portid, script.byte().into());
                }
                _ => words(script),
            }),
        }
    }
    open.close();
    assert_eq!(
        device::allocated(),
        before,
        "memory that a program cannot release"
    );
    drop(turn);
    calls
}

/// The bytes of an input as decisions; behind its end all are zero.
struct Script<'a> {
    bytes: &'a [u8],
}

impl<'a> Script<'a> {
    fn byte(&mut self) -> u8 {
        let (&byte, rest) = self.bytes.split_first().unwrap_or((&0, &[]));
        self.bytes = rest;
        byte
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    fn number(&mut self, of: &[c_int]) -> c_int {
        of[self.below(of.len())]
    }

    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.bytes.split_at(len.min(self.bytes.len()));
        self.bytes = rest;
        taken
    }

    fn name(&mut self) -> *const c_char {
        NAMES[self.below(NAMES.len())].map_or(ptr::null(), CStr::as_ptr)
    }
}

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    pair.expect("two sockets")
}

/// A buffer of a program with canaries behind it.
struct Buffer(Vec<u8>);

impl Buffer {
    fn new(len: usize) -> Self {
        Self(vec![CANARY; len + BEHIND])
    }

    /// A program's buffer need not be aligned.
    fn pointer(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }

    fn check(&self, len: usize) {
        let behind = self.0.get(len..).unwrap_or_default();
        assert!(
            behind.iter().all(|&byte| byte == CANARY),
            "bytes behind a buffer were written"
        );
    }
}

/// Runs a call that asks the subnet's host, which has answered already.
fn asked(script: &mut Script<'_>, call: impl FnOnce(&mut Script<'_>)) {
    let (own, other) = pair();
    for _ in 0..3 {
        let answer = an_answer(script);
        // An answer that is too long for a socket is not sent.
        let _sent = send(other.as_fd(), &answer, false);
    }
    // A host that has nothing more to send has ended.
    shutdown(&other, Shutdown::Write).expect("a socket that is connected");
    client::use_connection(Some(own));
    call(script);
    client::use_connection(None);
    drop(other);
}

/// A host's answer: mostly adapters, at times with some bytes changed.
fn an_answer(script: &mut Script<'_>) -> Vec<u8> {
    let message = match script.below(8) {
        0..=3 => Message::Adapters((0..script.below(4)).map(|_| an_adapter(script)).collect()),
        4 => Message::Registered {
            agent: script.u32(),
        },
        5 => Message::Path("a".repeat(script.byte().into())),
        6 => Message::Refused([Refusal::Missing, Refusal::Full, Refusal::Taken][script.below(3)]),
        _ => [Message::Done, Message::Opened { session: SESSION }][script.below(2)].clone(),
    };
    let mut bytes = message.encode();
    for _ in 0..script.below(8).saturating_sub(4) {
        let at = script.u32() as usize % bytes.len().max(1);
        let byte = script.byte();
        if let Some(place) = bytes.get_mut(at) {
            *place = byte;
        }
    }
    if script.below(16) == 15 {
        bytes.truncate(script.byte().into());
    }
    bytes
}

fn an_adapter(script: &mut Script<'_>) -> Adapter {
    let mut port = || AdapterPort {
        number: [1, 2, 0, 9, 10, 255, 1][script.below(7)],
        guid: Guid(script.u32().into()),
        lid: Lid(script.byte().into()),
        state: script.byte() % 6,
        rate_mbps: script.u32(),
        pkeys: vec![PKey(0xffff); script.below(40)],
        ..AdapterPort::default()
    };
    let ports = [port(), port(), port()];
    let count = script.below(4);
    Adapter {
        name: "n".repeat(script.below(40)),
        ports: ports.into_iter().take(count).collect(),
        node_type: 1 + script.byte() % 2,
        ..Adapter::default()
    }
}

/// An open port, and the host's end of its socket.
struct Open {
    portid: c_int,
    host: OwnedFd,
    waiting: usize,
}

impl Open {
    fn new() -> Self {
        let (own, host) = pair();
        let portid = own.as_raw_fd();
        port::add_session(portid, SESSION);
        // Its number belongs to the program from now on, which closes it.
        let _number = own.into_raw_fd();
        Self {
            portid,
            host,
            waiting: 0,
        }
    }

    /// The host sends a datagram, or something invalid.
    fn hear(&mut self, script: &mut Script<'_>) {
        let len = [256, 256, 0, 24, 300, 2000, 40_000][script.below(7)];
        let mut bytes = vec![0x11; len];
        for (to, from) in bytes.iter_mut().zip(script.take(32)) {
            *to = *from;
        }
        let mad = MadMessage {
            agent: script.byte().into(),
            status: [0, 110, u32::MAX][script.below(3)],
            qpn: Qpn::new(script.byte().into()),
            qkey: QKey(script.u32()),
            lid: Lid(script.byte().into()),
            gid: (script.below(2) == 1).then(|| Gid(script.array())),
            bytes,
            ..MadMessage::default()
        };
        let mut message = Message::Mad(mad).encode();
        match script.below(8) {
            6 => message.truncate(script.byte().into()),
            7 => {
                let at = script.u32() as usize % message.len();
                message[at] = script.byte();
            }
            _ => {}
        }
        if send(self.host.as_fd(), &message, false).is_ok() {
            self.waiting += 1;
        }
    }

    /// The program receives, with more or less room.
    fn take(&mut self, script: &mut Script<'_>) {
        let room = [256, 0, 24, 2000, 100_000][script.below(5)];
        let mut buffer = Buffer::new(HEADER_LEN + room);
        let said = if script.below(16) == 15 {
            -1
        } else {
            room as c_int
        };
        let (mut len, portid) = (said, self.portid);
        // A wait would be for something that is here already, or never arrives.
        let _ready = port::umad_poll(portid, 0);
        // SAFETY: there is room for a header and `room` bytes, and `len` says so many or fewer.
        let agent = unsafe { port::umad_recv(portid, buffer.pointer(), &raw mut len, 0) };
        buffer.check(HEADER_LEN + if said < 0 { 0 } else { room });
        if agent >= 0 {
            assert!(len >= 0 && len as usize <= room, "{len} bytes in {room}");
            assert!(self.waiting > 0, "a datagram that was not sent");
            self.waiting -= 1;
            // SAFETY: the buffer begins with a header.
            unsafe {
                datagram::umad_status(buffer.pointer());
                datagram::umad_get_pkey(buffer.pointer());
            }
        }
    }

    /// The program sends what is in its buffer.
    fn send(&mut self, script: &mut Script<'_>) {
        let len = [256, 0, 24, 3000][script.below(4)];
        let mut buffer = Buffer::new(HEADER_LEN + len);
        for (to, from) in buffer.0.iter_mut().zip(script.take(HEADER_LEN + 32)) {
            *to = *from;
        }
        let umad = buffer.pointer();
        let grh: MadAddr = MadAddr {
            gid: script.array(),
            flow_label: script.u32(),
            ..MadAddr::default()
        };
        let numbers: [c_int; 4] = std::array::from_fn(|_| script.u32().cast_signed());
        let [lid, qpn, sl, key] = numbers;
        let given = if script.below(2) == 0 {
            ptr::null_mut()
        } else {
            (&raw const grh).cast_mut()
        };
        let said = if script.below(8) == 7 {
            -1
        } else {
            len as c_int
        };
        let portid = script.number(&[self.portid, self.portid, -1]);
        // SAFETY: the buffer has room for a header and `len` bytes, and the argument says so many or fewer; the address
        // is valid, or null.
        let sent = unsafe {
            datagram::umad_set_addr(umad, lid, qpn, sl, key);
            datagram::umad_set_grh(umad, given.cast());
            datagram::umad_set_pkey(umad, qpn);
            port::umad_send(portid, lid, umad, said, sl, key)
        };
        if sent == 0 {
            let message = receive(self.host.as_fd(), Take::Away, false).ok().flatten();
            let message = message.map(|bytes| Message::decode(&bytes));
            let Some(Ok(Message::Mad(mad))) = message else {
                panic!("the host cannot read what was sent: {message:?}");
            };
            assert_eq!(mad.bytes.len(), len);
            assert_eq!(
                (mad.lid.0, mad.qpn.value()),
                ((lid & 0xffff) as u16, qpn as u32 & 0x00ff_ffff)
            );
        }
    }

    fn register(&self, script: &mut Script<'_>) {
        let portid = script.number(&[self.portid, self.portid, self.portid, -1]);
        let mask: [u64; 2] = [script.u32().into(), script.byte().into()];
        let given = if script.below(2) == 0 {
            ptr::null()
        } else {
            mask.as_ptr().cast()
        };
        let class = c_int::from(script.byte());
        let rmpp = script.byte() % 2;
        let mut attr = RegAttr {
            mgmt_class: script.byte(),
            mgmt_class_version: script.byte(),
            flags: script.byte().into(),
            method_mask: mask,
            oui: script.u32(),
            rmpp_version: rmpp,
        };
        let mut agent = 0;
        let oui = [0, 0x14, 5];
        // SAFETY: the mask has 16 bytes or is null, the OUI three; attributes and agent are valid.
        unsafe {
            match script.below(3) {
                0 => port::umad_register(portid, class, 1, rmpp, given),
                1 => port::umad_register_oui(portid, class, rmpp, oui.as_ptr(), given),
                _ => port::umad_register2(portid, &raw mut attr, &raw mut agent),
            };
        }
    }

    /// Checks that the port is as usable as at first, and closes it.
    fn close(mut self) {
        for _ in 0..self.waiting + 1 {
            let mut none = Script { bytes: &[3, 4] };
            self.take(&mut none);
        }
        // SAFETY: the number is not used afterwards.
        let closed = unsafe { port::umad_close_port(self.portid) };
        // SAFETY: as above.
        let again = unsafe { port::umad_close_port(self.portid) };
        assert_eq!((closed, again < 0), (0, true), "a port is closed once");
    }
}

/// The adapter's description, whose texts end, and which is released.
fn describe_adapter(script: &mut Script<'_>) {
    let name = script.name();
    let mut ca = MaybeUninit::<UmadCa>::uninit();
    // SAFETY: the name is a text or null, and there is room for a description.
    let told = unsafe { device::umad_get_ca(name, ca.as_mut_ptr()) };
    if told != 0 {
        return;
    }
    // SAFETY: it has been described.
    let ca = unsafe { ca.assume_init_mut() };
    check_text(&ca.ca_name);
    check_text(&ca.fw_ver);
    for (number, &place) in ca.ports.iter().enumerate() {
        if !place.is_null() {
            // SAFETY: a port that was described, and is released below.
            let port = unsafe { &*place };
            assert_eq!(port.portnum as usize, number, "a port in another's place");
            check_port(port);
        }
    }
    assert!(ca.ports.len() == PORTS_MAX && ca.numports >= 0);
    // SAFETY: it was described by the library, and is not used afterwards.
    unsafe { device::umad_release_ca(ca) };
    assert!(ca.ports.iter().all(|port| port.is_null()));
}

fn describe_port(script: &mut Script<'_>) {
    let (name, number) = (script.name(), script.number(&[0, 1, 2, -1, 10, 255, 256]));
    let mut port = MaybeUninit::<UmadPort>::uninit();
    // SAFETY: the name is a text or null, and there is room for a description.
    if unsafe { device::umad_get_port(name, number, port.as_mut_ptr()) } == 0 {
        // SAFETY: it has been described.
        let port = unsafe { port.assume_init_mut() };
        check_port(port);
        // SAFETY: it was described by the library, and is not used afterwards.
        unsafe { device::umad_release_port(port) };
    }
}

fn check_port(port: &UmadPort) {
    check_text(&port.ca_name);
    check_text(&port.link_layer);
    // SAFETY: the list has as many keys as the description says.
    let keys = unsafe { std::slice::from_raw_parts(port.pkeys, port.pkeys_size as usize) };
    assert!(keys.len() <= 4096, "{} keys", keys.len());
}

fn check_text<const N: usize>(text: &[c_char; N]) {
    assert!(text.contains(&0), "a text without an end");
}

/// The list of adapters, sorted, and freed.
fn list() {
    let mut head = device::umad_get_ca_device_list();
    // SAFETY: a list of the library, which is sorted and freed by it; names of its entries are texts.
    unsafe {
        device::umad_sort_ca_device_list(&raw mut head, 0);
        let mut next = head.cast_const();
        while !next.is_null() {
            assert!(CStr::from_ptr((*next).ca_name).to_bytes().len() < NAME_LEN);
            next = (*next).next;
        }
        device::umad_free_ca_device_list(head);
    }
}

fn names(script: &mut Script<'_>) {
    let max = script.below(4);
    let len = max * NAME_LEN;
    let mut buffer = Buffer::new(len);
    let said = if script.below(8) == 7 {
        -1
    } else {
        max as c_int
    };
    // SAFETY: there is room for that many names.
    let count = unsafe { device::umad_get_cas_names(buffer.pointer().cast(), said) };
    assert!(
        count >= 0 && count as usize <= max,
        "{count} names in {max}"
    );
    buffer.check(count as usize * NAME_LEN);
}

fn pairs(script: &mut Script<'_>) {
    let max = script.below(4);
    let mut place = [untouched(); 5];
    let count = if script.below(2) == 0 {
        // SAFETY: there is room for more pairs.
        unsafe { pair::umad_get_smi_gsi_pairs(place.as_mut_ptr(), max) }
    } else {
        let (name, port) = (script.name(), script.byte() % 4);
        // SAFETY: the name is a text or null, and there is room for a pair.
        let said = unsafe {
            pair::umad_get_smi_gsi_pair_by_ca_name(name, port, place.as_mut_ptr(), max as u32)
        };
        c_int::from(said == 0)
    };
    let written = usize::try_from(count).unwrap_or(0);
    assert!(written <= max.max(1), "{written} pairs in {max}");
    for pair in &place[..written] {
        assert!(pair.smi_name.contains(&0), "a name has an end");
        assert!(pair.smi_preferred_port <= 255, "a port");
    }
    let behind = &place[written..];
    assert!(
        behind
            .iter()
            .all(|pair| pair.gsi_preferred_port == u32::MAX),
        "pairs behind the list"
    );
}

fn untouched() -> CaPair {
    CaPair {
        smi_name: [c_char::MAX; NAME_LEN],
        smi_preferred_port: u32::MAX,
        gsi_name: [c_char::MAX; NAME_LEN],
        gsi_preferred_port: u32::MAX,
    }
}

fn guids(script: &mut Script<'_>) {
    let max = [0, 1, 3, 11, 256][script.below(5)];
    let mut guids = vec![u64::MAX; max + 8];
    let name = script.name();
    // SAFETY: the name is a text or null, and there is room for more numbers.
    let count = unsafe { device::umad_get_ca_portguids(name, guids.as_mut_ptr(), max as c_int) };
    let written = usize::try_from(count).unwrap_or(0);
    assert!(written <= max, "{written} numbers in {max}");
    assert!(
        guids[written..].iter().all(|&guid| guid == u64::MAX),
        "numbers behind the list"
    );
}

fn path(script: &mut Script<'_>) {
    let (name, max) = (script.name(), script.below(256));
    let number = script.number(&[0, 1, 2, -1]);
    let mut buffer = Buffer::new(max);
    let said = if script.below(8) == 7 {
        -1
    } else {
        max as c_int
    };
    let place = buffer.pointer().cast();
    // SAFETY: the name is a text or null, and there is room for `max` bytes.
    let told = unsafe { device::umad_get_issm_path(name, number, place, said) };
    buffer.check(if told == 0 { max } else { 0 });
    if told == 0 {
        assert!(buffer.0[..max].contains(&0), "a text without an end");
    }
}

/// Names of any numbers: each is a text.
fn words(script: &mut Script<'_>) {
    let [class, method, high, low] = script.array();
    let number = u16::from_be_bytes([high, low]);
    for word in [
        text::umad_class_str(class),
        text::umad_method_str(class, method),
        text::umad_common_mad_status_str(number),
        text::umad_sa_mad_status_str(number),
        text::umad_attribute_str(class, number),
    ] {
        // SAFETY: each is a text that lives as long as the program.
        assert!(!unsafe { CStr::from_ptr(word) }.is_empty());
    }
}
