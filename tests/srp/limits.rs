//! The rules that an initiator follows: task management, credit, keys and lengths.

use std::sync::Arc;

use futures::channel::oneshot;
use futures::executor::block_on;
use ulp_srp::initiator::{Error, Mechanism, Options};
use ulp_srp::iu::{Lun, TaskFunction};
use verbs_core::{Access, Extent, Memory};

use crate::bed::{Bed, PAGE};
use crate::load::{LOAD, Load, memory, works};
use crate::target::BLOCK;

/// Goal: a reset ends the commands that the target had, and none that was sent after it. Method: the target answers a
/// reset late; commands are sent before it and between it and its answer, all on one channel.
#[test]
fn commands_behind_a_reset_go_on() {
    block_on(async {
        let bed = Bed::new().await;
        bed.target.script(|script| script.holds = true);
        let options = Options {
            queue_depth: 2 * LOAD as u16,
            ..Options::default()
        };
        let session = bed.login(options).await;
        let (early, late) = (memory(), memory());
        let before = Load::start(&session, &early);
        let other = session.clone();
        // It is answered in the completions that its routine follows; the load is sent before them.
        let (tell, told) = oneshot::channel();
        let mut behind = None;
        verbs_core::collect(|| {
            session.manage(TaskFunction::LUN_RESET, Lun(0), None, move |outcome| {
                let _ = tell.send(outcome);
            });
            behind = Some(Load::start(&other, &late));
        });
        told.await.unwrap().unwrap();
        bed.target.script(|script| script.holds = false);
        let ended = Err(Error::Aborted(TaskFunction::LUN_RESET));
        assert!(
            before
                .finish()
                .await
                .iter()
                .all(|outcome| *outcome == ended)
        );
        let behind = behind.unwrap().finish().await;
        assert!(behind.iter().all(Result::is_ok), "{behind:?}");
    });
}

/// Goal: the target is not asked about a command that it does not have: an abort of a command that waits for credit,
/// and of one that has ended, sends no request.
#[test]
fn aborts_of_what_was_not_sent_stay_here() {
    block_on(async {
        let bed = Bed::new().await;
        bed.target
            .script(|script| (script.limit, script.holds) = (4, true));
        let session = bed.login(Options::default()).await;
        let memory = memory();
        let load = Load::start(&session, &memory);
        for tag in &load.tags[3..] {
            session.abort(Lun(0), *tag).await.unwrap();
        }
        assert_eq!(bed.target.state.lock().managed, 0);
        session.abort(Lun(0), load.tags[0]).await.unwrap();
        assert_eq!(bed.target.state.lock().managed, 1);
        bed.target.script(|script| script.holds = false);
        let tags = load.tags.clone();
        let outcomes = load.finish().await;
        let good = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        assert_eq!(good, 2, "sent, and not aborted");
        session.abort(Lun(0), tags[1]).await.unwrap();
        assert_eq!(bed.target.state.lock().managed, 1);
    });
}

/// Goal: an event may carry credit, as an answer does. Method: a limit of two, of which one is withheld: only the
/// credit of the event lets the target have two commands at a time.
#[test]
fn an_event_brings_credit() {
    block_on(async {
        let bed = Bed::new().await;
        bed.target.script(|script| {
            (script.limit, script.reports, script.reported_credit) = (2, true, 5);
        });
        let session = bed.login(Options::default()).await;
        assert_eq!(session.request_limit(), 2);
        session.test_unit_ready(Lun(0)).await.unwrap();
        assert_eq!(session.request_limit(), 7);
        bed.target.credit(5);
        bed.target.script(|script| script.holds = true);
        let memory = memory();
        let load = Load::start(&session, &memory);
        bed.target.script(|script| script.holds = false);
        assert!(load.finish().await.iter().all(Result::is_ok));
        assert_eq!(bed.target.state.lock().outstanding_max, 6);
    });
}

/// Goal: pieces of memory that are adjacent and have different keys are two descriptors; parts of one memory are one.
#[test]
fn neighbours_of_different_keys_are_not_one() {
    block_on(async {
        let bed = Bed::new().await;
        let options = Options {
            mechanism: Mechanism::Published,
            immediate_max: 0,
            ..Options::default()
        };
        let session = bed.login(options).await;
        // Sooner or later, allocations of whole pages are adjacent.
        let pd = bed.initiator.alloc_pd().await.unwrap();
        let mut all = Vec::new();
        for _ in 0..64 {
            let memory = Arc::new(Memory::alloc(PAGE).unwrap());
            let mr = pd.register(Arc::clone(&memory), Access::LOCAL_WRITE).await;
            all.push((mr.unwrap().iova(), memory));
        }
        let pair = all.iter().find_map(|(at, first)| {
            let second = all.iter().find(|it| it.0 == at + PAGE as u64)?;
            Some([first, &second.1])
        });
        let Some(pair) = pair else {
            println!("no two memories lie side by side here");
            return;
        };
        for memory in pair {
            session.publish(memory).await.unwrap();
        }
        let list = pair.map(|memory| Extent {
            memory,
            offset: 0,
            len: PAGE as u32,
        });
        session.write(Lun(0), 0, 16, &list).await.unwrap();
        let seen = bed.target.take_seen();
        assert_eq!(seen[0].pieces.len(), 2, "{seen:?}");
        assert_ne!(seen[0].pieces[0].rkey, seen[0].pieces[1].rkey);
    });
}

/// Goal: a write that does not fit the target's units together with its data does not carry them. Method: a target
/// whose units are shorter than what this end would send at once.
#[test]
fn immediate_data_fit_the_targets_units() {
    block_on(async {
        let bed = Bed::new().await;
        bed.target.script(|script| script.iu_len_max = 68 + 1024);
        let session = bed.login(Options::default()).await;
        let memory = memory();
        for (blocks, format) in [(2, 3), (3, 1), (16, 1)] {
            let list = [Extent {
                memory: &memory,
                offset: 0,
                len: blocks * BLOCK,
            }];
            session.write(Lun(0), 0, blocks, &list).await.unwrap();
            assert_eq!(bed.target.take_seen()[0].format, format, "{blocks} blocks");
        }
        works(&session).await;
    });
}
