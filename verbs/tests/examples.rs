//! The examples run, as built by `cargo test` or `cargo build --examples`.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

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
    assert!(
        readme.contains(code.trim_end()),
        "README.md has another hello"
    );
}

#[test]
fn tokio() {
    let expected =
        "an answer without a question: false\nmessages counted: 1000\nbytes, then the end\n";
    assert_eq!(run("tokio", &[]), expected);
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
