//! The options that an HCA is made with.

use verbs_core::device::OpenDevice;
use verbs_core::mem::MrTable;
use verbs_core::sync::Arc;
use verbs_core::{AtomicCap, DeviceCap, Request, Seed};
use verbs_link::stream::StreamLink;

use crate::clock::Clock;
use crate::engine::Engine;
use crate::hca::Hca;
use crate::hca::command::CommandConfig;
use crate::hca::limits::Limits;
use crate::link::{Loopback, PacketLink};
use crate::port::features::Features;
use crate::port::streams::{NoPackets, Streams};
use crate::port::{Driver, Port, gids};
use crate::transport::congestion::Dcqcn;

/// Collects the options that an HCA is made with; begun by [`Hca::loopback`] and [`Hca::on`].
#[derive(Debug)]
#[must_use = "a builder makes nothing until told to"]
pub struct Builder {
    link: Loopback,
    /// Carries packets, if the port is not on `link`.
    packets: Option<Box<dyn PacketLink>>,
    /// Makes the streams, if streams carry messages.
    streams: Option<Box<dyn StreamLink>>,
    peer_to_peer: bool,
    name: String,
    seed: Seed,
    limits: Limits,
    clock: Option<Clock>,
    commands: Option<CommandConfig>,
    features: Features,
}

impl Builder {
    pub(crate) fn new(link: &Loopback) -> Self {
        Self {
            link: link.clone(),
            packets: None,
            streams: None,
            peer_to_peer: false,
            name: String::from("sim0"),
            seed: Seed::from(0),
            limits: Limits::default(),
            clock: None,
            commands: None,
            features: Features::default(),
        }
    }

    /// An HCA whose packets that link carries. Its keys, queue pair numbers and packet sequence numbers are drawn from
    /// [`PacketLink::seed`]: on a network, a peer that sees some of them cannot predict the others.
    pub(crate) fn over(mut packets: Box<dyn PacketLink>) -> Self {
        let seeds = [packets.seed(), packets.seed()];
        Self {
            name: String::from(if packets.managed().is_some() {
                "ib0"
            } else {
                "roce0"
            }),
            seed: seeds[0],
            packets: Some(packets),
            ..Self::new(&Loopback::seeded(seeds[1]))
        }
    }

    /// An HCA whose messages are carried by streams that the link makes.
    pub(crate) fn over_streams(streams: Box<dyn StreamLink>) -> Self {
        let seeds = [streams.seed(), streams.seed()];
        Self {
            name: String::from("iwarp0"),
            seed: seeds[0],
            streams: Some(streams),
            features: Features::iwarp(),
            ..Self::new(&Loopback::seeded(seeds[1]))
        }
    }

    /// Its name, as `hca_id` prints it; `sim0` by default.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the seed of its regions' keys, and of the numbers of the connection manager above it: a number, with which
    /// they repeat and are no secret, or a secret [`Seed`]. By default 0 on a loopback link, and the link's seed on others.
    pub fn seed(mut self, seed: impl Into<Seed>) -> Self {
        self.seed = seed.into();
        self
    }

    /// Lets connects over streams ask for peer-to-peer connections (RFC 6581): the side that accepts may send first as
    /// soon as the other side is ready. Without it that side has to wait for a first message, and gives up after 100
    /// ms.
    ///
    /// Off by default: the kernel of a Linux siw that accepts such a connection crashes when the message that asks for
    /// it arrives too early.
    pub fn peer_to_peer(mut self) -> Self {
        self.peer_to_peer = true;
        self
    }

