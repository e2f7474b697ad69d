//! `--device rdma:NAME`: where there is no such NIC, and where the system's libraries are our own, with a software HCA below
//! them. What works with a NIC of Linux's is in the peer suite `rdma`.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::run::{Ended, Place, RPING, VERBS, address_of};

/// A name that no NIC has.
const NOBODY: &str = "rdma:nobody_has_it";

#[test]
fn a_nic_that_is_not_there_is_said_to_be_missing() {
    let place = Place::new();
    // With the library or without, with other devices or with none: the command's name, and a reason.
    place
        .verbs(&["devinfo", "--device", NOBODY])
        .failed(5, &["verbs devinfo: ", "; "]);
    place
        .verbs(&["serve", ".", "--device", NOBODY, "--bind", "127.0.0.1"])
        .failed(1, &["verbs serve: ", "; "]);
}

#[test]
fn every_command_that_connects_looks_for_the_nic() {
    let place = Place::new();
    for command in [
        &["rping", "-c", "-a", "127.0.0.1"][..],
        // Servers, which would wait for a client first.
        &["pingpong", "rc"],
        &["perf", "write-bw"],
        &["serve", "."],
        &["serve", ".", "--listen", "127.0.0.1:0"],
        &["rds", "ping", "127.0.0.1", "-c", "1"],
        &["connect-bench", "--to", "127.0.0.1:7175"],
        &["srp", "ls", "id_ext=1,ioc_guid=1,dest=127.0.0.1:7175"],
    ] {
        let asked = [command, &["--device", NOBODY]].concat();
        place.verbs(&asked).failed(1, &["; "]);
    }
}

/// The libraries of `shims/ibverbs` under the names that the loader knows, in the folder `lib` of the place. They are a
/// dependency of these tests, so cargo has built them before, into the folder of this program.
pub(crate) fn libraries(place: &Place) -> PathBuf {
    let itself = std::env::current_exe().expect("this test is a file");
    let library = itself.with_file_name("libibverbs.so");
    assert!(library.exists(), "cargo has not built {library:?}");
    let folder = place.path("lib");
    std::fs::create_dir(&folder).expect("a folder");
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        symlink(&library, folder.join(name)).expect("a link");
    }
    folder
}

/// `verbs` with these arguments; with a NIC at that address if there is one.
fn start(lib: &Path, nic_at: Option<&str>, arguments: &[&str]) -> Child {
    let mut command = Command::new(VERBS);
    command
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if let Some(address) = nic_at {
        command.args(["--device", "rdma:roce0"]);
        command
            .env("LD_LIBRARY_PATH", lib)
            .env("VERBS_DEVICE", address);
    }
    command.spawn().expect("it starts")
}

fn end(child: Child) -> Ended {
    Ended::from(child.wait_with_output().expect("a child"))
}

/// Goal: a NIC's connections are made by address, with the software HCA of another process at the other end, at either.
#[test]
fn a_nic_connects_and_is_connected_to() {
    let place = Place::new();
    let lib = libraries(&place);
    for (n, nic_serves) in [(201, true), (203, false)] {
        let [serves, asks] = [n, n + 1].map(|n| address_of(RPING, n));
        let [serves, asks] = [serves.as_str(), asks.as_str()];
        let pings = ["-v", "-V", "-C", "5", "-S", "100"];
        let server = [&["rping", "-s", "-a", serves][..], &pings].concat();
        let server = start(&lib, nic_serves.then_some(serves), &server);
        let client = [&["rping", "-c", "-a", serves, "-I", asks][..], &pings].concat();
        let patience = Instant::now() + Duration::from_secs(30);
        let ended = loop {
            let ended = end(start(&lib, (!nic_serves).then_some(asks), &client));
            // The server takes a moment.
            if ended.code == Some(0) || Instant::now() > patience {
                break ended;
            }
        };
        assert!(ended.succeeded().contains("rdma-ping-4:"));
        assert!(end(server).succeeded().contains("rdma-ping-4:"));
    }
}

/// A C program of one file, compiled with the header of `shims/ibverbs` and linked with the library.
pub(crate) fn compiled(place: &Place, lib: &Path, source: &Path) -> PathBuf {
    let shims = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shims/ibverbs");
    let program = place.path(&source.file_stem().expect("a name").to_string_lossy());
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Wextra", "-Werror", "-I"]);
    compiler.arg(shims).arg(source);
    compiler.arg(lib.join("libibverbs.so.1"));
    let output = compiler.arg("-o").arg(&program).output();
    let output = output.expect("a C compiler, as Rust needs one to link");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    program
}

/// Goal: a C program lists a device's extensions and calls one, and is refused what there is not (D17). Method: the example of
/// `shims/ibverbs`, compiled with its header and linked with the library.
#[test]
fn a_c_program_calls_extensions() {
    let place = Place::new();
    let lib = libraries(&place);
    let shims = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shims/ibverbs");
    let program = compiled(&place, &lib, &shims.join("examples/extensions.c"));
    let ran = Command::new(&program)
        .env("LD_LIBRARY_PATH", &lib)
        .env("VERBS_DEVICE", "loopback")
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&ran.stdout);
    let expected = "hca_sim.port_counters 1
