//! What a target has acknowledged outlives it, however it ends.

mod child;

use std::fs::File;
use std::net::IpAddr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{self, Command};
use std::time::Duration;

use child::{Guarded, started};
use futures::channel::oneshot;
use futures::executor::block_on;
use futures::future::{join_all, select};
use hca_sim::{Hca, Udp};
use ulp_srp::initiator::{Initiator, Options, ScsiError, Session};
use ulp_srp::iu::Lun;
use verbs_core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use verbs_core::sync::{Arc, thread};
use verbs_core::{Extent, Memory};

/// An address that this process has for itself, below those of `tests/cli`.
fn own(number: u8) -> IpAddr {
    let [.., high, low] = process::id().to_be_bytes();
    [127, 1 + high % 63, low, number].into()
}

/// Places that are written over and over, and bytes of each.
const PLACES: usize = 64;
const BYTES: usize = 16 << 10;
const BLOCKS: u32 = (BYTES / 512) as u32;

/// Writes under way.
const WRITERS: usize = 8;

/// What is known of a place: the last number that was sent there, and the last one that was acknowledged by a
/// flush.
#[derive(Default)]
struct Place {
    sent: AtomicU64,
    kept: AtomicU64,
}

/// Draws numbers: xorshift, so that a failure can be repeated.
struct Draw(u64);

impl Draw {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

fn target(at: &str, disk: &Path) -> Guarded {
    let mut command = Command::new(env!("CARGO_BIN_EXE_verbs"));
    command.args(["srp", "target", "--listen", at, "--file"]);
    let (child, line) = started(command.arg(disk));
    assert!(line.starts_with("id_ext="), "{line}");
    child
}

/// Writes numbers into places until the target has gone.
async fn write(session: Session, places: &[Place], writer: usize, seed: u64) -> ScsiError {
    let mut draw = Draw(seed);
    let memory = Arc::new(Memory::alloc(BYTES).expect("memory"));
    let list = [Extent {
        memory: &memory,
        offset: 0,
        len: BYTES as u32,
    }];
    loop {
        // Every writer has places of its own.
        let at = writer + WRITERS * draw.next((PLACES / WRITERS) as u64) as usize;
        let number = places[at].sent.fetch_add(1, Relaxed) + 1;
        let text = number.to_le_bytes().repeat(BYTES / 8);
        memory.write(0, &text).expect("it fits");
        let lba = at as u64 * u64::from(BLOCKS);
        if let Err(error) = session.write(Lun(0), lba, BLOCKS, &list).await {
            return error;
        }
        if let Err(error) = session.synchronize(Lun(0)).await {
            return error;
        }
        places[at].kept.store(number, Relaxed);
    }
}

/// Goal: nothing that was acknowledged is lost, and no block is torn. Method: the target is killed (SIGKILL)
/// at a random moment while eight writers write and flush; then its file is looked at. `VERBS_KILLS` says how
/// often.
#[test]
fn nothing_acknowledged_is_lost_when_the_target_is_killed() {
    let kills = std::env::var("VERBS_KILLS").ok();
    let kills: u64 = kills.map_or(10, |text| text.parse().expect("a number"));
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk");
    let disk = File::create_new(&path).expect("a file");
    disk.set_len((PLACES * BYTES) as u64).expect("as long");
    let link = Udp::bind(&[own(62)]).expect("an address");
    let at = format!("{}:5555", own(61));
    let device = Arc::new(Hca::over(link).build().open().wait().expect("a device"));
    let places: Vec<Place> = (0..PLACES).map(|_| Place::default()).collect();
    let mut draw = Draw(0x5eed_0013);
    for kill in 0..kills {
        let mut child = target(&at, &path);
        let options = Options {
            reconnect_timeout: Some(Duration::ZERO),
            ..Options::default()
        };
        let initiator = Initiator::new(&device, options);
        let login = initiator.login(at.parse().expect("an address"));
        let session = block_on(login).expect("it lets us in");
        let (killed, gone) = oneshot::channel();
        let moment = Duration::from_micros(draw.next(150_000));
        let killer = thread::spawn(move || {
            thread::sleep(moment);
            child.kill().expect("it runs");
            child.wait().expect("it was ours");
            let _ = killed.send(());
        });
        let writers = (0..WRITERS).map(|writer| {
            let seed = 1 + kill * WRITERS as u64 + writer as u64;
            write(session.clone(), &places, writer, seed)
        });
        block_on(select(join_all(writers), gone));
        killer.join().expect("no panic");
        drop(session);
        for (at, place) in places.iter().enumerate() {
            check(&disk, at, place, kill);
        }
    }
    let kept: u64 = places.iter().map(|place| place.kept.load(Relaxed)).sum();
    println!("{kept} writes were acknowledged, and {kills} targets killed");
    assert!(kept >= kills, "only {kept} writes were acknowledged");
}

fn check(disk: &File, at: usize, place: &Place, kill: u64) {
    let mut bytes = vec![0; BYTES];
    disk.read_exact_at(&mut bytes, (at * BYTES) as u64)
        .expect("it is as long");
    let (sent, kept) = (place.sent.load(Relaxed), place.kept.load(Relaxed));
    for block in bytes.chunks(512) {
        let number = block
            .first_chunk()
            .map(|number| u64::from_le_bytes(*number));
        let number = number.expect("a block is longer");
        let words: Vec<_> = block.chunks(8).collect();
        let whole = words.iter().all(|word| **word == number.to_le_bytes());
        assert!(whole, "kill {kill}: a block of place {at} is torn");
        let right = kept..=sent;
        assert!(
            right.contains(&number),
            "kill {kill}: place {at} has {number}, not {right:?}"
        );
    }
}
