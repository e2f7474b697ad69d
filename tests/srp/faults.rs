//! Errors and delays of targets and devices.
//!
//! Goal: whatever happens, every command ends exactly once, no command is sent without a credit, and a
//! session whose channel was lost works again. Method: a load of commands whose routines are counted, against
//! a target that follows a script.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use futures::channel::oneshot;
use futures::executor::block_on;
use ulp_srp::initiator::{
    Command, Data, Error, Event, Initiator, Mechanism, Options, Outcome, Session, Violation,
};
use ulp_srp::iu::{
    Cdb, LoginRejectReason, LogoutReason, Lun, MultiChannel, Tag, TaskAttribute, TaskFunction,
};
use verbs_simulator::Sim;

use crate::bed::{AT, Bed, seeds};
use crate::load::{LOAD, Load, memory, works};
use crate::script::Script;

/// Logs in with a listener that reports when a lost channel is established again, or given up.
async fn login(bed: &Bed, options: Options) -> (Session, oneshot::Receiver<bool>) {
    let (tell, told) = oneshot::channel();
    let tell = verbs_core::sync::Mutex::new(Some(tell));
    let initiator = Initiator::new(&bed.initiator, options).on_event(move |event| {
        let is_restored = match event {
            Event::Restored { .. } => true,
            Event::GivenUp { .. } => false,
            _ => return,
        };
        if let Some(tell) = tell.lock().take() {
            tell.send(is_restored).unwrap();
        }
    });
    (initiator.login(AT.parse().unwrap()).await.unwrap(), told)
}

#[test]
fn commands_wait_for_credits_in_their_order() {
    for (limit, withhold) in [(3, None), (4, Some(2)), (9, Some(5)), (64, None)] {
        block_on(async {
            let bed = Bed::new().await;
            bed.target
                .script(|script| (script.limit, script.withhold) = (limit, withhold));
            let session = bed.login(Options::default()).await;
            let memory = memory();
            bed.target.script(|script| script.holds = true);
            let load = Load::start(&session, &memory);
            bed.target.script(|script| script.holds = false);
            assert!(load.finish().await.iter().all(|outcome| outcome.is_ok()));
            let state = bed.target.state.lock();
            assert_eq!(state.overdrawn, 0, "limit {limit}");
            assert!(state.outstanding_max < limit);
            assert_eq!(state.credit_answers > 0, withhold.is_some());
            drop(state);
            let (counters, _) = session.counters();
            assert_eq!(counters.waited > 0, limit < 64);
        });
    }
}

#[test]
fn one_credit_is_kept_back_for_aborts() {
    block_on(async {
        let bed = Bed::new().await;
        bed.target
            .script(|script| (script.limit, script.holds) = (4, true));
        let session = bed.login(Options::default()).await;
        let memory = memory();
        let load = Load::start(&session, &memory);
        // One command that the target has, and one that waits for a credit.
        session.abort(Lun(0), load.tags[1]).await.unwrap();
        session.abort(Lun(0), load.tags[20]).await.unwrap();
        bed.target.script(|script| script.holds = false);
        let outcomes = load.finish().await;
        for (number, outcome) in outcomes.iter().enumerate() {
            let aborted = Err(Error::Aborted(TaskFunction::ABORT_TASK));
            match number {
                1 | 20 => assert_eq!(outcome, &aborted),
                _ => assert!(outcome.is_ok(), "{number}: {outcome:?}"),
            }
        }
        let state = bed.target.state.lock();
        assert_eq!((state.aborted, state.overdrawn), (1, 0));
        assert_eq!(state.executed as usize, LOAD - 2);
    });
}

