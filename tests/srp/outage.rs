//! Lost sessions: they are established again for as long as configured, unless another initiator has taken their name.

use std::sync::Arc;
use std::time::Duration;

use ulp_srp::initiator::{Error, Event, Initiator, Options, Session, Target};
use ulp_srp::iu::{LoginRejectReason, LogoutReason, Lun, MultiChannel, PortId};
use verbs_core::Guid;
use verbs_core::sync::Mutex;
use verbs_simulator::Sim;

use crate::bed::{AT, Bed};
use crate::script::Script;

/// The events of a session, without the asynchronous ones.
type Told = Arc<Mutex<Vec<Said>>>;

#[derive(Clone, Debug, PartialEq)]
enum Said {
    Lost(Error),
    Restored(u32),
    GivenUp(Error),
}

async fn login(bed: &Bed, options: Options) -> (Session, Told) {
    let told = Told::default();
    let telling = Arc::clone(&told);
    let initiator = Initiator::new(&bed.initiator, options).on_event(move |event| {
        let said = match event {
            Event::Lost { error } => Said::Lost(error.clone()),
            Event::Restored { attempts } => Said::Restored(attempts),
            Event::GivenUp { error } => Said::GivenUp(error.clone()),
            _ => return,
        };
        telling.lock().push(said);
    });
    let target: Target = AT.parse().unwrap();
    (initiator.login(target).await.unwrap(), told)
}

/// Makes the target end the session at its next command.
async fn lose(bed: &Bed, session: &Session, change: impl FnOnce(&mut Script)) -> Error {
    bed.target.script(change);
    let lost = session.test_unit_ready(Lun(0)).await;
    lost.unwrap_err().into()
}

fn logins(bed: &Bed) -> usize {
    bed.target.state.lock().logins.len()
}

/// Goal: a target that is away for longer than a few quick attempts is logged in to again, for ever by default. Method:
/// it refuses every login at once, as Linux does while its target is disabled, for 4 minutes; the pauses are the
/// documented ones.
#[test]
fn a_target_that_refuses_for_minutes_is_found_again() {
    let sim = Sim::new(1);
    sim.run(async {
        let bed = Bed::in_sim(&sim).await;
        let (session, told) = login(&bed, Options::default()).await;
        assert_eq!(session.opened().await, Ok(0));
        let reason = LoginRejectReason::NO_RESOURCES;
        let lost = lose(&bed, &session, |script| {
            (script.hangs_up, script.rejects) = (true, Some(reason));
        });
        assert_eq!(lost.await, Error::ConnectionLost);
        sim.sleep(Duration::from_secs(20)).await;
        // At once, and after 10, 20, ... 5,120 and 10,000 ms: 20.2 s have not passed.
        assert_eq!(logins(&bed), 1 + 11);
        sim.sleep(Duration::from_secs(220)).await;
        assert_eq!(logins(&bed), 1 + 33, "one in 10 s");
        let refused = session.test_unit_ready(Lun(0)).await.unwrap_err();
        assert_eq!(Error::from(refused), Error::Reconnecting);
        bed.target.script(|script| *script = Script::default());
        let before = sim.now();
        assert_eq!(session.opened().await, Ok(1));
        assert!(sim.now().since(before) <= Duration::from_secs(10));
        session.test_unit_ready(Lun(0)).await.unwrap();
        let told = told.lock().clone();
        assert_eq!(
            told,
            [Said::Lost(Error::ConnectionLost), Said::Restored(34)]
        );
    })
    .unwrap();
}

/// Goal: the time limit is kept, whether a target refuses or does not answer, and the reason is reported.
#[test]
fn a_session_is_given_up_when_its_time_is_over() {
    for answers in [true, false] {
        let sim = Sim::new(2);
        sim.run(async {
            let bed = Bed::in_sim(&sim).await;
            let limit = Duration::from_secs(12);
            let options = Options {
                reconnect_timeout: Some(limit),
                ..Options::default()
            };
            let (session, told) = login(&bed, options).await;
            let reason = LoginRejectReason::NO_RESOURCES;
            lose(&bed, &session, |script| {
                (script.hangs_up, script.rejects) = (true, Some(reason));
            })
            .await;
            sim.network().set_up([10, 0, 0, 2].into(), answers);
            let before = sim.now();
            let over = session.over().await;
            let took = sim.now().since(before);
            assert!(
                took <= limit && took > limit - Duration::from_secs(1),
                "{took:?}"
            );
            let last = match answers {
                true => Error::Rejected(reason),
                false => Error::NoAnswer(Duration::from_secs(5)),
            };
            let expected = Error::GivenUp {
                after: limit,
                error: Box::new(last),
            };
            assert_eq!(over, expected);
            assert_eq!(session.opened().await, Err(expected.clone()));
            let told = told.lock().clone();
            assert_eq!(told.last(), Some(&Said::GivenUp(expected)));
        })
        .unwrap();
    }
}

