//! `verbs serve`: answers clients, each on a thread and a queue pair of its own. They come over TCP, or
//! where an address is named by the connection manager.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use verbs_cm::{ConnectRequest, Listener};
use verbs_core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use verbs_core::sync::{Arc, Mutex, thread};
use verbs_core::{Access, Device};

use super::control::Control;
use super::drive::{drive, see_off, unexpected};
use super::managed::Managed;
use super::message::{Cause, Fail, Get, Message, Offer};
use super::root::Root;
use super::{Seat, connect, identify};
use crate::address::SERVE_PORT;
use crate::cli::ServeArgs;
use crate::copy::endpoint::Endpoint;
use crate::copy::error::{CopyError, End};
use crate::copy::fabric::check;
use crate::copy::sender::Sender;
use crate::copy::source::Source;
use crate::copy::window::Plan;
use crate::net::{self, Connection, NetError};
use crate::report::Progress;
use crate::wire::{Network, PORT, Wire};

/// Bytes of the chunk buffers of one client at most: more would not make it faster, and clients say how
/// much they want.
const CLIENT_BYTES_MAX: u32 = 64 << 20;

/// Addresses on which clients that come to any are served at most.
const WIRES_MAX: usize = 64;

/// How long to wait when the system has no more descriptors.
const BREATH: Duration = Duration::from_millis(100);

/// Serves a directory.
pub(super) struct Server<'a> {
    root: Root,
    network: &'a dyn Network,
    /// The addresses that were named, or else those that clients came to so far.
    named: Option<Wire>,
    found: Mutex<BTreeMap<IpAddr, Wire>>,
    clients: AtomicU32,
    clients_max: u32,
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

/// Runs the command. Ends only when it cannot begin.
pub(crate) fn run(args: &ServeArgs, network: &dyn Network) -> Result<(), CopyError> {
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
    server.serve(&listener, service, args.quiet)
}

/// Where clients come to by the connection manager.
pub(super) struct ManagedService {
    device: Device,
    listener: Listener,
}

