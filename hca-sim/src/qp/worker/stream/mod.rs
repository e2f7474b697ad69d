//! A queue pair whose messages a stream carries: what the sans-IO machine needs around it.
//!
//! As with packets, only the holder of the port's driver runs this code. Bytes that arrive are read into a buffer of
//! the port and given to the machine; FPDUs are gathered in another, and what the stream has no room for waits in a
//! buffer of the connection's own. The machine is not asked for more as long as bytes wait.

pub(crate) mod connected;

use std::io;

use verbs_core::mem::pin;
use verbs_core::sync::{Arc, MutexGuard, Weak};
use verbs_core::{CmEvent, Error, QpAttr, defer};
use verbs_wire::iwarp::Fpdu;

use crate::effects::{Effect, Effects};
use crate::port::streams::Streams;
use crate::port::streams::buffers::{FpduBuffer, STAGE};
use crate::port::streams::making::{Making, OnStream, Taken};
use crate::qp::takes_packets;
use crate::qp::worker::WorkerState;
use crate::qp::worker::packet_qp::PacketQp;
use crate::qp::worker::stream::connected::Connected;
use crate::qp::{QueuePair, Record};
use crate::transport::iwarp::{Iwarp, Start};
use crate::transport::{Events, Path};

/// Buffers of FPDUs that are sent in one round; then other queue pairs have a turn.
const ROUNDS: usize = 8;
/// Buffers of bytes that are read in one round, for the same reason.
const READS: usize = 4;

impl OnStream for QueuePair {
    fn connect_stream(self: &Arc<Self>, making: Making) -> Result<(), Error> {
        let Some(streams) = self.port.streams.clone() else {
            return Err(Error::DeviceFailed);
        };
        let (agreed, token) = (making.agreed, making.token);
        let start = Start {
            has_crc: agreed.has_crc,
            is_initiator: making.is_initiator,
            rtr: agreed.rtr,
            extensions: self.port.features.extensions(),
            ulpdu_max: Fpdu::ulpdu_within(making.stream.segment_max().clamp(128, STAGE / 2)),
            now: self.port.engine.now(),
        };
        let depth = |reads: u16| Some(u8::try_from(reads).unwrap_or(u8::MAX));
        let attr = QpAttr {
            max_rd_atomic: depth(agreed.ord),
            max_dest_rd_atomic: depth(agreed.ird),
            ..QpAttr::default()
        };
        let connected = Box::new(Connected::new(making)?);
        self.establish(&attr, |exchange| {
            if let Some(iwarp) = exchange.transport.iwarp() {
                iwarp.start(start);
            }
            exchange.stream = Some(connected);
        })?;
        streams.give(token, self);
        self.turn();
        Ok(())
    }

    fn take_stream(self: &Arc<Self>, rx: &mut [u8], effects: &mut Effects) -> Taken {
        if !takes_packets(self.state()) {
            return Taken::default();
        }
        let Some(mut exchange) = self.open_exchange() else {
            return Taken::default();
        };
        let PacketQp {
            transport,
            path: Some(path),
            stream: Some(connected),
            ..
        } = &mut *exchange
        else {
            return Taken::default();
        };
        let Some(iwarp) = transport.iwarp() else {
            return Taken::default();
        };
        let mut events = Events::default();
        let was_held = iwarp.is_held();
        let taken = take_in(self, iwarp, connected, path, rx, &mut events);
        let is_held = iwarp.is_held();
        if was_held || is_held {
            connected.watch(!is_held);
            self.set_timer(&mut exchange);
        }
        let mut machine = self.worker.machine.lock();
        self.handle_events(&mut exchange, &mut machine, events, None, effects);
        taken
    }

    fn resets(&self) -> u32 {
        Record::resets(self)
    }

    fn end_stream(self: &Arc<Self>, resets: u32) {
        self.fail_since(resets);
    }
}

