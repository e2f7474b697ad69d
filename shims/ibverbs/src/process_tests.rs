//! What concerns a whole process: its end in mid-traffic, forks, signals, descriptors that run out, very many objects. Each
//! test runs in a process of its own.

use std::ffi::{CStr, c_int};
use std::process::Command;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use verbs_abi::{self as abi, opcode};

use crate::device::open;
use crate::qp::ah;
use crate::tests::{Bed, post, post_recv, send};
use crate::{cq, device, memory, qp, rdmacm};

/// In the environment: the test that this process is for.
const ALONE: &str = "VERBS_TEST_ALONE";

/// Whether this process is for the test of that path. If not, runs it in one, with a device as `VERBS_DEVICE` says, and
/// checks how that ended.
pub(crate) fn is_alone(test: &str, at: Option<&str>, code: i32) -> bool {
    if std::env::var(ALONE).is_ok_and(|named| named == test) {
        return true;
    }
    let mut program = Command::new(std::env::current_exe().expect("its path"));
    program.args(["--exact", test, "--nocapture"]);
    program.env(ALONE, test);
    if let Some(at) = at {
        program.env("VERBS_DEVICE", at);
    }
    let ended = program.output().expect("it runs");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(
        ended.status.code() == Some(code) && (code != 0 || said.contains("1 passed")),
        "{}\n{said}{}",
        ended.status,
        String::from_utf8_lossy(&ended.stderr)
    );
    false
}

fn errno() -> c_int {
    std::io::Error::last_os_error()
        .raw_os_error()
        .expect("one was set")
}

/// A queue pair that is connected to itself, and sends itself a message.
fn ping(bed: &Bed, qp: *mut abi::Qp) {
    assert_eq!(post_recv(qp, 1, &[bed.piece(4096..4104)]), 0);
    assert_eq!(post(qp, &send(2, &[bed.piece(0..8)], opcode::SEND, 2)), 0);
    let mut done = [bed.poll(), bed.poll()];
    done.sort_by_key(|wc| wc.wr_id);
    assert_eq!(done.map(|wc| (wc.wr_id, wc.status)), [(1, 0), (2, 0)]);
}

/// Goal: `exit` while work is in flight, and threads of the device and of the program use it, ends the process as it says.
#[test]
fn a_program_exits_in_mid_traffic() {
    if !is_alone("process_tests::a_program_exits_in_mid_traffic", None, 7) {
        return;
    }
    let bed = Bed::new();
    let qp = bed.qp();
    bed.connect(qp, qp);
    let place = bed.context.expose_provenance();
    std::thread::spawn(move || {
        let context: *mut abi::Context = std::ptr::with_exposed_provenance_mut(place);
        loop {
            // SAFETY: the device stays open.
            unsafe {
                let pd = memory::alloc_pd(context);
                memory::dealloc_pd(pd);
            }
        }
    });
    for _ in 0..20 {
        ping(&bed, qp);
    }
    assert_eq!(post_recv(qp, 1, &[bed.piece(4096..8192)]), 0);
    for n in 0..4 {
        assert_eq!(
            post(qp, &send(n, &[bed.piece(0..4096)], opcode::SEND, 2)),
            0
        );
    }
    std::process::exit(7);
}

/// Goal: after a fork the parent goes on with its objects; the child has none of them, opens the device at an address
/// of its own, and uses it.
#[test]
fn a_fork_leaves_the_parent_its_objects_and_lets_the_child_open_its_own() {
    let name =
        "process_tests::a_fork_leaves_the_parent_its_objects_and_lets_the_child_open_its_own";
    if !is_alone(name, None, 0) {
        return;
    }
    let bed = Bed::new();
    let qp = bed.qp();
    bed.connect(qp, qp);
    ping(&bed, qp);
    // SAFETY: the child calls only this library and ends without returning.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // A panic of the child must not run the rest of the test.
        let ended = std::panic::catch_unwind(|| {
            let own = Bed::new();
            let qp = own.qp();
            own.connect(qp, qp);
            ping(&own, qp);
        });
        // SAFETY: it ends the child.
        unsafe { libc::_exit(i32::from(ended.is_err())) };
    }
    assert!(child > 0);
    for _ in 0..50 {
        ping(&bed, qp);
    }
    let mut status = 0;
    // SAFETY: the own child; where its end goes.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child has failed");
    ping(&bed, qp);
    // SAFETY: it is no longer used.
    assert_eq!(unsafe { qp::destroy_qp(qp) }, 0);
    bed.close();
}

