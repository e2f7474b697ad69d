//! Awaited operations of one task: two connected ends in one thread, over the handles that threads may share.

use std::hint::black_box;

use futures::executor::block_on;
use futures::future::poll_immediate;
use futures::{FutureExt, pin_mut};
use verbs::prelude::*;
use verbs::sim::Network;

/// Bytes of a message.
const LEN: usize = 8;

/// Two ends, and memory of the second that the first accesses.
pub(crate) struct Subject {
    a: Connection,
    b: Connection,
    token: Token,
    // Dropped last.
    _region: Region,
    _nets: [Endpoint; 2],
}

impl Subject {
    /// Connected, after every operation has been done once.
    pub(crate) fn new() -> Self {
        let mut subject = block_on(Self::connected()).expect("a connection");
        subject.send(16);
        subject.write(16);
        subject.read(16);
        subject.parked(16);
        subject
    }

    async fn connected() -> Result<Self, verbs::Error> {
        let network = Network::new();
        let client = network.host([10, 0, 0, 1]).open().await?;
        let server = network.host([10, 0, 0, 2]).open().await?;
        let mut listener = server.listen("10.0.0.2:7471").await?;
        let accepted = async { Ok(listener.accept().await) };
        let asked = client.connect("10.0.0.2:7471").into_future();
        let (a, b) = futures::try_join!(asked, accepted)?;
        let region = server.region(4096, Access::REMOTE).await?;
        Ok(Self {
            a,
            b,
            token: region.token(0..LEN)?,
            _region: region,
            _nets: [client, server],
        })
    }

    /// That many messages, each awaited at both ends; the receiver drops what it got.
    pub(crate) fn send(&mut self, times: u64) {
        block_on(async {
            let mut buf = self.message().await;
            for _ in 0..times {
                buf = self.a.send(black_box(buf)).await.expect("it is open");
                let got = self.b.recv().await.expect("it is open");
                assert_eq!(got.expect("it was sent").len(), LEN);
            }
        });
    }

    /// The same, where the receiver waits first, and is woken.
    pub(crate) fn parked(&mut self, times: u64) {
        block_on(async {
            let mut buf = self.message().await;
            for _ in 0..times {
                let receiving = self.b.recv().fuse();
                pin_mut!(receiving);
                assert!(poll_immediate(&mut receiving).await.is_none());
                buf = self.a.send(black_box(buf)).await.expect("it is open");
                let got = receiving.await.expect("it is open");
                assert_eq!(got.expect("it was sent").len(), LEN);
            }
        });
    }

    pub(crate) fn write(&mut self, times: u64) {
        block_on(async {
            let mut buf = self.message().await;
            for _ in 0..times {
                let written = self.a.write(black_box(buf), self.token).await;
                buf = written.expect("it is open");
            }
        });
    }

    pub(crate) fn read(&mut self, times: u64) {
        block_on(async {
            let mut buf = self.message().await;
            for _ in 0..times {
                let read = self.a.read(black_box(buf), self.token).await;
                buf = read.expect("it is open");
            }
        });
    }

    async fn message(&self) -> verbs::Buf {
        let mut buf = self.a.buf().await;
        buf.fill_from(&[7; LEN]);
        buf
    }
}
