//! The port's service for management datagrams, and the users of queue pairs for datagrams. All in virtual time on one
//! thread: nothing here has a thread of its own.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::executor::{LocalPool, block_on};
use futures::future::join;
use futures::task::LocalSpawnExt;
use hca_sim::Hca;
use hca_sim::clock::VirtualClock;
use hca_sim::extension::PacketCounters;
use hca_sim::link::{Cable, PacketLink};
use verbs_cm::{CONNECT_TIMEOUT, Error, Manager, UDP_QKEY, listen_datagrams, resolve_service};
use verbs_core::mad::header::{emit_header, header_of};
use verbs_core::mad::{
    Address, AgentError, AttributeId, Class, Delivery, MadArrival, MadBytes, MadClient, MadHeader,
    MadService, MadVerdict, Method, Retry, Status,
};
use verbs_core::sync::{Mutex, Weak};
use verbs_core::{
    AnyCommand, Av, Device, Gid, Provider, ProviderAttr, Psn, QpType, Qpn, Recv, RequestId, Send,
    Timer, Wc, WcOpcode,
};
use verbs_simulator::Sim;

use crate::ends::Host;

/// Answers requests for its ClassPortInfo, and marks the answer in the class-specific field.
struct Answers(Arc<Hca>);

const MARK: u16 = 0x5eed;

impl Provider for Answers {
    fn issue(&self, command: AnyCommand<'_>) {
        self.0.issue(command);
    }

    fn cancel(&self, id: RequestId) {
        self.0.cancel(id);
    }

    fn query_provider(&self, port: u8) -> ProviderAttr {
        self.0.query_provider(port)
    }

    fn timer(&self) -> Option<Arc<dyn Timer>> {
        self.0.timer()
    }

    fn process_mad(&self, incoming: &MadArrival<'_>, reply: &mut MadBytes) -> MadVerdict {
        assert!(verbs_core::no_block());
        let header = MadHeader::parse(header_of(incoming.mad));
        if header.class != Class::PERF || header.method != Method::GET {
            return MadVerdict::NotMine;
        }
        assert_eq!((incoming.qpn, incoming.src_qpn), (Qpn::new(1), Qpn::new(1)));
        *reply = *incoming.mad;
        let answer = MadHeader {
            class_specific: MARK,
            ..header.response(Status::OK)
        };
        emit_header(&answer, reply);
        MadVerdict::Reply
    }
}

#[derive(Default)]
struct Inbox(Mutex<Vec<Delivery>>);

impl MadClient for Inbox {
    fn deliver(&self, delivery: Delivery) {
        self.0.lock().push(delivery);
    }
}

fn question(class: Class, version: u8) -> MadBytes {
    let mut mad = [0; 256];
    let header = MadHeader {
        base_version: MadHeader::BASE_VERSION,
        class,
        class_version: version,
        method: Method::GET,
        attribute: AttributeId::CLASS_PORT_INFO,
        ..MadHeader::default()
    };
    emit_header(&header, &mut mad);
    mad
}

#[test]
fn the_device_answers_in_the_handler_and_agents_get_the_rest() {
    let sim = Sim::new(5);
    let addrs = [1, 2].map(|n| IpAddr::from([10, 0, 0, n]));
    let devices = addrs.map(|addr| {
        let port = sim.network().attach(&[addr]);
        let hca = Hca::over(port).clock(sim.clock().clone()).build();
        let provider: Arc<dyn Provider> = Arc::new(Answers(hca));
        Device::open(provider).wait().unwrap()
    });
    let inbox = Arc::new(Inbox::default());
    let done = sim.run(async {
        let asks = MadService::of(&devices[0], 1).await.unwrap();
        let answers = MadService::of(&devices[1], 1).await.unwrap();
        let client: Arc<dyn MadClient> = Arc::<Inbox>::clone(&inbox);
        let client: Weak<dyn MadClient> = Arc::downgrade(&client);
        let register =
            |class, methods: &[Method]| asks.register(class, 1, methods, Weak::clone(&client));
        let agent = register(Class::PERF, &[]).unwrap();
        let to = Address::gsi(Av::to_gid(1, 0, Gid::from(addrs[1])));

        let asked = agent
            .request(to, &question(Class::PERF, 1), Retry::default())
            .unwrap();
        sim.sleep(Duration::from_millis(1)).await;
        let got = inbox.0.lock().pop();
        let Some(Delivery::Response { tid, mad, .. }) = got else {
            panic!("{got:?}");
        };
        assert_eq!(tid, asked);
        assert_eq!(MadHeader::parse(header_of(&mad)).class_specific, MARK);

        // E10: a method of a class has one owner.
        let _devices = register(Class::DEV_MGT, &[Method::GET]).unwrap();
        let taken = register(Class::DEV_MGT, &[Method::SET, Method::GET]).unwrap_err();
        assert!(matches!(taken, AgentError::Taken { .. }), "{taken}");

        // The peer has no such service: the local one asks again, and gives up in time.
        let bm = register(Class::BM, &[]).unwrap();
        let retry = Retry {
            timeout: Duration::from_secs(1),
            retries: 2,
        };
        bm.request(to, &question(Class::BM, 1), retry).unwrap();
        sim.sleep(Duration::from_millis(2900)).await;
        assert!(inbox.0.lock().is_empty());
        sim.sleep(Duration::from_millis(200)).await;
        assert!(matches!(
            inbox.0.lock().pop(),
            Some(Delivery::TimedOut { .. })
        ));
        assert_eq!(
            answers.counters().unclaimed,
            3,
            "the first, and twice again"
        );
        // E11: the queue pair belongs to the service, and there is one service.
        let again = MadService::of(&devices[0], 1).await.unwrap();
        assert_eq!(again.pending(), 0);
    });
    done.unwrap();
    for device in devices {
        device.close().wait().expect("the service has gone");
    }
}

