//! Alternate paths that the connection manager loads.

use std::future::IntoFuture;
use std::time::Duration;

use futures::future::join;
use verbs_cm::resolver::Fixed;
use verbs_cm::{Alternate, CmError, Connection, Error, Manager, PathError, connect, listen};
use verbs_core::sync::Arc;
use verbs_core::{Atomic, EventType, Lid, MigState, Qp, QpInit};

use crate::bed::{Bed, End, LIDS};

/// The path between the LIDs of that number, for the first host.
fn other(number: u8) -> Alternate {
    Alternate::Lids {
        src_path_bits: number,
        dlid: Lid(LIDS[1].0 + u16::from(number)),
    }
}

/// Two programs that are connected, by the second host's LIDs of number 0.
async fn meet(hosts: &[End; 2], alternate: Option<Alternate>) -> [Connection; 2] {
    let table =
        hosts
            .iter()
            .zip(LIDS)
            .zip(1..)
            .fold(Fixed::new(), |table, ((host, lid), number)| {
                let gid = host.device.query_gid(1, 0).wait().unwrap();
                table.way([10, 0, 0, number].into(), gid, Some(lid))
            });
    let table = Arc::new(table);
    // They live as long as the connections use them, which they do from now on.
    let managers = hosts.each_ref().map(|host| Manager::of(&host.device));
    for manager in &managers {
        let resolver = Arc::<Fixed>::clone(&table);
        manager.use_resolver(resolver).await.unwrap();
    }
    let [client, server] = hosts;
    let at = "10.0.0.2:7174";
    let mut listener = listen(&server.device, at).await.unwrap();
    let mut asks = connect(&client.device, at, qp(client));
    if let Some(path) = alternate {
        asks = asks.alternate(path);
    }
    let answers = async { listener.accept().await.accept(qp(server)).await };
    let (asked, answered) = join(asks.into_future(), answers).await;
    [asked.unwrap(), answered.unwrap()]
}

fn qp(host: &End) -> Qp {
    let init = QpInit::rc(&host.cq, &host.cq).depth(64, 64);
    host.pd.create_qp(init).wait().unwrap()
}

/// Adds to the server's first word, and waits for the completions.
async fn count(connection: &mut Connection, hosts: &mut [End; 2], times: u64) {
    let before = hosts[1].counted();
    for wr_id in 0..times {
        let add = Atomic::fetch_add(wr_id, hosts[1].mr.remote(0), 1);
        let add = add.into(hosts[0].mr.slice(8..16)).signaled();
        connection.post_send(add).unwrap();
    }
    let mut done = 0;
    while done < times {
        hosts[0].cq.ready().await.unwrap();
        for wc in hosts[0].poll() {
            assert!(wc.is_ok(), "{wc:?}");
            done += 1;
        }
    }
    assert_eq!(hosts[1].counted(), before + times);
}

/// Goal: a connection with an alternate path survives the cable of its first one, gets another path by LAP, and
/// survives the next cable; both ends are told of each move, once.
#[test]
fn a_connection_outlives_its_cables() {
    let bed = Bed::new();
    let mut hosts = bed.hcas.each_ref().map(End::on);
    bed.sim
        .run(async {
            let mut connections = meet(&hosts, Some(other(1))).await;
            let [asked, _] = &mut connections;
            count(asked, &mut hosts, 3).await;
            bed.cut(2, true);
            count(asked, &mut hosts, 40).await;
            for host in &hosts {
                assert_eq!(host.moves(), [EventType::PathMig]);
            }
            // Management has no alternate paths: its datagrams go by the first LIDs.
            bed.cut(2, false);
            asked.load_path(other(0)).await.unwrap();
            count(asked, &mut hosts, 3).await;
            bed.cut(3, true);
            count(asked, &mut hosts, 40).await;
            for host in &hosts {
                assert_eq!(host.moves(), [EventType::PathMig]);
            }
            let [asked, answered] = connections;
            let closed = answered.closed();
            asked.close().await.unwrap();
            closed.await.unwrap();
            answered.close().await.unwrap();
        })
        .unwrap();
}

/// Goal: a path is loaded by a connection that had none, and armed by the next packets. What is refused says why, and
/// the connection goes on.
#[test]
fn a_path_is_loaded_later() {
    let bed = Bed::new();
    let mut hosts = bed.hcas.each_ref().map(End::on);
    bed.sim
        .run(async {
            let [mut asked, answered] = meet(&hosts, None).await;
            count(&mut asked, &mut hosts, 1).await;
            let foreign = Alternate::Lids {
                src_path_bits: 1,
                dlid: Lid(LIDS[1].0 - 1),
            };
            let refused = asked.load_path(foreign).await;
            assert!(
                matches!(refused, Err(Error::Path(PathError::Refused(_)))),
                "{refused:?}"
            );
            let refused = answered.load_path(other(1)).await;
            assert!(matches!(
                refused,
                Err(Error::Machine(CmError::NoAlternates))
            ));
            // A peer that is not reached is given up after all repetitions.
            asked.load_path(other(1)).await.unwrap();
            count(&mut asked, &mut hosts, 1).await;
            let (one, two) = (asked.into_qp().unwrap(), answered.into_qp().unwrap());
            for qp in [&one, &two] {
                let attr = qp.query().await.unwrap().attr;
                assert_eq!(attr.path_mig_state, Some(MigState::Armed));
            }
            bed.sim.sleep(Duration::from_millis(1)).await;
        })
        .unwrap();
}
