//! Instructions of posting and polling through `hca-rdma`, each beside the same calls as a C program makes them, on the
//! device of our own libibverbs, which cargo builds as it builds this.
//!
//! Measured: a post and the poll of its completion, with all that the library does below. The queue pairs are in ERR, so
//! that the library completes what is posted at once: with packets, on sockets, it takes a hundred times as long as what is
//! compared here, and some of it is done by another thread.
//!
//! `raw_message` is a SEND between two queue pairs of this process, with its receive and both completions: what
//! `send_shared` of `message` does without the library.

#[expect(unsafe_code, reason = "calls of C functions: argued in the file")]
mod raw;

use std::env::current_exe;
use std::fs::{create_dir_all, remove_file};
use std::hint::black_box;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use gungraun::{library_benchmark, library_benchmark_group};
use hca_rdma::native;
use verbs_core::{
    Access, Av, Cq, Device, Lid, Memory, Mr, Path, Pd, Psn, Qp, QpInit, Recv, Remote, Sge, Wc,
    Write,
};

use crate::budget::{TIMES, budget};
use raw::{RawCq, RawQp};

/// The folder with our libibverbs, under the names that the loader knows.
fn library() -> PathBuf {
    let itself = current_exe().expect("this bench is a file");
    let library = itself.with_file_name("libibverbs.so");
    assert!(library.exists(), "{} is not there", library.display());
    let folder = itself.with_file_name("rdma-core");
    create_dir_all(&folder).expect("a folder");
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        let _ = remove_file(folder.join(name));
        symlink(&library, folder.join(name)).expect("a link");
    }
    folder
}

/// Two connected queue pairs of the process's own device. Dropped in this order.
struct Within {
    subject: Subject,
}

impl Within {
    /// After every path has been taken once.
    fn new() -> Self {
        raw::within_this_process();
        let subject = Subject::connected("ib0").expect("a connection");
        let mut within = Self { subject };
        within.raw_message(1);
        within
    }

    /// That many SENDs with their receives, and both completions of each.
    fn raw_message(&mut self, times: u64) {
        let subject = &self.subject;
        let (from, to, _) = subject.places();
        for i in 0..times {
            subject.raw_receiver.post_recv(i, black_box(&to));
            subject.raw_sender.post_send(i, black_box(&from));
            assert_eq!(subject.raw_sent.poll_one(), i);
            assert_eq!(subject.raw_received.poll_one(), i);
        }
    }
}

/// Two connected queue pairs. Dropped in this order.
struct Subject {
    sender: Qp,
    receiver: Qp,
    sent: Cq,
    received: Cq,
    mr: Mr,
    raw_sender: RawQp,
    raw_receiver: RawQp,
    raw_sent: RawCq,
    raw_received: RawCq,
    _pd: Pd,
    _device: Device,
}

impl Subject {
    /// In ERR, after every path has been taken once.
    fn new() -> Self {
        let mut subject = Self::connected("roce0").expect("a connection");
        for qp in [&subject.sender, &subject.receiver] {
            qp.to_error().wait().expect("it can");
        }
        subject.write(1);
        subject.raw_write(1);
        subject.receive(1);
        subject.raw_receive(1);
        subject
    }

