//! Extended reliable connections: an initiator and a target, connected by address.

use std::future::IntoFuture;

use futures::executor::block_on;
use futures::future::join;
use hca_sim::{Hca, Loopback, Udp};
use verbs_cm::resolver::Fixed;
use verbs_cm::{Error, Manager, connect, listen};
use verbs_core::sync::Arc;
use verbs_core::{Gid, QpInit, QpType, Recv, Send, Srqn, Wc, WcStatus};
use verbs_simulator::Sim;

use crate::ends::Host;

const AT: &str = "10.0.0.2:7174";

/// Waits for one completion of a queue.
async fn one(cq: &mut verbs_core::Cq) -> Wc {
    let mut wcs = [Wc::default(); 1];
    loop {
        if let [wc] = *cq.poll(&mut wcs) {
            return wc;
        }
        cq.ready().await.unwrap();
    }
}

/// Goal: a target is connected to an initiator, which learns the numbers of two shared receive queues by private data
/// and reaches both; the end of the connection is told. Method: programs as users would write them.
async fn meet(client: &mut Host, server: &mut Host, at: &str) {
    let domain = server.device.alloc_xrcd().await.unwrap();
    let mut queues = Vec::new();
    for wr_id in 0..2 {
        let cq = server.device.create_cq(8).await.unwrap();
        let srq = server.pd.create_xrc_srq(&domain, &cq, 8, 1).await;
        let mut srq = srq.unwrap();
        let place = server.mr.slice(64 * wr_id..64 * wr_id + 64);
        srq.post_recv(Recv::new(wr_id as u64).into(place)).unwrap();
        queues.push((srq, cq));
    }
    let init = QpInit::xrc(&client.cq).inline(64);
    let initiator = client.pd.create_qp(init).await.unwrap();
    let mut listener = listen(&server.device, at).extended().await.unwrap();
    let asks = connect(&client.device, at, initiator);
    let answers = async {
        let request = listener.accept().await;
        assert_eq!(request.qp_type(), QpType::XrcRecv);
        let target = domain.create_target_qp().await.unwrap();
        let numbers: Vec<u8> = queues
            .iter()
            .flat_map(|(srq, _)| srq.srqn().value().to_be_bytes())
            .collect();
        request.accept(target).private_data(&numbers).await
    };
    let (asked, answered) = join(asks.into_future(), answers).await;
    let (mut asked, answered) = (asked.unwrap(), answered.unwrap());
    let numbers: Vec<Srqn> = asked.private_data()[..8]
        .chunks_exact(4)
        .map(|bytes| Srqn::new(u32::from_be_bytes(bytes.try_into().unwrap())))
        .collect();
    for (wr_id, (srqn, (_, cq))) in numbers.iter().zip(&mut queues).enumerate() {
        let send = Send::new(7).inline(b"to that queue").srq(*srqn).signaled();
        asked.post_send(send).unwrap();
        let came = one(cq).await;
        assert_eq!((came.status, came.wr_id), (WcStatus::Success, wr_id as u64));
        assert_eq!(one(&mut client.cq).await.status, WcStatus::Success);
        let mut text = [0; 13];
        server.mr.read(64 * wr_id, &mut text).unwrap();
        assert_eq!(&text, b"to that queue");
    }
    let closed = answered.closed();
    asked.close().await.unwrap();
    closed.await.unwrap();
    answered.close().await.unwrap();
    for (srq, cq) in queues {
        srq.destroy().await.unwrap();
        cq.destroy().await.unwrap();
    }
    domain.dealloc().await.unwrap();
}

#[test]
fn over_a_simulated_network() {
    let sim = Sim::new(6);
    let mut client = Host::in_sim(&sim, "10.0.0.1".parse().unwrap());
    let mut server = Host::in_sim(&sim, "10.0.0.2".parse().unwrap());
    sim.run(meet(&mut client, &mut server, AT)).unwrap();
    client.close();
    server.close();
}

#[test]
fn over_a_loopback_link() {
    let link = Loopback::with_seed(6);
    let [mut client, mut server] = [(); 2].map(|()| Host::on(Hca::on(&link).build()));
    let way = |table: Fixed, (host, number): (&Host, u8)| {
        let gid: Gid = host.hca.gid();
        table.way([10, 0, 0, number].into(), gid, Some(host.hca.lid()))
    };
    let table = [&client, &server]
        .into_iter()
        .zip(1..)
        .fold(Fixed::new(), way);
    let table = Arc::new(table);
    let managers = [&client, &server].map(|host| Manager::of(&host.device));
    for manager in &managers {
        let table = Arc::<Fixed>::clone(&table);
        manager.use_resolver(table).wait().unwrap();
    }
    block_on(meet(&mut client, &mut server, AT));
    drop(managers);
    client.close();
    server.close();
}

#[test]
fn over_udp() {
    let hosts = ["127.0.0.43", "127.0.0.44"].map(|text| {
        let link = Udp::bind(&[text.parse().unwrap()]).unwrap();
        Host::on(Hca::over(link).build())
    });
    let [mut client, mut server] = hosts;
    block_on(meet(&mut client, &mut server, "127.0.0.44:7174"));
    client.close();
    server.close();
}

/// Goal: a listener that does not take them refuses them on the wire, and a queue pair of another type than was asked
/// for is not used; the initiator comes back for another attempt.
#[test]
fn who_has_no_target_refuses() {
    let sim = Sim::new(7);
    let client = Host::in_sim(&sim, "10.0.0.1".parse().unwrap());
    let server = Host::in_sim(&sim, "10.0.0.2".parse().unwrap());
    sim.run(async {
        let initiator = client.pd.create_qp(QpInit::xrc(&client.cq)).await.unwrap();
        let plain = listen(&server.device, AT).await.unwrap();
        let refused = connect(&client.device, AT, initiator).await.unwrap_err();
        assert!(matches!(refused.error, Error::Rejected(_)), "{refused}");
        drop(plain);
        let mut listener = listen(&server.device, AT).extended().await.unwrap();
        let asks = connect(&client.device, AT, refused.qp.unwrap());
        let answers = async { listener.accept().await.accept(server.qp()).await };
        let (asked, answered) = join(asks.into_future(), answers).await;
        assert!(matches!(answered.unwrap_err().error, Error::QpType));
        assert!(matches!(asked.unwrap_err().error, Error::Rejected(_)));
        // The others are taken as ever.
        let asks = connect(&client.device, AT, client.qp());
        let answers = async { listener.accept().await.accept(server.qp()).await };
        let (asked, answered) = join(asks.into_future(), answers).await;
        drop((asked.unwrap(), answered.unwrap()));
    })
    .unwrap();
    client.close();
    server.close();
}
