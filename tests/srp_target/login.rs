//! Which initiators are admitted, in which form, and what happens to existing channels.

use std::sync::Arc;
use std::time::Duration;

use ulp_srp::iu::{
    BufferFormats, DataBuffer, InitiatorLogout, LoginRejectReason, LogoutReason, MultiChannel,
    PortId, Status, Tag, TaskFunction, ToInitiator,
};
use ulp_srp::lun::{Fault, FaultUnit, MemoryUnit};
use ulp_srp::scsi::{Blocks, Code, Command, Sense};
use verbs_cm::wire::ServiceId;
use verbs_cm::{Manager, Route};
use verbs_core::Gid;
use verbs_core::mad::TimeCode;
use verbs_simulator::{LinkConfig, Sim};

use crate::raw::{AT, Raw, device, name, request, run, target, target_of};

#[test]
fn logins_that_ask_for_what_there_is_not_are_refused() {
    run(1, async |sim| {
        let target = target(sim, |config| {
            config.allow = Some(vec![name(7), name(8)]);
            config.channels_max = 2;
        })
        .await;
        let device = device(sim, 2);
        let right = request(7);
        let wrong = [
            (LoginRejectReason::IU_TOO_LARGE, {
                let mut req = right;
                req.max_iu_len = 63;
                req
            }),
            (LoginRejectReason::IU_TOO_LARGE, {
                let mut req = right;
                req.max_iu_len = 8261;
                req
            }),
            (LoginRejectReason::CANNOT_ASSOCIATE, {
                let mut req = right;
                req.target = PortId::default();
                req
            }),
            (LoginRejectReason::CANNOT_ASSOCIATE, request(9)),
            (LoginRejectReason::FORMAT, {
                let mut req = right;
                req.formats = BufferFormats::from_bits_retain(0x8000);
                req
            }),
            (LoginRejectReason::FORMAT, {
                let mut req = right;
                req.formats = BufferFormats::empty();
                req
            }),
            (LoginRejectReason::NO_MULTICHANNEL, {
                let mut req = right;
                req.channels = MultiChannel::from_code(3);
                req
            }),
        ];
        for (reason, req) in wrong {
            let refused = Raw::login(&device, &req).await.err();
            assert_eq!(refused, Some(reason), "{req:?}");
        }
        let noise = Raw::login_with(&device, &[0xff; 56]).await.err();
        assert_eq!(noise, Some(LoginRejectReason::CANNOT_ESTABLISH));

        let one = Raw::login(&device, &right).await.expect("it is right");
        assert_eq!(one.login.delta.0, 128);
        assert_eq!(one.login.channels, MultiChannel::SINGLE);
        assert!(one.login.immediate);
        assert_eq!(one.login.tag, right.tag);
        let other = Raw::login(&device, &request(8))
            .await
            .expect("there is room");
        let mut more = right;
        more.channels = MultiChannel::INDEPENDENT;
        let full = Raw::login(&device, &more).await.err();
        assert_eq!(full, Some(LoginRejectReason::CHANNEL_LIMIT));
        drop((one, other));
        target.close().await;
    });
}

#[test]
fn a_single_channel_replaces_those_before_and_others_are_kept() {
    run(2, async |sim| {
        let target = target(sim, |_| ()).await;
        let device = device(sim, 2);
        let mut first = Raw::new(&device, 7).await;
        let mut stranger = Raw::new(&device, 8).await;
        let mut more = request(7);
        more.channels = MultiChannel::INDEPENDENT;
        let mut second = Raw::login(&device, &more).await.expect("another channel");
        assert_eq!(second.login.channels, MultiChannel::MAINTAINED);
        first.settle().await;
        assert_eq!(target.channels().len(), 3);

        let mut third = Raw::new(&device, 7).await;
        assert_eq!(
            third.login.channels,
            MultiChannel::INDEPENDENT,
            "they were ended"
        );
        for old in [&mut first, &mut second] {
            let unit = old.next().await.expect("a goodbye");
            let Ok(ToInitiator::Logout(logout)) = ToInitiator::parse(&unit) else {
                panic!("{unit:?}");
            };
            assert_eq!(logout.reason, LogoutReason::MULTICHANNEL);
            assert!(old.is_ended().await);
        }
        assert_eq!(target.channels().len(), 2);
        stranger.settle().await;
        third.settle().await;

        // A logout is enough to end it.
        third.send(&InitiatorLogout { tag: Tag(1) }.unit());
        assert!(third.is_ended().await);
        sim.sleep(Duration::from_millis(1)).await;
        assert_eq!(target.channels().len(), 1);
        target.close().await;
        assert!(stranger.is_ended().await);
    });
}

