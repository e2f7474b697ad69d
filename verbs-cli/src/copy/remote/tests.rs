//! Servers and clients in one process, on a loopback link; TCP and files are real.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::Parser;
use tempfile::TempDir;
use verbs_core::sync::thread;
use verbs_core::{Mtu, Psn, Qpn, RKey, Remote};

use super::control::Control;
use super::message::{Fail, Get, Offer, Ready};
use super::serve::{Served, Server};
use super::*;
use crate::cli::{Cli, Command, CopyArgs, Origin, ServeArgs};
use crate::copy::Failure;
use crate::exit;
use crate::net::Connection;
use crate::report::Report;
use crate::wire::stand_in::LoopbackNetwork;

/// A directory `dir` that is served, one `to` for what is fetched, and a network.
struct Place {
    files: TempDir,
    network: LoopbackNetwork,
    listener: TcpListener,
}

impl Place {
    fn new() -> Self {
        let files = tempfile::tempdir().expect("a directory");
        for name in ["dir", "to"] {
            fs::create_dir(files.path().join(name)).expect("a directory");
        }
        Self {
            files,
            network: LoopbackNetwork::default(),
            listener: TcpListener::bind("127.0.0.1:0").expect("a port"),
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    fn address(&self) -> SocketAddr {
        self.listener.local_addr().expect("bound")
    }

    fn serve_args(&self, options: &str) -> ServeArgs {
        let dir = self.at("dir").display().to_string();
        let line = format!("verbs serve {dir} {options}");
        match Cli::parse_from(line.split_whitespace()).command {
            Command::Serve(args) => args,
            other => panic!("{other:?}"),
        }
    }

    /// Fetches a file to `to/DST`.
    fn fetch(&self, path: &str, dst: &str, options: &str) -> Result<Report, Failure> {
        let (address, dst) = (self.address(), self.at("to").join(dst));
        let line = format!("verbs copy -- roce://{address}/{path} {}", dst.display());
        let line = line.replace("--", &format!("--quiet {options}"));
        let args: CopyArgs = match Cli::parse_from(line.split_whitespace()).command {
            Command::Copy(args) => args,
            other => panic!("{other:?}"),
        };
        match &args.src {
            Origin::Served(url) => fetch(&args, url, &self.network),
            other => panic!("{other:?}"),
        }
    }

    /// Serves so many clients, each on a thread, while `clients` runs.
    fn serve<T>(
        &self,
        count: usize,
        clients: impl FnOnce(&Server<'_>) -> T,
    ) -> (T, Vec<Result<Served, CopyError>>) {
        let server = Server::new(&self.serve_args(""), &self.network).expect("a server");
        thread::scope(|scope| {
            let serving = scope.spawn(|| {
                let spawned = (0..count).map(|_| {
                    let control = accept(&self.listener);
                    let ticket = server.admit(&control);
                    scope.spawn(|| server.handle(control, ticket))
                });
                let spawned: Vec<_> = spawned.collect();
                let served = spawned
                    .into_iter()
                    .map(|thread| thread.join().expect("no panic"));
                served.collect::<Vec<_>>()
            });
            let result = clients(&server);
            (result, serving.join().expect("no panic"))
        })
    }

    /// Waits until some of a file has been written to `to`.
    fn is_fetching(&self) {
        let to = self.at("to");
        let since = std::time::Instant::now();
        let written = |open: fs::DirEntry| {
            let path = open.path();
            fs::read_link(&path).is_ok_and(|file| file.starts_with(&to))
                && fs::metadata(&path).is_ok_and(|file| file.is_file() && file.len() > 0)
        };
        while !fs::read_dir("/proc/self/fd")
            .expect("procfs")
            .any(|open| open.is_ok_and(written))
        {
            assert!(since.elapsed().as_secs() < 60, "nothing is written");
            thread::yield_now();
        }
    }

    fn fetched(&self) -> usize {
        fs::read_dir(self.at("to")).expect("a directory").count()
    }
}

fn accept(listener: &TcpListener) -> Control {
    let (stream, _) = listener.accept().expect("a client");
    Control::Stream(Connection::new(stream).expect("connected"))
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| (n * 7 + n / 251) as u8).collect()
}

fn failed(result: Result<Report, Failure>, code: u8, parts: &[&str]) {
    let failure = result.expect_err("it cannot work");
    let text = failure.to_string();
    assert_eq!(failure.exit_code(), code, "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} in {text:?}");
    }
}

/// Goal: files of all sizes arrive as they are, one after another and several at once.
#[test]
fn files_arrive() {
    let place = Place::new();
    let sizes = [0, 1, 4095, 4096, 4097, 300_000, 3_000_000];
    for size in sizes {
        fs::write(place.at("dir").join(format!("f{size}")), content(size)).expect("room");
    }
    let mode = fs::Permissions::from_mode(0o440);
    fs::set_permissions(place.at("dir/f1"), mode).expect("our own");
    let ((), served) = place.serve(2 * sizes.len(), |_| {
        let fetch = |size: usize, to: &str| {
            let name = format!("f{size}");
            let options = "--chunk 4k --window 5";
            let report = place
                .fetch(&name, &format!("{to}{size}"), options)
                .expect("fetched");
            assert_eq!(report.bytes, size as u64);
            assert_eq!(report.writes, size.div_ceil(4096) as u64);
            assert_eq!(report.digest, blake3::hash(&content(size)).to_string());
            let arrived = fs::read(place.at("to").join(format!("{to}{size}")));
            assert!(arrived.expect("there") == content(size), "{size}");
        };
        sizes.into_iter().for_each(|size| fetch(size, "turn"));
        thread::scope(|scope| {
            for size in sizes {
                scope.spawn(move || fetch(size, "once"));
            }
        });
    });
    for served in &served {
        assert!(served.is_ok(), "{served:?}");
    }
    let mode = fs::metadata(place.at("to/turn1"))
        .expect("there")
        .permissions();
    assert_eq!(mode.mode() & 0o777, 0o440);
}

#[test]
fn what_cannot_be_had_is_said() {
    let place = Place::new();
    fs::write(place.at("secret"), b"secret").expect("room");
    fs::create_dir(place.at("dir/sub")).expect("a directory");
    let cases: [(&str, &[&str]); 4] = [
        (
            "missing",
            &[
                "source device says: cannot open missing",
                "No such file",
                "B was not created",
            ],
        ),
        ("../secret", &["outside of the directory"]),
        ("/etc/passwd", &["outside of the directory"]),
        ("sub", &["sub is a directory"]),
    ];
    let ((), served) = place.serve(cases.len(), |_| {
        for (path, parts) in cases {
            failed(place.fetch(path, "B", ""), exit::FILES, parts);
        }
    });
    assert!(served.iter().all(Result::is_err));
    assert_eq!(place.fetched(), 0);
}

/// Asks for a file, as a client does that may leave it at that.
fn get(path: &[u8], gid: Gid) -> Vec<u8> {
    let (chunk, window) = (4096, 1);
    let path = path.to_vec();
    Message::Get(Get {
        chunk,
        window,
        gid,
        path,
    })
    .emit()
}

/// Goal: a client beyond the most is told so, and its place is free when others have gone.
#[test]
fn too_many_clients_are_sent_away() {
    let place = Place::new();
    fs::write(place.at("dir/A"), b"content").expect("room");
    let args = place.serve_args("--max-clients 1");
    let server = Server::new(&args, &place.network).expect("a server");
    // Has a place, and does something now and then.
    let busy = TcpStream::connect(place.address()).expect("a connection");
    let first = server.admit(&accept(&place.listener));
    first.take_place().expect("the first");
    first.served();
    let serve_next = || {
        let control = accept(&place.listener);
        let ticket = server.admit(&control);
        server.handle(control, ticket)
    };
    thread::scope(|scope| {
        let second = scope.spawn(|| place.fetch("A", "B", ""));
        serve_next().expect_err("there is no place");
        let parts = ["1 others are being served", "B was not created"];
        failed(second.join().expect("no panic"), exit::FILES, &parts);
        drop((busy, first));
        let third = scope.spawn(|| place.fetch("A", "B", ""));
        serve_next().expect("served");
        third.join().expect("no panic").expect("fetched");
    });
}

/// Goal: clients that say nothing, or ask and do nothing, keep no others out. Method: as many as there are
/// places, and many more that are silent; then one of ours.
#[test]
fn clients_that_do_nothing_keep_no_others_out() {
    let place = Place::new();
    fs::write(place.at("dir/A"), b"content").expect("room");
    let args = place.serve_args("--max-clients 4 --max-clients-per-address 4");
    let server = Server::new(&args, &place.network).expect("a server");
    thread::scope(|scope| {
        let connect = |says: &[u8]| {
            let mut stream = TcpStream::connect(place.address()).expect("a connection");
            stream.write_all(says).expect("open");
            let control = accept(&place.listener);
            let ticket = server.admit(&control);
            let served = scope.spawn(|| server.handle(control, ticket));
            (stream, served)
        };
        let mut askers: Vec<_> = (0..4)
            .map(|_| connect(&get(b"A", Gid([0xfe; 16]))))
            .collect();
        for (stream, _) in &mut askers {
            assert!(stream.read(&mut [0; 100]).expect("an offer") > 0);
        }
        let silent: Vec<_> = (0..64).map(|_| connect(b"")).collect();
        let honest = scope.spawn(|| place.fetch("A", "B", ""));
        let control = accept(&place.listener);
        let ticket = server.admit(&control);
        server.handle(control, ticket).expect("served");
        honest.join().expect("no panic").expect("fetched");
        let (streams, served): (Vec<_>, Vec<_>) = askers.into_iter().chain(silent).unzip();
        drop(streams);
        let served = served
            .into_iter()
            .map(|served| served.join().expect("no panic"));
        let gave_way =
            |served: &Result<Served, CopyError>| matches!(served, Err(CopyError::GaveWay));
        // One for the place, one for the room: 64 of one address wait there.
        assert_eq!(served.filter(gave_way).count(), 2);
    });
    assert_eq!(server.places().taken(), 0);
}

/// Goal: data goes to a device that has answered, and to one that the client has asked with. Method: clients
/// that name an address that does not answer, or another one when it matters.
#[test]
fn data_goes_nowhere_before_a_device_has_answered() {
    let place = Place::new();
    fs::write(place.at("dir/A"), content(1 << 20)).expect("room");
    let elsewhere = Gid([0xfd; 16]);
    let ready = |gid| {
        let end = Identity { gid, ..some_end() };
        let slots = Remote {
            addr: 4096,
            rkey: RKey::new(7),
        };
        Message::Ready(Ready { end, slots }).emit()
    };
    let cases = [
        (some_end().gid, "no device answers at"),
        (elsewhere, "names another address"),
    ];
    let ((), served) = place.serve(cases.len(), |_| {
        for (gid, part) in cases {
            let mut stream = TcpStream::connect(place.address()).expect("it listens");
            stream.write_all(&get(b"A", some_end().gid)).expect("open");
            assert!(stream.read(&mut [0; 100]).expect("an offer") > 0);
            stream.write_all(&ready(gid)).expect("open");
            let mut said = Vec::new();
            stream.read_to_end(&mut said).expect("a sentence");
            let said = String::from_utf8_lossy(&said).into_owned();
            assert!(said.contains(part), "{said}");
        }
    });
    assert!(served.iter().all(Result::is_err), "{served:?}");
}

/// Goal: a source that changes while it is sent is told to the client, whose target stays.
#[test]
fn a_changing_source_is_said() {
    let place = Place::new();
    fs::write(place.at("to/B"), b"old").expect("room");
    let file = fs::File::create(place.at("dir/A")).expect("room");
    file.set_len(200 << 20).expect("a sparse file");
    let ((), _) = place.serve(1, |_| {
        thread::scope(|scope| {
            let fetching = scope.spawn(|| place.fetch("A", "B", "--chunk 4k --window 2"));
            place.is_fetching();
            file.set_len(10).expect("shorter");
            let parts = ["source device says", "A changed while", "B is as it was"];
            failed(fetching.join().expect("no panic"), exit::CHANGED, &parts);
        });
    });
    assert_eq!(fs::read(place.at("to/B")).expect("there"), b"old");
}

fn some_end() -> Identity {
    Identity {
        gid: Gid([0xfe; 16]),
        qpn: Qpn::new(0x123),
        psn: Psn::new(5),
        mtu: Mtu::B1024,
    }
}

/// What strange servers say, each piece after a message of the client's; how that ends at the client.
fn strange_servers() -> Vec<(Vec<Vec<u8>>, u8, &'static str)> {
    let offer = |size, chunk, window, end| {
        Message::File(Offer {
            size,
            mode: 0o6777,
            chunk,
            window,
            end,
        })
    };
    let v4 = Identity {
        gid: Gid::from(std::net::Ipv4Addr::new(192, 0, 2, 1)),
        ..some_end()
    };
    let fail = Message::Fail(Fail {
        cause: Cause::Device,
        text: "so\n\x1b[2Jsad".into(),
    });
    vec![
        (vec![], exit::FILES, "ended the connection"),
        (
            vec![b"HTTP/1.1 400 Bad Request\r\n".to_vec()],
            exit::FILES,
            "speaks another protocol",
        ),
        (
            vec![Message::Done.emit()],
            exit::DEVICE,
            "sent DONE when it was not its turn",
        ),
        (vec![fail.emit()], exit::DEVICE, "says: so\\n\\u{1b}[2Jsad"),
        (
            vec![offer(9, 1 << 21, 1, some_end()).emit()],
            exit::DEVICE,
            "larger chunks",
        ),
        (
            vec![offer(9, 1, 17, some_end()).emit()],
            exit::DEVICE,
            "larger window",
        ),
        (
            vec![offer(9, 1, 1, v4).emit()],
            exit::USAGE,
            "no address here reaches 192.0.2.1",
        ),
        (
            vec![offer(u64::MAX, 1 << 20, 16, some_end()).emit()],
            exit::DEVICE,
            "went away when 0 of",
        ),
        (
            vec![offer(9, 1, 1, some_end()).emit(), fail.emit()],
            exit::DEVICE,
            "says: so",
        ),
        (
            vec![offer(9, 1, 1, some_end()).emit(), vec![0; 12]],
            exit::DEVICE,
            "another protocol",
        ),
    ]
}

/// Goal: a server that goes or lies leaves nothing behind at the client. Method: one that speaks the
/// protocol up to its offer, and then something else or nothing.
#[test]
fn strange_servers_leave_nothing() {
    for (says, code, part) in strange_servers() {
        let place = Place::new();
        thread::scope(|scope| {
            let fetching = scope.spawn(|| place.fetch("A", "B", ""));
            let (mut stream, _) = place.listener.accept().expect("a client");
            let mut request = [0; 100];
            for (turn, bytes) in says.iter().enumerate() {
                let read = stream.read(&mut request).expect("a message");
                assert!(read > 0, "message {turn} follows one of the client's");
                stream.write_all(bytes).expect("it reads");
            }
            let _ = stream.read(&mut request);
            drop(stream);
            failed(
                fetching.join().expect("no panic"),
                code,
                &[part, "B was not created"],
            );
        });
        assert_eq!(place.fetched(), 0);
    }
}

/// Goal: whatever clients say, the server ends with a sentence for each and serves the next. Method:
/// garbage, messages out of turn, memory that is none, clients that go.
#[test]
fn strange_clients_do_no_harm() {
    let place = Place::new();
    fs::write(place.at("dir/A"), content(100_000)).expect("room");
    let get = |path: &[u8]| get(path, Gid([0xfe; 16]));
    let ready = |addr| {
        let slots = Remote {
            addr,
            rkey: RKey::new(7),
        };
        Message::Ready(Ready {
            end: some_end(),
            slots,
        })
        .emit()
    };
    let mut long = get(b"A");
    long[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
    let cases: Vec<(Vec<Vec<u8>>, &str)> = vec![
        (vec![], "ended the connection"),
        (vec![content(2000)], "another protocol"),
        (vec![long], "another protocol"),
        (
            vec![Message::Done.emit()],
            "sent DONE when it was not its turn",
        ),
        (vec![get(b"A\0B")], "cannot open"),
        (vec![get(b"")], "cannot open"),
        (vec![get(b"A")], "ended the connection"),
        (
            vec![get(b"A"), get(b"A")],
            "sent GET when it was not its turn",
        ),
        (vec![get(b"A"), ready(u64::MAX)], "end beyond all memory"),
        (vec![get(b"A"), ready(4096)], "went away"),
    ];
    let ((), served) = place.serve(cases.len() + 1, |_| {
        for (says, _) in &cases {
            let mut stream = TcpStream::connect(place.address()).expect("it listens");
            for (turn, bytes) in says.iter().enumerate() {
                if turn > 0 {
                    assert!(stream.read(&mut [0; 500]).expect("an offer") > 0);
                }
                stream.write_all(bytes).expect("it reads");
            }
            stream.shutdown(std::net::Shutdown::Write).expect("open");
            let _ = stream.read_to_end(&mut Vec::new());
        }
        place.fetch("A", "B", "").expect("the next is served");
    });
    let (last, strange) = served.split_last().expect("some");
    assert!(last.is_ok(), "{last:?}");
    for ((_, part), served) in cases.iter().zip(strange) {
        let error = served.as_ref().expect_err("no client of ours").to_string();
        assert!(error.contains(part), "{part:?} in {error:?}");
    }
    assert_eq!(fs::read(place.at("to/B")).expect("there"), content(100_000));
}

#[test]
fn captures_need_addresses() {
    let place = Place::new();
    let error = Server::new(&place.serve_args("--pcap x"), &place.network).err();
    assert_eq!(error.map(|error| error.exit_code()), Some(exit::USAGE));
    assert!(Path::new("x").metadata().is_err());
    let named = place.serve_args("--pcap x --bind 127.0.0.1");
    assert!(Server::new(&named, &place.network).is_ok());
}
