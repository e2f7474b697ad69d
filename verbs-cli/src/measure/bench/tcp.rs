//! Linux's own TCP on the loopback interface, beside which rows stand.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use super::duel::{Duel, Party, WAYS};
use super::error::BenchError;
use super::machine::Patience;

/// As many bytes to and fro over a connection of Linux's TCP on the loopback interface; both ends poll.
pub(super) fn streams(bytes: usize) -> Result<Duel<'static>, BenchError> {
    let (a, b) = connected().map_err(BenchError::Tcp)?;
    let party = |mut stream: TcpStream, begins: bool| -> Party<'static> {
        let mut buffer = vec![0x5a; bytes];
        Box::new(move |times| {
            for _ in 0..times {
                if begins {
                    send_all(&mut stream, &buffer)?;
                }
                receive_all(&mut stream, &mut buffer)?;
                if !begins {
                    send_all(&mut stream, &buffer)?;
                }
            }
            Ok(())
        })
    };
    Ok(Duel {
        units: WAYS,
        here: party(a, true),
        there: party(b, false),
    })
}

/// Both ends of a connection; neither waits.
pub(super) fn connected() -> std::io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let a = TcpStream::connect(listener.local_addr()?)?;
    let (b, _) = listener.accept()?;
    for stream in [&a, &b] {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
    }
    Ok((a, b))
}

fn send_all(stream: &mut TcpStream, bytes: &[u8]) -> Result<(), BenchError> {
    polled(bytes.len(), |done| stream.write(&bytes[done..]))
}

fn receive_all(stream: &mut TcpStream, buffer: &mut [u8]) -> Result<(), BenchError> {
    polled(buffer.len(), |done| stream.read(&mut buffer[done..]))
}

/// Calls until all bytes have gone through.
fn polled(
    bytes: usize,
    mut call: impl FnMut(usize) -> std::io::Result<usize>,
) -> Result<(), BenchError> {
    let mut patience = Patience::new("bytes of a TCP connection");
    let mut done = 0;
    while done < bytes {
        match call(done) {
            Ok(0) => return Err(BenchError::PeerGone),
            Ok(count) => done += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => patience.lose()?,
            Err(error) => return Err(BenchError::Tcp(error)),
        }
    }
    Ok(())
}