    fn connected(name: &str) -> Result<Self, verbs_core::Error> {
        let rdma = raw::load(&library());
        let nic = rdma.open(name).expect("its device");
        let (index, gid) = nic.gids(1)?[0];
        let device = Device::open(nic).wait()?;
        let pd = device.alloc_pd().wait()?;
        let (sent, received) = (device.create_cq(256).wait()?, device.create_cq(256).wait()?);
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let mr = pd.register(Memory::alloc(1 << 20)?, access).wait()?;
        let make = || {
            let init = QpInit::rc(&sent, &received).depth(64, 64);
            pd.create_qp(init).wait()
        };
        let (sender, receiver) = (make()?, make()?);
        let port = device.query_port(1).wait()?;
        let (lid, mtu) = (port.lid, port.active_mtu);
        let av = match lid {
            Lid(0) => Av::to_gid(1, index, gid),
            lid => Av::to_lid(1, lid),
        };
        for (own, peer) in [(&sender, &receiver), (&receiver, &sender)] {
            let (dest_qpn, rq_psn) = (peer.qpn(), Psn::new(1));
            own.init(1, Access::REMOTE).wait()?;
            let path = Path {
                av,
                dest_qpn,
                rq_psn,
                mtu,
            };
            own.ready_to_receive(&path).wait()?;
            own.ready_to_send(Psn::new(1)).wait()?;
        }
        let qp = |qp| RawQp::new(native::qp(qp).expect("it is hca-rdma's"));
        let cq = |cq| RawCq::new(native::cq(cq).expect("it is hca-rdma's"));
        let (raw_sender, raw_receiver) = (qp(&sender), qp(&receiver));
        let (raw_sent, raw_received) = (cq(&sent), cq(&received));
        Ok(Self {
            sender,
            receiver,
            sent,
            received,
            mr,
            raw_sender,
            raw_receiver,
            raw_sent,
            raw_received,
            _pd: pd,
            _device: device,
        })
    }

    /// The 8 bytes that are sent, and the place where they arrive.
    fn places(&self) -> (Sge, Sge, Remote) {
        (
            self.mr.slice(0..8),
            self.mr.slice(8192..8200),
            self.mr.remote(8192),
        )
    }

    /// That many receives with their completions.
    fn receive(&mut self, times: u64) {
        let ((_, to, _), mut out) = (self.places(), [Wc::default()]);
        for i in 0..times {
            let recv = Recv::new(i).into(*black_box(&to));
            self.receiver.post_recv(recv).expect("there is room");
            assert_eq!(poll_one(&mut self.received, &mut out), i);
        }
    }

    fn raw_receive(&mut self, times: u64) {
        let (_, to, _) = self.places();
        for i in 0..times {
            self.raw_receiver.post_recv(i, black_box(&to));
            assert_eq!(self.raw_received.poll_one(), i);
        }
    }

    /// That many WRITEs with their completions.
    fn write(&mut self, times: u64) {
        let ((from, _, to), mut out) = (self.places(), [Wc::default()]);
        for i in 0..times {
            let write = Write::new(i, *black_box(&to)).from(*black_box(&from));
            self.sender
                .post_send(write.signaled())
                .expect("there is room");
            assert_eq!(poll_one(&mut self.sent, &mut out), i);
        }
    }

    fn raw_write(&mut self, times: u64) {
        let (from, _, to) = self.places();
        for i in 0..times {
            self.raw_sender
                .post_write(i, black_box(&from), *black_box(&to));
            assert_eq!(self.raw_sent.poll_one(), i);
        }
    }
}

/// Takes the next completion, which waits, and returns its number.
#[inline(always)]
fn poll_one(cq: &mut Cq, out: &mut [Wc; 1]) -> u64 {
    assert_eq!(cq.poll(out).len(), 1);
    black_box(&out[0]).wr_id
}

macro_rules! counted {
    ($($name:ident <= $budget:literal;)*) => {
        $(
            #[library_benchmark(config = budget($budget))]
            #[bench::counted(Subject::new())]
            fn $name(mut subject: Subject) -> Subject {
                subject.$name(TIMES);
                subject
            }
        )*
    };
}

counted! {
    write <= 2318;
    raw_write <= 1955;
    receive <= 1655;
    raw_receive <= 1448;
}

#[library_benchmark(config = budget(1060))]
#[bench::counted(Within::new())]
fn raw_message(mut within: Within) -> Within {
    within.raw_message(TIMES);
    within
}

library_benchmark_group!(
    name = nics,
    benchmarks = [write, raw_write, receive, raw_receive, raw_message]
);
