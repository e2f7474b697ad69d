//! The examples run, as built by `cargo test` or `cargo build --examples`.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use verbs::prelude::*;

fn example(name: &str, args: &[&str]) -> Command {
    let mut path: PathBuf = std::env::current_exe().expect("this test is a file");
    path.pop();
    if path.ends_with("deps") {
        path.pop();
    }
    let path = path.join("examples").join(name);
    assert!(
        path.exists(),
        "{} is not there: cargo build -p verbs-rdma --examples",
        path.display()
    );
    let mut command = Command::new(path);
    command.args(args);
    command
}

fn run(name: &str, args: &[&str]) -> String {
    said(example(name, args).output().expect("it starts"))
}

fn said(output: Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {error}", output.status);
    String::from_utf8(output.stdout).expect("text")
}

/// Ended with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().expect("it is ours");
        self.0.wait().expect("it was started");
    }
}

/// Examples over the system's networks have the same addresses: one test at a time runs them.
fn addresses() -> MutexGuard<'static, ()> {
    static ADDRESSES: Mutex<()> = Mutex::new(());
    ADDRESSES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What example `chat` says.
const CHAT: &str = "12 members, and each has heard 550 lines\n";

/// What example `blocks` says.
const BLOCKS: &str = "2048 bytes from address 0
\"the first block ends here\"
\", and this is in the second\"
\"the first block ends here, and this is in the second\"
";

#[test]
fn blocks() {
    assert_eq!(run("blocks", &[]), BLOCKS);
}

#[test]
fn filter() {
    let said = run("filter", &[]);
    assert_eq!(said, "a third: out of memory\n7 verbs went by\n");
}

#[test]
fn hello() {
    assert_eq!(run("hello", &[]), "hello\n");
}

/// What README shows is the example.
#[test]
fn readme() {
    let readme = include_str!("../../README.md");
    let hello = include_str!("../examples/hello.rs");
    let (_, code) = hello.split_once("\n\n").expect("a head, then code");
    for text in [readme, include_str!("../README.md")] {
        assert!(
            text.contains(code.trim_end()),
            "README.md has another hello"
        );
    }
}

#[test]
fn tokio() {
    let expected =
        "an answer without a question: false\nmessages counted: 1000\nbytes, then the end\n";
    assert_eq!(run("tokio", &[]), expected);
}

/// The verbs that every provider has are enough for the suite.
#[test]
fn provider_min() {
    let said = run("provider_min", &[]);
    assert!(
        said.starts_with("15 verbs, ") && said.ends_with(" checks passed\n"),
        "{said}"
    );
}

/// Goal: many clients at one endpoint, each of which hears all others in order.
#[test]
fn chat() {
    assert_eq!(run("chat", &[]), CHAT);
}

#[test]
fn kv() {
    assert_eq!(run("kv", &[]), "sept eight\nversion of key 7: 4\n");
}

#[test]
fn routines() {
    let text = run("routines", &[]);
    let lines: Vec<&str> = text.lines().collect();
    let [busy, waits, region, pd, device] = lines[..] else {
        panic!("{text}")
    };
    assert!(busy.contains("1 MR"), "{busy}");
    assert!(waits.starts_with("waits: "), "{waits}");
    assert_eq!(region, "region gone: true");
    assert_eq!(pd, "protection domain gone: true");
    assert_eq!(device, "device closed: true");
}

#[test]
fn faults_in_ci() {
    let text = run("faults_in_ci", &[]);
    assert!(text.starts_with("all 100 answers were right; then: the device was removed"));
}

/// Goal: the examples run unchanged over every provider (D19). Method: each over each, named by the environment.
#[test]
fn every_example_runs_over_every_provider() {
    let _ours = addresses();
    let tokio =
        "an answer without a question: false\nmessages counted: 1000\nbytes, then the end\n";
    let routines = "region gone: true\nprotection domain gone: true\ndevice closed: true\n";
    for network in ["loopback", "roce", "iwarp", "subnet"] {
        for (name, expected) in [
            ("hello", "hello\n"),
            ("chat", CHAT),
            ("kv", "sept eight\nversion of key 7: 4\n"),
            ("tokio", tokio),
            ("blocks", BLOCKS),
            ("filter", "a third: out of memory\n7 verbs went by\n"),
            ("routines", routines),
        ] {
            let run = example(name, &[]).env("VERBS_NETWORK", network).output();
            let output = run.expect("it starts");
            let error = String::from_utf8_lossy(&output.stderr);
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{name} over {network}: {error}");
            assert!(said.ends_with(expected), "{name} over {network}: {said}");
        }
        let mut beside = example("beside_tonic", &["500"]);
        let output = beside.env("VERBS_NETWORK", network).output();
        is_beside_tonic(&said(output.expect("it starts")), 500);
    }
    let unknown = example("kv", &[]).env("VERBS_NETWORK", "pigeons").output();
    let output = unknown.expect("it starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && error.contains("pigeons"),
        "{error}"
    );
}

