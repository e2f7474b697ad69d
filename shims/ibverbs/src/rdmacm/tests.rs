//! The calls as a C program makes them, between ids of one process on a device at a free address of 127.0.0.0/8.

use std::ffi::{CStr, c_int, c_void};
use std::mem::zeroed;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

use verbs_abi::rdmacm as abi;
use verbs_abi::rdmacm::{CmEvent, CmId, ConnParam, EventChannel, event};
use verbs_abi::{QpAttr, QpInitAttr};

use super::address::sockaddr;
use super::*;
use crate::call::Errno;
use crate::process_tests::is_alone;

pub(super) const TCP: u32 = 0x106;
pub(super) const UDP: u32 = 0x111;

/// An event, until it is acknowledged.
pub(super) struct Told {
    at: *mut CmEvent,
    pub(super) event: u32,
    pub(super) status: c_int,
    pub(super) id: *mut CmId,
    pub(super) listener: *mut CmId,
    pub(super) conn: ConnParam,
    pub(super) data: Vec<u8>,
}

pub(super) fn channel() -> *mut EventChannel {
    // SAFETY: there are no arguments.
    let channel = unsafe { create_event_channel() };
    assert!(!channel.is_null());
    channel
}

pub(super) fn id(channel: *mut EventChannel, space: u32) -> *mut CmId {
    let mut id = null_mut();
    // SAFETY: a channel or NULL; where the id goes.
    let code = unsafe { create_id(channel, &raw mut id, null_mut(), space) };
    assert_eq!(code, 0);
    id
}

pub(super) fn next(channel: *mut EventChannel) -> Told {
    let mut at = null_mut();
    // SAFETY: the channel exists; the event was taken just now.
    unsafe {
        assert_eq!(get_cm_event(channel, &raw mut at), 0);
        let conn = (*at).param.conn;
        let data = match conn.private_data.is_null() {
            true => Vec::new(),
            false => {
                std::slice::from_raw_parts(conn.private_data.cast(), conn.private_data_len.into())
                    .to_vec()
            }
        };
        let (event, status) = ((*at).event, (*at).status);
        Told {
            at,
            event,
            status,
            id: (*at).id,
            listener: (*at).listen_id,
            conn,
            data,
        }
    }
}

/// Checks that the next event of the channel is that one.
pub(super) fn expect(channel: *mut EventChannel, wanted: u32) -> Told {
    let told = next(channel);
    assert_eq!((told.event, told.status), (wanted, 0));
    told.done()
}

impl Told {
    pub(super) fn done(self) -> Self {
        // SAFETY: once.
        assert_eq!(unsafe { ack_cm_event(self.at) }, 0);
        self
    }
}

/// The device's address with a port, as a C structure.
pub(super) fn at(port: u16) -> abi::Storage {
    let ip = manager::manager().expect("there is a device").addresses()[0];
    sockaddr::storage((ip, port).into())
}

pub(super) fn init() -> QpInitAttr {
    // SAFETY: plain numbers and pointers.
    let mut init: QpInitAttr = unsafe { zeroed() };
    (init.cap.max_send_wr, init.cap.max_recv_wr) = (4, 4);
    (init.cap.max_send_sge, init.cap.max_recv_sge) = (1, 1);
    init
}

pub(super) fn with_qp(id: *mut CmId, qp_type: u32) {
    let mut init = QpInitAttr { qp_type, ..init() };
    // SAFETY: the id exists.
    assert_eq!(unsafe { create_qp(id, null_mut(), &raw mut init) }, 0);
}

pub(super) fn param(data: &[u8]) -> ConnParam {
    ConnParam {
        private_data: data.as_ptr().cast(),
        private_data_len: data.len() as u8,
        responder_resources: 3,
        initiator_depth: 2,
        flow_control: 1,
        retry_count: 6,
        rnr_retry_count: 5,
        srq: 0,
        qp_num: 0,
    }
}

/// A listener on a free port, and that port.
pub(super) fn listener(channel: *mut EventChannel, space: u32) -> (*mut CmId, u16) {
    let listening = id(channel, space);
    let mut addr = at(0);
    // SAFETY: both exist.
    unsafe {
        assert_eq!(bind_addr(listening, (&raw mut addr).cast()), 0);
        assert_eq!(listen(listening, 0), 0);
        (listening, u16::from_be(get_src_port(listening)))
    }
}