hca_sim.capability_mask 1
hca_sim.barrier 1, a work request
verbs.qp_stats 1
verbs.connected_qps 1
room for 3 bytes: No space left on device, 48 are needed
48 bytes: success, 0 receivers were not ready
version 2: not there
other input: refused
";
    assert_eq!(said, expected, "{}", String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{}", ran.status);
}

/// Goal: what the library does is told on stderr by the filters of `--log`, and nothing without.
#[test]
fn the_library_tells_what_it_does() {
    let place = Place::new();
    let lib = libraries(&place);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/life.c");
    let program = compiled(&place, &lib, &source);
    let address = address_of(RPING, 221);
    let said = |front: &[&str]| {
        let mut command = Command::new(VERBS);
        command
            .args(front)
            .args(["run", "--device", &address, "--library"]);
        command.arg(&lib).arg("--").arg(&program).arg("exec");
        command.env_remove("VERBS_LOG").env("VERBS_HOST_SOCKET", "");
        let output = command.stdin(Stdio::null()).output().expect("it starts");
        // It opens the device, and ends as there is nothing to be read.
        assert_eq!(String::from_utf8_lossy(&output.stdout), "ready\n");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert_eq!(said(&[]), "");
    let told = said(&["--log", "verbs=debug"]);
    assert!(told.contains("kind=OpenDevice"), "{told}");
}

/// Goal: under `verbs run` the files below /sys/class/infiniband say what the calls say, with an address that is named and with one
/// that the library chooses. Method: a shell has `verbs devinfo` ask the library, as a NIC's, and then prints all files.
#[test]
fn files_below_sys_say_what_the_calls_say() {
    let place = Place::new();
    let lib = libraries(&place);
    let named = address_of(RPING, 205);
    let script = "\"$0\" devinfo --device rdma:roce0 --json && cd /sys/class/infiniband/roce0 && \
                  grep -r . . && grep . ../../infiniband_verbs/uverbs0/ibdev";
    for device in [Some(named.as_str()), None] {
        let mut command = Command::new(VERBS);
        command.args(["run", "--library"]).arg(&lib);
        // An address of its own: a daemon would outlive the test.
        command.env("VERBS_HOST_SOCKET", "");
        command.args(device.map(|at| ["--device", at]).iter().flatten());
        command.args(["--", "sh", "-c", script, VERBS]);
        let output = command.output().expect("it starts");
        let said = String::from_utf8(output.stdout).expect("text");
        if said.contains("hca_id") && !said.contains("./fw_ver:") {
            eprintln!("left out: no mount namespace can be made here");
            return;
        }
        let why = String::from_utf8_lossy(&output.stderr);
        let (calls, files) = said
            .split_once("\n}\n")
            .unwrap_or_else(|| panic!("{said}{why}"));
        let calls: serde_json::Value = serde_json::from_str(&format!("{calls}}}")).expect("JSON");
        let file = |name: &str| {
            let name = format!("./{name}:");
            let found = files.lines().find_map(|line| line.strip_prefix(&name));
            found.unwrap_or_else(|| panic!("{name} is not among {files}"))
        };
        for name in ["fw_ver", "node_guid", "sys_image_guid"] {
            assert_eq!(calls[name], file(name), "{name}");
        }
        let port = &calls["ports"][0];
        assert_eq!(port["GID"], file("ports/1/gids/0"));
        if let Some(address) = device {
            let groups = file("ports/1/gids/0").rsplit(':').take(2);
            let mut numbers: Vec<_> = groups
                .flat_map(|group| [&group[2..], &group[..2]])
                .map(|byte| u8::from_str_radix(byte, 16).expect("two digits"))
                .collect();
            numbers.reverse();
            let numbers: Vec<_> = numbers.iter().map(u8::to_string).collect();
            assert_eq!(numbers.join("."), address);
        }
        assert_eq!(port["link_layer"], file("ports/1/link_layer"));
        for (call, name) in [("port_lid", "lid"), ("sm_lid", "sm_lid")] {
            let number = port[call].as_u64().expect("a number");
            assert_eq!(format!("{number:#x}"), file(&format!("ports/1/{name}")));
        }
        for (name, line) in [
            ("ports/1/state", "4: ACTIVE"),
            ("ports/1/gid_attrs/types/0", "RoCE v2"),
            ("ports/1/gid_attrs/ndevs/0", "lo"),
            ("ports/1/gids/15", "0000:0000:0000:0000:0000:0000:0000:0000"),
            ("ports/1/pkeys/0", "0xffff"),
            ("ports/1/rate", "200 Gb/sec (4X HDR)"),
            ("device/net/lo/operstate", "up"),
        ] {
            assert_eq!(file(name), line, "{name}");
        }
        assert!(files.trim_end().ends_with("roce0"), "{files}");
    }
}
