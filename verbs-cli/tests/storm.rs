//! Many programs of one daemon, of which some are killed all the time: their peers hear of it at once, nothing is left of
//! them, and two programs beside them talk as before.
//!
//! `VERBS_STORM=1000,100,60` makes a storm of 1,000 programs, of which 100 are killed and replaced each second for 60 s; the
//! gate runs a small one.

mod child;
#[path = "child/kept.rs"]
mod kept;

use std::collections::{BTreeMap, VecDeque};
use std::env;
use std::fmt;
use std::fs::read_dir;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::executor::block_on;
use hca_sim::Hca;
use hca_sim::link::{PROGRAMS_MAX, host};
use verbs_cm::Connection;
use verbs_core::{Access, Cq, Device, Memory, Mr, Pd, QpInit, Recv, Send, Wc, WcStatus, task};

use child::{Guarded, started};

/// What a program of the storm is to do, and where its server listens.
const ROLE: &str = "VERBS_TEST_ROLE";
const SERVER: &str = "VERBS_TEST_SERVER";
/// Lines of a program that are for this test begin so.
const MARK: &str = "> ";
/// After which a test has failed.
const STUCK: Duration = Duration::from_secs(60);
/// How soon a killed program is missed; by retries alone it would be after more than 4 s.
const MISSED: Duration = Duration::from_secs(4);
/// Round trips that are measured.
const TRIPS: usize = 5000;
/// Programs that are started at a time.
const AT_ONCE: usize = 16;

/// How many programs there are, and how many of them are killed.
struct Storm {
    programs: usize,
    kills: usize,
    /// The time from one to the next; without one, when the last was missed and another has come in its place.
    pace: Option<Duration>,
}

impl Storm {
    /// The user's, or a small one.
    fn new() -> Self {
        let Ok(text) = env::var("VERBS_STORM") else {
            return Self {
                programs: 40,
                kills: 60,
                pace: None,
            };
        };
        let numbers: Vec<u32> = text.split(',').filter_map(|n| n.parse().ok()).collect();
        let [programs, each_second, seconds] = numbers[..] else {
            panic!("VERBS_STORM={text}, but should be programs,kills per second,seconds");
        };
        Self {
            programs: programs as usize,
            kills: (each_second * seconds) as usize,
            pace: Some(Duration::from_secs(1) / each_second),
        }
    }
}

/// A program of the storm.
struct Program {
    child: Guarded,
    stdin: ChildStdin,
}

/// What a program says, and when: its number with each line.
type Said = (usize, Instant, String);

struct Bed {
    folder: tempfile::TempDir,
    daemon: Guarded,
    address: IpAddr,
    said: Receiver<Said>,
    says: Sender<Said>,
}

impl Bed {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let [_, _, high, low] = std::process::id().to_be_bytes();
        // No other test has addresses from there.
        let address = IpAddr::from([127, 32 + high % 16, low, 1]);
        let mut command = Command::new(env!("CARGO_BIN_EXE_verbs"));
        command.args(["host", "--bind", &address.to_string(), "--socket"]);
        command.arg(folder.path().join("host"));
        let (daemon, line) = started(&mut command);
        assert!(line.starts_with("sharing"), "{line}");
        let (says, said) = channel();
        Self {
            folder,
            daemon,
            address,
            said,
            says,
        }
    }

    fn server(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address, port)
    }

    /// Starts a program, whose lines have that number.
    fn start(&self, number: usize, role: &str, port: u16) -> Program {
        let mut command = Command::new(env::current_exe().expect("this is one"));
        command.args(["--exact", "a_program_of_the_storm", "--nocapture"]);
        command.env(ROLE, format!("{role} {number}"));
        command.env(SERVER, self.server(port).to_string());
        command.env(host::VARIABLE, self.folder.path().join("host"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = Guarded::start(&mut command);
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (says, stdout) = (self.says.clone(), stdout.expect("it is piped"));
        thread::spawn(move || listen(number, stdout, &says));
        let stdin = stdin.expect("it is piped");
        Program { child, stdin }
    }

    fn next(&self) -> Said {
        self.said.recv_timeout(STUCK).expect("a program goes on")
    }

    /// Waits until the programs of these numbers are ready.
    fn ready(&self, count: usize) {
        for _ in 0..count {
            let (number, _, line) = self.next();
            assert_eq!(line, "ready", "of program {number}");
        }
    }

    /// Descriptors of a process.
    fn files(process: u32) -> usize {
        let files = read_dir(format!("/proc/{process}/fd"));
        files.expect("it is there").count()
    }

    /// The processes that the daemon lists.
    fn listed(&self) -> Vec<u64> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_verbs"));
        command.args(["connections", "--host", "--json"]);
        command.env(host::VARIABLE, self.folder.path().join("host"));
        let output = command.output().expect("it runs");
        let list: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a list");
        let list = list.as_array().expect("a list").iter();
        list.filter_map(|program| program["process"].as_u64())
            .collect()
    }

    /// So many round trips of two programs.
    fn latency(&self, asks: &mut Program) -> Latency {
        writeln!(asks.stdin, "{TRIPS}").expect("it reads");
        let (_, _, line) = self.next();
        Latency::of(&line).expect("it says how long they took")
    }

    /// Starts so many programs, whose numbers begin with that one.
    fn populate(&self, first: usize, count: usize) -> VecDeque<(usize, Program)> {
        let mut programs = VecDeque::new();
        while programs.len() < count {
            let some = AT_ONCE.min(count - programs.len());
            for _ in 0..some {
                let number = first + programs.len();
                programs.push_back((number, self.start(number, "client", SERVER_PORT)));
            }
            self.ready(some);
        }
        programs
    }
}

