//! A node's HCA, from its creation to its removal, and what stands in front of it.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

use hca_sim::Hca;
use hca_sim::command::{CommandConfig, CommandInterface};
use verbs_core::filter::{Fault, FaultAction};
use verbs_core::sync::Arc;
use verbs_core::{Device, Kind, Provider};
use verbs_link::time::Engine;
use verbs_link::time::VirtualClock;

use crate::Draw;
use crate::mutant::{FaultyProvider, Mutant};

/// The addresses of a node on the network.
pub(crate) fn addresses(node: usize) -> [IpAddr; 2] {
    let last = (node & 0xff) as u8 + 1;
    let v6 = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last));
    [Ipv4Addr::new(10, 0, 0, last).into(), v6.into()]
}

/// A node's HCA, between two removals.
pub(crate) struct Machine {
    pub(crate) node: usize,
    pub(crate) hca: Arc<Hca>,
    pub(crate) fault: Arc<Fault>,
    commands: Arc<CommandInterface>,
    /// `None` before it is opened, and after it is closed.
    device: RefCell<Option<Rc<Device>>>,
    pub(crate) removed: Cell<bool>,
    /// The kinds of verbs into which a fault was injected.
    injected: RefCell<Vec<Kind>>,
    /// How often its port went down.
    pub(crate) flaps: Cell<u64>,
    /// The number of users of the device.
    pub(crate) users: Cell<u32>,
}

impl Machine {
    /// Puts what a run needs in front of an HCA; the device is not open yet.
    pub(crate) fn new(
        node: usize,
        hca: Arc<Hca>,
        clock: &VirtualClock,
        config: CommandConfig,
        (mutant, draw): (Option<Mutant>, Draw),
    ) -> (Self, Arc<dyn Provider>) {
        let inner = Arc::clone(&hca) as Arc<dyn Provider>;
        let engine = Engine::new(clock.clone());
        let commands = Arc::new(CommandInterface::new(inner, engine, config));
        let mut front = Arc::clone(&commands) as Arc<dyn Provider>;
        if let Some(mutant) = mutant {
            front = Arc::new(FaultyProvider::new(front, Arc::clone(&hca), mutant, draw));
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
    pub(crate) fn device(&self) -> Option<Rc<Device>> {
        self.device.borrow().clone()
    }

    /// The device was opened.
    pub(crate) fn opened(&self, device: Device) {
        self.device.replace(Some(Rc::new(device)));
    }

    /// Takes the device, which is no longer in use, to be closed.
    pub(crate) fn take_device(&self) -> Option<Device> {
        self.device.take().and_then(Rc::into_inner)
    }

    /// Applies an action to the next verb of that kind.
    pub(crate) fn inject(&self, kind: Kind, action: FaultAction) {
        self.injected.borrow_mut().push(kind);
        self.fault.inject(kind, 1, action);
    }

    /// Whether an action was applied to a verb of that kind.
    pub(crate) fn was_injected(&self, kind: Kind) -> bool {
        self.injected.borrow().contains(&kind)
    }

    /// Removes the HCA.
    pub(crate) fn remove(&self) {
        self.removed.set(true);
        self.commands.fail_all();
        self.hca.remove();
        self.fault.release();
    }
}