/// A queue pair for datagrams with a receive posted.
async fn datagrams(host: &Host) -> verbs_core::Qp {
    let mut qp = host.qp_of(QpType::Ud);
    qp.init_datagram(1, UDP_QKEY).await.unwrap();
    qp.post_recv(Recv::new(1).into(host.mr.slice(0..128)))
        .unwrap();
    qp.ready_to_receive_datagrams().await.unwrap();
    qp.ready_to_send(Psn::new(0)).await.unwrap();
    qp
}

async fn received(host: &mut Host) -> u32 {
    loop {
        host.cq.ready().await.unwrap();
        let mut wcs = [Wc::default(); 1];
        for wc in host.cq.poll(&mut wcs).iter() {
            assert!(wc.is_ok(), "{wc:?}");
            if wc.opcode == WcOpcode::Recv {
                return wc.byte_len - 40;
            }
        }
    }
}

#[test]
fn services_for_datagrams_are_found() {
    let sim = Sim::new(6);
    let client = Host::in_sim(&sim, IpAddr::from([10, 0, 0, 1]));
    let mut server = Host::in_sim(&sim, IpAddr::from([10, 0, 0, 2]));
    let done = sim.run(async {
        let mut listener = listen_datagrams(&server.device, "10.0.0.2:7174")
            .await
            .unwrap();
        let serves = datagrams(&server).await;
        let mut asks = datagrams(&client).await;
        let finds = resolve_service(&client.device, "10.0.0.2:7174", b"who?");
        let answers = async {
            let question = listener.accept().await;
            assert_eq!(&question.private_data()[..5], b"who?\0");
            question.answer(&serves, UDP_QKEY, b"me").unwrap();
        };
        let (found, ()) = join(finds.into_future(), answers).await;
        let found = found.unwrap();
        assert_eq!(
            (found.qpn, &found.private_data[..3]),
            (serves.qpn(), &b"me\0"[..])
        );
        let to = found.datagram();
        asks.post_send(Send::new(2).inline(b"seven b").to(&to))
            .unwrap();
        assert_eq!(received(&mut server).await, 7);

        let nobody = resolve_service(&client.device, "10.0.0.2:1", b"").await;
        assert!(matches!(nobody, Err(Error::NoService { .. })), "{nobody:?}");
        let finds = resolve_service(&client.device, "10.0.0.2:7174", b"");
        let drops = async { drop(listener.accept().await) };
        let (dropped, ()) = join(finds.into_future(), drops).await;
        let said = dropped.unwrap_err().to_string();
        assert!(said.ends_with("the service rejected the request"), "{said}");
    });
    done.unwrap();
    client.close();
    server.close();
}