/// Goal: a session that is pushed out reports that, ends, and does not push the other one out in turn.
#[test]
fn a_session_whose_name_is_taken_ends_and_does_not_come_back() {
    let sim = Sim::new(3);
    sim.run(async {
        let bed = Bed::in_sim(&sim).await;
        let name = PortId {
            extension: 1,
            guid: Guid(2),
        };
        let (session, told) = login(&bed, Options::new(name)).await;
        assert_eq!(session.initiator(), name);
        let lost = lose(&bed, &session, |script| {
            script.logs_out = Some(LogoutReason::MULTICHANNEL);
        });
        let error = Error::Replaced(name);
        assert_eq!(lost.await, error);
        assert_eq!(
            error.to_string(),
            "another initiator logged in under this name (0x00000000000000010000000000000002)"
        );
        assert_eq!(session.over().await, error);
        sim.sleep(Duration::from_secs(60)).await;
        assert_eq!(logins(&bed), 1);
        assert_eq!(told.lock().clone(), [Said::GivenUp(error)]);
        drop(session);

        // After any other reason it is established again.
        bed.target.script(|script| *script = Script::default());
        let (session, told) = login(&bed, Options::new(name)).await;
        lose(&bed, &session, |script| {
            script.logs_out = Some(LogoutReason::UNSPECIFIED);
        })
        .await;
        bed.target.script(|script| *script = Script::default());
        assert_eq!(session.opened().await, Ok(1));
        let ended = Error::Ended(LogoutReason::UNSPECIFIED);
        assert_eq!(told.lock()[0], Said::Lost(ended));
    })
    .unwrap();
}

/// Goal: a target that ends every session as soon as it is established is asked as often as one that refuses.
#[test]
fn a_target_that_ends_every_session_is_not_asked_all_the_time() {
    let sim = Sim::new(4);
    sim.run(async {
        let bed = Bed::in_sim(&sim).await;
        let (session, _) = login(&bed, Options::default()).await;
        bed.target.script(|script| script.hangs_up = true);
        let asking = async {
            loop {
                session.opened().await.unwrap();
                let _lost = session.test_unit_ready(Lun(0)).await;
            }
        };
        let minute = std::pin::pin!(sim.sleep(Duration::from_secs(60)));
        futures::future::select(std::pin::pin!(asking), minute).await;
        let logins = logins(&bed);
        assert!((12..=17).contains(&logins), "{logins} logins in a minute");
    })
    .unwrap();
}

/// Goal: the channels of a session belong to one login. Method: one of three ends; commands that name the previous
/// login are not sent over the channels of the next.
#[test]
fn the_channels_of_a_session_go_and_come_together() {
    let sim = Sim::new(5);
    sim.run(async {
        let bed = Bed::in_sim(&sim).await;
        let options = Options {
            channels: 3,
            ..Options::default()
        };
        let (session, told) = login(&bed, options).await;
        lose(&bed, &session, |script| script.hangs_up = true).await;
        bed.target.script(|script| *script = Script::default());
        assert_eq!(session.opened().await, Ok(1));
        let logins: Vec<_> = (bed.target.state.lock().logins.iter())
            .map(|login| (login.channels, login.initiator))
            .collect();
        let name = session.initiator();
        let [first, other] = [MultiChannel::SINGLE, MultiChannel::INDEPENDENT];
        let all = [first, other, other].map(|channels| (channels, name));
        assert_eq!(logins, [all, all].concat());
        assert_eq!(told.lock().len(), 2, "lost once, restored once");
        let cdb = [0; 6];
        let command = ulp_srp::initiator::Command {
            cdb: ulp_srp::iu::Cdb::new(&cdb).unwrap(),
            lun: Lun(0),
            attribute: ulp_srp::iu::TaskAttribute::SIMPLE,
            data: ulp_srp::initiator::Data::None,
        };
        let old = session.run_on(0, &command).await;
        assert_eq!(old, Err(Error::Reconnecting));
        assert!(session.run_on(1, &command).await.unwrap().is_good());
        session.logout().await;
        assert_eq!(bed.target.state.lock().logouts, 3);
    })
    .unwrap();
}

/// Goal: no two sessions have one name, unless configured to.
#[test]
fn sessions_have_names_of_their_own() {
    let sim = Sim::new(6);
    sim.run(async {
        let bed = Bed::in_sim(&sim).await;
        let guid = bed.initiator.query().await.unwrap().node_guid;
        let mut names = std::collections::BTreeSet::new();
        for _ in 0..3 {
            let (session, _) = login(&bed, Options::default()).await;
            let name = session.initiator();
            assert_eq!(name.guid, guid);
            assert_eq!(
                bed.target.state.lock().logins.pop().unwrap().initiator,
                name
            );
            assert!(names.insert(name.extension), "{name} was there before");
        }
    })
    .unwrap();
}

/// Goal: a silent target is waited for no longer than a login may take.
#[test]
fn a_login_that_is_not_answered_ends_in_time() {
    let sim = Sim::new(7);
    sim.run(async {
        let bed = Bed::in_sim(&sim).await;
        sim.network().set_up([10, 0, 0, 2].into(), false);
        let before = sim.now();
        let initiator = Initiator::new(&bed.initiator, Options::default());
        let refused = initiator.login(AT.parse().unwrap()).await.unwrap_err();
        let said = refused.to_string();
        assert!(said.contains("did not answer within 5s"), "{said}");
        let took = sim.now().since(before);
        assert_eq!(took.as_secs(), 5);
    })
    .unwrap();
}