/// The form of 64 bytes, for a service that has its own number and not a port of the RDMA connection manager.
#[test]
fn native_infiniband_logs_in_by_its_own_form() {
    run(3, async |sim| {
        let target = target(sim, |_| ()).await;
        let service = ServiceId(0x0200_00ff_fe00_0001);
        target.listen_service(service).await.unwrap();
        let device = device(sim, 2);
        let (pd, cq, rooms, qp) = Raw::objects(&device).await;
        let gid = |host| Gid::from(std::net::Ipv4Addr::new(10, 0, 0, host));
        let port = verbs_cm::Port {
            number: 1,
            ca_guid: verbs_core::Guid(2),
            link_layer: verbs_core::LinkLayer::Ethernet,
            lid: verbs_core::Lid(0),
            gids: vec![(0, gid(2))],
            mtu: verbs_core::Mtu::B1024,
            ack_delay: TimeCode::new(15),
            migrates: false,
        };
        let route = Route::roce(&port, gid(2), gid(1)).expect("it has this GID");
        let calling = Manager::of(&device)
            .connect_service(service, route, qp)
            .private_data(&request(7).unit());
        let raw = Raw::answered(calling.await, pd, cq, rooms).await;
        raw.expect("it is let in").settle().await;
        target.close().await;
    });
}

#[test]
fn an_initiator_that_dies_is_replaced_by_its_next_life() {
    run(4, async |sim| {
        let target = target(sim, |_| ()).await;
        let device = device(sim, 2);
        let first = Raw::new(&device, 7).await;
        // Nothing reaches the target.
        sim.network().set_up([10, 0, 0, 2].into(), false);
        drop(first);
        sim.sleep(Duration::from_millis(1)).await;
        sim.network().set_up([10, 0, 0, 2].into(), true);
        assert_eq!(target.channels().len(), 1, "nobody has told");
        let mut second = Raw::new(&device, 7).await;
        second.settle().await;
        assert_eq!(target.channels().len(), 1);
        target.close().await;
    });
}

/// A login whose sender never receives the answer: a forged datagram, from an unused address.
async fn forge(sim: &Sim, host: u8, number: u64) {
    sim.network().set_up([10, 0, 0, host].into(), true);
    let forger = device(sim, host);
    let (_pd, _cq, _rooms, qp) = Raw::objects(&forger).await;
    let login = request(number).emit_cm();
    let asked = verbs_cm::connect(&forger, AT, qp).private_data(&login);
    let before = sim.counts().packets;
    let gave_up = asked.issue(|_never| ());
    while sim.counts().packets == before {
        sim.sleep(DELAY / 10).await;
    }
    sim.network().set_up([10, 0, 0, host].into(), false);
    sim.sleep(DELAY).await;
    gave_up.cancel();
}

const DELAY: Duration = Duration::from_millis(1);

fn slow(sim: &Sim) {
    sim.network().set_all(LinkConfig {
        delay: DELAY,
        ..LinkConfig::default()
    });
}

/// Goal: a login that was never confirmed ends nothing, takes no channel's place, and does not delay the initiator
/// whose name it has. Method: forged datagrams under the name of one that is logged in.
#[test]
fn a_forged_login_ends_nothing() {
    run(5, async |sim| {
        slow(sim);
        let target = target(sim, |config| config.channels_max = 2).await;
        let mut honest = Raw::new(&device(sim, 2), 7).await;
        honest.settle().await;
        let mut other = Raw::new(&device(sim, 3), 8).await;
        for host in 10..14 {
            forge(sim, host, 7).await;
        }
        assert_eq!(target.half_open(), 4, "they have reached it");
        assert_eq!(target.channels().len(), 2);
        let ready = honest
            .ask(&Command::TestUnitReady, DataBuffer::None, DataBuffer::None)
            .await;
        assert_eq!(ready.status, Status::GOOD);
        // It logs in again at once, while they are still waited for.
        let before = sim.now();
        let mut again = Raw::new(&device(sim, 4), 7).await;
        again.settle().await;
        let took = sim.now().since(before);
        assert!(took < Duration::from_millis(100), "{took:?}");
        assert!(honest.is_ended().await);
        other.settle().await;
        sim.sleep(Duration::from_secs(120)).await;
        assert_eq!(target.half_open(), 0, "they are forgotten");
        assert_eq!(target.channels().len(), 2);
        target.close().await;
    });
}

/// Goal: one address has a few half-open logins, and takes no others' places.
#[test]
fn logins_of_one_address_push_out_their_own() {
    run(9, async |sim| {
        slow(sim);
        let target = target(sim, |config| {
            (config.half_open_max, config.half_open_per_source_max) = (8, 2);
        })
        .await;
        for host in [10, 11, 12, 12, 12, 12, 12, 12, 12, 12] {
            forge(sim, host, 7).await;
        }
        assert_eq!(target.half_open(), 4, "two of one, and one of each other");
        target.close().await;
    });
}

