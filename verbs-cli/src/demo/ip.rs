//! Pings and a file, over IP.

use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::socket::{icmp, tcp};
use smoltcp::wire::{Icmpv4Packet, Icmpv4Repr};

use crate::demo::error::DemoError;
use crate::demo::file::Payload;
use crate::demo::node::{Node, drive};

/// The identifier of our echoes.
const IDENT: u16 = 0x7174;
/// Bytes of an echo, as ping sends them.
const ECHO: [u8; 56] = [0x61; 56];
/// The port number that the file goes to.
const PORT: u16 = 7174;
const EPHEMERAL: u16 = 49_152;
/// Bytes of each of a connection's buffers: the most that a window of TCP is scaled to here.
const BUFFER: usize = 1 << 20;

/// What came of some pings.
pub(crate) struct Pings {
    times: Vec<Duration>,
}

impl fmt::Display for Pings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |time: Option<&Duration>| time.map_or(0.0, |time| time.as_secs_f64() * 1e6);
        write!(
            f,
            "{} echoes, none lost, {:.0} us at best, {:.0} in the middle, {:.0} at worst",
            self.times.len(),
            us(self.times.first()),
            us(self.times.get(self.times.len() / 2)),
            us(self.times.last())
        )
    }
}

/// Sends echoes one after the other.
pub(crate) async fn ping(a: &mut Node, b: &mut Node, count: u16) -> Result<Pings, DemoError> {
    let buffer = || icmp::PacketBuffer::new(vec![icmp::PacketMetadata::EMPTY; 4], vec![0; 1024]);
    let mut socket = icmp::Socket::new(buffer(), buffer());
    // A new socket can be bound to anything but 0.
    let _bound = socket.bind(icmp::Endpoint::Ident(IDENT));
    let handle = a.sockets.add(socket);
    let to = b.addr;
    let mut times = Vec::new();
    for seq_no in 0..count {
        let echo = Icmpv4Repr::EchoRequest {
            ident: IDENT,
            seq_no,
            data: &ECHO,
        };
        let begun = Instant::now();
        let socket = a.sockets.get_mut::<icmp::Socket<'_>>(handle);
        if let Ok(place) = socket.send(echo.buffer_len(), to.into()) {
            let mut packet = Icmpv4Packet::new_unchecked(place);
            echo.emit(&mut packet, &ChecksumCapabilities::default());
        }
        drive(&mut [&mut *a, &mut *b], "an echo", |nodes| {
            nodes.first_mut().is_some_and(|node| {
                let socket = node.sockets.get_mut::<icmp::Socket<'_>>(handle);
                socket.recv().is_ok_and(|(payload, _)| {
                    Icmpv4Packet::new_checked(payload).is_ok_and(|it| it.echo_seq_no() == seq_no)
                })
            })
        })
        .await?;
        times.push(begun.elapsed());
    }
    a.sockets.remove(handle);
    times.sort_unstable();
    Ok(Pings { times })
}

/// Sends the file over TCP. Returns how long that took, from asking for the connection to the last byte.
pub(crate) async fn copy(
    a: &mut Node,
    b: &mut Node,
    payload: &Payload,
) -> Result<Duration, DemoError> {
    let failed = DemoError::TimedOut("a connection of TCP");
    let socket = || {
        let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER]);
        tcp::Socket::new(buffer(), buffer())
    };
    let mut listener = socket();
    let listening = listener.listen(PORT).is_ok();
    let theirs = b.sockets.add(listener);
    let ours = a.sockets.add(socket());
    let begun = Instant::now();
    let connection = a.sockets.get_mut::<tcp::Socket<'_>>(ours);
    let to = (IpAddr::from(b.addr), PORT);
    let connecting = connection.connect(a.stack.context(), to, EPHEMERAL).is_ok();
    if !listening || !connecting {
        return Err(failed);
    }
    let mut left = payload.bytes();
    let mut arrived = Vec::with_capacity(payload.len());
    drive(&mut [&mut *a, &mut *b], "the file by TCP", |nodes| {
        let [a, b] = nodes else {
            return true;
        };
        let sender = a.sockets.get_mut::<tcp::Socket<'_>>(ours);
        if sender.can_send()
            && let Ok(sent) = sender.send_slice(left)
        {
            left = left.get(sent..).unwrap_or_default();
        }
        let receiver = b.sockets.get_mut::<tcp::Socket<'_>>(theirs);
        while receiver.can_recv() {
            let taken = receiver.recv(|bytes| {
                arrived.extend_from_slice(bytes);
                (bytes.len(), ())
            });
            if taken.is_err() {
                break;
            }
        }
        arrived.len() >= payload.len()
    })
    .await?;
    let took = begun.elapsed();
    payload.check(&arrived, "TCP")?;
    a.sockets.remove(ours);
    b.sockets.remove(theirs);
    Ok(took)
}
