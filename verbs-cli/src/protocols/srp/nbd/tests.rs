//! Goal: what clients see. Method: the bytes of the protocol over a pair of sockets, and an export that is a
//! vector.

use std::io::{Read, Write};

use verbs_core::sync::Mutex;

use super::*;

struct Disk(Mutex<Vec<u8>>);

impl Export for Disk {
    fn shape(&self) -> Shape {
        Shape {
            size: self.0.lock().len() as u64,
            block: 512,
            preferred: 4096,
            max: 1 << 20,
            can_trim: true,
            read_only: false,
        }
    }

    fn submit(&self, request: Request, done: Box<dyn FnOnce(Result<(), Errno>) + Send>) {
        let mut bytes = self.0.lock();
        match request {
            Request::Read { at, into } => {
                into.write(0, &bytes[at as usize..][..into.len()])
                    .expect("as long");
            }
            Request::Write { at, from, .. } => {
                from.read(0, &mut bytes[at as usize..][..from.len()])
                    .expect("as long");
            }
            Request::Zero { at, len, .. } | Request::Trim { at, len } => {
                bytes[at as usize..][..len as usize].fill(0);
            }
            Request::Flush => {}
        }
        drop(bytes);
        done(Ok(()));
    }
}

/// A client, and what its server ended with.
fn client(talk: impl FnOnce(&mut UnixStream)) -> io::Result<()> {
    let export: Arc<dyn Export> = Arc::new(Disk(Mutex::new(vec![1; 64 << 10])));
    let (mut ours, theirs) = UnixStream::pair().expect("sockets");
    let server = thread::spawn(move || converse(&theirs, &export));
    let mut greeting = [0; 18];
    ours.read_exact(&mut greeting).expect("a greeting");
    assert_eq!(&greeting, b"NBDMAGICIHAVEOPT\0\x03");
    talk(&mut ours);
    drop(ours);
    server.join().expect("no panic")
}

fn option(number: u8, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT\0\0\0".to_vec();
    bytes.push(number);
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

fn request(flags: u16, command: u16, cookie: u64, at: u64, len: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(at.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes
}

fn expect(stream: &mut UnixStream, cookie: u64, error: u32, data: &[u8]) {
    let mut head = [0; 16];
    stream.read_exact(&mut head).expect("a reply");
    assert_eq!(head[..4], 0x6744_6698_u32.to_be_bytes());
    assert_eq!(head[4..8], error.to_be_bytes());
    assert_eq!(head[8..], cookie.to_be_bytes());
    let mut came = vec![0; data.len()];
    stream.read_exact(&mut came).expect("data");
    assert_eq!(came, data);
}

#[test]
fn a_client_agrees_reads_and_writes() {
    let ended = client(|stream| {
        stream.write_all(&[0, 0, 0, 3]).expect("flags");
        // Structured replies are not known, nor is STARTTLS.
        stream.write_all(&option(8, &[])).expect("an option");
        let mut reply = [0; 20];
        stream.read_exact(&mut reply).expect("a reply");
        assert_eq!(reply[12..16], 0x8000_0001_u32.to_be_bytes());
        stream
            .write_all(&option(7, &[0, 0, 0, 1, b'x', 0, 0]))
            .expect("GO");
        let mut info = [0; 20 + 12 + 20 + 14 + 20];
        stream.read_exact(&mut info).expect("what there is");
        assert_eq!(info[22..30], (64_u64 << 10).to_be_bytes());
        assert_eq!(
            info[30..32],
            [0x01, 0x6d],
            "flush, FUA, trim, zeroes, several connections"
        );
        assert_eq!(info[54..58], 512_u32.to_be_bytes());

        stream
            .write_all(&request(1, 1, 7, 1024, 512))
            .expect("a write");
        stream.write_all(&[9; 512]).expect("its data");
        expect(stream, 7, 0, &[]);
        stream
            .write_all(&request(0, 0, 8, 512, 1024))
            .expect("a read");
        expect(stream, 8, 0, &[&[1; 512][..], &[9; 512]].concat());
        stream
            .write_all(&request(0, 6, 9, 512, 512))
            .expect("zeroes");
        expect(stream, 9, 0, &[]);
        stream
            .write_all(&request(0, 0, 1, 512, 512))
            .expect("a read");
        expect(stream, 1, 0, &[0; 512]);
        stream.write_all(&request(0, 3, 2, 0, 0)).expect("a flush");
        expect(stream, 2, 0, &[]);
        // Beyond the end, between blocks, unknown: told, and the connection lives.
        stream
            .write_all(&request(0, 0, 3, 64 << 10, 512))
            .expect("a read");
        expect(stream, 3, 22, &[]);
        stream
            .write_all(&request(0, 1, 4, (64 << 10) - 512, 1024))
            .expect("a write");
        stream.write_all(&[0; 1024]).expect("its data");
        expect(stream, 4, 28, &[]);
        stream.write_all(&request(0, 0, 5, 1, 512)).expect("a read");
        expect(stream, 5, 22, &[]);
        stream
            .write_all(&request(0, 99, 6, 0, 0))
            .expect("something");
        expect(stream, 6, 22, &[]);
        stream
            .write_all(&request(0, 2, 0, 0, 0))
            .expect("a goodbye");
    });
    ended.expect("it said goodbye");
}

#[test]
fn a_client_that_speaks_something_else_is_left() {
    let ended = client(|stream| {
        stream.write_all(&[0, 0, 0, 3]).expect("flags");
        stream.write_all(&[b'x'; 64]).expect("noise");
    });
    assert!(ended.is_err());
    let ended = client(|stream| {
        stream.write_all(&[0, 0, 0, 3]).expect("flags");
        stream.write_all(&option(1, b"disk")).expect("a name");
        stream
            .write_all(&request(0, 0, 0, 0, u32::MAX))
            .expect("a read");
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert_eq!(rest.len(), 10, "size and flags, and nothing more");
    });
    assert!(ended.is_err());
}

/// A server of one client at a time, and what it says.
fn server(
    clients_max: u32,
) -> (
    tempfile::TempDir,
    std::path::PathBuf,
    Arc<Mutex<Vec<String>>>,
) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk");
    let listener = UnixListener::bind(&path).expect("a socket");
    let export: Arc<dyn Export> = Arc::new(Disk(Mutex::new(vec![1; 64 << 10])));
    let said = Arc::new(Mutex::new(Vec::new()));
    let saying = Arc::clone(&said);
    let complain = move |line: &dyn fmt::Display| saying.lock().push(line.to_string());
    start(listener, export, clients_max, complain).expect("a thread");
    (dir, path, said)
}

fn greeted(path: &std::path::Path) -> UnixStream {
    let mut stream = UnixStream::connect(path).expect("it listens");
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).expect("a greeting");
    stream.write_all(&[0, 0, 0, 3]).expect("flags");
    stream
}

