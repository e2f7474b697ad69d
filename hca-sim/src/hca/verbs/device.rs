//! The device and port verbs, and the controls that change a port from outside.

use verbs_core::command::Command;
use verbs_core::device::{
    CloseDevice, ModifyDevice, ModifyPort, OpenDevice, QueryDevice, QueryGid, QueryPkey, QueryPort,
};
use verbs_core::device_list::{Gone, Offer};
use verbs_core::event::Undelivered;
use verbs_core::extension::CallExtension;
use verbs_core::sync::atomic::{
    AtomicBool,
    Ordering::{AcqRel, Acquire, Release},
};
use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_core::{
    Attr, Capability, DeviceAttr, DeviceCap, Error, EventType, Gid, Lid, PKey, PortState, Qpn,
    Subject,
};

use crate::hca::Hca;
use crate::hca::extension;
use crate::hca::limits;
use crate::link::LID_MAX;
use crate::port::PortSettings;
use crate::qp::pairing::rearrange;
use crate::queue::base::limits::PORT;

/// Bytes of a node description, as the NodeDescription attribute has them.
const NODE_DESC_MAX: usize = 64;

/// The device's own description.
pub(in crate::hca) struct About {
    /// As it was made: read without a lock until a client changes it.
    pub(in crate::hca) attr: Arc<DeviceAttr>,
    changed: AtomicBool,
    now: Mutex<Arc<DeviceAttr>>,
    node_desc: Mutex<String>,
}

impl About {
    pub(in crate::hca) fn new(attr: DeviceAttr) -> Self {
        let attr = Arc::new(attr);
        Self {
            now: Mutex::new(Arc::clone(&attr)),
            node_desc: Mutex::new(attr.name.clone()),
            attr,
            changed: AtomicBool::new(false),
        }
    }

    #[inline]
    fn now(&self) -> Arc<DeviceAttr> {
        if self.changed.load(Acquire) {
            Arc::clone(&self.now.lock())
        } else {
            Arc::clone(&self.attr)
        }
    }

    fn modify(&self, change: &ModifyDevice) -> Result<(), Error> {
        if change.sys_image_guid.is_some() && !self.attr.caps.contains(DeviceCap::SYS_IMAGE_GUID) {
            return Err(Error::NoCapability {
                attr: Attr::SysImageGuid,
                missing: Capability::of(DeviceCap::SYS_IMAGE_GUID),
            });
        }
        if let Some(desc) = &change.node_desc {
            at_most(Attr::NodeDesc, desc.len(), NODE_DESC_MAX)?;
            self.node_desc.lock().clone_from(desc);
        }
        if let Some(guid) = change.sys_image_guid {
            let mut now = self.now.lock();
            *now = Arc::new(DeviceAttr {
                sys_image_guid: guid,
                ..DeviceAttr::clone(&now)
            });
            self.changed.store(true, Release);
        }
        Ok(())
    }
}

/// [`Error::Invalid`] for a value beyond its maximum.
fn at_most(attr: Attr, got: usize, max: usize) -> Result<(), Error> {
    if got <= max {
        return Ok(());
    }
    let small = |value| u32::try_from(value).unwrap_or(u32::MAX);
    let (got, max) = (small(got), small(max));
    Err(Error::Invalid { attr, got, max })
}

/// [`Error::Invalid`] for a port that does not exist.
pub(in crate::hca) fn check_port(port: u8) -> Result<(), Error> {
    if port == PORT {
        return Ok(());
    }
    Err(Error::Invalid {
        attr: Attr::Port,
        got: u32::from(port),
        max: u32::from(PORT),
    })
}

pub(super) fn open_device(hca: &Hca, command: Command<'_, OpenDevice>) {
    let mut opened = hca.opened.lock();
    if opened.removed {
        drop(opened);
        return command.refuse(Error::DeviceRemoved);
    }
    if hca.port.lid == Lid(0) {
        drop(opened);
        return command.refuse(Error::Exhausted {
            attr: Attr::Port,
            max: u32::from(LID_MAX),
        });
    }
    opened.devices.retain(|device| device.strong_count() != 0);
    opened.devices.push(Arc::downgrade(command.target()));
    drop(opened);
    let (args, reply) = command.split();
    reply.complete(Ok(args.build()));
}

