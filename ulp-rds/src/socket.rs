//! Sockets.

use std::fmt;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::task::{Context, Poll};

use verbs_core::Memory;
use verbs_core::sync::Arc;
use verbs_core::sync::atomic::{AtomicBool, Ordering::Acquire};
use verbs_core::task::OwnWaker;

use crate::datagram::{Counters, Datagram};
use crate::error::{Error, SendError};
use crate::node::id::SocketId;
use crate::node::socket::Socket;
use crate::node::state::State;
use crate::node::state::{arming, receive, send};
use crate::node::{Handle, Node};
use crate::rdma::{Mapped, Mapping, Notification, SendOptions};
use crate::wire::PROBE_PORT;

/// The first of the ports that are given to sockets that ask for any.
const ANY_PORT_FIRST: u16 = 1024;

/// A socket: it sends datagrams to any address, and receives those that are sent to its own.
///
/// What it sends arrives exactly once, and in order for each destination. Dropping it closes it: what was not
/// acknowledged is cancelled, and may or may not have arrived.
pub struct RdsSocket {
    node: Arc<Handle>,
    addr: SocketAddr,
    id: SocketId,
    is_filled: Arc<AtomicBool>,
}

/// What [`RdsSocket::recv_from`] has written to the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes that were written.
    pub len: usize,
    /// The socket that sent it.
    pub from: SocketAddr,
    /// Whether the datagram was longer than the buffer; the rest of it is gone.
    pub truncated: bool,
}

impl RdsSocket {
    /// Binds an address of the node; port 0 stands for any that is free.
    ///
    /// # Errors
    /// [`Error::AddressNotAvailable`], [`Error::AddressInUse`], [`Error::Sockets`], [`Error::ProbePort`].
    pub fn bind(node: &Node, addr: SocketAddr) -> Result<Self, Error> {
        let handle = Arc::clone(node.handle());
        let (addr, id, is_filled) = handle.core.with(|state| {
            if !state.maps.contains_key(&addr.ip()) {
                return Err(Error::AddressNotAvailable(addr.ip()));
            }
            let count = state.sockets.len();
            if count >= state.config.sockets_max {
                return Err(Error::Sockets(count));
            }
            let port = match addr.port() {
                0 => free_port(state, addr.ip()).ok_or(Error::Sockets(count))?,
                PROBE_PORT => return Err(Error::ProbePort),
                port => port,
            };
            let addr = SocketAddr::new(addr.ip(), port);
            if state.sockets.find(addr).is_some() {
                return Err(Error::AddressInUse(addr));
            }
            let socket = Socket::new(addr);
            let is_filled = Arc::clone(&socket.is_filled);
            Ok((addr, state.sockets.insert(socket), is_filled))
        })?;
        Ok(Self {
            node: handle,
            addr,
            id,
            is_filled,
        })
    }

    /// Where it is bound.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Chooses the type of service of all that it sends; 0 by default. Each has a connection of its own, so that long
    /// messages of one do not hold up short ones of another.
    ///
    /// # Errors
    /// [`Error::HasSent`]: datagrams on two connections would have no order.
    pub fn set_tos(&self, tos: u8) -> Result<(), Error> {
        self.node.core.with(|state| {
            let socket = state.sockets.get_mut(self.id);
            let is_new = socket.is_some_and(|socket| socket.serve(tos));
            is_new.then_some(()).ok_or(Error::HasSent(self.addr))
        })
    }

