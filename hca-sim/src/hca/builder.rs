//! What an HCA is made with.

use verbs_core::device::OpenDevice;
use verbs_core::mem::MrTable;
use verbs_core::sync::Arc;
use verbs_core::{AtomicCap, DeviceCap, Request, Seed};

use crate::clock::Clock;
use crate::engine::Engine;
use crate::hca::Hca;
use crate::hca::command::CommandConfig;
use crate::hca::limits::Limits;
use crate::link::{Loopback, PacketLink};
use crate::port::features::Features;
use crate::port::{Driver, Port, gids};

/// Collects what an HCA is made with; begun by [`Hca::loopback`] and [`Hca::on`].
#[derive(Debug)]
#[must_use = "a builder makes nothing until told to"]
pub struct Builder {
    link: Loopback,
    /// What carries packets, if the port is not on `link`.
    packets: Option<Box<dyn PacketLink>>,
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
            name: String::from("sim0"),
            seed: Seed::from(0),
            limits: Limits::default(),
            clock: None,
            commands: None,
            features: Features::default(),
        }
    }

    /// An HCA whose packets that link carries. Its keys, queue pair numbers and packet sequence numbers are
    /// drawn from [`PacketLink::seed`]: on a network a peer that sees some of them cannot tell the others.
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

    /// Name, as `hca_id` is printed; `sim0` by default.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Decides the keys of its regions: a number, with which they repeat and are no secret, or a secret
    /// [`Seed`]. By default 0 on a loopback link, and the link's seed on others.
    pub fn seed(mut self, seed: impl Into<Seed>) -> Self {
        self.seed = seed.into();
        self
    }

    /// How many objects of each kind it has.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// What its timeouts and time stamps are measured with; the machine's clock by default.
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.clock = Some(clock.into());
        self
    }

    /// Gives commands time and slots, as hardware has them; by default they are carried out at once.
    pub fn commands(mut self, config: CommandConfig) -> Self {
        self.commands = Some(config);
        self
    }

    /// Takes optional features away: what their bits stand for is refused as unsupported.
    pub fn without(mut self, caps: DeviceCap) -> Self {
        self.features.caps.remove(caps);
        self
    }

    /// How far atomics are said to be atomic; with [`AtomicCap::None`] there are none.
    pub fn atomics(mut self, cap: AtomicCap) -> Self {
        self.features.atomics = cap;
        self
    }

    /// The same of masked atomics.
    pub fn masked_atomics(mut self, cap: AtomicCap) -> Self {
        self.features.masked_atomics = cap;
        self
    }

    /// Lets a local invalidate that is not fenced take effect as soon as it is posted, before earlier work
    /// requests of its queue that still use the key, as hardware may (IBTA vol. 1, 10.8.3.3). By default
    /// it waits for all of them.
    pub fn early_invalidates(mut self) -> Self {
        self.features.early_invalidates = true;
        self
    }

    /// Makes the HCA.
    pub fn build(self) -> Arc<Hca> {
        let Self {
            link,
            packets,
            name,
            seed,
            limits,
            clock,
            commands,
            features,
        } = self;
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
            Engine::new(clock.unwrap_or_else(Clock::wall)),
            packets.map(Driver::new),
        );
        port.features = features;
        if let Some(managed) = managed {
            port.guid = managed.sheet().node_guid;
            let state = managed.sheet().info.state.port_state();
            port.managed = Some(managed);
            let _ = port.follow_manager(state);
        }
        let hca = Arc::new(Hca::new(&name, port, &limits, commands));
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
