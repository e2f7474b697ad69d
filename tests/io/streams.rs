//! Streams of bytes.

use std::io::ErrorKind;

use futures::executor::block_on;
use futures::future::join;
use futures::{AsyncReadExt, AsyncWriteExt};
use verbs_core::Access;

use crate::pair::{Pair, message, pair, pair_with, poll, udp_pair};

/// Goal: bytes arrive as they were written, in whatever pieces; a close is the end of the stream. Method: an echo, with
/// writes of all sizes, and buffers far smaller than what is under way.
async fn echo(pair: Pair, bytes: usize) {
    let data: Vec<u8> = (0..bytes).map(|n| (n * 31 % 251) as u8).collect();
    let Pair { a, b, nets, .. } = pair;
    let (mut from_b, mut to_b) = b.into_stream().split();
    let echo = async {
        futures::io::copy(&mut from_b, &mut to_b).await.unwrap();
        to_b.close().await.unwrap();
    };
    let (mut from_a, mut to_a) = a.into_stream().split();
    let client = async {
        let write = async {
            let mut rest = &data[..];
            let mut size = 1;
            while !rest.is_empty() {
                let (piece, others) = rest.split_at(size.min(rest.len()));
                to_a.write_all(piece).await.unwrap();
                rest = others;
                size = size * 3 % 5_003;
            }
            to_a.flush().await.unwrap();
        };
        let read = async {
            let mut got = vec![0; bytes];
            from_a.read_exact(&mut got).await.unwrap();
            assert!(got == data);
        };
        join(write, read).await;
        to_a.close().await.unwrap();
        assert_eq!(from_a.read(&mut [0; 8]).await.unwrap(), 0, "the end");
    };
    join(client, echo).await;
    assert!(nets.iter().all(|net| net.usage().lent == 0));
}

#[test]
fn an_echo_over_the_loopback_link() {
    let options = |opening: verbs_io::Opening| opening.message_size(1000).window(4).buffers(6);
    block_on(async { echo(pair_with(options).await, 300_000).await });
}

#[test]
fn an_echo_over_udp() {
    let options = |opening: verbs_io::Opening| opening.message_size(1000).window(32);
    block_on(async { echo(udp_pair(88, options).await, 300_000).await });
}

/// Goal: writing no bytes sends no message; a flush waits until everything that was written has been taken in by the
/// peer. Method: a peer that has room for two messages and reads none.
#[test]
fn a_flush_waits_and_nothing_is_not_written() {
    block_on(async {
        let pair = pair_with(|opening| opening.message_size(100).window(2).buffers(8)).await;
        let mut stream = pair.a.clone().into_stream();
        assert_eq!(stream.write(&[]).await.unwrap(), 0);
        let mut none = pair.b.recv();
        assert!(poll(&mut none).is_none(), "nothing was written");
        drop(none);
        let mut written = 0;
        while let Some(n) = poll(&mut stream.write(&[7; 100])) {
            written += n.unwrap() / 100;
        }
        assert!(written >= 2, "{written}");
        assert!(poll(&mut stream.flush()).is_none(), "{written} messages");
        for _ in 0..written {
            assert_eq!(pair.b.recv().await.unwrap().unwrap().len(), 100);
        }
        stream.flush().await.unwrap();
    });
}

/// A connection that fails is not the end of the stream, and neither is a message of no bytes.
#[test]
fn a_break_is_an_error() {
    block_on(async {
        let Pair { a, b, nets, .. } = pair().await;
        let region = nets[1].region(8, Access::REMOTE_WRITE).await.unwrap();
        let token = region.token(0..8).unwrap();
        region.revoke().await.unwrap();
        let mut stream = a.clone().into_stream();
        b.send(message(&b, "").await).await.unwrap();
        b.send(message(&b, "x").await).await.unwrap();
        assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 1);
        a.write(message(&a, "y").await, token).await.unwrap_err();
        let error = stream.read(&mut [0; 8]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert!(error.to_string().contains("write on queue pair"), "{error}");
        let error = stream.write(b"z").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
}
