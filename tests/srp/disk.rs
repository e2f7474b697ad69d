//! A disk for programs: requests wait during an outage and continue, FUA is honoured on disks that do not have it, and
//! another disk in its place is not written to.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use ulp_srp::initiator::{Disk, Error, Options, ScsiError, Session};
use ulp_srp::iu::{LoginRejectReason, Lun, Status};
use verbs_core::Memory;
use verbs_simulator::Sim;

use crate::bed::{Bed, PAGE, pattern, seeds};
use crate::script::Script;

fn memory(bytes: &[u8]) -> Arc<Memory> {
    let memory = Memory::alloc(bytes.len()).unwrap();
    memory.write(0, bytes).unwrap();
    Arc::new(memory)
}

fn content(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes).unwrap();
    bytes
}

async fn open(bed: &Bed, options: Options) -> (Session, Disk) {
    let session = bed.login(options).await;
    let disk = Disk::open(&session, Lun(0)).await.unwrap();
    (session, disk)
}

fn away(script: &mut Script) {
    script.hangs_up = true;
    script.rejects = Some(LoginRejectReason::NO_RESOURCES);
}

const WRITE: u8 = 0x8a;
const SYNCHRONIZE: u8 = 0x35;

/// Goal: data written with FUA are on the medium when the write is reported complete, whether the disk has FUA or not,
/// and no disk is asked for a feature that it does not have.
#[test]
fn fua_is_a_bit_where_there_is_one_and_a_flush_elsewhere() {
    for fua in [true, false] {
        let sim = Sim::new(1);
        sim.run(async {
            let bed = Bed::in_sim(&sim).await;
            bed.target.script(|script| script.fua = fua);
            let (_session, disk) = open(&bed, Options::default()).await;
            assert_eq!(disk.has_fua(), fua);
            let mib = pattern(3 << 20, 7);
            bed.target.state.lock().opcodes.clear();
            disk.write(0, &memory(&mib), true).await.unwrap();
            disk.write(0, &memory(&mib[..PAGE]), false).await.unwrap();
            let seen = std::mem::take(&mut bed.target.state.lock().opcodes);
            let parts = [(WRITE, fua); 3];
            let flush: &[_] = if fua { &[] } else { &[(SYNCHRONIZE, false)] };
            let expected = [&parts[..], flush, &[(WRITE, false)]].concat();
            assert_eq!(seen, expected);
            let back = memory(&vec![0; mib.len()]);
            disk.read(0, &back).await.unwrap();
            assert!(content(&back) == mib);
        })
        .unwrap();
    }
}

/// Goal: requests that are under way when the session is lost, and those that are issued during the outage, are carried
/// out when it is over; none fails. Method: the target disappears at a random moment of a load of writes, for longer
/// than the first 8 attempts take.
#[test]
fn requests_wait_for_the_end_of_an_outage() {
    for seed in 0..seeds(20) {
        let sim = Sim::new(seed);
        let mut draw = sim.draw();
        sim.run(async {
            let bed = Bed::in_sim(&sim).await;
            let options = Options {
                channels: 1 + draw.below(3) as u8,
                queue_depth: 4,
                ..Options::default()
            };
            let (session, disk) = open(&bed, options).await;
            let places: Vec<_> = (0..24).map(|at| (at * 32 * PAGE as u64, at)).collect();
            let write = |(at, seed)| {
                let (disk, bytes) = (disk.clone(), pattern(8 * PAGE, seed));
                async move { disk.write(at, &memory(&bytes), false).await }
            };
            let before = join_all(places[..16].iter().copied().map(write));
            let outage = async {
                sim.sleep(draw.duration(Duration::ZERO..=Duration::from_micros(400)))
                    .await;
                bed.target.script(away);
                // It hangs up only when it receives a command.
                let _lost = session.test_unit_ready(Lun(0)).await;
                let late = join_all(places[16..].iter().copied().map(write));
                let back = async {
                    sim.sleep(Duration::from_secs(12)).await;
                    bed.target.script(|script| *script = Script::default());
                };
                futures::future::join(late, back).await.0
            };
            let (before, late) = futures::future::join(before, outage).await;
            for done in before.into_iter().chain(late) {
                done.unwrap();
            }
            disk.flush().await.unwrap();
            assert!(session.opened().await.unwrap() >= 1);
            for &(at, seed) in &places {
                let back = memory(&vec![0; 8 * PAGE]);
                disk.read(at, &back).await.unwrap();
                assert!(content(&back) == pattern(8 * PAGE, seed), "place {at}");
            }
        })
        .unwrap();
    }
}