pub(super) fn close_device(hca: &Hca, command: Command<'_, CloseDevice>) {
    let closed = Arc::as_ptr(command.target());
    hca.opened
        .lock()
        .devices
        .retain(|device| device.as_ptr() != closed);
    command.complete(Ok(()));
}

#[inline]
pub(super) fn query_device(hca: &Hca, command: Command<'_, QueryDevice>) {
    command.complete(Ok(hca.about.now()));
}

pub(super) fn modify_device(hca: &Hca, command: Command<'_, ModifyDevice>) {
    let answer = hca.about.modify(&command);
    command.complete(answer);
}

pub(super) fn query_port(hca: &Hca, command: Command<'_, QueryPort>) {
    let answer = check_port(command.port).map(|()| limits::port_attr(&hca.port));
    command.complete(answer);
}

pub(super) fn query_pkey(hca: &Hca, command: Command<'_, QueryPkey>) {
    let last = hca.port.pkey_count().saturating_sub(1) as usize;
    let answer = check_port(command.port)
        .and_then(|()| at_most(Attr::PkeyIndex, usize::from(command.index), last))
        .map(|()| hca.port.pkey(command.index).unwrap_or(PKey(0)));
    command.complete(answer);
}

pub(super) fn query_gid(hca: &Hca, command: Command<'_, QueryGid>) {
    let index = command.index;
    let answer = check_port(command.port).and_then(|()| {
        let last = hca.port.gid_count().saturating_sub(1) as usize;
        at_most(Attr::GidIndex, usize::from(index), last)?;
        // An address that disappears in the meantime leaves an empty entry.
        Ok(hca.port.gid(index).unwrap_or_default())
    });
    command.complete(answer);
}

pub(super) fn modify_port(hca: &Hca, command: Command<'_, ModifyPort>) {
    let answer = check_port(command.port);
    if answer.is_ok() {
        let (set, clear) = (command.set_caps, command.clear_caps);
        if let Some(managed) = &hca.port.managed {
            managed.offer(set, clear);
        }
        hca.port.change(|settings| {
            settings.capability_mask = settings.capability_mask & !clear | set;
        });
    }
    command.complete(answer);
}

pub(super) fn call_extension(hca: &Hca, command: Command<'_, CallExtension>) {
    let (mut call, reply) = command.split();
    let output = extension::answer(&mut call, &hca.port);
    reply.complete(output.ok_or(Error::Unsupported(Attr::Extension)));
}

impl Hca {
    /// What it has counted since it was made; legal anywhere, and without a device that is open. Counters are totals
    /// and do not wrap; a monitor takes differences.
    ///
    /// ```
    /// use hca_sim::Hca;
    ///
    /// let hca = Hca::loopback().build();
    /// assert_eq!(hca.counters().port.timeouts, 0);
    /// assert!(hca.counters().packets.is_none()); // messages are placed directly on this link
    /// ```
    pub fn counters(&self) -> extension::HcaCounters {
        extension::HcaCounters::of(&self.port)
    }

    /// The description of the node: its name, until a client changes it by
    /// [`Device::modify`](verbs_core::Device::modify).
    pub fn node_desc(&self) -> String {
        self.about.node_desc.lock().clone()
    }

    /// Takes the link of the port out of service: messages from and to it are not answered, so requesters retry as long
    /// as their queue pairs let them. Raises [`EventType::PortErr`]; nothing happens if it was out of service already.
    ///
    /// On a link with a subnet manager the cable is pulled, and the event comes when the link says so.
    ///
    /// Never blocks. A thread in the middle of a message finishes it.
    pub fn port_down(&self) {
        if let Some(managed) = &self.port.managed {
            return managed.plug(false);
        }
        if self.set_port_state(PortState::Down) {
            self.port.counters.link_downed.up();
            self.raise(EventType::PortErr, Subject::Port(PORT));
        }
    }

    /// Puts it into service again, and raises [`EventType::PortActive`]. What waits continues. On a link with a subnet
    /// manager the cable is plugged in again; the manager then brings the port up.
    ///
    /// Never blocks.
    pub fn port_up(&self) {
        if let Some(managed) = &self.port.managed {
            return managed.plug(true);
        }
        if self.set_port_state(PortState::Active) {
            self.raise(EventType::PortActive, Subject::Port(PORT));
        }
    }