/// An id that has resolved its peer's address.
pub(super) fn resolved(channel: *mut EventChannel, space: u32, port: u16) -> *mut CmId {
    let asking = id(channel, space);
    let mut addr = at(port);
    // SAFETY: both exist.
    unsafe {
        assert_eq!(
            resolve_addr(asking, null_mut(), (&raw mut addr).cast(), 2000),
            0
        );
        expect(channel, event::ADDR_RESOLVED);
        assert!(!(*asking).verbs.is_null() && !(*asking).pd.is_null());
        assert_eq!(resolve_route(asking, 2000), 0);
        expect(channel, event::ROUTE_RESOLVED);
        let is_iwarp = manager::manager().is_ok_and(|manager| manager.binder().is_some());
        assert_eq!((*asking).route.num_paths, c_int::from(!is_iwarp));
        assert_eq!(u16::from_be(get_dst_port(asking)), port);
    }
    asking
}

pub(super) fn last() -> c_int {
    std::io::Error::last_os_error()
        .raw_os_error()
        .expect("one was set")
}

/// Goal: a connection from its first call to its last event, with what each end learns of the other.
#[test]
fn a_connection_lives_and_ends() {
    let (ours, theirs) = (channel(), channel());
    let (listening, port) = listener(theirs, TCP);
    let asking = resolved(ours, TCP, port);
    with_qp(asking, 2);
    // SAFETY: all ids exist until they are destroyed.
    unsafe {
        assert_eq!(connect(asking, &raw mut *Box::new(param(b"hello"))), 0);
        let request = expect(theirs, event::CONNECT_REQUEST);
        assert_eq!(
            (&request.data[..5], request.data.len()),
            (&b"hello"[..], 56)
        );
        // What one end requests the other serves.
        assert_eq!(
            (
                request.conn.responder_resources,
                request.conn.initiator_depth
            ),
            (2, 3)
        );
        assert_eq!(
            (request.conn.retry_count, request.conn.rnr_retry_count),
            (6, 5)
        );
        assert_eq!(request.conn.qp_num, (*(*asking).qp).qp_num);
        let child = request.id;
        assert_eq!(get_dst_port(child), get_src_port(asking));
        assert_eq!(u16::from_be(get_src_port(child)), port);
        with_qp(child, 2);
        assert_eq!(accept(child, &raw mut *Box::new(param(b"welcome"))), 0);
        assert_eq!((*(*child).qp).state, 3, "in RTS before the peer knows");
        let there = expect(ours, event::ESTABLISHED);
        assert_eq!((&there.data[..7], there.data.len()), (&b"welcome"[..], 196));
        assert_eq!((*(*asking).qp).state, 3);
        expect(theirs, event::ESTABLISHED);

        assert_eq!(disconnect(asking), 0);
        assert_eq!((*(*asking).qp).state, 6);
        expect(ours, event::DISCONNECTED);
        expect(theirs, event::DISCONNECTED);
        assert_eq!((*(*child).qp).state, 3, "the program's call flushes it");
        assert_eq!(disconnect(child), 0);
        assert_eq!((*(*child).qp).state, 6);
        for one in [asking, child] {
            destroy_qp(one);
            assert!((*one).send_cq.is_null() && (*one).recv_cq_channel.is_null());
        }
        for one in [asking, child, listening] {
            assert_eq!(destroy_id(one), 0);
        }
        destroy_event_channel(ours);
        destroy_event_channel(theirs);
    }
}