/// Goal: a signal interrupts calls that wait, as it interrupts a `read`.
#[test]
fn a_signal_interrupts_what_waits() {
    extern "C" fn nothing(_signal: c_int) {}
    if !is_alone("process_tests::a_signal_interrupts_what_waits", None, 0) {
        return;
    }
    let bed = Bed::new();
    // SAFETY: plain numbers; a handler that does nothing; this thread's own mask is empty.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(c_int) as usize;
        assert_eq!(
            libc::sigaction(libc::SIGUSR1, &raw const action, null_mut()),
            0
        );
        let waits = libc::pthread_self();
        let signals = std::thread::spawn(move || {
            // Again, until one comes when it waits.
            for _ in 0..100 {
                std::thread::sleep(Duration::from_millis(20));
                if libc::pthread_kill(waits, libc::SIGUSR1) != 0 {
                    break;
                }
            }
        });
        let (mut fired, mut about) = (null_mut(), null_mut());
        assert_eq!(
            cq::get_cq_event(bed.channel, &raw mut fired, &raw mut about),
            -1
        );
        assert_eq!(errno(), libc::EINTR);
        let mut event = std::mem::zeroed();
        assert_eq!(device::get_async_event(bed.context, &raw mut event), -1);
        assert_eq!(errno(), libc::EINTR);
        let channel = rdmacm::create_event_channel();
        assert_eq!(rdmacm::get_cm_event(channel, &mut null_mut()), -1);
        assert_eq!(errno(), libc::EINTR);
        rdmacm::destroy_event_channel(channel);
        signals.join().expect("no panic");
    }
    bed.close();
}

/// Goal: a signal that the program has blocked in its own threads waits for it. Method: a process with one thread of its own,
/// which opens the device, a connection manager and a connection before it blocks the signal; another thread would die of it.
#[test]
fn threads_of_the_library_take_no_signal_of_the_program() {
    let name = "process_tests::threads_of_the_library_take_no_signal_of_the_program";
    if !is_alone(name, None, 0) {
        return;
    }
    // SAFETY: the child calls only this library and ends without returning; after a fork it has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let taken = std::panic::catch_unwind(|| {
            let bed = Bed::new();
            let qp = bed.qp();
            bed.connect(qp, qp);
            ping(&bed, qp);
            // SAFETY: plain sets and calls, as in a C program; the id and the channel are its own.
            unsafe {
                let channel = rdmacm::create_event_channel();
                let mut id = null_mut();
                assert_eq!(
                    rdmacm::create_id(channel, &raw mut id, null_mut(), 0x106),
                    0
                );
                let mut anywhere: libc::sockaddr_in = std::mem::zeroed();
                anywhere.sin_family = libc::AF_INET as libc::sa_family_t;
                assert_eq!(rdmacm::bind_addr(id, (&raw mut anywhere).cast()), 0);
                assert_eq!(rdmacm::listen(id, 1), 0);
                let threads = std::fs::read_dir("/proc/self/task").expect("procfs");
                assert!(threads.count() > 1, "the library has threads");
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::sigaddset(&raw mut set, libc::SIGUSR1);
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, null_mut());
                libc::kill(libc::getpid(), libc::SIGUSR1);
                let mut signal = 0;
                libc::sigwait(&raw const set, &raw mut signal);
                assert_eq!(signal, libc::SIGUSR1);
            }
        });
        // SAFETY: it ends the child.
        unsafe { libc::_exit(i32::from(taken.is_err())) };
    }
    let mut status = 0;
    // SAFETY: the own child; where its end goes.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "its end, as waitpid tells it");
}

/// Goal: a signal whose handler restarts calls does not end a wait for a completion, which ends when there is one.
#[test]
fn a_signal_that_restarts_calls_ends_no_wait() {
    static HANDLED: AtomicU32 = AtomicU32::new(0);
    extern "C" fn count(_signal: c_int) {
        HANDLED.fetch_add(1, Ordering::SeqCst);
    }
    let name = "process_tests::a_signal_that_restarts_calls_ends_no_wait";
    if !is_alone(name, None, 0) {
        return;
    }
    let bed = Bed::new();
    let qp = bed.qp();
    bed.connect(qp, qp);
    // SAFETY: plain numbers; a handler that counts; the objects outlive the thread that uses them.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as extern "C" fn(c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        let set = libc::sigaction(libc::SIGUSR1, &raw const action, null_mut());
        assert_eq!((set, cq::req_notify_cq(bed.cq, 0)), (0, 0));
        assert_eq!(post_recv(qp, 1, &[bed.piece(4096..4104)]), 0);
        let waits = libc::pthread_self();
        std::thread::scope(|scope| {
            let (sender, from) = (qp.expose_provenance(), bed.piece(0..8));
            scope.spawn(move || {
                while HANDLED.load(Ordering::SeqCst) < 5 {
                    libc::pthread_kill(waits, libc::SIGUSR1);
                    std::thread::sleep(Duration::from_millis(10));
                }
                let qp = std::ptr::with_exposed_provenance_mut(sender);
                assert_eq!(post(qp, &send(2, &[from], opcode::SEND, 2)), 0);
            });
            let (mut fired, mut about) = (null_mut(), null_mut());
            let code = cq::get_cq_event(bed.channel, &raw mut fired, &raw mut about);
            assert_eq!((code, fired), (0, bed.cq));
            cq::ack_cq_events(fired, 1);
        });
    }
    let mut done = [bed.poll(), bed.poll()];
    done.sort_by_key(|wc| wc.wr_id);
    assert_eq!(done.map(|wc| (wc.wr_id, wc.status)), [(1, 0), (2, 0)]);
    // SAFETY: nothing of it is used any longer.
    assert_eq!(unsafe { qp::destroy_qp(qp) }, 0);
    bed.close();
}

