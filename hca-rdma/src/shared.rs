//! What the threads of a NIC, its commands and its queues have in common.

use std::collections::HashMap;

use verbs_core::device::DeviceCore;
use verbs_core::device_list::{DeviceList, Gone, Offer};
use verbs_core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};
use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_core::{
    Attr, CqNotify, DeviceAttr, Error, EventType, Provider, Subject, Target, TransportType,
};

use crate::cm::table::{Connections, Step};
use crate::keys::Keys;
use crate::lane::Lanes;
use crate::sys::{AsyncEvent, Channel, CmChannel, Context, Element, Ticks};
use crate::timer::Clock;

/// A NIC, without its threads.
pub(crate) struct Shared {
    pub(crate) context: Arc<Context>,
    pub(crate) channel: Arc<Channel>,
    pub(crate) attr: Arc<DeviceAttr>,
    pub(crate) transport: TransportType,
    /// The most bytes of a message.
    pub(crate) max_msg_sz: u32,
    /// The clock of the stamps of completions, if the device has one.
    pub(crate) ticks: Option<Ticks>,
    pub(crate) keys: Arc<Keys>,
    /// Whether the NIC has been removed. Queues check this.
    pub(crate) removed: Arc<AtomicBool>,
    pub(crate) counts: Counts,
    pub(crate) lanes: Lanes,
    pub(crate) clock: Arc<Clock>,
    /// `None` if the system makes no connections for programs.
    pub(crate) cm: Option<Connections>,
    devices: Mutex<Vec<Weak<DeviceCore>>>,
    /// Its places on lists of devices.
    offers: Mutex<Vec<Arc<Offer>>>,
    /// Completion queues by the number that their events carry.
    queues: Mutex<HashMap<u64, Arc<CqNotify>>>,
    /// The subjects of asynchronous events, by the address that they name.
    objects: Mutex<HashMap<usize, About>>,
    last_number: AtomicU64,
}

/// The subject of an asynchronous event.
struct About {
    device: Weak<DeviceCore>,
    object: Weak<dyn Target>,
}

impl About {
    fn get(&self) -> Option<(Arc<DeviceCore>, Arc<dyn Target>)> {
        self.device.upgrade().zip(self.object.upgrade())
    }
}

/// How many objects of each kind exist.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) pds: Count,
    pub(crate) cqs: Count,
    pub(crate) qps: Count,
    pub(crate) mrs: Count,
    pub(crate) mws: Count,
    pub(crate) xrcds: Count,
    pub(crate) srqs: Count,
    pub(crate) ahs: Count,
    pub(crate) mcasts: Count,
    pub(crate) endpoints: Count,
}

impl Counts {
    pub(crate) fn total(&self) -> u64 {
        let counts = [
            &self.pds,
            &self.cqs,
            &self.qps,
            &self.mrs,
            &self.mws,
            &self.xrcds,
            &self.srqs,
            &self.ahs,
            &self.mcasts,
            &self.endpoints,
        ];
        counts.iter().map(|count| u64::from(count.get())).sum()
    }
}

/// How many objects of a kind exist.
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

    /// The error of a failed create: that the limit is reached, if it is.
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
        clock: Clock,
    ) -> Self {
        let connections = CmChannel::create(context.library()).map(Connections::new);
        let more = context.query_more();
        let ticks =
            more.and_then(|more| Ticks::new(more.completion_timestamp_mask, more.hca_core_clock));
        Self {
            context,
            channel: Arc::new(channel),
            attr: Arc::new(attr),
            transport,
            max_msg_sz,
            ticks,
            keys: Arc::new(Keys::new(transport)),
            removed: Arc::default(),
            counts: Counts::default(),
            lanes: Lanes::new(),
            clock: Arc::new(clock),
            cm: connections,
            devices: Mutex::default(),
            offers: Mutex::default(),
            queues: Mutex::default(),
            objects: Mutex::default(),
            last_number: AtomicU64::new(0),
        }
    }

    pub(crate) fn is_iwarp(&self) -> bool {
        self.transport == TransportType::Iwarp
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

    /// The NIC has been removed. Destroys that wait for the kernel continue; a second call reports nothing.
    pub(crate) fn remove(&self) {
        if self.removed.swap(true, AcqRel) {
            return;
        }
        for device in self.devices() {
            device.remove();
        }
        // A request that waits for a peer has been answered, and releases what it holds.
        self.lanes.step(Step::Removed);
        let offers = std::mem::take(&mut *self.offers.lock());
        offers.iter().for_each(|offer| offer.gone(Gone::Ejected));
    }

    /// Puts it on a list of devices.
    pub(crate) fn join(&self, list: &DeviceList, provider: Arc<dyn Provider>) {
        let offer = list.arrived(&self.attr.name, provider);
        let mut offers = self.offers.lock();
        // A removal marks it first, and then takes it off the lists.
        if !self.is_removed() {
            offers.push(Arc::new(offer));
            return;
        }
        drop(offers);
        offer.gone(Gone::Ejected);
    }

    /// Takes it off the lists that it is on.
    pub(crate) fn leave(&self) {
        let offers = std::mem::take(&mut *self.offers.lock());
        drop(offers);
    }

    /// From now on that queue's events are delivered to `notify`.
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

    /// From now on events that name that address concern `object`.
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

    /// Informs clients of an asynchronous event.
    pub(crate) fn raise(&self, event: AsyncEvent) {
        let mut known = EventType::ALL.iter();
        let Some(&kind) = known.find(|&&kind| kind as u32 == event.number) else {
            tracing::debug!(number = event.number, "an event that nobody knows");
            return;
        };
        match event.element {
            // This is how the kernel reports a removal.
            Element::Device => self.remove(),
            Element::Port(port) => {
                if let EventType::PortActive | EventType::PortErr = kind {
                    let offers = self.offers.lock().clone();
                    let is_up = kind == EventType::PortActive;
                    offers.iter().for_each(|offer| offer.port(port, is_up));
                }
                for device in self.devices() {
                    device.raise(kind, Subject::Port(port));
                }
            }
            Element::Object(address) => {
                let found = self.objects.lock().get(&address).and_then(About::get);
                if let Some((device, object)) = found {
                    device.raise_for(&*object, kind);
                }
                if kind == EventType::CommEst && self.cm.is_some() {
                    self.lanes.step(Step::DataCame(address));
                }
            }
        }
    }
}