/// Goal: the event when a server rejects a client, and the event of the kernel's manager when there is no server.
#[test]
fn a_request_is_rejected() {
    let (ours, theirs) = (channel(), channel());
    let (listening, port) = listener(theirs, TCP);
    let asking = resolved(ours, TCP, port);
    with_qp(asking, 2);
    // SAFETY: as above.
    unsafe {
        assert_eq!(connect(asking, null_mut()), 0);
        let request = expect(theirs, event::CONNECT_REQUEST);
        assert_eq!(reject(request.id, b"no".as_ptr().cast(), 2), 0);
        let told = next(ours).done();
        assert_eq!((told.event, told.status), (event::REJECTED, 28));
        assert_eq!((&told.data[..2], told.data.len()), (&b"no"[..], 148));
        for one in [request.id, listening] {
            assert_eq!(destroy_id(one), 0);
        }
        destroy_qp(asking);
        assert_eq!(destroy_id(asking), 0);

        let asking = resolved(ours, TCP, port);
        with_qp(asking, 2);
        assert_eq!(connect(asking, null_mut()), 0);
        let told = next(ours).done();
        assert_eq!(
            (told.event, told.status),
            (event::REJECTED, 8),
            "nobody listens"
        );
        destroy_qp(asking);
        assert_eq!(destroy_id(asking), 0);
    }
}

/// Goal: a program that moves a queue pair of its own is told when, and how.
#[test]
fn a_queue_pair_of_the_programs_own_is_connected() {
    let (ours, theirs) = (channel(), channel());
    let (listening, port) = listener(theirs, TCP);
    let asking = resolved(ours, TCP, port);
    // SAFETY: as above.
    unsafe {
        let mut template = QpInitAttr {
            qp_type: 2,
            ..init()
        };
        let cq = crate::cq::create_cq((*asking).verbs, 8, null_mut(), null_mut(), 0);
        (template.send_cq, template.recv_cq) = (cq, cq);
        let pair = [0, 1].map(|_| crate::qp::create_qp((*asking).pd, &raw mut template));
        let mut attr: QpAttr = zeroed();
        let mut move_to = |id, qp, state| {
            let mut named = 0;
            attr.qp_state = state;
            assert_eq!(init_qp_attr(id, &raw mut attr, &raw mut named), 0);
            assert_eq!(crate::qp::modify_qp(qp, &raw const attr, named), 0);
        };
        move_to(asking, pair[0], 1);
        let mut wish = param(b"");
        wish.qp_num = (*pair[0]).qp_num;
        assert_eq!(connect(asking, &raw mut wish), 0);
        let child = expect(theirs, event::CONNECT_REQUEST).id;
        (1..=3).for_each(|state| move_to(child, pair[1], state));
        wish.qp_num = (*pair[1]).qp_num;
        assert_eq!(accept(child, &raw mut wish), 0);
        let response = expect(ours, event::CONNECT_RESPONSE);
        assert_eq!(response.conn.qp_num, (*pair[1]).qp_num);
        move_to(asking, pair[0], 2);
        move_to(asking, pair[0], 3);
        assert_eq!(establish(asking), 0);
        assert_eq!((establish(asking), last()), (-1, libc::EINVAL), "once");
        expect(theirs, event::ESTABLISHED);
        for one in [child, asking, listening] {
            assert_eq!(destroy_id(one), 0);
        }
        for qp in pair {
            assert_eq!(crate::qp::destroy_qp(qp), 0);
        }
        assert_eq!(crate::cq::destroy_cq(cq), 0);
    }
}

/// Goal: calls without a channel wait for their events, and errors are error numbers.
#[test]
fn synchronous_ids_wait() {
    let server = id(null_mut(), TCP);
    let mut addr = at(0);
    // SAFETY: as above; each id is used by one thread at a time.
    unsafe {
        assert_eq!(bind_addr(server, (&raw mut addr).cast()), 0);
        assert_eq!(listen(server, 1), 0);
        let port = u16::from_be(get_src_port(server));
        let place = server.expose_provenance();
        let serves = std::thread::spawn(move || {
            let server: *mut CmId = std::ptr::with_exposed_provenance_mut(place);
            let mut child = null_mut();
            assert_eq!(get_request(server, &raw mut child), 0);
            with_qp(child, 2);
            assert_eq!(accept(child, null_mut()), 0);
            assert_eq!(
                disconnect(child),
                0,
                "the peer's disconnect is what it waits for"
            );
            destroy_ep(child);
        });
        let client = id(null_mut(), TCP);
        let mut addr = at(port);
        assert_eq!(
            resolve_addr(client, null_mut(), (&raw mut addr).cast(), 2000),
            0
        );
        assert_eq!((*(*client).event).event, event::ADDR_RESOLVED);
        assert_eq!(resolve_route(client, 2000), 0);
        with_qp(client, 2);
        assert_eq!(connect(client, null_mut()), 0);
        assert_eq!((*(*client).event).event, event::ESTABLISHED);
        assert_eq!(disconnect(client), 0);
        serves.join().expect("no panic");
        destroy_ep(client);
        assert_eq!(destroy_id(server), 0);

        let client = id(null_mut(), TCP);
        assert_eq!(
            resolve_addr(client, null_mut(), (&raw mut addr).cast(), 2000),
            0
        );
        assert_eq!(resolve_route(client, 2000), 0);
        with_qp(client, 2);
        assert_eq!(
            (connect(client, null_mut()), last()),
            (-1, libc::ECONNREFUSED)
        );
        destroy_ep(client);
    }
}

