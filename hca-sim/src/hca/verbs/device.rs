//! The device and port verbs, and the controls that change a port from outside.

use verbs_core::command::Command;
use verbs_core::device::{
    CloseDevice, ModifyDevice, ModifyPort, OpenDevice, QueryDevice, QueryGid, QueryPkey, QueryPort,
};
use verbs_core::event::Undelivered;
use verbs_core::extension::CallExtension;
use verbs_core::sync::atomic::{
    AtomicBool,
    Ordering::{AcqRel, Acquire, Release},
};
use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_core::{Attr, DeviceAttr, Error, EventType, Gid, Lid, PKey, PortState, Subject};

use crate::hca::Hca;
use crate::hca::extension;
use crate::hca::limits;
use crate::link::LID_MAX;
use crate::port::Sheet;
use crate::qp::pairing::rearrange;
use crate::queue::base::limits::PORT;

/// Bytes of a node description, as the NodeDescription attribute has them.
const NODE_DESC_MAX: usize = 64;

/// What the device says of itself.
pub(in crate::hca) struct About {
    /// As it was made: read without a lock until somebody changes it.
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

/// [`Error::Invalid`] for a port that there is not.
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

impl Hca {
    pub(in crate::hca) fn open_device(&self, command: Command<'_, OpenDevice>) {
        let mut opened = self.opened.lock();
        if opened.removed {
            drop(opened);
            return command.refuse(Error::DeviceRemoved);
        }
        if self.port.lid == Lid(0) {
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

    pub(in crate::hca) fn close_device(&self, command: Command<'_, CloseDevice>) {
        let closed = Arc::as_ptr(command.target());
        self.opened
            .lock()
            .devices
            .retain(|device| device.as_ptr() != closed);
        command.complete(Ok(()));
    }

    #[inline]
    pub(in crate::hca) fn query_device(&self, command: Command<'_, QueryDevice>) {
        command.complete(Ok(self.about.now()));
    }

    pub(in crate::hca) fn modify_device(&self, command: Command<'_, ModifyDevice>) {
        let answer = self.about.modify(&command);
        command.complete(answer);
    }

    pub(in crate::hca) fn query_port(&self, command: Command<'_, QueryPort>) {
        let answer = check_port(command.port).map(|()| limits::port_attr(&self.port));
        command.complete(answer);
    }

    pub(in crate::hca) fn query_pkey(&self, command: Command<'_, QueryPkey>) {
        let last = self.port.pkey_count().saturating_sub(1) as usize;
        let answer = check_port(command.port)
            .and_then(|()| at_most(Attr::PkeyIndex, usize::from(command.index), last))
            .map(|()| self.port.pkey(command.index).unwrap_or(PKey(0)));
        command.complete(answer);
    }

    pub(in crate::hca) fn query_gid(&self, command: Command<'_, QueryGid>) {
        let index = command.index;
        let answer = check_port(command.port).and_then(|()| {
            let last = self.port.gid_count().saturating_sub(1) as usize;
            at_most(Attr::GidIndex, usize::from(index), last)?;
            // An address that goes away meanwhile leaves an empty entry.
            Ok(self.port.gid(index).unwrap_or_default())
        });
        command.complete(answer);
    }

    pub(in crate::hca) fn modify_port(&self, command: Command<'_, ModifyPort>) {
        let answer = check_port(command.port);
        if answer.is_ok() {
            let (set, clear) = (command.set_caps, command.clear_caps);
            if let Some(managed) = &self.port.managed {
                managed.offer(set, clear);
            }
            self.port.change(|sheet| {
                sheet.capability_mask = sheet.capability_mask & !clear | set;
            });
        }
        command.complete(answer);
    }

    pub(in crate::hca) fn call_extension(&self, command: Command<'_, CallExtension>) {
        let (mut call, reply) = command.split();
        let output = extension::answer(&mut call, &self.port);
        reply.complete(output.ok_or(Error::Unsupported(Attr::Extension)));
    }

    /// What people call the node: its name, until a client changes it by
    /// [`Device::modify`](verbs_core::Device::modify).
    pub fn node_desc(&self) -> String {
        self.about.node_desc.lock().clone()
    }

    /// Takes the link of the port out of service: messages from and to it are not answered, so
    /// requesters try again as long as their queue pairs let them. Raises
    /// [`EventType::PortErr`]; nothing happens if it was out of service already.
    ///
    /// On a link with a subnet manager the cable is pulled, and the event comes when the link says so.
    ///
    /// Never blocks. Who is in the middle of a message ends it.
    pub fn port_down(&self) {
        if let Some(managed) = &self.port.managed {
            return managed.plug(false);
        }
        if self.set_port_state(PortState::Down) {
            self.port.counters.link_downed.up();
            self.raise(EventType::PortErr, Subject::Port(PORT));
        }
    }

    /// Puts it into service again, and raises [`EventType::PortActive`]. What waits goes on. On a link with
    /// a subnet manager the cable is put back; the manager then brings the port up.
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
        self.rearrange(|sheet| (std::mem::replace(&mut sheet.state, state), state))
    }

    /// Moves the port to another partition, as a subnet manager does: changes the only entry of its
    /// P_Key table and raises [`EventType::PkeyChange`]. Messages go between ports whose P_Keys
    /// [match](PKey::matches); others are not answered.
    ///
    /// Never blocks.
    pub fn set_pkey(&self, pkey: PKey) {
        let changed = self.rearrange(|sheet| {
            let first = sheet.pkeys.first_mut();
            (
                first.map(|first| std::mem::replace(first, pkey)),
                Some(pkey),
            )
        });
        if changed {
            self.raise(EventType::PkeyChange, Subject::Port(PORT));
        }
    }

    /// Gives the port another GID: changes the first entry of its GID table and raises
    /// [`EventType::GidChange`]. Peers that name the old one do not reach it any more.
    ///
    /// Never blocks.
    pub fn set_gid(&self, gid: Gid) {
        self.port.link.lock().rename(self.port.lid, gid);
        let changed = self.rearrange(|sheet| {
            let first = sheet.gids.first_mut();
            (first.map(|first| std::mem::replace(first, gid)), Some(gid))
        });
        if changed {
            self.raise(EventType::GidChange, Subject::Port(PORT));
        }
    }

    /// Changes the port's sheet, and connects and disconnects what that concerns. `change` gives a
    /// value before and after; whether they differ.
    fn rearrange<T: PartialEq>(&self, change: impl FnOnce(&mut Sheet) -> (T, T)) -> bool {
        let (before, now) = self.port.change(change);
        let differs = before != now;
        if differs {
            self.connections_changed();
            rearrange(&self.port.link);
        }
        differs
    }

    /// The device has failed by itself: every queue pair goes to ERR and what is posted is flushed;
    /// [`EventType::DeviceFatal`] is raised; every verb from now on ends with
    /// [`Error::DeviceFailed`], but for destroys and for asking for events.
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
    }

    /// Raises an event on every device that is open on this HCA. Holds no lock then.
    pub(in crate::hca) fn raise(&self, event: EventType, subject: Subject) {
        let devices = self.opened.lock().devices.clone();
        for device in devices.iter().filter_map(Weak::upgrade) {
            device.raise(event, subject);
        }
    }

    /// Tells the services of every device that is open on this HCA. Holds no lock then.
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