    /// How many objects of each kind it has.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The clock of its timeouts and time stamps; the system's clock by default.
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.clock = Some(clock.into());
        self
    }

    /// Gives commands times and slots, as hardware has them; by default they are carried out at once.
    pub fn commands(mut self, config: CommandConfig) -> Self {
        self.commands = Some(config);
        self
    }

    /// Takes optional features away: what their bits stand for is refused as unsupported, not counted, or not reported.
    /// [`RC_RNR_NAK_GEN`](DeviceCap::RC_RNR_NAK_GEN) stays: reliable connections here cannot do without it.
    pub fn without(mut self, caps: DeviceCap) -> Self {
        self.features.remove(caps);
        self
    }

    /// The scope in which atomics are reported as atomic; with [`AtomicCap::None`] there are none.
    pub fn atomics(mut self, cap: AtomicCap) -> Self {
        self.features.atomics = cap;
        self
    }

    /// The same for masked atomics.
    pub fn masked_atomics(mut self, cap: AtomicCap) -> Self {
        self.features.masked_atomics = cap;
        self
    }

    /// Lets a local invalidate that is not fenced take effect as soon as it is posted, before earlier work
    /// requests of its queue that still use the key, as hardware may (IBTA vol. 1, 10.8.3.3). By default
    /// it waits for all of them. Fences hold it back either way.
    pub fn early_invalidates(mut self) -> Self {
        self.features.early_invalidates = true;
        self
    }

    /// Ignores fences, as a device may that has none: a work request does not wait for earlier READs and atomics, whatever
    /// its flags are. Its client could not keep a key valid that an earlier READ still uses, so such an HCA does not have
    /// the [memory management extensions](DeviceCap::MEM_MGT_EXTENSIONS) nor windows of
    /// [type 2](DeviceCap::MEM_WINDOW_TYPE_2B), which work requests invalidate, and refuses what takes them.
    pub fn without_fences(mut self) -> Self {
        self.features.fences = false;
        let invalidated = DeviceCap::MEM_MGT_EXTENSIONS
            | DeviceCap::MEM_WINDOW_TYPE_2A
            | DeviceCap::MEM_WINDOW_TYPE_2B;
        self.features.remove(invalidated);
        self
    }

    /// How reliable connections over packets react to congestion notifications: with [`Dcqcn`]'s default unless set
    /// otherwise, and with `None` not at all. Switches mark packets whose traffic class permits it, with 1 or 2 in its
    /// lower two bits (RFC 3168); packets that arrive marked are answered with notifications in any case.
    pub fn congestion(mut self, dcqcn: Option<Dcqcn>) -> Self {
        self.features.congestion = dcqcn;
        self
    }

    /// Makes the HCA.
    pub fn build(self) -> Arc<Hca> {
        let Self {
            link,
            mut packets,
            streams,
            peer_to_peer,
            name,
            seed,
            limits,
            clock,
            commands,
            mut features,
        } = self;
        let engine = Engine::new(clock.unwrap_or_else(Clock::wall));
        let streams = streams.map(|link| Streams::new(link, engine.clone(), peer_to_peer));
        if let Some(streams) = &streams {
            packets = Some(Box::new(NoPackets::new(streams)));
        }
        if packets.is_none() {
            // There is one path from a port of the loopback link to another.
            features.remove(DeviceCap::AUTO_PATH_MIG);
        }
        let (lid, gid, guid) = link.directory.lock().attach();
        let managed = packets.as_ref().and_then(|packets| packets.managed());
        let gids = match &packets {
            Some(packets) => gids(packets.addresses()),
            None => [gid].into_iter().collect(),
        };
        let mut port = Port::new(
            (lid, guid),
            gids,
            Arc::clone(&link.directory),
            Arc::new(MrTable::new(limits.max_mr, seed)),
            engine,
            packets.map(Driver::new),
        );
        port.features = features;
        port.streams = streams;
        if let Some(managed) = managed {
            port.guid = managed.tables().node_guid;
            let state = managed.tables().info.state.port_state();
            port.managed = Some(managed);
            let _ = port.follow_manager(state);
        }
        let hca = Arc::new(Hca::new(&name, port, seed.number(), (&limits, commands)));
        hca.start();
        hca
    }

    /// Makes the HCA and opens a device on it, which keeps it.
    ///
    /// # Errors
    /// As [`Hca::open`].
    pub fn open(self) -> Request<'static, OpenDevice> {
        self.build().open()
    }
}