/// Goal: a service for datagrams is found, with what is needed to send to it; and a group is joined and left.
#[test]
fn datagrams_find_their_services_and_groups() {
    let (ours, theirs) = (channel(), channel());
    let (listening, port) = listener(theirs, UDP);
    let asking = resolved(ours, UDP, port);
    with_qp(asking, 4);
    // SAFETY: as above.
    unsafe {
        assert_eq!((*(*asking).qp).state, 3);
        assert_eq!(connect(asking, &raw mut *Box::new(param(b"who"))), 0);
        let request = next(theirs);
        assert_eq!(request.event, event::CONNECT_REQUEST);
        assert_eq!((&request.data[..3], request.data.len()), (&b"who"[..], 180));
        let child = request.done().id;
        with_qp(child, 4);
        assert_eq!(accept(child, null_mut()), 0);
        let told = next(ours);
        let ud = (*told.at).param.ud;
        assert_eq!(
            (told.event, ud.qp_num, ud.qkey),
            (event::ESTABLISHED, (*(*child).qp).qp_num, 0x0123_4567)
        );
        assert_eq!(ud.ah_attr.is_global, 1);
        told.done();

        let mut group = sockaddr::storage("239.9.8.7:0".parse().expect("an address"));
        let mark = 77_usize as *mut c_void;
        assert_eq!(join_multicast(asking, (&raw mut group).cast(), mark), 0);
        let told = next(ours);
        let ud = (*told.at).param.ud;
        assert_eq!(
            (told.event, ud.qp_num, ud.private_data),
            (event::MULTICAST_JOIN, 0xff_ffff, mark.cast_const())
        );
        told.done();
        assert_eq!(
            (
                join_multicast(asking, (&raw mut group).cast(), mark),
                last()
            ),
            (-1, libc::EADDRINUSE)
        );
        assert_eq!(leave_multicast(asking, (&raw mut group).cast()), 0);
        assert_eq!(
            (leave_multicast(asking, (&raw mut group).cast()), last()),
            (-1, libc::EADDRNOTAVAIL)
        );
        for one in [asking, child] {
            destroy_qp(one);
        }
        for one in [asking, child, listening] {
            assert_eq!(destroy_id(one), 0);
        }
    }
}

/// Goal: where there are LIDs, the addresses are GIDs, and the path has the LIDs. Method: a device that reaches itself.
#[test]
fn a_path_of_a_subnet_has_lids() {
    let name = "rdmacm::tests::a_path_of_a_subnet_has_lids";
    if !is_alone(name, Some("loopback"), 0) {
        return;
    }
    let (ours, theirs) = (channel(), channel());
    let (listening, port) = listener(theirs, TCP);
    let asking = resolved(ours, TCP, port);
    let lid = manager::manager().expect("there is a device").port().lid.0;
    assert_ne!(lid, 0);
    // SAFETY: all ids exist until they are destroyed.
    unsafe {
        let path = *(*asking).route.path_rec;
        assert_eq!((path.dlid, path.slid), (lid.to_be(), lid.to_be()));
        assert_eq!(path.dgid, path.sgid);
        with_qp(asking, 2);
        assert_eq!(connect(asking, &raw mut *Box::new(param(b"hello"))), 0);
        let child = expect(theirs, event::CONNECT_REQUEST).id;
        with_qp(child, 2);
        assert_eq!(accept(child, &raw mut *Box::new(param(b"welcome"))), 0);
        expect(ours, event::ESTABLISHED);
        expect(theirs, event::ESTABLISHED);
        let mut group = sockaddr::storage("[ff0e::1]:0".parse().expect("an address"));
        let joined = join_multicast(asking, (&raw mut group).cast(), null_mut());
        assert_eq!((joined, last()), (-1, libc::ENOSYS));
        assert_eq!(disconnect(asking), 0);
        expect(ours, event::DISCONNECTED);
        expect(theirs, event::DISCONNECTED);
        for one in [asking, child] {
            destroy_qp(one);
            assert_eq!(destroy_id(one), 0);
        }
        assert_eq!(destroy_id(listening), 0);
    }
}