#[test]
fn a_reset_ends_what_the_target_has() {
    block_on(async {
        let bed = Bed::new().await;
        bed.target
            .script(|script| (script.limit, script.holds) = (9, true));
        let session = bed.login(Options::default()).await;
        let memory = memory();
        let load = Load::start(&session, &memory);
        session.reset(Lun(0)).await.unwrap();
        bed.target.script(|script| script.holds = false);
        let outcomes = load.finish().await;
        let reset = |outcome: &&Outcome| **outcome == Err(Error::Aborted(TaskFunction::LUN_RESET));
        // All commands that the limit had let through; the others were sent later, and succeeded.
        assert_eq!(outcomes.iter().filter(reset).count(), 8);
        assert!(
            outcomes
                .iter()
                .filter(|outcome| !reset(outcome))
                .all(|outcome| outcome.is_ok())
        );
        works(&session).await;
    });
}

/// Goal: the reset of one unit ends no command of another. Method: the target holds commands of the first unit while
/// two others are reset.
#[test]
fn a_reset_of_another_unit_ends_nothing() {
    block_on(async {
        let bed = Bed::new().await;
        bed.target.script(|script| script.holds = true);
        let session = bed.login(Options::default()).await;
        let memory = memory();
        let load = Load::start(&session, &memory);
        for number in [1, 2] {
            session.reset(Lun::new(number).unwrap()).await.unwrap();
        }
        bed.target.script(|script| script.holds = false);
        let outcomes = load.finish().await;
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        let state = bed.target.state.lock();
        assert_eq!((state.resets, state.aborted), (2, 0));
    });
}

#[test]
fn a_second_answer_is_late() {
    block_on(async {
        let bed = Bed::new().await;
        bed.target.script(|script| script.twice = true);
        let session = bed.login(Options::default()).await;
        let memory = memory();
        assert!(
            Load::start(&session, &memory)
                .finish()
                .await
                .iter()
                .all(Result::is_ok)
        );
        let (counters, _) = session.counters();
        assert!(counters.late >= LOAD as u64 - 1);
    });
}

/// The script makes the channel end; every command ends once, and the session works again.
fn loses_the_channel(change: fn(&mut Script), violation: Option<Violation>) {
    block_on(async {
        let bed = Bed::new().await;
        let (session, restored) = login(&bed, Options::default()).await;
        let memory = memory();
        bed.target.script(|script| script.holds = true);
        let load = Load::start(&session, &memory);
        bed.target.script(|script| {
            script.holds = false;
            change(script);
        });
        // A target that acts at the next command needs one.
        let _next = session.test_unit_ready(Lun(0)).await;
        let ends = load.finish();
        let outcomes = ends.await;
        assert!(outcomes.iter().any(Result::is_err), "{outcomes:?}");
        for error in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
            match violation {
                Some(violation) => assert_eq!(*error, Error::Protocol(violation)),
                None => assert!(matches!(error, Error::ConnectionLost | Error::Protocol(_))),
            }
        }
        bed.target.script(|script| *script = Script::default());
        assert!(restored.await.unwrap());
        works(&session).await;
    });
}

#[test]
fn answers_that_nobody_asked_for_end_the_channel() {
    let tag = Tag(0xdead_beef_0000_0000);
    loses_the_channel(
        |script| script.wrong_tag = true,
        Some(Violation::Unasked(tag)),
    );
}

#[test]
fn answers_that_are_too_short_end_the_channel() {
    loses_the_channel(|script| script.cut_to = Some(35), None);
    loses_the_channel(|script| script.cut_to = Some(0), None);
}

#[test]
fn keys_of_others_that_are_invalidated_end_the_channel() {
    // A key that does not exist: the device reports an error.
    loses_the_channel(|script| script.invalidates_wrong = true, None);
    // The key of another command, which is valid: the device invalidates it.
    loses_the_channel(
        |script| script.invalidates_other = true,
        Some(Violation::Invalidated),
    );
}

#[test]
fn a_logout_and_the_end_of_the_connection_end_the_channel() {
    loses_the_channel(
        |script| (script.logs_out, script.holds) = (Some(LogoutReason::UNSPECIFIED), true),
        None,
    );
    loses_the_channel(
        |script| (script.hangs_up, script.holds) = (true, true),
        None,
    );
}