/// Takes in what has come, as long as the machine takes it.
fn take_in(
    qp: &QueuePair,
    iwarp: &mut Iwarp,
    connected: &mut Connected,
    path: &Path,
    rx: &mut [u8],
    events: &mut Events,
) -> Taken {
    let now = qp.port.engine.now();
    let mut taken = Taken::default();
    for _ in 0..READS {
        if iwarp.is_held() {
            let pin = pin();
            let Some(ends) = qp.ends(&pin, path, now) else {
                break;
            };
            if !iwarp.resume(&ends, events) {
                break;
            }
            taken.came = true;
        }
        let read = connected.read(rx);
        let pin = pin();
        let Some(ends) = qp.ends(&pin, path, now) else {
            break;
        };
        match read {
            Ok(count) if count != 0 => {
                let rest = iwarp.receive(&ends, &rx[..count], events);
                if connected.put_back(rest).is_err() {
                    iwarp.end(&ends, true, events);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            // The end was found before, and is found again until the queue pair has left its stream.
            Ok(_) | Err(_) if iwarp.has_stopped() => break,
            Ok(_) => iwarp.end(&ends, false, events),
            Err(_) => iwarp.end(&ends, true, events),
        }
        taken.came = true;
        taken.wants_round = events.fail || iwarp.wants_round(&ends);
        // If it is less than a buffer, that was all there was.
        if events.fail || read.is_ok_and(|count| count < rx.len()) {
            break;
        }
    }
    taken
}

/// One round of the machine: what is due, and what can be sent.
pub(super) fn exchange_stream(
    qp: &Arc<QueuePair>,
    exchange: &mut PacketQp,
    machine: &mut MutexGuard<'_, WorkerState>,
    effects: &mut Effects,
) {
    qp.follow(exchange);
    let (Some(path), Some(streams)) = (exchange.path, &qp.port.streams) else {
        return;
    };
    let Some(mut connected) = exchange.stream.take() else {
        return;
    };
    let mut events = Events::default();
    if let Some(iwarp) = exchange.transport.iwarp().filter(|it| it.is_held()) {
        let mut rx = streams.rx.lock();
        take_in(qp, iwarp, &mut connected, &path, &mut rx, &mut events);
    }
    let (more, lost) = send_out(qp, exchange, streams, &mut connected, &path, &mut events);
    let iwarp = exchange.transport.iwarp();
    if lost && let Some(iwarp) = iwarp {
        take_last(qp, streams, iwarp, &mut connected, &path, &mut events);
    }
    let is_held = exchange.transport.iwarp().is_some_and(|it| it.is_held());
    connected.watch(!is_held);
    if more && !lost && connected.outgoing.is_empty() {
        effects.add(Effect::Again(qp.events()));
    }
    exchange.stream = Some(connected);
    qp.set_timer(exchange);
    qp.handle_events(exchange, machine, events, None, effects);
    // The message that reports the reason to the peer has to be sent before sending stops.
    if exchange.failing && (lost || !exchange.transport.is_answering()) {
        exchange.failing = false;
        part(qp, exchange, effects);
    }
}

/// Sends what waits, and what the machine puts out, as far as the stream has room: whether there is more, and whether the stream
/// is lost.
fn send_out(
    qp: &QueuePair,
    exchange: &mut PacketQp,
    streams: &Streams<QueuePair>,
    connected: &mut Connected,
    path: &Path,
    events: &mut Events,
) -> (bool, bool) {
    let now = qp.port.engine.now();
    // Also while the stream is full: what is over would be due again at once, and on and on.
    if let Some(iwarp) = exchange.transport.iwarp() {
        iwarp.expire(now);
    }
    let mut tx = streams.tx.lock();
    let mut more = true;
    for _ in 0..ROUNDS {
        if connected.outgoing.flush(&mut *connected.stream).is_err() {
            return (more, true);
        }
        if !more || !connected.outgoing.is_empty() {
            break;
        }
        let pin = pin();
        let Some(ends) = qp.ends(&pin, path, now) else {
            break;
        };
        let Some(iwarp) = exchange.transport.iwarp() else {
            break;
        };
        let mut out = FpduBuffer::new(&mut tx, connected.has_crc, iwarp.ulpdu_max());
        more = iwarp.transmit(&ends, &mut out, events);
        let len = out.len();
        drop(pin);
        let sent = connected.outgoing.send(&mut *connected.stream, &tx[..len]);
        if sent.is_err() {
            return (more, true);
        }
        if len == 0 {
            break;
        }
    }
    (more, false)
}

/// Nothing can be sent any longer. What the peer has sent before it closed the stream is still taken in.
fn take_last(
    qp: &QueuePair,
    streams: &Streams<QueuePair>,
    iwarp: &mut Iwarp,
    connected: &mut Connected,
    path: &Path,
    events: &mut Events,
) {
    let mut rx = streams.rx.lock();
    for _ in 0..ROUNDS {
        let taken = take_in(qp, iwarp, connected, path, &mut rx, events);
        if !taken.came || events.fail {
            break;
        }
    }
    let pin = pin();
    if let Some(ends) = qp.ends(&pin, path, qp.port.engine.now()) {
        iwarp.end(&ends, true, events);
    }
}

/// The stream has ended. The endpoint is told before the queue pair goes to ERR, so that a client that finds its work
/// requests flushed knows why. One that has reset its queue pair by then keeps it as it is: it may be about to be another
/// connection's.
fn part(qp: &Arc<QueuePair>, exchange: &mut PacketQp, effects: &mut Effects) {
    let iwarp = exchange.transport.iwarp();
    let event = match iwarp.is_some_and(|it| it.is_closed()) {
        true => CmEvent::Disconnected,
        false => CmEvent::Closed,
    };
    let endpoint = exchange.stream.as_ref().and_then(|it| it.endpoint.as_ref());
    let endpoint = endpoint.and_then(Weak::upgrade);
    let (qp, resets) = (Arc::clone(qp), qp.resets());
    effects.add(Effect::Run(Box::new(move || {
        if let Some(endpoint) = endpoint {
            endpoint.raise(event);
        }
        defer(move || {
            qp.fail_since(resets);
        });
    })));
}

/// The queue pair has left RTS: what waits is still sent on its stream, which is then closed; and the end is
/// reported to its endpoint, unless it was before.
pub(super) fn leave_stream(qp: &QueuePair, effects: &mut Effects) {
    let Some(exchange) = qp.worker.exchange() else {
        return;
    };
    let Some(connected) = exchange.lock().stream.take() else {
        return;
    };
    let Connected {
        stream,
        token,
        outgoing,
        endpoint,
        ..
    } = *connected;
    if let Some(streams) = &qp.port.streams {
        streams.leave(token, stream, outgoing);
    }
    if let Some(endpoint) = endpoint.as_ref().and_then(Weak::upgrade) {
        effects.add(Effect::Run(Box::new(move || {
            endpoint.raise(CmEvent::Disconnected);
            endpoint.raise(CmEvent::Closed);
        })));
    }
}