/// Goal: wrong calls return error numbers, and change nothing.
#[test]
fn wrong_calls_are_refused() {
    let events = channel();
    let one = id(events, TCP);
    let mut nowhere = sockaddr::storage("192.0.2.99:7".parse().expect("an address"));
    // SAFETY: as above; arguments are checked first.
    unsafe {
        let refused = |code: c_int, errno: c_int| assert_eq!((code, last()), (-1, errno));
        refused(
            create_id(events, &mut null_mut(), null_mut(), 1),
            libc::EINVAL,
        );
        refused(
            bind_addr(null_mut(), (&raw mut nowhere).cast()),
            libc::EINVAL,
        );
        refused(
            bind_addr(events.cast(), (&raw mut nowhere).cast()),
            libc::EINVAL,
        );
        refused(bind_addr(one, null_mut()), libc::EINVAL);
        refused(
            bind_addr(one, (&raw mut nowhere).cast()),
            libc::EADDRNOTAVAIL,
        );
        refused(resolve_route(one, 1), libc::EINVAL);
        refused(connect(one, null_mut()), libc::EINVAL);
        refused(accept(one, null_mut()), libc::EINVAL);
        refused(reject(one, null(), 0), libc::EINVAL);
        refused(establish(one), libc::EINVAL);
        refused(disconnect(one), libc::EINVAL);
        refused(notify(one, 4), libc::EINVAL);
        refused(
            create_qp(one, null_mut(), &raw mut *Box::new(init())),
            libc::EINVAL,
        );
        refused(ack_cm_event(null_mut()), libc::EINVAL);
        refused(get_request(one, &mut null_mut()), libc::EINVAL);
        refused(
            set_option(one, 0, 9, (&raw mut nowhere).cast(), 1),
            libc::ENOSYS,
        );
        refused(
            set_option(one, 0, 1, (&raw mut nowhere).cast(), 1),
            libc::EINVAL,
        );
        refused(
            set_option(one, 1, 1, (&raw mut nowhere).cast(), 8),
            libc::EOPNOTSUPP,
        );

        let (listening, port) = listener(events, TCP);
        let mut taken = at(port);
        refused(bind_addr(one, (&raw mut taken).cast()), libc::EADDRINUSE);
        assert_eq!(destroy_id(listening), 0);
        assert_eq!(bind_addr(one, (&raw mut taken).cast()), 0, "it came back");
        refused(bind_addr(one, (&raw mut taken).cast()), libc::EINVAL);
        assert_eq!(destroy_id(one), 0);
        refused(destroy_id(one), libc::EINVAL);

        libc::fcntl((*events).fd, libc::F_SETFL, libc::O_NONBLOCK);
        refused(get_cm_event(events, &mut null_mut()), libc::EAGAIN);
        destroy_event_channel(events);
        refused(get_cm_event(events, &mut null_mut()), libc::EINVAL);
        assert_eq!(CStr::from_ptr(event_str(9)), c"RDMA_CM_EVENT_ESTABLISHED");
        assert_eq!(CStr::from_ptr(event_str(99)), c"UNKNOWN EVENT");
    }
}