    /// Sends a datagram now, or says why not. To port 0 it is a ping: an empty datagram from port 0 answers.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn try_send_to(&self, payload: &[u8], to: SocketAddr) -> Result<(), SendError> {
        self.send_now(payload, to, None)
    }

    /// As [`try_send_to`](Self::try_send_to), with an operation or the key of some memory.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn try_send_with(
        &self,
        payload: &[u8],
        to: SocketAddr,
        options: &SendOptions,
    ) -> Result<(), SendError> {
        self.send_now(payload, to, Some(options))
    }

    #[inline]
    fn send_now(
        &self,
        payload: &[u8],
        to: SocketAddr,
        options: Option<&SendOptions>,
    ) -> Result<(), SendError> {
        let core = &self.node.core;
        core.with(|state| send::send(state, self.id, to, payload, options))
    }

    /// As [`try_send_to`](Self::try_send_to); pending while the send buffer is full or the destination is congested.
    ///
    /// # Errors
    /// [`SendError`], but for [`SendError::WouldBlock`] and [`SendError::Congested`].
    pub fn poll_send_to(
        &self,
        cx: &mut Context<'_>,
        payload: &[u8],
        to: SocketAddr,
    ) -> Poll<Result<(), SendError>> {
        self.poll_send_now(cx, payload, to, None)
    }

    /// As [`poll_send_to`](Self::poll_send_to), with an operation or the key of some memory.
    ///
    /// # Errors
    /// As [`poll_send_to`](Self::poll_send_to).
    pub fn poll_send_with(
        &self,
        cx: &mut Context<'_>,
        payload: &[u8],
        to: SocketAddr,
        options: &SendOptions,
    ) -> Poll<Result<(), SendError>> {
        self.poll_send_now(cx, payload, to, Some(options))
    }

    #[inline]
    fn poll_send_now(
        &self,
        cx: &mut Context<'_>,
        payload: &[u8],
        to: SocketAddr,
        options: Option<&SendOptions>,
    ) -> Poll<Result<(), SendError>> {
        let sent = self.send_now(payload, to, options);
        if !is_full(&sent) {
            return Poll::Ready(sent);
        }
        let mut waker = OwnWaker::of(cx.waker());
        self.node.core.with(|state| {
            arming::watch(state);
            arming::sleep_for_room(state, self.id, &mut waker);
        });
        // Once more: there may be room since it was tried.
        let sent = self.send_now(payload, to, options);
        match is_full(&sent) {
            true => Poll::Pending,
            false => Poll::Ready(sent),
        }
    }

    /// Sends a datagram. Ends when it is queued, not when it has arrived.
    ///
    /// # Errors
    /// As [`poll_send_to`](Self::poll_send_to).
    ///
    /// # Cancel safety
    /// A future that is dropped before it ends has sent nothing.
    pub async fn send_to(&self, payload: &[u8], to: SocketAddr) -> Result<(), SendError> {
        poll_fn(|cx| self.poll_send_to(cx, payload, to)).await
    }

    /// Sends a datagram with an operation that is carried out before it, or with the key of some memory.
    ///
    /// # Errors
    /// As [`poll_send_to`](Self::poll_send_to); [`SendError::RdmaWithinNode`], [`SendError::RdmaLocal`].
    ///
    /// # Cancel safety
    /// A future that is dropped before it ends has sent nothing, and begun no operation.
    pub async fn send_with(
        &self,
        payload: &[u8],
        to: SocketAddr,
        options: &SendOptions,
    ) -> Result<(), SendError> {
        poll_fn(|cx| self.poll_send_with(cx, payload, to, options)).await
    }

    /// Lets peers that have the mapping's cookie read and write memory. With `once`, that ends when a peer has sent a
    /// datagram to this socket whose operation has used it. The key is one of the node's pool where the device has such
    /// pools, one is free, and the memory is of 1 MiB at most; otherwise the memory is registered.
    ///
    /// # Errors
    /// [`Error::Verb`].
    ///
    /// # Cancel safety
    /// A future that is dropped leaves nothing mapped.
    pub async fn get_mr(
        &self,
        memory: impl Into<Arc<Memory>>,
        once: bool,
    ) -> Result<Mapping, Error> {
        let (core, memory) = (&self.node.core, memory.into());
        let (cookie, kept) = core.maps.map(&core.pd, &memory).await?;
        let shared = Arc::new(Mapped::new(memory, cookie, kept));
        if once {
            self.node.core.with(|state| {
                if let Some(socket) = state.sockets.get_mut(self.id) {
                    socket.once.retain(|mapped| mapped.is_mapped());
                    socket.once.push(Arc::clone(&shared));
                }
            });
        }
        Ok(Mapping { shared })
    }

    /// The end of an operation that was to be told.
    ///
    /// # Cancel safety
    /// A future that is dropped takes nothing with it.
    pub async fn notified(&self) -> Notification {
        poll_fn(|cx| self.wait(cx, |state| receive::take_notification(state, self.id))).await
    }

    /// The end of an operation that was to be told, if there is one now.
    pub fn try_notified(&self) -> Option<Notification> {
        self.node
            .core
            .with(|state| receive::take_notification(state, self.id))
    }

    /// Has the waker woken when something comes; whether something is there already.
    pub(crate) fn ring(&self, mut waker: OwnWaker) -> bool {
        self.node.core.with(|state| {
            arming::watch(state);
            arming::sleep_for_news(state, self.id, &mut waker);
            let socket = state.sockets.get_mut(self.id);
            socket.is_none_or(|socket| socket.has_news())
        })
    }

    /// The next datagram, if there is one.
    pub fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Datagram> {
        self.wait(cx, |state| receive::take(state, self.id))
    }

    /// The next datagram, without a copy.
    ///
    /// # Cancel safety
    /// A future that is dropped takes no datagram with it.
    pub async fn recv(&self) -> Datagram {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// The next datagram, if there is one now. A program may call this in a loop: it takes no lock while there is none.
    pub fn try_recv(&self) -> Option<Datagram> {
        // Threads that deliver one would wait for the lock.
        let core = &self.node.core;
        if !self.is_filled.load(Acquire) && !core.is_polled.load(Acquire) {
            return None;
        }
        core.with(|state| receive::take(state, self.id))
    }

    /// The next datagram, copied into a buffer. A longer one is cut off.
    ///
    /// # Cancel safety
    /// A future that is dropped takes no datagram with it.
    pub async fn recv_from(&self, buffer: &mut [u8]) -> Received {
        let datagram = self.recv().await;
        copy(&datagram, buffer)
    }

    /// As [`recv_from`](Self::recv_from), and the datagram stays the next one.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub async fn peek_from(&self, buffer: &mut [u8]) -> Received {
        let look = |state: &mut State| {
            let socket = state.sockets.get_mut(self.id)?;
            socket.queue.front().map(|datagram| copy(datagram, buffer))
        };
        let mut look = look;
        poll_fn(|cx| self.wait(cx, &mut look)).await
    }

    /// Takes back what was not acknowledged, to one destination or to all; returns how many datagrams. They may have
    /// arrived nevertheless.
    pub fn cancel_sent_to(&self, to: Option<SocketAddr>) -> usize {
        self.node
            .core
            .with(|state| send::cancel(state, self.id, to))
    }

    /// Ports to be told of when they become free at a peer: bit `port % 64`; see [`freed`](Self::freed).
    pub fn monitor(&self, groups: u64) {
        self.node.core.with(|state| {
            if let Some(socket) = state.sockets.get_mut(self.id) {
                socket.monitored = groups;
                socket.freed &= groups;
            }
        });
    }

    /// Monitored groups of ports in which one became free since this was asked last.
    ///
    /// # Cancel safety
    /// A future that is dropped takes nothing with it.
    pub async fn freed(&self) -> u64 {
        let take = |state: &mut State| {
            let socket = state.sockets.get_mut(self.id)?;
            let freed = std::mem::take(&mut socket.freed);
            (freed != 0).then_some(freed)
        };
        poll_fn(|cx| self.wait(cx, take)).await
    }

    /// Datagrams that wait for acknowledgement, and their bytes.
    pub fn unacked(&self) -> (usize, usize) {
        let (bytes, messages) = self.node.core.with(|state| send::unacked(state, self.id));
        (messages, bytes)
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        self.node.core.with(|state| {
            let socket = state.sockets.get_mut(self.id);
            socket.map_or(Counters::default(), |socket| socket.counters)
        })
    }

    /// Yields what `take` finds; else the caller is woken when something comes.
    fn wait<T>(
        &self,
        cx: &mut Context<'_>,
        mut take: impl FnMut(&mut State) -> Option<T>,
    ) -> Poll<T> {
        // A waker is not free, and mostly something is there.
        if let Some(found) = self.node.core.with(&mut take) {
            return Poll::Ready(found);
        }
        let mut waker = OwnWaker::of(cx.waker());
        self.node.core.with(|state| {
            arming::watch(state);
            if let Some(found) = take(state) {
                return Poll::Ready(found);
            }
            arming::sleep_for_news(state, self.id, &mut waker);
            Poll::Pending
        })
    }
}

