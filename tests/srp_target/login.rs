//! Who is let in, in which form, and what becomes of channels that there are.

use ulp_srp::iu::{
    BufferFormats, InitiatorLogout, LoginRejectReason, LogoutReason, MultiChannel, PortId, Tag,
    ToInitiator,
};
use verbs_cm::wire::ServiceId;
use verbs_cm::{Manager, Route};
use verbs_core::Gid;
use verbs_core::mad::TimeCode;

use crate::raw::{Raw, device, name, request, run, target};

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

        // Logging out is enough to be gone.
        third.send(&InitiatorLogout { tag: Tag(1) }.unit());
        assert!(third.is_ended().await);
        sim.sleep(std::time::Duration::from_millis(1)).await;
        assert_eq!(target.channels().len(), 1);
        target.close().await;
        assert!(stranger.is_ended().await);
    });
}

/// The form of 64 bytes, for a service that has its own number and not a port of the RDMA connection
/// manager.
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
        // Not a word reaches the target.
        sim.network().set_up([10, 0, 0, 2].into(), false);
        drop(first);
        sim.sleep(std::time::Duration::from_millis(1)).await;
        sim.network().set_up([10, 0, 0, 2].into(), true);
        assert_eq!(target.channels().len(), 1, "nobody has told");
        let mut second = Raw::new(&device, 7).await;
        second.settle().await;
        assert_eq!(target.channels().len(), 1);
        target.close().await;
    });
}