/// How long round trips took, in microseconds.
#[derive(Clone, Copy)]
struct Latency {
    median: f64,
    high: f64,
}

impl Latency {
    /// As a program says it.
    fn of(line: &str) -> Option<Self> {
        let (median, high) = line.split_once(' ')?;
        Some(Self {
            median: median.parse().ok()?,
            high: high.parse().ok()?,
        })
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} us (median), {} us (99 %)", self.median, self.high)
    }
}

/// Passes on what a program says, until it has ended.
fn listen(number: usize, stdout: ChildStdout, says: &Sender<Said>) {
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        if let Some(said) = line.strip_prefix(MARK) {
            // The test may have ended.
            let _ = says.send((number, Instant::now(), said.to_owned()));
        }
    }
}

const SERVER_PORT: u16 = 7471;
const PAIR_PORT: u16 = 7472;

/// Goal: as in the head of this file.
#[test]
fn a_storm_of_kills_leaves_nothing() {
    let (bed, storm) = (Bed::new(), Storm::new());
    let start = |role, port| {
        let program = bed.start(0, role, port);
        bed.ready(1);
        program
    };
    let server = start("server", SERVER_PORT);
    let answers = start("answers", PAIR_PORT);
    let mut asks = start("asks", PAIR_PORT);
    let alone = bed.latency(&mut asks);
    let keeper = bed.daemon.id();
    let daemon = kept::next_kept_by(keeper, None);
    let kept = daemon.as_raw_nonzero().get().unsigned_abs();
    let files = || [keeper, kept, server.child.id()].map(Bed::files);
    let before = files();

    // 0 is none of them.
    let mut programs = bed.populate(1, storm.programs);
    let beside = bed.latency(&mut asks);
    let mut tally = Tally::default();
    writeln!(asks.stdin, "0").expect("it reads");
    tally.storm(&bed, &storm, &mut programs);
    writeln!(asks.stdin, "end").expect("it reads");
    tally.until(&bed, |tally| tally.pair.is_some());
    let (under, mut missed) = (tally.pair.take(), std::mem::take(&mut tally.missed));
    // The last ones end together.
    programs.into_iter().for_each(|victim| tally.kill(victim));
    tally.until(&bed, |tally| tally.killed.is_empty());

    missed.sort_unstable();
    let (median, worst) = (missed[missed.len() / 2], missed[missed.len() - 1]);
    let (programs, kills) = (storm.programs, storm.kills);
    let under = under.expect("it was waited for");
    println!(
        "{programs} programs, {kills} killed: missed after {median:.1?} (median), {worst:.1?} (worst)\n\
         round trips of two programs alone: {alone}\n\
         beside the others: {beside}\n\
         in the storm: {under}"
    );
    let after = files();
    let [keeper, kept, server_has] = [0, 1, 2].map(|n| after[n].abs_diff(before[n]));
    // Sockets of the network wait for the next programs.
    assert!(
        keeper <= PROGRAMS_MAX && kept == keeper && server_has == 0,
        "descriptors more: {keeper} of the keeper, {kept} of the daemon, {server_has} of the server"
    );
    let listed = bed.listed();
    assert!(kept::is_alive(daemon), "it has not crashed");
    for own in [&server, &answers, &asks] {
        assert!(listed.contains(&own.child.id().into()), "{listed:?}");
    }
    assert_eq!(listed.len(), 3, "{listed:?}");
    assert!(median < MISSED, "{median:?}");
    if storm.pace.is_some() {
        assert!(under.median <= 2.0 * beside.median, "{under}");
    }
}

