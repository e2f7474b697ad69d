//! Processes that share a domain of extended reliable connections: the file is its name.

use std::env;
use std::fs::File;
use std::io::{BufRead, BufReader, Lines, Write as _};
use std::net::IpAddr;
use std::process::{ChildStderr, ChildStdin, Command, Stdio};
use std::sync::Arc;

use futures::executor::block_on;
use hca_sim::Hca;
use hca_sim::link::host;
use verbs_core::xrcd::XrcdName;
use verbs_core::{
    Access, Av, Cq, Device, Gid, Memory, Mtu, Path, Pd, Psn, Qp, QpInit, Qpn, RKey, Recv, Remote,
    Send, Srq, Srqn, Wc, Write,
};

use crate::child::Guarded;
use crate::shared::daemon;

/// The program is a process of the domain: at which address, of which file, and whether it has the target.
const ROLE: &str = "VERBS_TEST_DOMAIN";

/// Bytes of the file.
const BYTES: usize = 4096;

/// A process of the domain, as the test sees it.
struct Process {
    child: Guarded,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStderr>>,
}

impl Process {
    fn start(role: &str, address: &str, file: &str, socket: &str) -> Self {
        let mut command = Command::new(env::current_exe().expect("this is one"));
        command.args(["--exact", "domain::a_process", "--nocapture"]);
        command.env(ROLE, format!("{role} {address} {file}"));
        command.env("VERBS_HOST_SOCKET", socket);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = Guarded::start(command.stderr(Stdio::piped()));
        let stdin = child.stdin.take().expect("it is piped");
        let stderr = child.stderr.take().expect("it is piped");
        Self {
            child,
            stdin,
            lines: BufReader::new(stderr).lines(),
        }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("it reads");
    }

    /// What follows that word in the next line.
    fn said(&mut self, word: &str) -> String {
        let line = self.lines.next().expect("it says something");
        let line = line.expect("text");
        let rest = line.strip_prefix(word);
        rest.unwrap_or_else(|| panic!("{word}: {line}"))
            .trim()
            .to_owned()
    }
}

/// A device at an address of the daemon's.
fn device(address: IpAddr) -> (Arc<Hca>, Device, Pd, Cq) {
    let link = host::join(&[address]).expect("a daemon");
    let hca = Hca::over(link.expect("it has the address")).build();
    let device = hca.open().wait().expect("a device");
    let pd = device.alloc_pd().wait().expect("a domain");
    let cq = device.create_cq(64).wait().expect("a queue");
    (hca, device, pd, cq)
}

async fn connect(qp: &Qp, address: IpAddr, dest_qpn: Qpn) {
    let path = Path {
        av: Av::to_gid(1, 0, Gid::from(address)),
        dest_qpn,
        rq_psn: Psn::new(5),
        mtu: Mtu::B1024,
    };
    let access = Access::REMOTE | Access::LOCAL_WRITE;
    qp.init(1, access).await.expect("INIT");
    qp.ready_to_receive(&path).await.expect("RTR");
    qp.ready_to_send(Psn::new(5)).await.expect("RTS");
}

fn one(cq: &mut Cq) -> Wc {
    block_on(async {
        let mut wcs = [Wc::default(); 1];
        loop {
            if let [wc] = *cq.poll(&mut wcs) {
                return wc;
            }
            cq.ready().await.expect("the queue is there");
        }
    })
}

/// Goal: three processes open the domain of one file; one of them has the target, and each gets what names its queue; a process that
/// is killed takes only its own queue away (D13). The file is memory that each of them has registered, so what is written through
/// one region is there for all.
#[test]
fn processes_share_a_domain() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| {
        let path = folder.path().join(name);
        path.to_str().expect("text").to_owned()
    };
    let (socket, file) = (path("host"), path("domain"));
    let made = File::create(&file).expect("a file");
    made.set_len(BYTES as u64).expect("room");
    let [.., high, low] = std::process::id().to_be_bytes();
    let address = format!("127.{}.{low}.9", 96 + high % 16);
    let _daemon = daemon(&address, &socket);
    let role = |role| Process::start(role, &address, &file, &socket);
    let [mut home, mut first, mut second] = [role("home"), role("guest"), role("guest")];
    let queues = [&mut home, &mut first, &mut second].map(|process| process.said("queue "));
    let target = home.said("target ");
    for guest in [&mut first, &mut second] {
        guest.say(&target);
        assert_eq!(guest.said("opens "), target);
    }
    let mut client = role("client");
    client.say(&target);
    home.say(&client.said("initiator "));
    assert_eq!(home.said("connected"), "");

    // Writes a text through one process's region, and sends it to another.
    let mut send = |through: usize, to: usize, text: &str| {
        client.say(&format!("{} {} {text}", queues[through], queues[to]));
        client.said("sent ")
    };
    let mut processes = [home, first, second];
    for k in 0..30 {
        let (through, to, text) = (k % 3, (k * 7 + 1) % 3, format!("message {k}"));
        assert_eq!(send(through, to, &text), "Success");
        assert_eq!(processes[to].said("gets "), text);
    }
    assert_eq!(send(1, 2, "the last"), "Success");
    assert_eq!(processes[2].said("gets "), "the last");
    let [.., last] = &mut processes;
    last.child.kill().expect("it runs");
    last.child.wait().expect("a child");
    for k in 0..10 {
        let text = format!("more {k}");
        assert_eq!(send(k % 2, (k + 1) % 2, &text), "Success");
        assert_eq!(processes[(k + 1) % 2].said("gets "), text);
    }
    assert_eq!(send(0, 2, "lost"), "RemInvReqErr");
}