#[test]
fn a_target_that_refuses_says_why() {
    block_on(async {
        let bed = Bed::new().await;
        let reason = LoginRejectReason::CHANNEL_LIMIT;
        bed.target.script(|script| script.rejects = Some(reason));
        let initiator = Initiator::new(&bed.initiator, Options::default());
        let refused = initiator.login(AT.parse().unwrap()).await;
        assert_eq!(refused.unwrap_err(), Error::Rejected(reason));
        let nobody = initiator.login("10.0.0.2:5556".parse().unwrap()).await;
        assert_eq!(
            nobody.unwrap_err().to_string(),
            "nobody listens at 10.0.0.2:5556"
        );
    });
}

#[test]
fn an_event_of_a_unit_is_told_and_answered() {
    block_on(async {
        let bed = Bed::new().await;
        let told = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&told);
        let initiator = Initiator::new(&bed.initiator, Options::default()).on_event(move |event| {
            if let Event::Asynchronous { sense, .. } = event {
                assert_eq!(sense, [0x70, 0, 6]);
                count.fetch_add(1, SeqCst);
            }
        });
        let session = initiator.login(AT.parse().unwrap()).await.unwrap();
        bed.target.script(|script| script.reports = true);
        works(&session).await;
        assert_eq!(told.load(SeqCst), 1);
        works(&session).await;
        assert_eq!(bed.target.state.lock().event_answers, 1);
    });
}

#[test]
fn several_channels_share_a_load() {
    block_on(async {
        let bed = Bed::new().await;
        let options = Options {
            channels: 4,
            queue_depth: 8,
            ..Options::default()
        };
        let session = bed.login(options).await;
        let memory = memory();
        bed.target.script(|script| script.holds = true);
        let load = Load::start(&session, &memory);
        assert!(bed.target.state.lock().outstanding_max <= 8);
        bed.target.script(|script| script.holds = false);
        assert!(load.finish().await.iter().all(Result::is_ok));
        let channels: Vec<_> = bed
            .target
            .state
            .lock()
            .logins
            .iter()
            .map(|login| login.channels)
            .collect();
        let others = [MultiChannel::INDEPENDENT; 3];
        assert_eq!(
            channels,
            [[MultiChannel::SINGLE].as_slice(), &others].concat()
        );
        works(&session).await;
        session.logout().await;
        assert_eq!(bed.target.state.lock().logouts, 4);
    });
}

#[test]
fn a_disk_says_what_it_is() {
    block_on(async {
        let bed = Bed::new().await;
        let session = bed.login(Options::default()).await;
        assert_eq!(session.luns().await.unwrap(), [Lun(0)]);
        let inquiry = session.inquiry(Lun(0)).await.unwrap();
        assert_eq!(
            (&*inquiry.vendor, &*inquiry.product),
            ("VERBS", "TEST DISK")
        );
        assert_eq!(session.capacity(Lun(0)).await.unwrap().bytes(), 4 << 20);
        session.test_unit_ready(Lun(0)).await.unwrap();
        session.synchronize(Lun(0)).await.unwrap();
        let command = Command {
            cdb: Cdb::new(&[0xc5]).unwrap(),
            lun: Lun(0),
            attribute: TaskAttribute::SIMPLE,
            data: Data::None,
        };
        let refused = session.run(&command).await.unwrap();
        assert_eq!(refused.sense_code(), Some((5, 0x20, 0)));
    });
}

#[test]
fn a_logout_ends_what_is_under_way() {
    block_on(async {
        let bed = Bed::new().await;
        let session = bed.login(Options::default()).await;
        let memory = memory();
        bed.target.script(|script| script.holds = true);
        let load = Load::start(&session, &memory);
        let other = session.clone();
        session.logout().await;
        let outcomes = load.finish().await;
        assert!(
            outcomes
                .iter()
                .all(|outcome| *outcome == Err(Error::LoggedOut))
        );
        assert_eq!(
            other.test_unit_ready(Lun(0)).await.unwrap_err().to_string(),
            "the session is logged out"
        );
    });
}

