//! Connections to a service by its number, without addresses.

use std::net::IpAddr;

use futures::future::join;
use verbs_cm::wire::ServiceId;
use verbs_cm::{Calling, ConnParam, Manager, Route};
use verbs_core::mad::{Bits, TimeCode};
use verbs_core::{Av, Gid, Mtu, PKey, QpType};
use verbs_simulator::Sim;

use crate::ends::Host;

const SERVICE: ServiceId = ServiceId(0x1000_0000_0000_0077);

fn gid(number: u8) -> Gid {
    IpAddr::from([10, 0, 0, number]).into()
}

/// From host 1 to host 2.
fn route() -> Route {
    Route {
        av: Av::to_gid(1, 0, gid(2)),
        local_gid: gid(1),
        remote_gid: gid(2),
        pkey: (PKey::DEFAULT, 0),
        mtu: Mtu::B1024,
        packet_lifetime: TimeCode::new(10),
        rate: Bits::truncated(3),
        is_subnet_local: false,
    }
}

/// A call from the first host to the second, which takes it, of queue pairs of that type; what the second was asked for,
/// as depths of READs.
fn called(qp_type: QpType, change: impl FnOnce(Calling) -> Calling) -> [u8; 2] {
    let sim = Sim::new(11);
    let [mut client, mut server] =
        [1, 2].map(|number| Host::in_sim(&sim, [10, 0, 0, number].into()));
    let managers = [&client, &server].map(|host| Manager::of(&host.device));
    let asked = sim.run(async {
        let mut listener = managers[1].listen_service(SERVICE, 2).await.unwrap();
        let calling = managers[0].connect_service(SERVICE, route(), client.qp_of(qp_type));
        let answers = async {
            let request = listener.accept().await;
            let asked = [request.responder_resources(), request.initiator_depth()];
            (asked, request.accept(server.qp_of(qp_type)).await)
        };
        let (connected, (asked, accepted)) =
            join(change(calling).step().into_future(), answers).await;
        let (mut connected, mut accepted) = (connected.unwrap(), accepted.unwrap());
        let talk = join(
            client.ask(&mut connected, b"ping"),
            server.answer(&mut accepted, b"pong"),
        );
        assert_eq!(talk.await, (b"pong".to_vec(), b"ping".to_vec()));
        connected.close().await.unwrap();
        asked
    });
    drop(managers);
    client.close();
    server.close();
    asked.unwrap()
}

/// Goal: both services that have connections can be called by a number, each for what it is.
#[test]
fn a_service_is_called_by_its_number() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        called(qp_type, |calling| calling);
    }
}

/// Goal: who asks for more READs and atomics at a time than its device has gets as many as there are, and the peer is not
/// asked for more.
#[test]
fn depths_are_those_that_the_device_has() {
    let depths = |n| {
        called(QpType::Rc, |calling| {
            calling.param(ConnParam {
                responder_resources: n,
                initiator_depth: n,
                ..ConnParam::default()
            })
        })
    };
    let most = depths(u8::MAX);
    assert!(
        most.iter().all(|&depth| depth > 4 && depth < u8::MAX),
        "{most:?}"
    );
    assert_eq!(depths(3), [3, 3]);
}

/// Goal: a number that nobody listens for is refused with that reason, and the queue pair comes back.
#[test]
fn a_number_without_a_listener_is_refused() {
    let sim = Sim::new(12);
    let [client, server] = [1, 2].map(|number| Host::in_sim(&sim, [10, 0, 0, number].into()));
    let managers = [&client, &server].map(|host| Manager::of(&host.device));
    let refused = sim.run(async {
        managers[1].open().await.unwrap();
        let calling = managers[0].connect_service(SERVICE, route(), client.qp());
        calling.step().await.unwrap_err()
    });
    let refused = refused.unwrap();
    assert!(refused.qp.is_some());
    let said = refused.error.to_string();
    assert!(said.starts_with("nobody listens"), "{said}");
    drop((managers, refused));
    client.close();
    server.close();
}