/// Goal: all requests fail when the session is given up, with the reason.
#[test]
fn requests_fail_when_the_time_is_over() {
    let sim = Sim::new(2);
    sim.run(async {
        let bed = Bed::in_sim(&sim).await;
        let limit = Duration::from_secs(3);
        let options = Options {
            reconnect_timeout: Some(limit),
            ..Options::default()
        };
        let (_session, disk) = open(&bed, options).await;
        bed.target.script(away);
        let page = memory(&[7; PAGE]);
        let (written, flushed) =
            futures::future::join(disk.write(0, &page, false), disk.flush()).await;
        let expected = ScsiError::Transport(Error::GivenUp {
            after: limit,
            error: Box::new(Error::Rejected(LoginRejectReason::NO_RESOURCES)),
        });
        assert_eq!(written, Err(expected.clone()));
        assert_eq!(flushed, Err(expected.clone()));
        assert_eq!(disk.read(0, &page).await, Err(expected));
    })
    .unwrap();
}

/// Goal: a target that comes back with another disk, or a smaller one, is not written to; one that is larger is.
#[test]
fn another_disk_is_not_written_to() {
    type Change = fn(&mut Script);
    let others: [(Change, bool); 4] = [
        (|script| script.serial = "disk 2", false),
        (|script| script.blocks -= 1, false),
        (|script| script.blocks += 1, true),
        (|_| (), true),
    ];
    for (change, is_same) in others {
        let sim = Sim::new(3);
        sim.run(async {
            let bed = Bed::in_sim(&sim).await;
            let (session, disk) = open(&bed, Options::default()).await;
            let page = memory(&[7; PAGE]);
            bed.target.script(away);
            let writing = disk.write(0, &page, false);
            let back = async {
                sim.sleep(Duration::from_secs(1)).await;
                bed.target.state.lock().opcodes.clear();
                bed.target.script(|script| {
                    *script = Script::default();
                    change(script);
                });
            };
            let (written, ()) = futures::future::join(writing, back).await;
            let wrote = bed
                .target
                .state
                .lock()
                .opcodes
                .iter()
                .any(|it| it.0 == WRITE);
            assert_eq!(wrote, is_same);
            if is_same {
                return written.unwrap();
            }
            let Err(ScsiError::Transport(Error::OtherDisk { was, now })) = &written else {
                panic!("{written:?}");
            };
            assert_eq!(was, "disk 1, 8192 blocks of 512 bytes");
            assert_ne!(was, now);
            assert_eq!(
                ScsiError::Transport(session.over().await),
                written.unwrap_err()
            );
            assert!(disk.read(0, &page).await.is_err());
        })
        .unwrap();
    }
}

/// Goal: a request that a disk does not accept now is sent again, with pauses, and not for ever.
#[test]
fn a_disk_that_is_busy_is_asked_again() {
    let sim = Sim::new(4);
    sim.run(async {
        let bed = Bed::in_sim(&sim).await;
        let (_session, disk) = open(&bed, Options::default()).await;
        let page = memory(&[7; PAGE]);
        for status in [Status::BUSY, Status::TASK_SET_FULL, Status::TASK_ABORTED] {
            bed.target
                .script(|script| script.refuses = Some((20, status)));
            let before = sim.now();
            disk.write(0, &page, false).await.unwrap();
            let took = sim.now().since(before);
            assert!((1..3).contains(&took.as_secs()), "{took:?}");
        }
        bed.target
            .script(|script| script.refuses = Some((1000, Status::BUSY)));
        let refused = disk.write(0, &page, false).await.unwrap_err();
        assert!(matches!(&refused, ScsiError::Status(done) if done.status == Status::BUSY));
        bed.target
            .script(|script| script.refuses = Some((1, Status::RESERVATION_CONFLICT)));
        assert!(disk.write(0, &page, false).await.is_err());
        disk.write(0, &page, false).await.unwrap();
    })
    .unwrap();
}
