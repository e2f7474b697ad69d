//! A node's HCA, from its making to its removal, and what stands in front of it.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

use verbs_core::filter::{Fault, FaultAction};
use verbs_core::sync::Arc;
use verbs_core::{Device, Kind, Provider};

use crate::clock::VirtualClock;
use crate::engine::Engine;
use crate::hca::Hca;
use crate::hca::command::{CommandConfig, CommandInterface};
use crate::sim::Draw;
use crate::sim::plant::{Crooked, Plant};

/// The addresses of a node on the network.
pub(super) fn addresses(node: usize) -> [IpAddr; 2] {
    let last = (node & 0xff) as u8 + 1;
    let v6 = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last));
    [Ipv4Addr::new(10, 0, 0, last).into(), v6.into()]
}

/// A node's HCA, of one life.
pub(super) struct Machine {
    pub(super) node: usize,
    pub(super) hca: Arc<Hca>,
    pub(super) fault: Arc<Fault>,
    commands: Arc<CommandInterface>,
    /// `None` before it was opened, and after it was closed.
    device: RefCell<Option<Rc<Device>>>,
    pub(super) removed: Cell<bool>,
    /// What was injected into each kind of verb.
    injected: RefCell<Vec<Kind>>,
    /// How often its port went down.
    pub(super) flaps: Cell<u64>,
    /// Whoever still uses the device.
    pub(super) users: Cell<u32>,
}

impl Machine {
    /// Puts what a run needs in front of an HCA; the device is not open yet.
    pub(super) fn new(
        node: usize,
        hca: Arc<Hca>,
        clock: &VirtualClock,
        config: CommandConfig,
        (plant, draw): (Option<Plant>, Draw),
    ) -> (Self, Arc<dyn Provider>) {
        let inner = Arc::clone(&hca) as Arc<dyn Provider>;
        let engine = Engine::new(clock.clone());
        let commands = Arc::new(CommandInterface::new(inner, engine, config));
        let mut front = Arc::clone(&commands) as Arc<dyn Provider>;
        if let Some(plant) = plant {
            front = Arc::new(Crooked::new(front, plant, draw));
        }
        let fault = Arc::new(Fault::new(front));
        let machine = Self {
            node,
            hca,
            fault: Arc::clone(&fault),
            commands,
            device: RefCell::default(),
            removed: Cell::new(false),
            injected: RefCell::default(),
            flaps: Cell::new(0),
            users: Cell::new(0),
        };
        (machine, fault)
    }

    /// The device, as long as it is open.
    pub(super) fn device(&self) -> Option<Rc<Device>> {
        self.device.borrow().clone()
    }

    /// The device was opened.
    pub(super) fn opened(&self, device: Device) {
        self.device.replace(Some(Rc::new(device)));
    }

    /// Takes the device, which nobody uses any more, to be closed.
    pub(super) fn take_device(&self) -> Option<Device> {
        self.device.take().and_then(Rc::into_inner)
    }

    /// Does something to the next verb of that kind.
    pub(super) fn inject(&self, kind: Kind, action: FaultAction) {
        self.injected.borrow_mut().push(kind);
        self.fault.inject(kind, 1, action);
    }

    /// Whether something was done to a verb of that kind.
    pub(super) fn was_injected(&self, kind: Kind) -> bool {
        self.injected.borrow().contains(&kind)
    }

    /// Takes the HCA out.
    pub(super) fn remove(&self) {
        self.removed.set(true);
        self.commands.fail_all();
        self.hca.remove();
        self.fault.release();
    }
}