impl Drop for RdsSocket {
    fn drop(&mut self) {
        let socket = self.node.core.with(|state| send::close(state, self.id));
        drop(socket);
    }
}

impl fmt::Debug for RdsSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RdsSocket").field(&self.addr).finish()
    }
}

/// Whether there is no room now.
fn is_full(sent: &Result<(), SendError>) -> bool {
    matches!(sent, Err(SendError::WouldBlock | SendError::Congested(_)))
}

/// A free port, drawn: what a peer still has for a socket of an earlier life of this host is not for the first that
/// binds in this one.
fn free_port(state: &mut State, ip: IpAddr) -> Option<u16> {
    let ports = ANY_PORT_FIRST..=u16::MAX;
    let first = state.draw_port(ports.clone());
    let in_turn = (first..=*ports.end()).chain(*ports.start()..first);
    let is_free = |port: &u16| state.sockets.find(SocketAddr::new(ip, *port)).is_none();
    in_turn.into_iter().find(is_free)
}

fn copy(datagram: &Datagram, buffer: &mut [u8]) -> Received {
    let len = datagram.payload.len().min(buffer.len());
    buffer[..len].copy_from_slice(&datagram.payload[..len]);
    Received {
        len,
        from: datagram.from,
        truncated: len < datagram.payload.len(),
    }
}