/// What was heard of programs.
#[derive(Default)]
struct Tally {
    /// When those were killed that the server has not missed yet.
    killed: BTreeMap<usize, Instant>,
    /// How long it took the server to miss the others.
    missed: Vec<Duration>,
    ready: usize,
    ticks: usize,
    pair: Option<Latency>,
}

impl Tally {
    /// Kills the oldest again and again, and starts others.
    fn storm(&mut self, bed: &Bed, storm: &Storm, programs: &mut VecDeque<(usize, Program)>) {
        if let Some(pace) = storm.pace {
            let (says, kills) = (bed.says.clone(), storm.kills);
            thread::spawn(move || {
                for _ in 0..kills {
                    thread::sleep(pace);
                    // The test may have failed.
                    let _ = says.send((0, Instant::now(), "tick".into()));
                }
            });
        }
        for count in 1..=storm.kills {
            if storm.pace.is_some() {
                self.until(bed, |tally| tally.ticks >= count);
            }
            let victim = programs.pop_front().expect("there are some");
            self.kill(victim);
            let number = storm.programs + count;
            programs.push_back((number, bed.start(number, "client", SERVER_PORT)));
            if storm.pace.is_none() {
                self.until(bed, |tally| tally.killed.is_empty() && tally.ready == count);
            }
        }
        self.until(bed, |tally| {
            tally.killed.is_empty() && tally.ready == storm.kills
        });
    }

    fn kill(&mut self, (number, mut victim): (usize, Program)) {
        self.killed.insert(number, Instant::now());
        victim.child.kill().expect("it runs");
        victim.child.wait().expect("a child");
    }

    fn until(&mut self, bed: &Bed, is_so: impl Fn(&Self) -> bool) {
        while !is_so(self) {
            self.take(bed.next());
        }
    }

    fn take(&mut self, (number, when, line): Said) {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["ready"] => self.ready += 1,
            ["tick"] => self.ticks += 1,
            ["gone", number] => {
                let number = number.parse().expect("a number");
                let killed = self.killed.remove(&number).expect("it was killed");
                self.missed.push(when.saturating_duration_since(killed));
            }
            _ => {
                self.pair = Latency::of(&line);
                assert!(self.pair.is_some(), "{line} of program {number}");
            }
        }
    }
}

/// The programs of [`a_storm_of_kills_leaves_nothing`], which starts them; nothing by itself.
#[test]
fn a_program_of_the_storm() {
    let Ok(role) = env::var(ROLE) else { return };
    let server = env::var(SERVER).expect("it is set");
    let server = server.parse().expect("an address");
    let (role, number) = role.split_once(' ').expect("a role and a number");
    match role {
        "client" => client(server, number.parse().expect("a number")),
        "server" => serve(server),
        "answers" => answer(server),
        "asks" => ask(server),
        _ => panic!("{role}"),
    }
}

fn say(what: &str) {
    let mut out = io::stdout().lock();
    // The test may have ended.
    let _ = writeln!(out, "{MARK}{what}").and_then(|()| out.flush());
}

/// Waits until the test ends.
fn wait() {
    let _ = io::stdin().read(&mut [0]);
}

/// A device of the daemon's, with what messages need. Fields are dropped in this order.
struct Own {
    mr: Mr,
    cq: Cq,
    pd: Pd,
    device: Device,
}

impl Own {
    fn new(server: SocketAddr) -> Self {
        let link = host::join(&[server.ip()]).expect("it is let in");
        let hca = Hca::over(link.expect("there is a daemon")).build();
        let device = Device::open(hca).wait().expect("a device");
        let pd = device.alloc_pd().wait().expect("a PD");
        let cq = device.create_cq(64).wait().expect("a CQ");
        let memory = Memory::alloc(4096).expect("memory");
        let mr = pd.register(memory, Access::LOCAL_WRITE).wait();
        Self {
            mr: mr.expect("a region"),
            cq,
            pd,
            device,
        }
    }

