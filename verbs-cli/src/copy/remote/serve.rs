//! `verbs serve`: answers clients, each on a thread and a queue pair of its own. They come over TCP, or
//! where an address is named by the connection manager; over iWARP, whose ports are those of TCP, by the connection manager
//! only.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use futures::future::AbortHandle;
use verbs_cm::{ConnectRequest, Listener, Manager};
use verbs_core::sync::{Arc, Mutex, OnceLock, thread};
use verbs_core::{Access, Device, Gid};

use super::control::{Control, Watch};
use super::drive::{drive, prove, see_off, unexpected};
use super::managed::Managed;
use super::message::{Cause, Fail, Get, Identity, Message, Offer};
use super::root::Root;
use super::streams::{self, Awaited};
use super::{Seat, connect, identify};
use crate::address::SERVE_PORT;
use crate::cli::ServeArgs;
use crate::copy::endpoint::Endpoint;
use crate::copy::error::{CopyError, End};
use crate::copy::fabric::check;
use crate::copy::sender::Sender;
use crate::copy::source::Source;
use crate::copy::window::Plan;
use crate::ending::{Ending, GOODBYE, within};
use crate::net::{self, Connection, NetError};
use crate::places::{Limits, Places, Stage, Ticket};
use crate::report::{Progress, remark};
use crate::wire::{Network, PORT, Wire};

/// Bytes of the chunk buffers of one client at most: more would not make it faster, and clients say how
/// much they want.
const CLIENT_BYTES_MAX: u32 = 64 << 20;

/// Addresses on which clients that come to any are served at most.
const WIRES_MAX: usize = 64;

/// How often it is said how many clients gave way that had said nothing.
const SILENT_TOLD: Duration = Duration::from_secs(10);

/// How long to wait when the system has no more descriptors.
const BREATH: Duration = Duration::from_millis(100);

/// Serves a directory.
pub(super) struct Server<'a> {
    root: Root,
    network: &'a dyn Network,
    /// The addresses that were named, or else those that clients came to so far.
    named: Option<Wire>,
    found: Mutex<BTreeMap<IpAddr, Wire>>,
    places: Places,
    /// Over iWARP, the ends that wait for their connections, and the device that all of them are on.
    awaited: Awaited,
    streams: OnceLock<Arc<Device>>,
    /// When it was last said how many clients gave way that had said nothing.
    last_told: Mutex<Instant>,
}

/// What a client got.
#[derive(Debug)]
pub(super) struct Served {
    path: Vec<u8>,
    bytes: u64,
    elapsed: Duration,
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, seconds) = (self.path.escape_ascii(), self.elapsed.as_secs_f64());
        write!(f, "{path}: {} bytes in {seconds:.3} s", self.bytes)
    }
}

/// Runs the command. Ends when it cannot begin, or when the process is told to end.
pub(crate) fn run(args: &ServeArgs, network: &dyn Network) -> Result<(), CopyError> {
    let ending = Ending::begin().map_err(CopyError::Signals)?;
    if network.is_over_streams() {
        return run_over_streams(args, network, &ending);
    }
    let listener = net::listen(args.listen, SERVE_PORT)?;
    let server = Server::new(args, network)?;
    let address = listener.local_addr().map(net::canonical);
    let service = match &address {
        Ok(address) => server.service(*address)?,
        Err(_) => None,
    };
    if !args.quiet
        && let Ok(address) = address
    {
        let (dir, port) = (args.dir.display(), address.port());
        match (&service, address.ip().is_unspecified()) {
            (None, true) => tell(&format_args!(
                "serving {dir} at port {port} of all addresses"
            )),
            (Some(_), true) => tell(&format_args!(
                "serving {dir} at port {port} of all addresses by roce://, and of those named by rdma://"
            )),
            (None, false) => tell(&format_args!("serving {dir} at roce://{address}/")),
            (Some(_), false) => tell(&format_args!(
                "serving {dir} at roce://{address}/ and rdma://{address}/"
            )),
        }
    }
    server.serve(Some(&listener), service, &ending, args.quiet)
}

/// The same over iWARP.
fn run_over_streams(
    args: &ServeArgs,
    network: &dyn Network,
    ending: &Ending,
) -> Result<(), CopyError> {
    let server = Server::new(args, network)?;
    let address = args
        .listen
        .unwrap_or(SocketAddr::from(([0; 16], SERVE_PORT)));
    let service = server.service(net::canonical(address))?;
    if let (Some(service), false) = (&service, args.quiet) {
        let dir = args.dir.display();
        let at = service.listeners.iter().map(Listener::local_addr);
        match at.clone().find(|at| !at.ip().is_unspecified()) {
            None => tell(&format_args!(
                "serving {dir} at port {} of all addresses by iwarp://",
                at.map(|at| at.port()).next().unwrap_or(SERVE_PORT)
            )),
            Some(address) => tell(&format_args!("serving {dir} at iwarp://{address}/")),
        }
    }
    server.serve(None, service, ending, args.quiet)
}

