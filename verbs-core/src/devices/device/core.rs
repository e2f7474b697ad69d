//! What all requests to a device lead to: its provider, the list of what is pending, its events.

use std::any::Any;
use std::fmt;
use std::time::{Duration, Instant};

use super::in_flight::InFlight;
use crate::command::{Body, RequestId, SlotRef};
use crate::error::Error;
use crate::event::hub::EventHub;
use crate::fatal::FatalState;
use crate::object::{Base, ObjectId, ObjectKind, Target};
use crate::provider::Provider;
use crate::routine;
use crate::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
    fence,
};
use crate::sync::plain::{AtomicU64, Mutex};
use crate::sync::slot::Slab;
use crate::sync::{Arc, Weak};
use crate::watch;

/// Devices are numbered for the list of what threads are issuing.
static NUMBER: AtomicU64 = AtomicU64::new(1);

/// What a device's requests act on.
pub struct DeviceCore {
    base: Base,
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) slots: Slab<Body>,
    epoch: Instant,
    pub(crate) removed: AtomicBool,
    /// Completions that came after another one of the same request (K8, K13).
    pub(crate) late: AtomicU64,
    pub(super) implicit_failures: AtomicU64,
    pub(crate) number: u64,
    pub(crate) events: EventHub,
    pub(crate) fatal: FatalState<dyn Target>,
    services: Mutex<Vec<Weak<dyn Any + Send + Sync>>>,
}

impl fmt::Debug for DeviceCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}", self.number)
    }
}

impl Target for DeviceCore {
    fn base(&self) -> &Base {
        &self.base
    }

    #[inline]
    fn device(this: &Arc<Self>) -> &Arc<Self> {
        this
    }

    fn provider(&self) -> &Arc<dyn Provider> {
        &self.provider
    }

    fn release(&self) {}

    fn closing(&self) {
        self.events.close(Error::Closing);
        // Each waker is a call of its own, so that one that panics keeps no other task asleep.
        routine::collect(|| self.fatal.close().tell(routine::wake, |_| {}));
    }
}

impl DeviceCore {
    /// A device that nothing has been asked of.
    pub(super) fn new(provider: Arc<dyn Provider>, max_pending: u32) -> Self {
        let number = NUMBER.fetch_add(1, Relaxed);
        Self {
            base: Base::root(ObjectKind::Device, (number & 0xffff_ffff) as u32),
            provider,
            slots: Slab::new(max_pending),
            epoch: Instant::now(),
            removed: AtomicBool::new(false),
            late: AtomicU64::new(0),
            implicit_failures: AtomicU64::new(0),
            number,
            events: EventHub::default(),
            fatal: FatalState::default(),
            services: Mutex::new(Vec::new()),
        }
    }

    /// Objects on the device that are not destroyed.
    pub(super) fn objects(&self) -> u32 {
        self.base.header.children()
    }

    /// The device has gone: completes everything pending with [`Error::DeviceRemoved`], lets nothing new
    /// in but destroys (K15), and tells the clients; see [the module](crate::device#surprise-removal).
    /// For providers, which hold no lock then; returns how many requests it completed. A second call tells
    /// no client.
    pub fn remove(self: &Arc<Self>) -> usize {
        self.removed.store(true, Relaxed);
        // With the fence in `pend`: one of the two sees the other.
        fence(SeqCst);
        let fail = |(index, generation)| {
            SlotRef::new(self, RequestId { index, generation }).fail(Error::DeviceRemoved)
        };
        // Foreign code runs at the end: one routine that panics does not keep the others from hearing of it.
        routine::collect(|| {
            self.events.close(Error::DeviceRemoved);
            let pending = self
                .slots
                .iter()
                .filter_map(|(index, slot)| Some((index, slot.inspect()?.generation)));
            let count = pending.filter(|&id| fail(id)).count();
            self.end(Error::DeviceRemoved);
            self.tell_removed();
            count
        })
    }

    /// Whether the device has gone.
    pub fn is_removed(&self) -> bool {
        self.removed.load(Relaxed)
    }

    pub(crate) fn now_ns(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The service of that type which is in use on this device and which `is_it` accepts, or the one that
    /// `make` makes: all callers share it, and it goes with the last of them.
    pub fn service<T: Any + Send + Sync>(
        &self,
        is_it: impl Fn(&T) -> bool,
        make: impl FnOnce() -> Arc<T>,
    ) -> Arc<T> {
        let mut services = self.services.lock();
        let alive: Vec<_> = services.iter().filter_map(Weak::upgrade).collect();
        services.retain(|service| service.strong_count() > 0);
        let mut ours = alive
            .iter()
            .filter_map(|any| Arc::clone(any).downcast::<T>().ok());
        if let Some(found) = ours.find(|service| is_it(service)) {
            // What is let go of here may be the last of its service (K4).
            drop(services);
            return found;
        }
        let made = make();
        let any: Arc<dyn Any + Send + Sync> = made.clone();
        services.push(Arc::downgrade(&any));
        drop(services);
        made
    }

    /// The provider, for services that call it directly.
    pub fn provider_of(&self) -> &Arc<dyn Provider> {
        &self.provider
    }

    pub(crate) fn implicit_destroy_failed(&self, id: ObjectId, error: Error) {
        self.implicit_failures.fetch_add(1, Relaxed);
        tracing::warn!(%id, %error, "the destroy of a dropped handle failed");
    }

    pub(super) fn in_flight(&self) -> Vec<InFlight> {
        let now = self.now_ns();
        let pending = self.slots.iter().filter_map(|(index, slot)| {
            let seen = slot.inspect()?;
            let id = RequestId {
                index,
                generation: seen.generation,
            };
            let age = Duration::from_nanos(now.saturating_sub(seen.meta.since_ns));
            let current = watch::Current {
                verb: seen.meta.verb,
                origin: seen.meta.origin,
                target: seen.meta.target,
                location: seen.meta.location,
            };
            InFlight::new(&current, Some((id, age, seen.cancel_requested)))
        });
        let issuing = watch::current(self.number);
        pending
            .chain(
                issuing
                    .iter()
                    .filter_map(|current| InFlight::new(current, None)),
            )
            .collect()
    }
}