    fn init(&self) -> QpInit<'_> {
        QpInit::rc(&self.cq, &self.cq).depth(4, 4).inline(64)
    }

    fn connect(&self, server: SocketAddr, number: u64) -> Connection {
        let qp = self.pd.create_qp(self.init()).wait().expect("a QP");
        let connecting = verbs_cm::connect(&self.device, server, qp);
        let connecting = connecting.private_data(&number.to_ne_bytes());
        block_on(connecting.into_future()).expect("a connection")
    }

    fn receive(&self, connection: &mut Connection) {
        let recv = Recv::new(1).into(self.mr.slice(0..64));
        connection.post_recv(recv).expect("there is room");
    }

    /// Waits for a message; false if the connection has ended.
    fn message(&mut self) -> bool {
        loop {
            let mut wcs = [Wc::default(); 4];
            for wc in self.cq.poll(&mut wcs).iter() {
                if wc.status != WcStatus::Success || wc.wr_id == 1 {
                    return wc.status == WcStatus::Success;
                }
            }
            block_on(self.cq.ready()).expect("the device is there");
        }
    }
}

fn client(server: SocketAddr, number: u64) {
    let own = Own::new(server);
    let _connection = own.connect(server, number);
    say("ready");
    wait();
}

/// Accepts all, and says which have gone.
fn serve(server: SocketAddr) {
    let own = Own::new(server);
    let listener = block_on(verbs_cm::listen(&own.device, server).into_future());
    let mut listener = listener.expect("it listens");
    say("ready");
    thread::spawn(|| {
        wait();
        std::process::exit(0);
    });
    block_on(async {
        while let Some(request) = listener.next().await {
            let qp = own.pd.create_qp(own.init()).await.expect("a QP");
            let number = request.private_data()[..8].try_into().expect("8 bytes");
            let accepting = request.accept(qp);
            task::detach(async move {
                let Ok(connection) = accepting.await else {
                    return;
                };
                let _ended = connection.closed().await;
                say(&format!("gone {}", u64::from_ne_bytes(number)));
                let _closed = connection.close().await;
            });
        }
    });
}

/// Sends each message back.
fn answer(server: SocketAddr) {
    let mut own = Own::new(server);
    let listener = block_on(verbs_cm::listen(&own.device, server).into_future());
    let mut listener = listener.expect("it listens");
    say("ready");
    let request = block_on(listener.next()).expect("listeners never end");
    let qp = own.pd.create_qp(own.init()).wait().expect("a QP");
    let mut connection = block_on(request.accept(qp).into_future()).expect("a connection");
    own.receive(&mut connection);
    while own.message() {
        own.receive(&mut connection);
        let answer = Send::new(2).inline(&[0; 64]).signaled();
        connection.post_send(answer).expect("there is room");
    }
}

/// Asks as often as each line says, or, if that is 0, until another one comes; and says how long a round trip took.
fn ask(server: SocketAddr) {
    let mut own = Own::new(server);
    let mut connection = own.connect(server, 0);
    own.receive(&mut connection);
    say("ready");
    let (sender, lines) = channel();
    thread::spawn(move || {
        let read = io::stdin().lines().map_while(Result::ok);
        read.for_each(|line| sender.send(line).expect("somebody waits"));
        std::process::exit(0);
    });
    while let Ok(line) = lines.recv() {
        let count: usize = line.parse().expect("a number");
        let mut took = Vec::new();
        while took.len() < count || (count == 0 && lines.try_recv().is_err()) {
            let asked = Instant::now();
            let request = Send::new(2).inline(&[0; 64]).signaled();
            connection.post_send(request).expect("there is room");
            assert!(own.message(), "it answers");
            took.push(asked.elapsed().as_nanos() as f64 / 1000.0);
            own.receive(&mut connection);
        }
        took.sort_by(f64::total_cmp);
        let of = |part: usize| took[(took.len() * part / 100).min(took.len() - 1)];
        say(&format!("{:.1} {:.1}", of(50), of(99)));
    }
}