/// Waits until the process is told to end, and says goodbye to the clients of the connection manager. Those of
/// TCP see their connections end with the process.
fn end_well(ending: &Ending, device: Option<Arc<Device>>) {
    let signal = block_on(ending.told());
    if let Some(device) = device {
        let goodbye = Manager::of(&device).disconnect_all();
        let _unanswered = within(Instant::now() + GOODBYE, goodbye);
    }
    signal.obey()
}

/// Where clients come to by the connection manager.
pub(super) struct ManagedService {
    device: Arc<Device>,
    /// More than one for all addresses over TCP, where those of each family are listened on apart.
    listeners: Vec<Listener>,
}

impl<'a> Server<'a> {
    pub(super) fn new(args: &ServeArgs, network: &'a dyn Network) -> Result<Self, CopyError> {
        network.check()?;
        let listens_on = args.listen.map(|address| net::canonical(address).ip());
        let addresses = match listens_on {
            Some(address) if args.wire.bind.is_empty() && !address.is_unspecified() => {
                vec![address]
            }
            _ => args.wire.bind.clone(),
        };
        if addresses.is_empty() && args.wire.pcap.is_some() {
            // Each address that a client comes to would need a file of its own.
            return Err(CopyError::CaptureOfAny);
        }
        let named = match addresses.as_slice() {
            [] if network.is_over_streams() => Some(network.attach_all()?),
            [] => None,
            addresses => Some(network.attach(addresses)?),
        };
        Ok(Self {
            root: Root::open(&args.dir)?,
            network,
            named,
            found: Mutex::new(BTreeMap::new()),
            places: Places::new(Limits {
                clients: args.max_clients,
                per_address: args
                    .max_clients_per_address
                    .unwrap_or(args.max_clients.div_ceil(2)),
            }),
            awaited: Awaited::default(),
            streams: OnceLock::new(),
            last_told: Mutex::new(Instant::now()),
        })
    }

    /// Listens by the connection manager too, if an address was named: a device has to be there before
    /// clients come.
    pub(super) fn service(&self, address: SocketAddr) -> Result<Option<ManagedService>, CopyError> {
        let Some(wire) = &self.named else {
            return Ok(None);
        };
        let device = block_on(wire.device());
        let device = device.map_err(|error| CopyError::Verb {
            end: End::Source,
            doing: "open the device",
            error,
        })?;
        let listeners = listen(&device, address)?;
        let device = Arc::new(device);
        if streams::is_of(&device) {
            // A server has one service.
            let _ = self.streams.set(Arc::clone(&device));
        }
        Ok(Some(ManagedService { device, listeners }))
    }

    /// Serves the clients that come, until the process is told to end.
    fn serve(
        &self,
        listener: Option<&TcpListener>,
        service: Option<ManagedService>,
        ending: &Ending,
        quiet: bool,
    ) -> Result<(), CopyError> {
        thread::scope(|scope| {
            let device = service.as_ref().map(|service| service.device.clone());
            let leaving = device.clone();
            scope.spawn(move || end_well(ending, leaving));
            for mut managed in service.into_iter().flat_map(|it| it.listeners) {
                let (local, device) = (managed.local_addr(), device.clone());
                scope.spawn(move || {
                    loop {
                        let request = block_on(managed.accept());
                        let Some(request) = self.awaited.take(request) else {
                            continue;
                        };
                        let Some(device) = device.clone() else { return };
                        self.spawn(scope, move || self.welcome(&device, request, local, quiet));
                    }
                });
            }
            while let Some(listener) = listener {
                let accepted = listener.accept();
                match accepted.and_then(|(stream, _)| Connection::new(stream)) {
                    Ok(connection) => {
                        let control = Control::Stream(connection);
                        let ticket = self.admit(&control);
                        self.spawn(scope, move || self.attend(control, ticket, quiet));
                    }
                    Err(error) => {
                        complain(&format_args!("cannot accept a connection: {error}"));
                        thread::sleep(BREATH);
                    }
                }
            }
        });
        Ok(())
    }