/// Goal: without a descriptor, what needs one fails with `EMFILE`; what exists works on; with descriptors all is as before.
#[test]
fn descriptors_run_out() {
    if !is_alone("process_tests::descriptors_run_out", None, 0) {
        return;
    }
    let bed = Bed::new();
    let qp = bed.qp();
    bed.connect(qp, qp);
    // SAFETY: the manager exists before there are no descriptors.
    let before = unsafe { rdmacm::create_event_channel() };
    let null: &CStr = c"/dev/null";
    let mut taken = Vec::new();
    // SAFETY: plain calls; as a C program would.
    unsafe {
        let few = libc::rlimit {
            rlim_cur: 200,
            rlim_max: 200,
        };
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const few), 0);
        loop {
            match libc::open(null.as_ptr(), libc::O_RDONLY) {
                -1 => break,
                fd => taken.push(fd),
            }
        }
        assert!(cq::create_comp_channel(bed.context).is_null());
        assert_eq!(errno(), libc::EMFILE);
        let list = device::get_device_list(null_mut());
        assert!(open::open_device(*list).is_null());
        assert_eq!(errno(), libc::EMFILE);
        assert!(rdmacm::create_event_channel().is_null());
        assert_eq!(errno(), libc::EMFILE);
        let mut id = null_mut();
        assert_eq!(
            rdmacm::create_id(null_mut(), &raw mut id, null_mut(), 0x106),
            -1
        );
        assert_eq!(errno(), libc::EMFILE);
        ping(&bed, qp);
        let pd = memory::alloc_pd(bed.context);
        assert_eq!(memory::dealloc_pd(pd), 0);
        for fd in taken {
            libc::close(fd);
        }
        let channel = cq::create_comp_channel(bed.context);
        assert_eq!(cq::destroy_comp_channel(channel), 0);
        let again = open::open_device(*list);
        assert_eq!(open::close_device(again), 0);
        device::free_device_list(list);
        rdmacm::destroy_event_channel(before);
        assert_eq!(qp::destroy_qp(qp), 0);
    }
    bed.close();
}

/// Goal: very many objects of each kind exist at once, each is destroyed once, and nothing is left behind.
#[test]
fn ten_thousand_objects_come_and_go() {
    const MANY: usize = 10_000;
    if !is_alone("process_tests::ten_thousand_objects_come_and_go", None, 0) {
        return;
    }
    let bed = Bed::new();
    // SAFETY: as a C program would; each object is destroyed when nothing uses it.
    unsafe {
        let mut gid = [0; 2];
        assert_eq!(device::query_gid(bed.context, 1, 0, &raw mut gid), 0);
        let mut to = abi::AhAttr {
            is_global: 1,
            port_num: 1,
            ..abi::AhAttr::default()
        };
        to.grh.dgid = gid;
        let at = (*bed.mr).addr;
        let mut limits = std::mem::zeroed();
        assert_eq!(device::query_device(bed.context, &raw mut limits), 0);
        let regions = limits.max_mr as usize - 1;
        for round in 0..2 {
            let all: Vec<_> = (0..MANY)
                .map(|n| {
                    let pd = memory::alloc_pd(bed.context);
                    let mr = memory::reg_mr(pd, at, 64, 1);
                    // More than the device has.
                    assert_eq!(mr.is_null(), n >= regions, "{round}, {n}");
                    assert!(!mr.is_null() || errno() == libc::ENOMEM);
                    let ah = ah::create_ah(pd, &raw const to);
                    assert!(!pd.is_null() && !ah.is_null(), "{round}, {n}");
                    (pd, mr, ah)
                })
                .collect();
            for (pd, mr, ah) in all {
                assert_eq!(memory::dealloc_pd(pd), libc::EBUSY);
                if !mr.is_null() {
                    assert_eq!(memory::dereg_mr(mr), 0);
                }
                assert_eq!(memory::dereg_mr(mr), libc::EINVAL);
                assert_eq!(ah::destroy_ah(ah), 0);
                assert_eq!(ah::destroy_ah(ah), libc::EINVAL);
                assert_eq!(memory::dealloc_pd(pd), 0);
                assert_eq!(memory::dealloc_pd(pd), libc::EINVAL);
            }
        }
        let pairs: Vec<_> = (0..MANY).map(|_| bed.qp()).collect();
        assert_eq!(cq::destroy_cq(bed.cq), libc::EBUSY);
        for qp in pairs {
            assert_eq!(qp::destroy_qp(qp), 0);
            assert_eq!(qp::destroy_qp(qp), libc::EINVAL);
        }
    }
    let hca = device::hca().expect("it is there").hca;
    assert_eq!(hca.regions(), 1, "the own one");
    bed.close();
    assert_eq!(hca.regions(), 0);
}