/// Goal: however many logins are never confirmed, others are admitted, from an address of their own and from one that
/// is also forged. Method: four times as many as there are places.
#[test]
fn logins_that_nobody_confirms_give_way() {
    run(6, async |sim| {
        slow(sim);
        let target = target(sim, |config| {
            (config.half_open_max, config.half_open_per_source_max) = (8, 2);
        })
        .await;
        for host in 10..42 {
            forge(sim, host, 7).await;
            assert!(target.half_open() <= 8);
        }
        assert_eq!(target.half_open(), 8);
        let mut honest = Raw::new(&device(sim, 2), 7).await;
        honest.settle().await;
        // The address of one of them, under another name.
        sim.network().set_up([10, 0, 0, 41].into(), true);
        let mut again = Raw::new(&device(sim, 41), 8).await;
        again.settle().await;
        assert_eq!(target.channels().len(), 2);
        // Closing does not wait for them.
        let before = sim.now();
        target.close().await;
        assert!(sim.now().since(before) < Duration::from_secs(1));
    });
}

/// Goal: of several logins under one name the last one stays, and the work of the previous ones has ended when it
/// begins. Method: a command of the first hangs in the unit while two others log in.
#[test]
fn the_last_of_several_logins_stays() {
    run(7, async |sim| {
        let unit = Arc::new(FaultUnit::new(Arc::new(
            MemoryUnit::new(1 << 20, 512).unwrap(),
        )));
        let target = target_of(sim, |_| (), Arc::<FaultUnit>::clone(&unit)).await;
        let device = device(sim, 2);
        let mut first = Raw::new(&device, 7).await;
        first.settle().await;
        unit.break_blocks(0, 1, Fault::Hang);
        let verify = Command::Verify(Blocks::new(0, 1));
        first.begin(&verify, DataBuffer::None, DataBuffer::None);
        sim.sleep(Duration::from_millis(1)).await;
        let mut second = Raw::new(&device, 7).await;
        let mut third = Raw::new(&device, 7).await;
        // A second connection of the third, for which no session is left to end.
        let mut more = request(7);
        more.channels = MultiChannel::INDEPENDENT;
        let mut fourth = Raw::login(&device, &more).await.expect("another channel");
        let tags = [&mut third, &mut fourth]
            .map(|raw| raw.begin(&Command::TestUnitReady, DataBuffer::None, DataBuffer::None));
        assert!(first.is_ended().await && second.is_ended().await);
        sim.sleep(Duration::from_millis(500)).await;
        let commands = target.counters().commands;
        assert_eq!(commands, 2, "the unit still works for the first one");
        unit.release();
        let answers = [third.answer(tags[0]).await, fourth.answer(tags[1]).await];
        let news = Some(Sense::attention(Code::POWER_ON));
        let told = answers.iter().filter(|answer| answer.sense == news);
        assert_eq!(told.count(), 1, "one nexus, and it is new");
        assert_eq!(target.channels().len(), 2);
        target.close().await;
    });
}

/// The target's own reports, as an administrator reads them.
#[test]
fn what_happens_is_told() {
    run(8, async |sim| {
        let target = target(sim, |config| config.allow = Some(vec![name(7)])).await;
        let told = Arc::new(verbs_core::sync::Mutex::new(Vec::new()));
        let telling = Arc::clone(&told);
        target.on_event(move |event| telling.lock().push(event.to_string()));
        let device = device(sim, 2);
        let _refused = Raw::login(&device, &request(8)).await.err();
        let mut first = Raw::new(&device, 7).await;
        first.settle().await;
        let reset = first.manage(TaskFunction::LUN_RESET, Tag(0));
        first.answer(reset).await;
        let mut second = Raw::new(&device, 7).await;
        assert!(first.is_ended().await);
        second.send(&InitiatorLogout { tag: Tag(1) }.unit());
        assert!(second.is_ended().await);
        sim.sleep(Duration::from_millis(1)).await;
        let told: Vec<String> = (told.lock().iter())
            .map(|line| {
                let words = line
                    .split(' ')
                    .map(|word| match word.contains("10.0.0.2:") {
                        true => "PEER",
                        false => word,
                    });
                words
                    .collect::<Vec<_>>()
                    .join(" ")
                    .replace(&name(7).to_string(), "7")
            })
            .collect();
        let refused = format!(
            "login of 0x{} from PEER refused: unable to associate the channel with a nexus",
            name(8)
        );
        let expected = [
            refused.as_str(),
            "0x7 at PEER has logged in",
            "0x7 at PEER asks for logical unit reset on unit 0",
            "0x7 at PEER has logged in",
            "0x7 at PEER was replaced by a new login",
            "0x7 at PEER has logged out",
        ];
        assert_eq!(told, expected);
        target.close().await;
    });
}