/// The next line of this process's input.
fn line() -> Option<String> {
    let mut line = String::new();
    let len = std::io::stdin().read_line(&mut line).expect("text");
    (len > 0).then(|| line.trim().to_owned())
}

fn qpn(text: &str) -> Qpn {
    Qpn::new(text.parse().expect("a number"))
}

/// A queue, and the region of the same process.
fn queue(words: &[&str]) -> (Srqn, Remote) {
    let mut numbers = words
        .iter()
        .map(|word| word.parse::<u64>().expect("a number"));
    let mut number = || numbers.next().expect("three of them");
    let srqn = Srqn::new(number() as u32);
    let (rkey, addr) = (RKey::new(number() as u32), number());
    (srqn, Remote { addr, rkey })
}

/// The initiator: writes the text of each line of its input through one queue, and sends it to another.
fn client(address: IpAddr) {
    let (_hca, _device, pd, mut cq) = device(address);
    let init = QpInit::xrc(&cq).inline(64);
    let mut qp = pd.create_qp(init).wait().expect("an initiator");
    let target = qpn(&line().expect("the target"));
    block_on(connect(&qp, address, target));
    eprintln!("initiator {}", qp.qpn().value());
    while let Some(line) = line() {
        let words: Vec<_> = line.splitn(7, ' ').collect();
        let [through, to] = [&words[..3], &words[3..6]].map(queue);
        let text = words[6].as_bytes();
        let write = Write::new(1, through.1).inline(text).srq(through.0);
        let send = Send::new(1).inline(text).srq(to.0);
        qp.post_send(write).expect("room");
        qp.post_send(send.signaled()).expect("room");
        eprintln!("sent {:?}", one(&mut cq).status);
    }
}

/// One process, of [`processes_share_a_domain`]; nothing by itself.
#[test]
fn a_process() {
    const ROOMS: usize = 8;
    let Ok(role) = env::var(ROLE) else { return };
    let words: Vec<_> = role.split(' ').collect();
    let [role, address, file] = words[..] else {
        panic!("{role}");
    };
    let address = address.parse().expect("an address");
    if role == "client" {
        return client(address);
    }
    let (_hca, device, pd, mut cq) = device(address);
    let file = File::options().read(true).write(true).open(file);
    let file = file.expect("a file");
    let name = XrcdName::of(&file).expect("it is there");
    let domain = device.open_xrcd(name).wait().expect("a domain");
    let srq = pd.create_xrc_srq(&domain, &cq, 8, 1).wait();
    let mut srq = srq.expect("a queue");
    let memory = Memory::alloc(64 * ROOMS).expect("memory");
    let mr = pd.register(memory, Access::LOCAL_WRITE).wait();
    let mr = mr.expect("a region");
    let post = |srq: &mut Srq, k: usize| {
        let room = mr.slice(64 * k..64 * k + 64);
        srq.post_recv(Recv::new(k as u64).into(room)).expect("room");
    };
    (0..ROOMS).for_each(|k| post(&mut srq, k));
    // The file is the domain's name, and memory.
    let shared = Memory::shared(&file, BYTES).expect("it is as long");
    let access = Access::REMOTE_WRITE | Access::LOCAL_WRITE;
    let shared = pd.register(shared, access).wait().expect("a region");
    let Remote { addr, rkey } = shared.remote(0);
    eprintln!("queue {} {} {addr}", srq.srqn().value(), rkey.value());
    // The target lives as long as one process has it open.
    let _target = if role == "home" {
        let target = domain.create_target_qp().wait().expect("a target");
        eprintln!("target {}", target.qpn().value());
        let initiator = qpn(&line().expect("the initiator"));
        block_on(connect(&target, address, initiator));
        eprintln!("connected");
        target
    } else {
        let number = qpn(&line().expect("the target"));
        let target = domain.open_target_qp(number).wait();
        eprintln!("opens {}", number.value());
        target.expect("its home has it")
    };
    loop {
        let wc = one(&mut cq);
        assert!(wc.is_ok(), "{wc:?}");
        let mut text = [0; 64];
        let place = 64 * wc.wr_id as usize;
        mr.read(place, &mut text).expect("in range");
        post(&mut srq, wc.wr_id as usize);
        let text = String::from_utf8_lossy(&text[..wc.byte_len as usize]).into_owned();
        let mut written = vec![0; text.len()];
        shared.read(0, &mut written).expect("in range");
        assert_eq!(
            written,
            text.as_bytes(),
            "it was written to the file before"
        );
        eprintln!("gets {text}");
    }
}
