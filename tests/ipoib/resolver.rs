//! Connections by IP address on a subnet: ARP finds the owner of an address, and the administrator the path to it.

use std::time::Duration;

use futures::future::{Either, join, select};
use ulp_ipoib::Mode;
use verbs_cm::Error;
use verbs_core::{Access, Memory, QpInit, Recv, Send, Wc};
use verbs_sm::Config as SmConfig;

use crate::datagrams::run;
use crate::node::{Node, address};
use crate::subnet::Lab;

/// A queue pair of a node's device with what it needs to send and receive one message.
async fn exchange(node: &Node, first: Option<&[u8]>, peer: &str) -> Result<Vec<u8>, Error> {
    let pd = node.device.alloc_pd().await?;
    let mut cq = node.device.create_cq(8).await?;
    let mr = pd.register(Memory::alloc(64)?, Access::LOCAL_WRITE).await?;
    let qp = pd.create_qp(QpInit::rc(&cq, &cq).inline(64)).await?;
    let manager = verbs_cm::Manager::of(&node.device);
    manager
        .use_resolver(node.link.interface().resolver())
        .await?;
    let mut connection = match first {
        Some(_) => manager.connect(peer, qp).await?,
        None => {
            let mut listener = manager.listen(peer).await?;
            listener.accept().await.accept(qp).await?
        }
    };
    connection.post_recv(Recv::new(1).into(mr.all())).unwrap();
    let text = first.unwrap_or(b"and hello");
    connection
        .post_send(Send::new(2).inline(text).signaled())
        .unwrap();
    let mut got = Vec::new();
    let mut left = 2;
    while left > 0 {
        cq.ready().await.unwrap();
        for wc in cq.poll(&mut [Wc::default(); 2]) {
            assert!(wc.is_ok(), "{wc:?}");
            left -= 1;
            if wc.wr_id == 1 {
                got.resize(wc.byte_len as usize, 0);
                mr.read(0, &mut got)?;
            }
        }
    }
    connection.close().await?;
    Ok(got)
}

#[test]
fn a_service_is_reached_by_its_address() {
    run(61, async |world| {
        let lab = Lab::new(&world, SmConfig::default()).await;
        let a = lab.node("A", address(1, Mode::Datagram, false)).await;
        let b = lab.node("B", address(2, Mode::Datagram, false)).await;
        let serving = exchange(&b, None, "10.0.0.2:7174");
        let calling = async {
            world.sim.sleep(Duration::from_secs(1)).await;
            exchange(&a, Some(b"hello"), "10.0.0.2:7174").await
        };
        let (heard, answered) = join(serving, calling).await;
        assert_eq!(heard.unwrap(), b"hello");
        assert_eq!(answered.unwrap(), b"and hello");
        assert_eq!(a.link.interface().neighbours().len(), 1);
    });
}

#[test]
fn nobody_at_an_address_is_an_error_and_giving_up_leaves_nothing() {
    run(62, async |world| {
        let lab = Lab::new(&world, SmConfig::default()).await;
        let a = lab.node("A", address(1, Mode::Datagram, false)).await;
        let asked = world.sim.now();
        let failed = exchange(&a, Some(b"x"), "10.0.0.77:7174").await;
        assert!(matches!(failed, Err(Error::NoRoute(_))), "{failed:?}");
        let took = world.sim.now().since(asked);
        assert!(
            took > Duration::from_secs(2) && took < Duration::from_secs(5),
            "{took:?}"
        );

        let calling = Box::pin(exchange(&a, Some(b"x"), "10.0.0.78:7174"));
        let slept = Box::pin(world.sim.sleep(Duration::from_secs(1)));
        let Either::Right((_, calling)) = select(calling, slept).await else {
            panic!("nobody is there");
        };
        drop(calling);
        world.sim.sleep(Duration::from_secs(5)).await;
        assert!(a.link.interface().neighbours().is_empty());
    });
}