/// Goal: a request without an answer ends in time, after 5 s by default, and is sent several times until then, so that
/// a host that starts late answers. Method: a host without a connection manager, which has one later.
#[test]
fn a_question_about_a_service_has_a_time() {
    let sim = Sim::new(8);
    let client = Host::in_sim(&sim, IpAddr::from([10, 0, 0, 1]));
    let server = Host::in_sim(&sim, IpAddr::from([10, 0, 0, 2]));
    let at = "10.0.0.2:7174";
    let done = sim.run(async {
        let sent = || {
            let packets = client.device.call::<PacketCounters>(()).wait().unwrap();
            packets.sent
        };
        for (asked, expected) in [(None, CONNECT_TIMEOUT), (Some(1), Duration::from_secs(1))] {
            let (begun, before) = (sim.now(), sent());
            let question = resolve_service(&client.device, at, b"");
            let answer = match asked {
                Some(secs) => question.timeout(Duration::from_secs(secs)).await,
                None => question.await,
            };
            let error = answer.unwrap_err();
            let is_late = matches!(error, Error::NoAnswer { timeout, .. } if timeout == expected);
            assert!(is_late, "{error}");
            assert_eq!(sim.now() - begun, expected);
            assert_eq!(sent() - before, 5, "the first, and four times again");
        }
        let finds = resolve_service(&client.device, at, b"");
        let comes = async {
            sim.sleep(Duration::from_secs(3)).await;
            let mut listener = listen_datagrams(&server.device, at).await.unwrap();
            let serves = datagrams(&server).await;
            let question = listener.accept().await;
            question.answer(&serves, UDP_QKEY, b"").unwrap();
            // Its answer has to be sent before it is dropped.
            sim.sleep(Duration::from_secs(1)).await;
            serves.qpn()
        };
        let (found, serves) = join(finds.into_future(), comes).await;
        assert_eq!(found.unwrap().qpn, serves);
    });
    done.unwrap();
    client.close();
    server.close();
}

/// Goal: a caller that waits for what was sent waits until the port has taken all of it, and for nothing that was sent
/// later; and no longer than the device exists. Method: a cable with room for one packet, from which only the test
/// takes packets.
#[test]
fn what_was_sent_has_left_when_it_is_said_so() {
    let [here, there] = [1, 2].map(|n| IpAddr::from([10, 0, 0, n]));
    let cable = Cable::new().burst_limit(1).room(1);
    let (link, mut other) = cable.plug(&[here], &[there]);
    let clock = VirtualClock::new();
    let hca = Hca::over(link).clock(clock.clone()).build();
    let device = hca.open().wait().unwrap();
    let service = block_on(MadService::of(&device, 1)).unwrap();
    let client: Weak<Inbox> = Weak::new();
    let agent = service.register(Class::CM, 2, &[], client).unwrap();
    let to = Address::gsi(Av::to_gid(1, 0, Gid::from(there)));
    let send = |count| agent.send((0..count).map(|_| (to, question(Class::CM, 2))));
    let (mut pool, over) = (LocalPool::new(), Rc::new(RefCell::new(Vec::new())));
    let spawner = pool.spawner();
    let wait = |sent: usize| {
        let (over, drained) = (Rc::clone(&over), service.drained());
        let wait = drained.map(move |()| over.borrow_mut().push(sent));
        spawner.spawn_local(wait).unwrap();
    };

    wait(0);
    send(8);
    wait(8);
    send(4);
    wait(12);
    for taken in 0..12 {
        pool.run_until_stalled();
        // One is in the cable, and the port takes some in advance.
        let under_way = taken + 4;
        assert!(over.borrow().iter().all(|&sent| sent <= under_way));
        assert_eq!(other.receive(&mut |_| {}), 1);
        clock.advance(Duration::from_millis(1));
        while hca.turn() {}
    }
    pool.run_until_stalled();
    assert_eq!(*over.borrow(), [0, 8, 12]);
    send(8);
    wait(20);
    pool.run_until_stalled();
    assert_eq!(over.borrow().len(), 3);
    hca.remove();
    pool.run_until_stalled();
    assert_eq!(*over.borrow(), [0, 8, 12, 20], "nothing leaves any more");
}

#[test]
fn groups_are_joined_by_address() {
    let (link, _other) = Cable::new().plug(&[[10, 0, 0, 1].into()], &[[10, 0, 0, 2].into()]);
    let clock = VirtualClock::new();
    let mut host = Host::on(Hca::over(link).clock(clock).build());
    block_on(async {
        let manager = Manager::of(&host.device);
        let group = IpAddr::from([239, 1, 2, 3]);
        let mut qp = datagrams(&host).await;
        let member = manager.join(&qp, group).await.unwrap();
        assert_eq!(member.mgid(), Gid::from(group));
        let to = member.datagram();
        qp.post_send(Send::new(2).inline(b"to all").to(&to))
            .unwrap();
        while host.hca.turn() {}
        assert_eq!(received(&mut host).await, 6);
        member.leave().await.unwrap();
        let unicast = manager.join(&qp, IpAddr::from([10, 0, 0, 9])).await;
        assert!(matches!(unicast, Err(Error::NoRoute(_))), "{unicast:?}");
        let connected = manager.join(&host.qp(), group).await;
        assert!(matches!(connected, Err(Error::QpType)), "{connected:?}");
    });
    host.close();
}