#[test]
fn a_session_that_is_dropped_ends_what_is_under_way() {
    block_on(async {
        let bed = Bed::new().await;
        let session = bed.login(Options::default()).await;
        let memory = memory();
        bed.target.script(|script| script.holds = true);
        let load = Load::start(&session, &memory);
        drop(session);
        let outcomes = load.finish().await;
        assert!(
            outcomes
                .iter()
                .all(|outcome| *outcome == Err(Error::LoggedOut))
        );
    });
}

#[test]
fn a_device_that_is_pulled_out_ends_what_is_under_way() {
    block_on(async {
        let bed = Bed::new().await;
        let (session, restored) = login(&bed, Options::default()).await;
        let memory = memory();
        bed.target.script(|script| script.holds = true);
        let load = Load::start(&session, &memory);
        bed.hcas[0].remove();
        let outcomes = load.finish().await;
        assert!(
            outcomes
                .iter()
                .all(|outcome| *outcome == Err(Error::ConnectionLost))
        );
        assert!(!restored.await.unwrap(), "given up");
        assert!(!session.is_open());
    });
}

/// The target's host disappears under load: retries are exhausted in virtual time, and so are the attempts to log in
/// again.
#[test]
fn a_target_that_vanishes_ends_what_is_under_way() {
    let sim = Sim::new(5);
    sim.run(async {
        let bed = Bed::in_sim(&sim).await;
        let options = Options {
            reconnect_timeout: Some(Duration::from_secs(20)),
            ..Options::default()
        };
        let (session, restored) = login(&bed, options).await;
        let memory = memory();
        bed.target.script(|script| script.holds = true);
        let load = Load::start(&session, &memory);
        bed.hcas[1].remove();
        let outcomes = load.finish().await;
        assert!(
            outcomes
                .iter()
                .all(|outcome| *outcome == Err(Error::ConnectionLost))
        );
        assert!(!restored.await.unwrap(), "given up");
        drop(session);
    })
    .unwrap();
}

/// The connection fails at a random moment of a load, again and again: with each mechanism of naming memory, and with
/// few credits, every command ends once, and the session recovers.
#[test]
fn a_connection_that_goes_at_any_moment_loses_nothing() {
    let ways = [
        Mechanism::FastReg,
        Mechanism::Fmr,
        Mechanism::Request,
        Mechanism::Published,
    ];
    for seed in 0..seeds(40) {
        let sim = Sim::new(seed);
        let mut draw = sim.draw();
        let (ended, lost) = sim
            .run(async {
                let bed = Bed::in_sim(&sim).await;
                bed.target
                    .script(|script| script.limit = 2 + draw.below(30) as i32);
                let options = Options {
                    mechanism: *draw.pick(&ways),
                    queue_depth: LOAD as u16,
                    ..Options::default()
                };
                let session = bed.login(options).await;
                let memory = memory();
                session.publish(&memory).await.unwrap();
                let (mut ended, mut lost) = (0, 0);
                for _ in 0..4 {
                    while !session.is_open() {
                        sim.sleep(Duration::from_millis(1)).await;
                    }
                    let load = Load::start(&session, &memory);
                    let moment = draw.duration(Duration::ZERO..=Duration::from_micros(300));
                    sim.sleep(moment).await;
                    bed.target.script(|script| script.hangs_up = true);
                    // The next command ends it, and there may be none left.
                    let _last = session.test_unit_ready(Lun(0)).await;
                    let outcomes = load.finish().await;
                    bed.target.script(|script| script.hangs_up = false);
                    ended += outcomes.len();
                    lost += outcomes.iter().filter(|outcome| outcome.is_err()).count();
                }
                while !session.is_open() {
                    sim.sleep(Duration::from_millis(1)).await;
                }
                works(&session).await;
                (ended, lost)
            })
            .unwrap();
        assert_eq!(ended, 4 * LOAD, "seed {seed}");
        println!("seed {seed}: {lost} of {ended} by the loss");
    }
}