/// Example `beside_tonic` has made its calls both ways.
fn is_beside_tonic(said: &str, made: u32) {
    let lines: Vec<_> = said.lines().collect();
    let [calls, grpc, verbs] = lines[..] else {
        panic!("{said}");
    };
    assert_eq!(calls, format!("{made} calls of 4096 bytes by 64 tasks"));
    for (line, begin) in [(grpc, "gRPC (tonic) "), (verbs, "verbs ")] {
        let rate = line
            .strip_prefix(begin)
            .and_then(|it| it.strip_suffix(" calls/s"));
        let rate = rate.and_then(|it| it.trim().parse::<u64>().ok());
        assert!(rate > Some(0), "{said}");
    }
}

/// The C libraries of this workspace, whose device is a software HCA, under the names by which the loader knows them. They
/// are a dependency of these tests, so cargo has built them before, into the folder of this program.
fn own_rdma_core() -> PathBuf {
    let itself = std::env::current_exe().expect("this test is a file");
    let library = itself.with_file_name("libibverbs.so");
    assert!(library.exists(), "cargo has not built {library:?}");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rdma-core");
    std::fs::create_dir_all(&folder).expect("a folder");
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        let _ = std::fs::remove_file(folder.join(name));
        symlink(&library, folder.join(name)).expect("a link");
    }
    folder
}

/// Goal: the examples run unchanged on an RDMA NIC (D19). Method: on the device of our own rdma-core, loaded as the
/// system's would be.
#[test]
fn the_examples_run_on_an_rdma_nic() {
    let _ours = addresses();
    let folder = own_rdma_core();
    let on_nic = |name, nic| {
        let mut command = example(name, &[]);
        command.env("VERBS_NETWORK", nic);
        command.env("LD_LIBRARY_PATH", &folder);
        command.output().expect("it starts")
    };
    let tokio =
        "an answer without a question: false\nmessages counted: 1000\nbytes, then the end\n";
    for (name, expected) in [
        ("hello", "hello\n"),
        ("kv", "sept eight\nversion of key 7: 4\n"),
        ("tokio", tokio),
        ("filter", "a third: out of memory\n7 verbs went by\n"),
    ] {
        assert_eq!(said(on_nic(name, "rdma:roce0")), expected, "{name}");
    }
    is_beside_tonic(&said(on_nic("beside_tonic", "rdma:roce0")), 20_000);
    let output = on_nic("kv", "rdma:mlx5_9");
    let error = String::from_utf8_lossy(&output.stderr);
    let expected = ["mlx5_9", "there is roce0"].map(|part| error.contains(part));
    assert_eq!(
        (output.status.success(), expected),
        (false, [true; 2]),
        "{error}"
    );
}

/// A client that is there before its server asks again for 5 s.
#[test]
fn rpc() {
    let mut server = example("rpc", &["server", "127.0.97.2"]);
    let _server = Server(server.stdout(Stdio::null()).spawn().expect("it starts"));
    let client = ["client", "127.0.97.1", "127.0.97.2:7471", "500"];
    let text = (0..10).find_map(|_| {
        let output = example("rpc", &client).output().expect("it starts");
        // The server's process may not be listening yet.
        let is_early = String::from_utf8_lossy(&output.stderr).contains("nobody");
        (!is_early).then(|| said(output))
    });
    let text = text.expect("the server listens");
    assert!(text.ends_with(" requests/s\n"), "{text}");
}

/// Goal: a receive that waits ends when the peer's program is killed, and says why. It takes two seconds at most on a
/// machine that is idle; without a watch on its peer it waits for ever.
#[test]
fn a_receive_that_waits_ends_when_its_peer_is_killed() {
    let mut server = example("rpc", &["server", "127.0.97.4"]);
    let mut server = Server(server.stdout(Stdio::null()).spawn().expect("it starts"));
    verbs::block_on(async {
        let net = Endpoint::udp([127, 0, 97, 3]).message_size(4096).open();
        let net = net.await.expect("an endpoint");
        let conn = connected(&net, "127.0.97.4:7471").await;
        let mut request = conn.buf().await;
        request[..8].fill(7);
        conn.send(request).await.expect("it is there");
        assert!(conn.recv().await.expect("an answer").is_some());
        server.0.kill().expect("it runs");
        server.0.wait().expect("it was started");
        let error = conn.recv().await.expect_err("the peer is gone");
        assert!(error.to_string().contains("peer"), "{error}");
    });
}

/// A connection to a program that may not be listening yet.
async fn connected(net: &Endpoint, server: &str) -> Connection {
    for _ in 0..10 {
        match net.connect(server).await {
            Ok(conn) => return conn,
            Err(error) if error.to_string().contains("nobody") => {}
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the server does not listen");
}
