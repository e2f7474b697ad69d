//! What an inline verb without an object must not do, counted exactly: allocate, yield the processor, make system
//! calls.
//!
//! Unlike times, these counts do not depend on the load of the machine. Every front end is measured over the null
//! provider, after a first round that sets up everything that a thread needs once.

#![deny(unsafe_code)]

use std::future::IntoFuture;
use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::Arc;

use futures::executor::block_on;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use verbs_core::qp::ModifyQp;
use verbs_core::testing::Null;
use verbs_core::{Access, Device, Qp, QpAttr, QpInit, QpState, Request};

#[expect(
    unsafe_code,
    reason = "GlobalAlloc is an unsafe trait; argued in the file"
)]
mod allocator;
mod footprint;
mod io;
#[cfg(target_arch = "x86_64")]
mod near;
mod packets;
mod registration;
mod requests;
#[cfg(target_arch = "x86_64")]
mod sharing;
mod srp;
#[cfg(target_arch = "x86_64")]
#[expect(
    unsafe_code,
    reason = "the trap flag and a signal handler; argued in the file"
)]
mod steps;

/// Repetitions of every operation.
const TIMES: u32 = 1000;

/// Makes this binary, started by its own test, run under the filter: its value is the role to play there.
const ROLE: &str = "VERBS_EXACT_ROLE";

/// A front end by name, and the operation through it.
type Operation = (&'static str, fn(&Subject));

struct Subject {
    qp: Qp,
    device: Arc<Device>,
}

impl Subject {
    fn new() -> Self {
        let device = Device::open(Arc::new(Null::default())).wait();
        let device = Arc::new(device.expect("the null device opens"));
        let pd = device.alloc_pd().wait().expect("a PD");
        let cq = device.create_cq(4).wait().expect("a CQ");
        let qp = pd.create_qp(QpInit::rc(&cq, &cq)).wait().expect("a QP");
        qp.init(1, Access::empty()).wait().expect("INIT");
        Self { qp, device }
    }

    fn modify(&self) -> Request<'_, ModifyQp> {
        // Every state except RESET may change to ERR, including ERR.
        self.qp.modify(QpAttr::to(QpState::Err))
    }

    /// The front ends, each with both kinds of verb: one with an output, one without.
    fn operations() -> [Operation; 4] {
        [
            ("issue", |subject| {
                let _ = subject.device.query_port(1).issue(|port| {
                    black_box(port).expect("port 1");
                });
                let _ = subject.modify().issue(|done| {
                    black_box(done).expect("modified");
                });
            }),
            ("await", |subject| {
                black_box(block_on(subject.device.query_port(1).into_future())).expect("port 1");
                block_on(subject.modify().into_future()).expect("modified");
            }),
            ("wait", |subject| {
                black_box(subject.device.query_port(1).wait()).expect("port 1");
                subject.modify().wait().expect("modified");
            }),
            ("issue from a routine", |subject| {
                let inner = Arc::clone(&subject.device);
                let _ = subject.device.query_port(1).issue(move |_| {
                    let _ = inner.query_port(1).issue(|port| {
                        black_box(port).expect("port 1");
                    });
                });
            }),
        ]
    }
}

/// How often the kernel has taken the processor from this thread because it waited.
fn voluntary_switches() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("procfs");
    let count = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count
        .and_then(|count| count.trim().parse().ok())
        .expect("a count")
}

#[test]
fn no_verb_allocates() {
    let subject = Subject::new();
    for (name, operation) in Subject::operations() {
        operation(&subject);
        let before = allocator::calls();
        (0..TIMES).for_each(|_| operation(&subject));
        assert_eq!(allocator::calls() - before, 0, "{name}");
    }
    let before = allocator::calls();
    drop(black_box(Box::new(1)));
    assert_eq!(allocator::calls() - before, 2, "the allocator counts");
}

/// The fewest such switches during one of three runs: a page fault may wait for a lock that another test holds, and where
/// a call itself waits, each run has some.
fn fewest_switches(mut run: impl FnMut()) -> u64 {
    let during = (0..3).map(|_| {
        let before = voluntary_switches();
        run();
        voluntary_switches() - before
    });
    during.min().expect("three runs")
}

#[test]
fn no_verb_gives_up_the_processor() {
    let subject = Subject::new();
    for (name, operation) in Subject::operations() {
        operation(&subject);
        let switches = fewest_switches(|| (0..TIMES).for_each(|_| operation(&subject)));
        assert_eq!(switches, 0, "{name}");
    }
    let before = voluntary_switches();
    std::thread::sleep(std::time::Duration::from_millis(1));
    assert!(voluntary_switches() > before, "waiting is counted");
}

/// Runs itself in processes where every system call except those for exiting kills.
#[test]
fn no_verb_calls_the_system() {
    match std::env::var(ROLE).as_deref() {
        Ok(role) => under_filter(role),
        Err(_) => {
            for role in 0..Subject::operations().len() {
                let (name, _) = Subject::operations()[role];
                let ended = start(&role.to_string());
                assert!(ended.success(), "{name}: {ended}");
            }
            assert_eq!(
                start("yield").signal(),
                Some(libc::SIGSYS),
                "the filter sees system calls"
            );
        }
    }
}

fn start(role: &str) -> ExitStatus {
    let itself = std::env::current_exe().expect("a running program has a file");
    Command::new(itself)
        .args(["--exact", "no_verb_calls_the_system", "--nocapture"])
        .env(ROLE, role)
        .output()
        .expect("the test's own binary starts")
        .status
}

/// Does `role` under the filter: an operation by number, or `yield`. Does not return.
fn under_filter(role: &str) -> ! {
    let subject = Subject::new();
    let operation = role.parse().ok().map(|n: usize| Subject::operations()[n].1);
    if let Some(operation) = operation {
        operation(&subject);
    }
    seccompiler::apply_filter(&only_exit()).expect("the kernel filters system calls");
    for _ in 0..TIMES {
        match operation {
            Some(operation) => operation(&subject),
            None => std::thread::yield_now(),
        }
    }
    std::process::exit(0);
}

fn only_exit() -> BpfProgram {
    // The standard library removes its signal stack before it exits.
    let last = [
        libc::SYS_sigaltstack,
        libc::SYS_munmap,
        libc::SYS_exit_group,
    ];
    let rules = last.map(|call| (call, vec![])).into_iter().collect();
    let arch = std::env::consts::ARCH
        .try_into()
        .expect("an architecture with seccomp");
    SeccompFilter::new(
        rules,
        SeccompAction::KillProcess,
        SeccompAction::Allow,
        arch,
    )
    .and_then(TryInto::try_into)
    .expect("a filter of three rules")
}
