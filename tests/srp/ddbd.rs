//! Direct data buffers from a context that may not block (test D-DBD).
//!
//! Goal: with each mechanism of registration, a scatter list of N page-aligned fragments reaches the target as one
//! direct descriptor under a key of its own, which one RDMA operation moves, and which is invalid after the answer;
//! misaligned lists become tables with as few entries as possible, and an empty pool results in a table or a refusal,
//! never a wait. Method: one thread; commands are issued under NoBlock, where every blocking call fails; the target
//! records what it sees.

use std::sync::Arc;

use futures::channel::oneshot;
use futures::executor::block_on;
use futures::future::join_all;
use ulp_srp::initiator::{
    Command, Data, Error, Mechanism, Options, Outcome, ScsiError, Session, transfer_cdb,
};
use ulp_srp::iu::{Cdb, Lun, TaskAttribute};
use verbs_core::{Extent, Memory, WcStatus, collect, no_block};
use verbs_simulator::Sim;

use crate::bed::{Bed, PAGE, get, pattern, put, scattered};
use crate::script::Seen;
use crate::target::{BLOCK, PROBE};

const WAYS: [Mechanism; 3] = [Mechanism::Request, Mechanism::FastReg, Mechanism::Fmr];

fn options(mechanism: Mechanism) -> Options {
    Options {
        mechanism,
        immediate_max: 0,
        ..Options::default()
    }
}

fn command<'a>(cdb: &'a [u8], data: Data<'a>) -> Command<'a> {
    Command {
        cdb: Cdb::new(cdb).unwrap(),
        lun: Lun(0),
        attribute: TaskAttribute::SIMPLE,
        data,
    }
}