/// Goal: waiting events move with an id that migrates, and a destroy waits for acknowledgements.
#[test]
fn events_follow_an_id_and_a_destroy_waits_for_them() {
    let (first, second) = (channel(), channel());
    let one = id(first, TCP);
    let mut addr = at(7);
    // SAFETY: as above.
    unsafe {
        assert_eq!(resolve_addr(one, null_mut(), (&raw mut addr).cast(), 1), 0);
        assert_eq!(migrate_id(one, second), 0);
        assert_eq!((*one).channel, second);
        libc::fcntl((*first).fd, libc::F_SETFL, libc::O_NONBLOCK);
        assert_eq!(
            (get_cm_event(first, &mut null_mut()), last()),
            (-1, libc::EAGAIN)
        );
        let told = next(second);
        assert_eq!(told.event, event::ADDR_RESOLVED);
        let place = one.expose_provenance();
        let ends =
            std::thread::spawn(move || destroy_id(std::ptr::with_exposed_provenance_mut(place)));
        std::thread::sleep(std::time::Duration::from_millis(30));
        assert!(!ends.is_finished(), "an event is not acknowledged");
        told.done();
        assert_eq!(ends.join().expect("no panic"), 0);
        destroy_event_channel(first);
        destroy_event_channel(second);
    }
}

/// Goal: names are resolved to addresses, of the requested kind and for the requested side.
#[test]
fn names_become_addresses() {
    let mut info = null_mut();
    // SAFETY: C strings; each answer is freed once.
    unsafe {
        assert_eq!(
            getaddrinfo(
                c"127.0.0.9".as_ptr(),
                c"7174".as_ptr(),
                null(),
                &raw mut info
            ),
            0
        );
        let wanted = "127.0.0.9:7174".parse().expect("an address");
        assert_eq!(sockaddr::from_c((*info).dst_addr), Ok(wanted));
        assert_eq!(
            (
                (*info).src_len,
                (*info).dst_len,
                (*info).qp_type,
                (*info).port_space
            ),
            (0, 16, 2, 0x106)
        );
        let mut hints: abi::AddrInfo = zeroed();
        (hints.flags, hints.port_space) = (1, UDP as c_int);
        freeaddrinfo(info);
        assert_eq!(
            getaddrinfo(null(), c"7".as_ptr(), &raw const hints, &raw mut info),
            0
        );
        assert_eq!(
            sockaddr::from_c((*info).src_addr).map(|addr| addr.port()),
            Ok(7)
        );
        assert_eq!(((*info).qp_type, (*info).dst_len), (4, 0));
        freeaddrinfo(info);
        assert!(getaddrinfo(c"not a name".as_ptr(), null(), null(), &raw mut info) < 0);
        assert_eq!(getaddrinfo(null(), null(), null(), &raw mut info), -1);
        assert_eq!(Errno(last()), Errno::INVAL);
    }
}

/// Goal: a program destroys queue pairs and ids while its thread for events takes replies for them. Method: clients connect
/// and give up at once, or a little later, so that the reply meets the destroy at another place each time; a use of a freed
/// queue pair ends the process by a signal.
#[test]
fn replies_meet_destroys() {
    const CLIENTS: u32 = 3;
    const ATTEMPTS: u32 = 250;
    if !is_alone("rdmacm::tests::replies_meet_destroys", None, 7) {
        return;
    }
    let (ours, theirs) = (channel(), channel());
    let (_, port) = listener(theirs, TCP);
    let [events, requests] = [ours, theirs].map(|channel| channel.expose_provenance());
    std::thread::spawn(move || serve(std::ptr::with_exposed_provenance_mut(requests)));
    std::thread::spawn(move || pass_on(std::ptr::with_exposed_provenance_mut(events)));
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                for attempt in 0..ATTEMPTS {
                    let events = std::ptr::with_exposed_provenance_mut(events);
                    connect_and_give_up(events, port, (attempt * CLIENTS + client) % 97);
                }
            });
        }
    });
    std::process::exit(7);
}