    /// A thread for a client. A system that has none leaves the client unserved: its connection is closed.
    fn spawn<'scope>(
        &self,
        scope: &'scope thread::Scope<'scope, '_>,
        serve: impl FnOnce() + Send + 'scope,
    ) {
        self.tell_of_the_silent();
        if let Err(error) = thread::Builder::new().spawn_scoped(scope, serve) {
            complain(&format_args!("cannot start a thread for a client: {error}"));
            thread::sleep(BREATH);
        }
    }

    /// Says now and then how many clients gave way that had said nothing: one line for each would be a flood
    /// of its own.
    fn tell_of_the_silent(&self) {
        let mut last = self.last_told.lock();
        if last.elapsed() < SILENT_TOLD {
            return;
        }
        *last = Instant::now();
        drop(last);
        match self.places.silent_gone() {
            0 => {}
            gone => complain(&format_args!(
                "{gone} clients that said nothing gave way to others"
            )),
        }
    }

    #[cfg(test)]
    pub(super) fn places(&self) -> &Places {
        &self.places
    }

    /// Lets a client in that has connected by TCP.
    pub(super) fn admit(&self, control: &Control) -> Ticket<'_> {
        let address = control.peer().ip();
        self.places.enter(address, Stage::Silent, control.hang_up())
    }

    /// Connects a client that has asked for it, and serves it.
    fn welcome(&self, device: &Device, request: ConnectRequest, local: SocketAddr, quiet: bool) {
        let peer = request.peer_addr();
        // What the client says of itself does not count.
        let address = request.peer_gid().map_or(peer.ip(), IpAddr::from);
        let (give_up, giving_up) = AbortHandle::new_pair();
        let hang_up = Arc::new(move || give_up.abort());
        let ticket = self
            .places
            .enter(address.to_canonical(), Stage::Asking, hang_up);
        match Managed::accept(device, request, local, giving_up) {
            Ok(managed) => {
                ticket.connected(managed.hang_up());
                self.attend(Control::Managed(managed), ticket, quiet);
            }
            // A request that is not confirmed may have been forged.
            Err(_) if ticket.gave_way() => {}
            Err(error) => complain(&format_args!("{peer}: {error}")),
        }
    }

    /// Serves a client, and says how it went.
    fn attend(&self, control: Control, ticket: Ticket<'_>, quiet: bool) {
        let peer = control.peer();
        match self.handle(control, ticket) {
            Ok(served) if !quiet => tell(&format_args!("{peer}: {served}")),
            Ok(_) => {}
            // It is counted.
            Err(CopyError::GaveWay) => {}
            Err(error) => complain(&format_args!("{peer}: {error}")),
        }
    }

    /// Serves a client. Blocks until it has gone.
    pub(super) fn handle(
        &self,
        mut control: Control,
        ticket: Ticket<'_>,
    ) -> Result<Served, CopyError> {
        let served = block_on(self.converse(&mut control, &ticket));
        let Err(error) = served else {
            return served;
        };
        if ticket.gave_way() {
            return Err(CopyError::GaveWay);
        }
        // What is said takes a moment, in which the place may be of use to another.
        drop(ticket);
        let is_gone = matches!(
            error,
            CopyError::PeerGone { .. } | CopyError::Net(NetError::Ended(_))
        );
        if !is_gone {
            let cause = match error {
                CopyError::Full(_) => Cause::Busy,
                _ => Cause::of_exit_code(error.exit_code()),
            };
            let text = error.to_string();
            control.dismiss(&Message::Fail(Fail { cause, text }));
        }
        Err(error)
    }

    /// Answers one request.
    async fn converse(
        &self,
        control: &mut Control,
        ticket: &Ticket<'_>,
    ) -> Result<Served, CopyError> {
        let get = match control.receive()? {
            Message::Get(get) => get,
            other => return Err(unexpected(End::Destination, other)),
        };
        ticket.take_place().map_err(CopyError::Full)?;
        let mut source = self.root.source(&get.path)?;
        let started = Instant::now();
        self.send(control, ticket, &get, &mut source).await?;
        Ok(Served {
            path: get.path,
            bytes: source.size(),
            elapsed: started.elapsed(),
        })
    }

    /// Sends a file.
    async fn send(
        &self,
        control: &mut Control,
        ticket: &Ticket<'_>,
        get: &Get,
        source: &mut Source,
    ) -> Result<(), CopyError> {
        let end = End::Source;
        let local = control.local().ip();
        let seat = match self.streams.get() {
            Some(device) => Seat::over_streams(Arc::clone(device), local),
            None => Seat::take(end, &self.wire(local)?, local, Some(get.gid)).await?,
        };
        let (chunk, window) = willing(get, &seat).await?;
        let plan = Plan::new(source.size(), chunk, window);
        check(end, &seat.device, chunk, &plan).await?;
        let mut endpoint = Endpoint::new(end, seat.device, &plan, Access::LOCAL_WRITE).await?;
        let ours = identify(&endpoint, seat.gid)?;
        let streams = self.streams.get();
        let expected = streams.map(|_| self.awaited.expect(&ours, control.peer()));
        control.send(&Message::File(Offer {
            size: source.size(),
            mode: source.mode(),
            chunk,
            window,
            end: ours,
        }))?;
        let ready = match control.receive()? {
            Message::Ready(ready) => ready,
            other => return Err(unexpected(End::Destination, other)),
        };
        let bytes = plan
            .buffer_bytes()
            .and_then(|bytes| u64::try_from(bytes).ok());
        if bytes
            .and_then(|bytes| ready.slots.addr.checked_add(bytes))
            .is_none()
        {
            return Err(CopyError::Offer {
                end: End::Destination,
                what: "offers slots that end beyond all memory",
            });
        }
        if ready.end.gid != get.gid {
            return Err(CopyError::Offer {
                end: End::Destination,
                what: "names another address than it has asked with",
            });
        }
        let mut watch = control.watch();
        if let Some(expected) = expected {
            expected.connect(&mut endpoint, &mut watch)?;
        } else {
            connect(&endpoint, seat.index, &ours, &ready.end).await?;
            self.open_window(control, &mut endpoint, &mut watch, &ours, &plan, get.gid)
                .await?;
        }
        ticket.served();
        let mut sender = Sender::new(endpoint, source, plan, ready.slots);
        let progress = Progress::new(plan.size(), true);
        if !drive(&mut sender, &mut watch, plan.chunks(), &progress, &|| {
            ticket.moved();
        })
        .await?
        {
            see_off(&mut watch).await;
        }
        sender.into_endpoint().close().await
    }

    /// Lets data go to the client's device once that has answered a small question. An address that is not
    /// the one which the client itself speaks from may be a third party's: it is asked less often.
    async fn open_window(
        &self,
        control: &Control,
        endpoint: &mut Endpoint,
        watch: &mut Watch,
        ours: &Identity,
        plan: &Plan,
        gid: Gid,
    ) -> Result<(), CopyError> {
        if control.is_at(gid) {
            endpoint.ready_to_send(ours.psn).await?;
            return prove(endpoint, watch, gid, plan.chunks()).await;
        }
        endpoint.ready_to_ask(ours.psn).await?;
        prove(endpoint, watch, gid, plan.chunks()).await?;
        endpoint.trust().await
    }

    /// The wire on which clients are served that came to that address.
    fn wire(&self, address: IpAddr) -> Result<Wire, CopyError> {
        if let Some(named) = &self.named {
            return Ok(named.clone());
        }
        let mut found = self.found.lock();
        if let Some(wire) = found.get(&address) {
            return Ok(wire.clone());
        }
        if found.len() >= WIRES_MAX {
            return Err(CopyError::ManyAddresses(WIRES_MAX));
        }
        let wire = self.network.attach(&[address])?;
        found.insert(address, wire.clone());
        Ok(wire)
    }
}

