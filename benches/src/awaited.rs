//! Two connected ends of awaited operations, in one task.

use std::hint::black_box;

use futures::executor::block_on;
use verbs::prelude::*;
use verbs::sim::{Carrier, Network};
use verbs::{Buf, Error};

/// The port that the server listens at.
const PORT: u16 = 7471;

/// A client and a server on hosts of their own.
#[derive(Debug)]
pub struct Hosts {
    client: Endpoint,
    listener: Listener,
    server: Endpoint,
    to: std::net::SocketAddr,
}

impl Hosts {
    /// Over that carrier, for messages of so many bytes.
    ///
    /// # Errors
    /// Those of opening an endpoint.
    pub async fn over(carrier: Carrier, bytes: usize) -> Result<Self, Error> {
        let (network, [here, there]) = (Network::over(carrier), crate::hosts());
        let open = |host| {
            let opening = network.host(host).message_size(bytes as u32);
            opening.window(4).depth(4).buffers(8).open()
        };
        let (client, server) = (open(here).await?, open(there).await?);
        let to = (there, PORT).into();
        let listener = server.listen(to).await?;
        Ok(Self {
            client,
            listener,
            server,
            to,
        })
    }

    /// A new connection: the client's end and the server's.
    ///
    /// # Errors
    /// Those of connecting.
    pub async fn connected(&mut self) -> Result<(Connection, Connection), Error> {
        let accepted = async { Ok(self.listener.accept().await) };
        let asked = self.client.connect(self.to).into_future();
        futures::future::try_join(asked, accepted).await
    }

    /// That many connections, each made, accepted and closed by the client.
    pub fn connections(&mut self, times: u64) {
        block_on(async {
            for _ in 0..times {
                let (a, b) = self.connected().await.expect("a connection");
                a.close().await.expect("it is open");
                let end = b.recv().await.expect("it ends in order");
                assert!(end.is_none());
            }
        });
    }
}

/// A connection, and memory of the server's that the client accesses.
#[derive(Debug)]
pub struct Awaited {
    a: Connection,
    b: Connection,
    bytes: usize,
    token: Token,
    // Dropped last.
    _region: Region,
    _hosts: Hosts,
}

impl Awaited {
    /// Over that carrier, for messages of so many bytes.
    ///
    /// # Errors
    /// Those of connecting.
    pub async fn over(carrier: Carrier, bytes: usize) -> Result<Self, Error> {
        let mut hosts = Hosts::over(carrier, bytes).await?;
        let (a, b) = hosts.connected().await?;
        let region = hosts.server.region(bytes.max(4096), Access::REMOTE).await?;
        Ok(Self {
            a,
            b,
            bytes,
            token: region.token(0..bytes)?,
            _region: region,
            _hosts: hosts,
        })
    }

    /// That many messages, each awaited at both ends; the receiver drops what it got.
    pub fn send(&self, times: u64) {
        block_on(async {
            let mut buf = self.message().await;
            for _ in 0..times {
                buf = self.a.send(black_box(buf)).await.expect("it is open");
                let got = self.b.recv().await.expect("it is open");
                assert_eq!(got.expect("it was sent").len(), self.bytes);
            }
        });
    }

    /// That many writes to the server's memory.
    pub fn write(&self, times: u64) {
        block_on(async {
            let mut buf = self.message().await;
            for _ in 0..times {
                let written = self.a.write(black_box(buf), self.token).await;
                buf = written.expect("it is open");
            }
        });
    }

    /// That many reads of the server's memory.
    pub fn read(&self, times: u64) {
        block_on(async {
            let mut buf = self.message().await;
            for _ in 0..times {
                let read = self.a.read(black_box(buf), self.token).await;
                buf = read.expect("it is open");
            }
        });
    }

    /// That many fetch-and-adds on a word of the server's memory.
    pub fn fetch_add(&self, times: u64) {
        let word = self.token.word(0).expect("it is that long");
        block_on(async {
            for _ in 0..times {
                black_box(self.a.fetch_add(word, 1).await.expect("it is open"));
            }
        });
    }

    /// That many compare-and-swaps, of which at most the first succeeds.
    pub fn compare_swap(&self, times: u64) {
        let word = self.token.word(0).expect("it is that long");
        block_on(async {
            for i in 0..times {
                black_box(self.a.compare_swap(word, i, i).await.expect("it is open"));
            }
        });
    }

    async fn message(&self) -> Buf {
        let mut buf = self.a.buf().await;
        buf.fill_from(&vec![7; self.bytes]);
        buf
    }
}