/// Issues a command with the level raised, and waits for its routine, which runs with the level raised.
async fn under_no_block(session: &Session, command: &Command<'_>) -> Outcome {
    let (tell, told) = oneshot::channel();
    collect(|| {
        assert!(no_block());
        session
            .command(command, move |outcome| {
                assert!(no_block());
                tell.send(outcome).unwrap();
            })
            .unwrap();
    });
    told.await.unwrap()
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Set in the separate process in which threads are counted.
const ALONE: &str = "VERBS_SRP_DDBD";

/// A write of that list, then a read of the same bytes into it, as the target saw them.
async fn write_and_read(session: &Session, bed: &Bed, list: &[Extent<'_>]) -> [Seen; 2] {
    let total: u32 = list.iter().map(|extent| extent.len).sum();
    let bytes = pattern(total as usize, total.into());
    put(list, &bytes);
    let cdb = transfer_cdb(true, 8, total / BLOCK);
    let done = under_no_block(session, &command(&cdb, Data::Out(list))).await;
    assert!(done.unwrap().is_good());
    put(list, &vec![0; bytes.len()]);
    let cdb = transfer_cdb(false, 8, total / BLOCK);
    let done = under_no_block(session, &command(&cdb, Data::In(list))).await;
    assert!(done.unwrap().is_good());
    assert!(get(list) == bytes, "the right bytes");
    bed.target.take_seen().try_into().unwrap()
}

/// The target tries the key that it was given last.
async fn probe(session: &Session, bed: &Bed) -> WcStatus {
    // Its queue pair is in error then, and the channel lost.
    let _lost = under_no_block(session, &command(&[PROBE, 0, 0, 0, 0, 0], Data::None)).await;
    bed.target.probed().await
}

/// One line of the table: a write and a read of that many fragments, and a test of the key afterwards.
async fn line(bed: &Bed, mechanism: Mechanism, fragments: usize, invalidates: bool) -> String {
    bed.target.script(|script| script.invalidates = invalidates);
    let session = bed.login(options(mechanism)).await;
    let memory = Arc::new(Memory::alloc(2 * fragments * PAGE).unwrap());
    // The global key exists, and is not used.
    session.publish(&memory).await.unwrap();
    let list = scattered(&memory, fragments);
    let [write, read] = write_and_read(&session, bed, &list).await;
    for seen in [&write, &read] {
        assert_eq!(seen.format, 1, "{mechanism:?} {fragments}");
        assert_eq!(seen.pieces.len(), 1);
        assert_eq!(seen.operations, 1);
        assert_eq!(seen.total as usize, fragments * PAGE);
        assert_eq!(seen.pieces[0].len as usize, fragments * PAGE);
    }
    assert_ne!(write.pieces[0].rkey, read.pieces[0].rkey, "a key for each");
    let (_, formats) = session.counters();
    assert_eq!((formats.direct, formats.published), (2, 0));
    let status = probe(&session, bed).await;
    assert_eq!(status, WcStatus::RemAccessErr, "{mechanism:?} {fragments}");
    let (format, descriptors, operations) = (read.format, read.pieces.len(), read.operations);
    let by = if invalidates { "target" } else { "initiator" };
    format!(
        "{:<8} {by:<9} {fragments:>9} {format:>6} {descriptors:>11} {operations:>10} {status:?}",
        format!("{mechanism:?}"),
    )
}

#[test]
fn aligned_lists_are_one_direct_descriptor() {
    for mechanism in WAYS {
        for fragments in [1, 2, 16, 256] {
            block_on(async {
                let bed = Bed::new().await;
                line(&bed, mechanism, fragments, false).await;
            });
        }
    }
}

/// In virtual time no HCA has an engine's thread, so every thread of the process can be accounted for: the
/// main one, and that of this test. It prints the table of docs/SRP.md:
/// `VERBS_SRP_DDBD=1 cargo test -p verbs-tests --test srp -- --exact ddbd::no_thread_takes_part --nocapture`.
#[test]
fn no_thread_takes_part() {
    if std::env::var_os(ALONE).is_none() {
        let itself = std::env::current_exe().unwrap();
        let ended = std::process::Command::new(itself)
            .args(["--exact", "ddbd::no_thread_takes_part", "--nocapture"])
            .env(ALONE, "1")
            .output()
            .unwrap();
        assert!(
            ended.status.success(),
            "{}",
            String::from_utf8_lossy(&ended.stderr)
        );
        return;
    }
    let before = threads();
    println!(
        "\nmechanism invalid by fragments format descriptors operations key afterwards threads"
    );
    for mechanism in WAYS {
        for invalidates in [false, true] {
            if invalidates && mechanism != Mechanism::FastReg {
                continue;
            }
            for fragments in [1, 2, 16, 256] {
                let sim = Sim::new(fragments as u64);
                let line = sim.run(async {
                    let bed = Bed::in_sim(&sim).await;
                    line(&bed, mechanism, fragments, invalidates).await
                });
                let started = threads() - before;
                println!("{} {started:>7}", line.unwrap());
                assert_eq!(started, 0, "no thread was started");
            }
        }
    }
}

#[test]
fn the_first_may_begin_and_the_last_may_end_inside_a_page() {
    for mechanism in WAYS {
        block_on(async {
            let bed = Bed::new().await;
            let session = bed.login(options(mechanism)).await;
            let memory = Arc::new(Memory::alloc(8 * PAGE).unwrap());
            let at = |offset, len| Extent {
                memory: &memory,
                offset,
                len,
            };
            let list = [at(512, 3584), at(3 * PAGE, 4096), at(5 * PAGE, 512)];
            for seen in write_and_read(&session, &bed, &list).await {
                assert_eq!((seen.format, seen.pieces.len(), seen.total), (1, 1, 8192));
            }
        });
    }
}

#[test]
fn misaligned_lists_are_tables_of_as_few_entries_as_can_be() {
    for mechanism in WAYS {
        block_on(async {
            let bed = Bed::new().await;
            let session = bed.login(options(mechanism)).await;
            let memory = Arc::new(Memory::alloc(16 * PAGE).unwrap());
            let at = |offset, len| Extent {
                memory: &memory,
                offset,
                len,
            };
            // Two boundaries are on pages, one is not, one piece begins where the previous one ends.
            let list = [
                at(PAGE, 4096),
                at(3 * PAGE, 4096),
                at(5 * PAGE + 512, 1024),
                at(5 * PAGE + 1536, 512),
                at(9 * PAGE, 4096),
            ];
            for seen in write_and_read(&session, &bed, &list).await {
                assert_eq!((seen.format, seen.total), (2, 13824));
                let lens: Vec<_> = seen.pieces.iter().map(|piece| piece.len).collect();
                assert_eq!(lens, [8192, 1536, 4096], "{mechanism:?}");
                assert_eq!(seen.operations, 3);
            }
            assert_eq!(probe(&session, &bed).await, WcStatus::RemAccessErr);
        });
    }
}

#[test]
fn without_a_handle_there_is_a_table_or_a_refusal() {
    for mechanism in [Mechanism::FastReg, Mechanism::Fmr] {
        for fall_back in [false, true] {
            block_on(async {
                let bed = Bed::new().await;
                let options = Options {
                    handles: Some(1),
                    fall_back,
                    ..options(mechanism)
                };
                let session = bed.login(options).await;
                let memory = Arc::new(Memory::alloc(64 * PAGE).unwrap());
                if fall_back {
                    session.publish(&memory).await.unwrap();
                }
                let list = scattered(&memory, 4);
                // The first command has the only handle.
                bed.target.script(|script| script.holds = true);
                let cdb = transfer_cdb(false, 0, 32);
                let (tell, first) = oneshot::channel();
                let held = command(&cdb, Data::In(&list));
                session
                    .command(&held, move |outcome| tell.send(outcome).unwrap())
                    .unwrap();
                let (tell, second) = oneshot::channel();
                let begun =
                    collect(|| session.command(&held, move |outcome| tell.send(outcome).unwrap()));
                if !fall_back {
                    let refused = begun.unwrap_err();
                    assert_eq!(refused.error, Error::Busy);
                }
                bed.target.script(|script| script.holds = false);
                assert!(first.await.unwrap().unwrap().is_good());
                let mut seen = bed.target.take_seen();
                if fall_back {
                    assert!(second.await.unwrap().unwrap().is_good());
                    seen.extend(bed.target.take_seen());
                    assert_eq!(seen[1].format, 2);
                    assert_eq!((seen[1].pieces.len(), seen[1].operations), (4, 4));
                } else {
                    // Later a handle is free, and the same command succeeds.
                    assert!(under_no_block(&session, &held).await.unwrap().is_good());
                    seen.extend(bed.target.take_seen());
                    assert_eq!(seen[1].format, 1);
                }
                assert_eq!(seen[0].format, 1);
            });
        }
    }
}

#[test]
fn sixteen_fragments_are_one_operation_or_sixteen() {
    for (mechanism, operations) in [(Mechanism::FastReg, 1), (Mechanism::Published, 16)] {
        block_on(async {
            let bed = Bed::new().await;
            let session = bed.login(options(mechanism)).await;
            let memory = Arc::new(Memory::alloc(32 * PAGE).unwrap());
            session.publish(&memory).await.unwrap();
            let list = scattered(&memory, 16);
            for seen in write_and_read(&session, &bed, &list).await {
                assert_eq!(seen.operations, operations, "{mechanism:?}");
            }
        });
    }
}

#[test]
fn small_writes_carry_their_data() {
    block_on(async {
        let bed = Bed::new().await;
        let session = bed.login(Options::default()).await;
        let memory = Arc::new(Memory::alloc(8 * PAGE).unwrap());
        let list = scattered(&memory, 2);
        let [write, read] = write_and_read(&session, &bed, &list).await;
        assert_eq!((write.format, write.operations, write.total), (3, 0, 8192));
        assert_eq!(read.format, 1);
    });
}

/// A pool of fast memory regions releases memory at the next mapping under the same index: its keys are invalid
/// nevertheless.
#[test]
fn memory_goes_back_when_its_routine_runs() {
    for mechanism in [Mechanism::Request, Mechanism::FastReg] {
        block_on(async {
            let bed = Bed::new().await;
            let session = bed.login(options(mechanism)).await;
            let mut memory = Arc::new(Memory::alloc(4 * PAGE).unwrap());
            let list = scattered(&memory, 2);
            write_and_read(&session, &bed, &list).await;
            assert!(
                Arc::get_mut(&mut memory).is_some(),
                "{mechanism:?}: the owner has it alone"
            );
        });
    }
}

/// Futures wait for a handle instead; a command that could not get one even if all others ended is refused.
#[test]
fn futures_wait_for_a_handle_while_there_is_hope() {
    block_on(async {
        let bed = Bed::new().await;
        let options = Options {
            handles: Some(2),
            fall_back: false,
            ..options(Mechanism::FastReg)
        };
        let session = bed.login(options).await;
        let memory = Arc::new(Memory::alloc(64 * PAGE).unwrap());
        let list = scattered(&memory, 2);
        let reads = (0..8).map(|at| session.read(Lun(0), 16 * at, 16, &list));
        for done in join_all(reads).await {
            done.unwrap();
        }
        let at = |page| Extent {
            memory: &memory,
            offset: page * PAGE + 512,
            len: 512,
        };
        let three = [at(1), at(3), at(5)];
        let refused = session.read(Lun(0), 0, 3, &three).await.unwrap_err();
        assert_eq!(refused, ScsiError::Transport(Error::Busy));
    });
}