/// Listens by the connection manager. Over TCP, all addresses are those of either family, as far as the device has some.
fn listen(device: &Device, address: SocketAddr) -> Result<Vec<Listener>, CopyError> {
    let is_all = address.ip().is_unspecified() && streams::is_of(device);
    let both = [IpAddr::from([0; 4]), IpAddr::from([0; 16])].map(|ip| (ip, address.port()).into());
    let wanted = if is_all { &both[..] } else { &[address] };
    let (mut listeners, mut absent) = (Vec::new(), None);
    for &address in wanted {
        match verbs_cm::listen(device, address).wait() {
            Ok(listener) => listeners.push(listener),
            Err(error) => {
                let is_absent = matches!(error, verbs_cm::Error::AddressNotAvailable(_));
                let error = Box::new(error);
                let failed = NetError::Service { address, error };
                match is_absent && is_all {
                    true => absent = Some(failed),
                    false => return Err(failed.into()),
                }
            }
        }
    }
    match (listeners.is_empty(), absent) {
        (true, Some(failed)) => Err(failed.into()),
        _ => Ok(listeners),
    }
}

/// Chunk and window for a client: what it asks for, as far as memory and the device allow.
async fn willing(get: &Get, seat: &Seat) -> Result<(u32, u32), CopyError> {
    let failed = |doing| {
        move |error| CopyError::Verb {
            end: End::Source,
            doing,
            error,
        }
    };
    let attr = seat.device.query().await;
    let attr = attr.map_err(failed("query the device"))?;
    let port = seat.device.query_port(PORT).await;
    let port = port.map_err(failed("query the port"))?;
    let chunk = get.chunk.min(CLIENT_BYTES_MAX).min(port.max_msg_sz).max(1);
    let slots = Endpoint::slots_within(attr.max_qp_wr, attr.max_cqe);
    let window = get.window.min(CLIENT_BYTES_MAX / chunk).min(slots).max(1);
    Ok((chunk, window))
}

fn tell(text: &dyn fmt::Display) {
    let mut stdout = std::io::stdout().lock();
    // Clients are served all the same when what is said about them is not read.
    let _ = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
}

fn complain(text: &dyn fmt::Display) {
    remark(format_args!("verbs serve: {text}"));
}
