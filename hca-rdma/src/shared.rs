//! What the threads of a NIC, its commands and its queues have in common.

use std::collections::HashMap;

use verbs_core::device::DeviceCore;
use verbs_core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};
use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_core::{Attr, CqNotify, DeviceAttr, Error, EventType, Subject, Target, TransportType};

use crate::sys::{AsyncEvent, Channel, Context, Element};

/// A NIC, without its threads.
pub(crate) struct Shared {
    pub(crate) context: Arc<Context>,
    pub(crate) channel: Arc<Channel>,
    pub(crate) attr: Arc<DeviceAttr>,
    pub(crate) transport: TransportType,
    /// Bytes that a message has at most.
    pub(crate) max_msg_sz: u32,
    /// Whether the NIC is gone. Queues look here.
    pub(crate) removed: Arc<AtomicBool>,
    pub(crate) counts: Counts,
    devices: Mutex<Vec<Weak<DeviceCore>>>,
    /// Completion queues by the number that comes with their events.
    queues: Mutex<HashMap<u64, Arc<CqNotify>>>,
    /// What asynchronous events are about, by the address that they name.
    objects: Mutex<HashMap<usize, About>>,
    last_number: AtomicU64,
}

/// What an asynchronous event is about.
struct About {
    device: Weak<DeviceCore>,
    object: Weak<dyn Target>,
}

impl About {
    fn get(&self) -> Option<(Arc<DeviceCore>, Arc<dyn Target>)> {
        self.device.upgrade().zip(self.object.upgrade())
    }
}

/// How many objects of each kind there are.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) pds: Count,
    pub(crate) cqs: Count,
    pub(crate) qps: Count,
    pub(crate) mrs: Count,
    pub(crate) srqs: Count,
    pub(crate) ahs: Count,
    pub(crate) mcasts: Count,
}

impl Counts {
    pub(crate) fn total(&self) -> u64 {
        let counts = [
            &self.pds,
            &self.cqs,
            &self.qps,
            &self.mrs,
            &self.srqs,
            &self.ahs,
            &self.mcasts,
        ];
        counts.iter().map(|count| u64::from(count.get())).sum()
    }
}

/// How many objects of a kind there are.
#[derive(Default)]
pub(crate) struct Count(AtomicU32);

impl Count {
    fn get(&self) -> u32 {
        self.0.load(Relaxed)
    }

    pub(crate) fn up(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    pub(crate) fn down(&self) {
        self.0.fetch_sub(1, Relaxed);
    }

    /// What a create's failure says: that the limit is reached, if it is.
    pub(crate) fn explain(&self, error: Error, attr: Attr, max: u32) -> Error {
        match error {
            Error::NoMemory | Error::Os { .. } if max > 0 && self.get() >= max => {
                Error::Exhausted { attr, max }
            }
            error => error,
        }
    }
}

impl Shared {
    pub(crate) fn new(
        context: Arc<Context>,
        channel: Channel,
        attr: DeviceAttr,
        transport: TransportType,
        max_msg_sz: u32,
    ) -> Self {
        Self {
            context,
            channel: Arc::new(channel),
            attr: Arc::new(attr),
            transport,
            max_msg_sz,
            removed: Arc::default(),
            counts: Counts::default(),
            devices: Mutex::default(),
            queues: Mutex::default(),
            objects: Mutex::default(),
            last_number: AtomicU64::new(0),
        }
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Acquire)
    }

    /// A number that no object of this NIC has had.
    pub(crate) fn number(&self) -> u64 {
        self.last_number.fetch_add(1, Relaxed) + 1
    }

    pub(crate) fn opened(&self, device: &Arc<DeviceCore>) {
        let mut devices = self.devices.lock();
        devices.retain(|device| device.strong_count() > 0);
        devices.push(Arc::downgrade(device));
    }

    pub(crate) fn closed(&self, device: &Arc<DeviceCore>) {
        let gone = Arc::downgrade(device);
        self.devices.lock().retain(|device| !device.ptr_eq(&gone));
    }

    fn devices(&self) -> Vec<Arc<DeviceCore>> {
        self.devices
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// The NIC has gone. Destroys that wait for the kernel go on; a second call tells nobody.
    pub(crate) fn remove(&self) {
        if self.removed.swap(true, AcqRel) {
            return;
        }
        for device in self.devices() {
            device.remove();
        }
    }

    /// From now on that queue's events are for `notify`.
    pub(crate) fn listen(&self, number: u64, notify: &Arc<CqNotify>) {
        self.queues.lock().insert(number, Arc::clone(notify));
    }

    pub(crate) fn ignore(&self, number: u64) {
        let gone = self.queues.lock().remove(&number);
        drop(gone);
    }

    /// A completion queue has an event.
    pub(crate) fn fire(&self, number: u64) {
        let notify = self.queues.lock().get(&number).cloned();
        if let Some(notify) = notify {
            notify.fire();
        }
    }

    /// From now on events that name that address are about `object`.
    pub(crate) fn name<T: Target>(&self, address: usize, object: &Arc<T>) {
        let (device, object) = (T::device(object), Arc::downgrade(object));
        let device = Arc::downgrade(device);
        self.objects
            .lock()
            .insert(address, About { device, object });
    }

    pub(crate) fn forget(&self, address: usize) {
        let gone = self.objects.lock().remove(&address);
        drop(gone);
    }

    /// Tells clients of an asynchronous event.
    pub(crate) fn raise(&self, event: AsyncEvent) {
        let mut known = EventType::ALL.iter();
        let Some(&kind) = known.find(|&&kind| kind as u32 == event.number) else {
            tracing::debug!(number = event.number, "an event that nobody knows");
            return;
        };
        match event.element {
            // So the kernel tells of a removal.
            Element::Device => self.remove(),
            Element::Port(port) => {
                for device in self.devices() {
                    device.raise(kind, Subject::Port(port));
                }
            }
            Element::Object(address) => {
                let found = self.objects.lock().get(&address).and_then(About::get);
                if let Some((device, object)) = found {
                    device.raise_for(&*object, kind);
                }
            }
        }
    }
}
