//! WRITEs of which the peer is told, by immediate data.

use futures::executor::block_on;
use futures::future::join;
use verbs_core::Access;

use crate::pair::{Pair, iwarp_pair, meet, message, pair, udp_pair};

/// Goal: the peer receives a message of no bytes with the number, behind what was written and sent before; messages without
/// a number have none, also in buffers that had one. Method: more than there are buffers, alone and in batches, awaited and
/// posted, to a task that waits already and to one that comes later; then a connection that is closed before all is read.
async fn told(pair: Pair, at: &str) {
    let Pair { a, b, nets, .. } = pair;
    let region = nets[1].region(64, Access::REMOTE_WRITE).await.unwrap();
    let token = region.token(0..64).unwrap();
    let written = || {
        let mut data = [0; 4];
        region.read_at(0, &mut data).unwrap();
        u32::from_be_bytes(data)
    };
    for number in 0..100_u32 {
        let mut data = a.buf().await;
        data.fill_from(&number.to_be_bytes());
        let imm = !number;
        let write = a.write_with_imm(data, token, imm);
        let (notice, data) = join(b.recv(), async {
            match number % 3 {
                0 => Some(write.await.unwrap()),
                1 => {
                    write.posted().await.unwrap();
                    None
                }
                _ => {
                    drop(write);
                    let mut batch = a.batch();
                    let data = message(&a, "none").await;
                    let before = batch.write(data, token).posted();
                    let mut data = a.buf().await;
                    data.fill_from(&number.to_be_bytes());
                    let told = batch.write_with_imm(data, token, imm).posted();
                    batch.submit();
                    before.await.unwrap();
                    told.await.unwrap();
                    None
                }
            }
        })
        .await;
        let notice = notice.unwrap().expect("it is open");
        assert_eq!((notice.len(), notice.imm()), (0, Some(imm)));
        assert_eq!(written(), number, "it is told before it is written");
        assert!(data.is_none_or(|data| data.imm().is_none()));
        drop(notice);
        a.send(message(&a, "plain").await).await.unwrap();
        let plain = b.recv().await.unwrap().expect("it is open");
        assert_eq!((&plain[..], plain.imm()), (&b"plain"[..], None));
    }
    for _ in 0..8 {
        let data = message(&a, "left").await;
        a.write_with_imm(data, token, 1).await.unwrap();
    }
    a.send(message(&a, "behind").await).await.unwrap();
    a.close().await.unwrap();
    drop((a, b));
    let (a, b) = meet(&nets, at).await;
    for _ in 0..100 {
        a.send(message(&a, "plain").await).await.unwrap();
        let plain = b.recv().await.unwrap().expect("it is open");
        assert_eq!((&plain[..], plain.imm()), (&b"plain"[..], None));
    }
}

#[test]
fn a_write_is_told_over_the_loopback_link() {
    block_on(async { told(pair().await, "10.0.0.2:7472").await });
}

#[test]
fn a_write_is_told_over_udp() {
    block_on(async { told(udp_pair(78, |opening| opening).await, "127.0.78.2:7472").await });
}

#[test]
fn a_write_is_told_over_iwarp() {
    block_on(async { told(iwarp_pair(79, |opening| opening).await, "127.0.79.2:7472").await });
}