/// Accepts what comes, and destroys what has ended.
fn serve(channel: *mut EventChannel) {
    loop {
        let told = next(channel).done();
        // SAFETY: ids that came with events; each is destroyed once, after its last event or a refusal.
        unsafe {
            if told.event == event::CONNECT_REQUEST {
                with_qp(told.id, 2);
                let mut wish = param(&[]);
                if accept(told.id, &raw mut wish) == 0 {
                    continue;
                }
            } else if told.event == event::ESTABLISHED {
                continue;
            }
            if !(*told.id).qp.is_null() {
                destroy_qp(told.id);
                destroy_id(told.id);
            }
        }
    }
}

/// Takes the events of clients: each learns of its own by its context.
fn pass_on(channel: *mut EventChannel) {
    loop {
        let mut at = null_mut();
        // SAFETY: an event that was taken just now; its id is there until the acknowledgement, and the context longer.
        unsafe {
            assert_eq!(get_cm_event(channel, &raw mut at), 0);
            let context = (*(*at).id).context.cast::<AtomicU32>();
            (*context).store(1 + (*at).event, Ordering::Release);
            assert_eq!(ack_cm_event(at), 0);
        }
    }
}

fn connect_and_give_up(channel: *mut EventChannel, port: u16, patience: u32) {
    let seen = AtomicU32::new(0);
    let mut id = null_mut();
    let mut addr = at(port);
    let wait = |wanted: u32| {
        while seen.load(Ordering::Acquire) != 1 + wanted {
            std::thread::yield_now();
        }
    };
    // SAFETY: the id is this thread's own; its context lives longer.
    unsafe {
        let context = (&raw const seen).cast_mut().cast::<c_void>();
        assert_eq!(create_id(channel, &raw mut id, context, TCP), 0);
        let there = (&raw mut addr).cast();
        assert_eq!(resolve_addr(id, null_mut(), there, 2000), 0);
        wait(event::ADDR_RESOLVED);
        assert_eq!(resolve_route(id, 2000), 0);
        wait(event::ROUTE_RESOLVED);
        with_qp(id, 2);
        let mut wish = param(&[]);
        assert_eq!(connect(id, &raw mut wish), 0);
        (0..patience * 200).for_each(|_| std::hint::spin_loop());
        destroy_qp(id);
        assert_eq!(destroy_id(id), 0);
    }
}

/// The event that answers whether the device has a way to that address, and the address that the id has then.
fn way_to(ip: [u8; 4]) -> (u32, std::net::IpAddr) {
    let channel = channel();
    let id = id(channel, TCP);
    let mut addr = sockaddr::storage((ip, 7471).into());
    // SAFETY: both exist, and end here.
    unsafe {
        let there = (&raw mut addr).cast();
        assert_eq!(resolve_addr(id, null_mut(), there, 2000), 0);
        let told = next(channel).done();
        let from = sockaddr::from_c((&raw const (*id).route.addr.src).cast()).map(|from| from.ip());
        assert_eq!(destroy_id(id), 0);
        destroy_event_channel(channel);
        let unspecified = std::net::Ipv4Addr::UNSPECIFIED.into();
        (told.event, from.unwrap_or(unspecified))
    }
}

/// Goal: a peer to which the device has no way is an error at once, and not a connection that nobody answers.
#[test]
fn a_device_of_this_host_alone_has_no_way_to_others() {
    let name = "rdmacm::tests::a_device_of_this_host_alone_has_no_way_to_others";
    if !is_alone(name, Some("127.0.21.7"), 0) {
        return;
    }
    for other in [[192, 0, 2, 1], [8, 8, 8, 8], [255; 4], [224, 0, 0, 1]] {
        assert_eq!(way_to(other).0, event::ADDR_ERROR, "{other:?}");
    }
    assert_eq!(way_to([127, 0, 0, 1]).0, event::ADDR_RESOLVED);
}

/// Goal: without an address in the environment, the device is where the host sends from to the first peer.
#[test]
fn the_first_peer_chooses_the_device() {
    let name = "rdmacm::tests::the_first_peer_chooses_the_device";
    if !is_alone(name, None, 0) {
        return;
    }
    let (told, from) = way_to([192, 0, 2, 1]);
    // A host that sends nowhere, or whose address another program has, has no way.
    assert!(told == event::ADDR_ERROR || told == event::ADDR_RESOLVED && !from.is_loopback());
}