/// Goal: one client too many is told so, others lose nothing, and there is room again when one goes.
#[test]
fn more_clients_than_may_come_are_refused() {
    let (_dir, path, said) = server(1);
    let mut first = greeted(&path);
    let mut second = greeted(&path);
    second.write_all(&option(7, &[0; 6])).expect("GO");
    let mut head = [0; 20];
    second.read_exact(&mut head).expect("a reply");
    assert_eq!(head[12..16], 0x8000_0002_u32.to_be_bytes(), "ERR_POLICY");
    let mut text = vec![0; usize::from(head[19])];
    second.read_exact(&mut text).expect("its text");
    assert_eq!(text, b"1 clients are served already; try again later");
    first.write_all(&option(1, b"disk")).expect("a name");
    let mut export = [0; 10];
    first.read_exact(&mut export).expect("size and flags");
    drop((first, second));
    // The places are given back when their threads have seen it.
    for _ in 0..12_000 {
        let mut third = greeted(&path);
        third.write_all(&option(1, b"disk")).expect("a name");
        if third.read_exact(&mut export).is_ok() {
            let said = said.lock();
            assert_eq!(said[0], "1 clients are served; another one is refused");
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("there is no room again");
}

/// Goal: a disk that cannot be written to says so, before and after.
#[test]
fn a_read_only_disk_takes_no_writes() {
    struct ReadOnly;
    impl Export for ReadOnly {
        fn shape(&self) -> Shape {
            Shape {
                size: 4096,
                block: 512,
                preferred: 4096,
                max: 4096,
                can_trim: true,
                read_only: true,
            }
        }

        fn submit(&self, request: Request, done: Box<dyn FnOnce(Result<(), Errno>) + Send>) {
            assert!(
                matches!(request, Request::Read { .. } | Request::Flush),
                "{request:?}"
            );
            done(Ok(()));
        }
    }
    let export: Arc<dyn Export> = Arc::new(ReadOnly);
    let (mut ours, theirs) = UnixStream::pair().expect("sockets");
    let server = thread::spawn(move || converse(&theirs, &export));
    let mut greeting = [0; 18];
    ours.read_exact(&mut greeting).expect("a greeting");
    ours.write_all(&[0, 0, 0, 3]).expect("flags");
    ours.write_all(&option(1, b"disk")).expect("a name");
    let mut said = [0; 10];
    ours.read_exact(&mut said).expect("size and flags");
    assert_eq!(said[9] & 2, 2, "NBD_FLAG_READ_ONLY");
    ours.write_all(&[&request(0, 1, 1, 0, 512)[..], &[7; 512]].concat())
        .expect("a write");
    expect(&mut ours, 1, 1, &[]);
    for (number, command) in [(2, 4), (3, 6)] {
        ours.write_all(&request(0, command, number, 0, 512))
            .expect("trim, zero");
        expect(&mut ours, number, 1, &[]);
    }
    ours.write_all(&request(0, 3, 4, 0, 0)).expect("a flush");
    expect(&mut ours, 4, 0, &[]);
    drop(ours);
    let _gone = server.join().expect("no panic");
}

/// Goal: long requests have more places than short ones, and give all of them back. Method: many more than there are
/// places for.
#[test]
fn long_requests_take_turns() {
    struct Endless;
    impl Export for Endless {
        fn shape(&self) -> Shape {
            Shape {
                size: 1 << 40,
                block: 512,
                preferred: 4096,
                max: REQUEST_BYTES_MAX,
                can_trim: false,
                read_only: true,
            }
        }

        fn submit(&self, _: Request, done: Box<dyn FnOnce(Result<(), Errno>) + Send>) {
            done(Err(Errno::Io));
        }
    }
    let export: Arc<dyn Export> = Arc::new(Endless);
    let (mut ours, theirs) = UnixStream::pair().expect("sockets");
    let server = thread::spawn(move || converse(&theirs, &export));
    let mut said = [0; 28];
    ours.read_exact(&mut said[..18]).expect("a greeting");
    ours.write_all(&[0, 0, 0, 3]).expect("flags");
    ours.write_all(&option(1, b"disk")).expect("a name");
    ours.read_exact(&mut said[..10]).expect("size and flags");
    // Each takes half of the places: what is not given back is missing for the third one.
    for number in 0..40 {
        ours.write_all(&request(0, 0, number, 0, REQUEST_BYTES_MAX))
            .expect("a read");
    }
    for number in 0..40 {
        expect(&mut ours, number, 5, &[]);
    }
    drop(ours);
    let _gone = server.join().expect("no panic");
}