impl<'a> Server<'a> {
    pub(super) fn new(args: &ServeArgs, network: &'a dyn Network) -> Result<Self, CopyError> {
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
            [] => None,
            addresses => Some(network.attach(addresses)?),
        };
        Ok(Self {
            root: Root::open(&args.dir)?,
            network,
            named,
            found: Mutex::new(BTreeMap::new()),
            clients: AtomicU32::new(0),
            clients_max: args.max_clients,
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
        let listener = verbs_cm::listen(&device, address).wait();
        let listener = listener.map_err(|error| NetError::Service {
            address,
            error: Box::new(error),
        })?;
        Ok(Some(ManagedService { device, listener }))
    }

    /// Serves whoever comes, for ever.
    fn serve(
        &self,
        listener: &TcpListener,
        service: Option<ManagedService>,
        quiet: bool,
    ) -> Result<(), CopyError> {
        thread::scope(|scope| {
            if let Some(mut service) = service {
                let local = service.listener.local_addr();
                let device = Arc::new(service.device);
                scope.spawn(move || {
                    loop {
                        let request = block_on(service.listener.accept());
                        let device = Arc::clone(&device);
                        if let Some(request) = self.admit_managed(request) {
                            scope.spawn(move || self.welcome(&device, request, local, quiet));
                        }
                    }
                });
            }
            loop {
                let accepted = listener.accept();
                match accepted.and_then(|(stream, _)| Connection::new(stream)) {
                    Ok(connection) => {
                        if let Some(control) = self.admit(Control::Stream(connection)) {
                            scope.spawn(move || self.attend(control, quiet));
                        }
                    }
                    Err(error) => {
                        complain(&format_args!("cannot accept a connection: {error}"));
                        thread::sleep(BREATH);
                    }
                }
            }
        })
    }

    /// Counts a client in, or sends it away.
    pub(super) fn admit(&self, control: Control) -> Option<Control> {
        if self.count_in() {
            return Some(control);
        }
        control.dismiss(&Message::Fail(Fail {
            cause: Cause::Busy,
            text: self.crowded(),
        }));
        None
    }

    /// Counts a client in that has asked to be connected, or refuses it.
    fn admit_managed(&self, request: ConnectRequest) -> Option<ConnectRequest> {
        if self.count_in() {
            return Some(request);
        }
        // A client that has given up needs no answer.
        let _ = request.reject(self.crowded().as_bytes());
        None
    }

    fn count_in(&self) -> bool {
        let one_more = |count| (count < self.clients_max).then_some(count + 1);
        let counted = self.clients.fetch_update(Relaxed, Relaxed, one_more);
        counted.is_ok()
    }

    fn crowded(&self) -> String {
        let max = self.clients_max;
        format!("{max} others are being served; try again later")
    }

    /// Connects a client that was admitted, and serves it.
    fn welcome(&self, device: &Device, request: ConnectRequest, local: SocketAddr, quiet: bool) {
        let peer = request.peer_addr();
        match Managed::accept(device, request, local) {
            Ok(managed) => self.attend(Control::Managed(managed), quiet),
            Err(error) => {
                self.clients.fetch_sub(1, Relaxed);
                complain(&format_args!("{peer}: {error}"));
            }
        }
    }

    /// Serves a client that was admitted, and says how it went.
    fn attend(&self, control: Control, quiet: bool) {
        let peer = control.peer();
        match self.handle(control) {
            Ok(served) if !quiet => tell(&format_args!("{peer}: {served}")),
            Ok(_) => {}
            Err(error) => complain(&format_args!("{peer}: {error}")),
        }
    }

    /// Serves a client that was admitted. Blocks until it has gone.
    pub(super) fn handle(&self, mut control: Control) -> Result<Served, CopyError> {
        let served = block_on(self.converse(&mut control));
        if let Err(error) = &served
            && !matches!(
                error,
                CopyError::PeerGone { .. } | CopyError::Net(NetError::Ended(_))
            )
        {
            let cause = Cause::of_exit_code(error.exit_code());
            let text = error.to_string();
            control.dismiss(&Message::Fail(Fail { cause, text }));
        }
        self.clients.fetch_sub(1, Relaxed);
        served
    }

    /// Answers one request.
    async fn converse(&self, control: &mut Control) -> Result<Served, CopyError> {
        let get = match control.receive()? {
            Message::Get(get) => get,
            other => return Err(unexpected(End::Destination, other)),
        };
        let mut source = self.root.source(&get.path)?;
        let started = Instant::now();
        self.send(control, &get, &mut source).await?;
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
        get: &Get,
        source: &mut Source,
    ) -> Result<(), CopyError> {
        let end = End::Source;
        let local = control.local().ip();
        let wire = self.wire(local)?;
        let seat = Seat::take(end, &wire, local, Some(get.gid)).await?;
        let (chunk, window) = willing(get, &seat).await?;
        let plan = Plan::new(source.size(), chunk, window);
        check(end, &seat.device, chunk, &plan).await?;
        let endpoint = Endpoint::new(end, seat.device, &plan, Access::LOCAL_WRITE).await?;
        let ours = identify(&endpoint, seat.gid)?;
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
        connect(&endpoint, seat.index, &ours, &ready.end).await?;
        let mut watch = control.watch()?;
        let mut sender = Sender::new(endpoint, source, plan, ready.slots);
        let progress = Progress::new(plan.size(), true);
        if !drive(&mut sender, &mut watch, plan.chunks(), &progress).await? {
            see_off(&mut watch).await;
        }
        sender.into_endpoint().close().await
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
    // Clients are served all the same when nobody reads what is said about them.
    let _ = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
}

fn complain(text: &dyn fmt::Display) {
    // Nobody can be told that stderr is closed.
    let _ = writeln!(std::io::stderr(), "verbs serve: {text}");
}