    fn set_port_state(&self, state: PortState) -> bool {
        if let Some(driver) = self.port.driver() {
            driver.set_down(state != PortState::Active);
        }
        self.rearrange(|settings| (std::mem::replace(&mut settings.state, state), state))
    }

    /// Moves the port to another partition, as a subnet manager does: changes the only entry of its
    /// P_Key table and raises [`EventType::PkeyChange`]. Messages go between ports whose P_Keys
    /// [match](PKey::matches); others are not answered.
    ///
    /// Never blocks.
    pub fn set_pkey(&self, pkey: PKey) {
        let changed = self.rearrange(|settings| {
            let first = settings.pkeys.first_mut();
            (
                first.map(|first| std::mem::replace(first, pkey)),
                Some(pkey),
            )
        });
        if changed {
            self.raise(EventType::PkeyChange, Subject::Port(PORT));
        }
    }

    /// Gives the port another GID: changes the first entry of its GID table and raises [`EventType::GidChange`]. Peers
    /// that use the old one no longer reach it.
    ///
    /// Never blocks.
    pub fn set_gid(&self, gid: Gid) {
        self.port.link.lock().rename(self.port.lid, gid);
        let changed = self.rearrange(|settings| {
            let first = settings.gids.first_mut();
            (first.map(|first| std::mem::replace(first, gid)), Some(gid))
        });
        if changed {
            self.raise(EventType::GidChange, Subject::Port(PORT));
        }
    }

    /// Changes the port's settings, and connects and disconnects the queue pairs that this concerns. `change` returns a
    /// value before and after. Returns whether the two differ.
    fn rearrange<T: PartialEq>(&self, change: impl FnOnce(&mut PortSettings) -> (T, T)) -> bool {
        let (before, now) = self.port.change(change);
        let differs = before != now;
        if differs {
            self.port.connections_changed();
            rearrange(&self.port.link);
        }
        differs
    }

    /// The device fails by itself: every queue pair goes to ERR and what is posted is flushed;
    /// [`EventType::DeviceFatal`] is raised; every verb from now on ends with [`Error::DeviceFailed`], except destroys
    /// and reads of events.
    ///
    /// Never blocks. A second call does nothing.
    pub fn fail(&self) {
        if self.failed.swap(true, AcqRel) {
            return;
        }
        let queue_pairs = self.port.link.lock().of_port(self.port.lid);
        for qp in queue_pairs {
            qp.fail();
        }
        self.raise(EventType::DeviceFatal, Subject::Device);
        self.tell_lists(|offer| offer.gone(Gone::Failed));
    }

    /// Informs the lists of devices that it is on. Holds no lock while they inform their watchers.
    fn tell_lists(&self, tell: impl Fn(&Offer)) {
        let offers = self.opened.lock().offers.clone();
        offers.iter().for_each(|offer| tell(offer));
    }

    /// Takes one queue pair to ERR, as a broken device does: its work is flushed, and no event says why. Returns
    /// whether there is such a queue pair, in a state other than RESET and ERR.
    ///
    /// For tests of how programs and checkers handle that. [`Hca::fail`] is the failure of the whole device.
    pub fn fail_qp(&self, qpn: Qpn) -> bool {
        let found = self.port.link.lock().of(self.port.lid, qpn);
        found.is_some_and(|qp| qp.fail())
    }

    /// Raises an event on every device that is open on this HCA, with no lock held.
    pub(in crate::hca) fn raise(&self, event: EventType, subject: Subject) {
        if let EventType::PortActive | EventType::PortErr = event {
            self.tell_lists(|offer| offer.port(PORT, event == EventType::PortActive));
        }
        if event == EventType::PortActive && !self.port.features.has(DeviceCap::PORT_ACTIVE_EVENT) {
            return;
        }
        let devices = self.opened.lock().devices.clone();
        for device in devices.iter().filter_map(Weak::upgrade) {
            device.raise(event, subject);
        }
    }

    /// Informs the services of every device that is open on this HCA, with no lock held.
    pub(in crate::hca) fn report_undelivered(&self, mad: Undelivered) {
        let devices = self.opened.lock().devices.clone();
        for device in devices.iter().filter_map(Weak::upgrade) {
            device.report_undelivered(mad);
        }
    }

    /// Whether [`Hca::fail`] was called.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Acquire)
    }
}
