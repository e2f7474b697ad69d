//! The server: clients come by the connection manager, each has a thread.
//!
//! Anyone may ask, and addresses may be forged. A client counts once its connection is there; one that only asks,
//! or is connected and does nothing, gives way to others ([`Places`]). Without `-P` the server is for the first
//! client that has announced a buffer.

use std::fmt;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;

use futures::StreamExt;
use futures::channel::mpsc;
use futures::executor::block_on;
use futures::future::{AbortHandle, Abortable, Either, select};
use verbs_cm::ConnectRequest;
use verbs_core::Device;
use verbs_core::sync::{Arc, Mutex, thread};

use super::end::{Announcement, End};
use super::{RpingArgs, RpingError, goodbye, readable, say};
use crate::ending::{Ending, Signal};
use crate::places::{HangUp, Limits, Places, Stage, Ticket};

/// Clients that are served at the same time, and of these those of one address. Each takes a thread, and twice
/// the bytes of a ping.
const PERSISTENT: Limits = Limits {
    clients: 64,
    per_address: 32,
};

/// Without `-P`.
const ONE: Limits = Limits {
    clients: 1,
    per_address: 1,
};

/// Clients that have ended and are not yet heard of.
const ENDED_MAX: usize = 16;

/// What the threads share.
struct Server<'a> {
    args: &'a RpingArgs,
    device: &'a Device,
    places: Places,
    out: Mutex<&'a mut (dyn Write + Send)>,
}

/// How a client's thread ended.
enum Ended {
    /// It never was served.
    Unserved(Option<RpingError>),
    Served(Result<(), RpingError>),
}

/// Serves until it is done, or the process is told to end.
pub(super) fn serve(
    args: &RpingArgs,
    device: &Device,
    ending: &Ending,
    out: &mut (dyn Write + Send),
) -> Result<Result<(), RpingError>, Signal> {
    let limits = match args.persistent {
        true => PERSISTENT,
        false => ONE,
    };
    let server = Server {
        args,
        device,
        places: Places::new(limits),
        out: Mutex::new(out),
    };
    thread::scope(|scope| {
        let served = block_on(ending.unless_told(server.listen(scope)));
        if served.is_err() {
            goodbye(device);
        }
        // Threads that wait for clients end.
        server.places.close_all();
        served
    })
}

impl Server<'_> {
    async fn listen<'scope>(
        &'scope self,
        scope: &'scope thread::Scope<'scope, '_>,
    ) -> Result<(), RpingError> {
        let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let at = SocketAddr::new(self.args.address.unwrap_or(any), self.args.port);
        let mut listener = verbs_cm::listen(self.device, at).await?;
        let (tell, mut told) = mpsc::channel(ENDED_MAX);
        loop {
            let request = match select(pin!(listener.accept()), told.next()).await {
                Either::Left((request, _)) => request,
                Either::Right((Some(Ended::Served(served)), _)) if !self.args.persistent => {
                    return served;
                }
                Either::Right((ended, _)) => {
                    self.say_failure(ended)?;
                    continue;
                }
            };
            let mut tell = tell.clone();
            let client = move || {
                // The receiver has gone when the server ends.
                let _ = tell.try_send(self.client(request));
            };
            let spawned = thread::Builder::new().spawn_scoped(scope, client);
            spawned.map_err(|error| RpingError::System {
                doing: "start a thread for a client",
                error,
            })?;
        }
    }

    /// A client that fails is not the server's failure.
    fn say_failure(&self, ended: Option<Ended>) -> Result<(), RpingError> {
        let (Some(Ended::Served(Err(error))) | Some(Ended::Unserved(Some(error)))) = ended else {
            return Ok(());
        };
        match self.args.persistent {
            true => self.say(&format_args!("client failed: {error}")),
            false => Ok(()),
        }
    }

    /// Connects a client, and serves it, until it is done or has to give way: its connection ends then.
    fn client(&self, request: ConnectRequest) -> Ended {
        // What it says of itself does not count.
        let said = request.peer_addr().ip();
        let address = request.peer_gid().map_or(said, IpAddr::from);
        let (hang_up, hung_up) = AbortHandle::new_pair();
        let hang_up: HangUp = Arc::new(move || hang_up.abort());
        let (address, close) = (address.to_canonical(), Arc::clone(&hang_up));
        let ticket = self.places.enter(address, Stage::Asking, close);
        let client = Abortable::new(self.attend(request, &ticket, hang_up), hung_up);
        block_on(client).unwrap_or(Ended::Unserved(None))
    }

    async fn attend(&self, request: ConnectRequest, ticket: &Ticket<'_>, hang_up: HangUp) -> Ended {
        let mut end = match End::new(self.device, self.args.size).await {
            Ok(end) => end,
            Err(error) => return Ended::Unserved(Some(error)),
        };
        if let Err(error) = accept(&mut end, request).await {
            return Ended::Unserved(Some(error));
        }
        ticket.connected(hang_up);
        let first = match end.receive().await {
            Ok(Some(first)) => first,
            Ok(None) => return Ended::Unserved(end.leave(self.device, Ok(())).await.err()),
            Err(error) => return Ended::Unserved(end.leave(self.device, Err(error)).await.err()),
        };
        if let Err(full) = ticket.take_place() {
            let refused = end.leave(self.device, Err(full.into())).await;
            return Ended::Unserved(refused.err());
        }
        // It has sent data: its device is there.
        ticket.served();
        let served = self.pong(&mut end, first, ticket).await;
        Ended::Served(end.leave(self.device, served).await)
    }

    /// Answers a client's pings until it goes, or as many as were asked for.
    async fn pong(
        &self,
        end: &mut End,
        first: Announcement,
        ticket: &Ticket<'_>,
    ) -> Result<(), RpingError> {
        let (mut pings, mut source) = (0, Some(first));
        while self.args.count.is_none_or(|count| pings < count) {
            let Some(from) = source.take() else {
                return Ok(());
            };
            end.fetch(from).await?;
            if self.args.verbose {
                let text = end.fetched()?;
                self.say(&format_args!("server ping data: {}", readable(&text)))?;
            }
            end.announce(true).await?;
            let Some(sink) = end.receive().await? else {
                return Err(RpingError::Ended(pings));
            };
            end.write_back(sink).await?;
            end.announce(true).await?;
            pings += 1;
            ticket.moved();
            // After the last one the client ends the connection.
            source = end.receive().await?;
        }
        Ok(())
    }

    fn say(&self, text: &dyn fmt::Display) -> Result<(), RpingError> {
        say(*self.out.lock(), text)
    }
}

/// Accepts a request with a queue pair of the end.
async fn accept(end: &mut End, request: ConnectRequest) -> Result<(), RpingError> {
    let qp = end.queue_pair().await?;
    let accepting = request.accept(qp).responder_resources(1).initiator_depth(1);
    let connection = accepting.await.map_err(verbs_cm::Error::from)?;
    end.connection = Some(connection);
    Ok(())
}
