//! A system call filter under which waiting is fatal.

use std::net::UdpSocket;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, exit};
use std::time::Duration;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// Makes this binary, started by itself, wait under the filter: its value is the method.
const ROLE: &str = "VERBS_MATRIX_ROLE";

/// System calls that block, whatever their arguments.
const WAITING: &[libc::c_long] = &[
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_pwait,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_flock,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    libc::SYS_io_uring_enter,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_select,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_pause,
];

/// The operations of `futex` that block; the others wake.
const FUTEX_WAITS: [libc::c_int; 4] = [
    libc::FUTEX_WAIT,
    libc::FUTEX_WAIT_BITSET,
    libc::FUTEX_LOCK_PI,
    libc::FUTEX_WAIT_REQUEUE_PI,
];

fn program() -> BpfProgram {
    let waits = |operation: libc::c_int| {
        let operation = u64::from(operation.unsigned_abs());
        let flags = libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME;
        let mask = u64::from(!flags.unsigned_abs());
        let is = SeccompCmpOp::MaskedEq(mask);
        let condition = SeccompCondition::new(1, SeccompCmpArgLen::Dword, is, operation);
        condition.and_then(|condition| SeccompRule::new(vec![condition]))
    };
    let futex: Result<Vec<_>, _> = FUTEX_WAITS.into_iter().map(waits).collect();
    let mut rules: std::collections::BTreeMap<_, _> =
        WAITING.iter().map(|&call| (call, Vec::new())).collect();
    rules.insert(libc::SYS_futex, futex.expect("rules of one condition each"));
    let arch = std::env::consts::ARCH.try_into();
    let arch = arch.expect("an architecture with seccomp");
    SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::KillProcess,
        arch,
    )
    .and_then(TryInto::try_into)
    .expect("a filter of few rules")
}

/// From here on this thread is killed, and the process with it, when it blocks.
pub(crate) fn install() {
    seccompiler::apply_filter(&program()).expect("the kernel filters system calls");
}

/// The methods of waiting that must be detected, and one that is not waiting.
const ROLES: [(&str, bool, fn()); 5] = [
    ("nothing", false, || ()),
    ("park", true, std::thread::park),
    ("sleep", true, || {
        std::thread::sleep(Duration::from_millis(1));
    }),
    ("executor", true, || {
        futures::executor::block_on(std::future::pending::<()>());
    }),
    ("receive", true, || {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let _ = socket.recv(&mut [0; 8]);
    }),
];

/// Has a process of its own do what may wait; see [`play_role`].
pub(crate) fn elsewhere(role: &str) {
    let itself = std::env::current_exe().expect("a running program has a file");
    let ended = Command::new(itself).env(ROLE, role).status();
    let ended = ended.expect("this binary starts");
    assert!(ended.success(), "{role}: {ended}");
}

/// In a process that was started by [`elsewhere`]: does that. In one that was started by [`is_fatal_to_waiters`]: waits.
/// Does not return.
pub(crate) fn play_role(elsewhere: (&str, fn())) {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    if role == elsewhere.0 {
        elsewhere.1();
        exit(0);
    }
    let (_, _, wait) = ROLES
        .into_iter()
        .find(|(name, ..)| *name == role)
        .expect("a role of the table");
    install();
    wait();
    exit(0);
}

/// Starts this binary once per method of waiting; the filter must kill each.
pub(crate) fn is_fatal_to_waiters() {
    let itself = std::env::current_exe().expect("a running program has a file");
    for (role, waits, _) in ROLES {
        let ended = Command::new(&itself).env(ROLE, role).status();
        let ended = ended.expect("this binary starts");
        let killed = ended.signal() == Some(libc::SIGSYS);
        assert!(killed == waits, "{role}: {ended}");
        assert!(waits || ended.success(), "{role}: {ended}");
    }
}
