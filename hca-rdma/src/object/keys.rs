//! What work requests name by key where `ibv_post_send` wants more: memory windows and the regions that they are bound
//! to, and the rights of a READ's sink.
//!
//! A bind is an operation of the device, which reports only that it has completed. The region, and the queue pair of a
//! window of type 2, count as used from the post of a bind until the window is deallocated, bound again or made invalid:
//! by a posted work request, or by a message whose completion has been polled.

use std::collections::HashMap;
use std::mem::take;

use verbs_core::mr::MrCore;
use verbs_core::object::{Hold, ObjectKind};
use verbs_core::qp::QpCore;
use verbs_core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_core::{
    Access, Binding, LKey, Payload, PostError, RKey, Target, TransportType, Wc, WindowType,
};

use crate::slot::Slot;
use crate::sys::{Bind, Mr, Mw};

/// The state kept with a region.
pub(crate) type MrState = Slot<Mr>;

/// The windows of a NIC, and the regions that posts look up.
pub(crate) struct Keys {
    known: Mutex<Known>,
    /// Whether there was ever a window.
    has_windows: AtomicBool,
    /// The rights that the transport needs at the sink of a READ besides [`Access::LOCAL_WRITE`], which the device checks.
    sink: Access,
}

#[derive(Default)]
struct Known {
    windows: HashMap<u32, Window>,
    regions: HashMap<u32, Region>,
}

/// The objects that a bound window uses.
type Holds = [Option<Hold>; 2];

/// A window. It is deallocated before what it uses is free.
struct Window {
    mw: Mw,
    window_type: WindowType,
    holds: Holds,
    /// The region of the last bind, and the address of its first byte: `holds` keeps the region as long as the window is
    /// bound.
    bound: Option<(LKey, u64)>,
}

struct Region {
    core: Weak<MrCore>,
    access: Access,
}

impl Keys {
    pub(crate) fn new(transport: TransportType) -> Self {
        Self {
            known: Mutex::default(),
            has_windows: AtomicBool::new(false),
            sink: transport.read_sink() - Access::LOCAL_WRITE,
        }
    }

    /// Registers a region, if posts look it up.
    pub(crate) fn add_region(&self, core: &Arc<MrCore>) {
        let info = core.info();
        if !self.sink.is_empty() || info.access.contains(Access::MW_BIND) {
            let (core, access) = (Arc::downgrade(core), info.access);
            let region = Region { core, access };
            self.known.lock().regions.insert(info.lkey.value(), region);
        }
    }

    pub(crate) fn remove_region(&self, lkey: LKey) {
        let gone = self.known.lock().regions.remove(&lkey.value());
        drop(gone);
    }

    pub(crate) fn add_window(&self, key: RKey, mw: Mw, window_type: WindowType) {
        self.has_windows.store(true, Relaxed);
        let window = Window {
            mw,
            window_type,
            holds: [None, None],
            bound: None,
        };
        self.known.lock().windows.insert(key.index(), window);
    }

    /// Deallocates a window. Waits for the kernel.
    pub(crate) fn remove_window(&self, key: RKey) {
        let gone = self.known.lock().windows.remove(&key.index());
        drop(gone);
    }

    /// Posts the bind of a window by `post`, which does not wait.
    pub(crate) fn bind(
        &self,
        what: &Binding,
        qp: &Weak<QpCore>,
        post: impl FnOnce(Bind<'_>) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        // What these hold at the end is dropped behind the lock.
        let (region, qp_core, mut holds): (Option<Arc<MrCore>>, Option<Arc<dyn Target>>, Holds);
        let mut known = self.known.lock();
        let known = &mut *known;
        let window = known.windows.get_mut(&what.mw.index());
        let window = window.ok_or(PostError::Key(what.mw.value()))?;
        if window.window_type == WindowType::One && what.rkey != what.mw.next() {
            // The driver chooses the key, always this one.
            return Err(PostError::Key(what.rkey.value()));
        }
        // A bind of no bytes unbinds. Drivers read the region all the same, rxe's without looking for a null pointer: they
        // get that of the bind that ends.
        let (lkey, addr) = match what.len {
            0 => window.bound.ok_or(PostError::Key(what.mw.value()))?,
            _ => (what.lkey, what.addr),
        };
        let what = &Binding {
            lkey,
            addr,
            ..*what
        };
        let no_region = PostError::Key(lkey.value());
        let found = known.regions.get(&lkey.value());
        region = found.and_then(|region| region.core.upgrade());
        let core = region.as_ref().ok_or(no_region)?;
        qp_core = match window.window_type {
            WindowType::One => None,
            _ => Some(qp.upgrade().ok_or(PostError::Destroyed)? as Arc<dyn Target>),
        };
        holds = [None, None];
        if what.len > 0 {
            let target = Arc::clone(core) as Arc<dyn Target>;
            let hold = Hold::try_new(&target, ObjectKind::Mw);
            holds[0] = Some(hold.ok_or(no_region)?);
        }
        if let Some(core) = &qp_core {
            holds[1] = Some(Hold::try_new(core, ObjectKind::Mw).ok_or(PostError::Destroyed)?);
        }
        let bind = |mr: &_| {
            post(Bind {
                mw: &window.mw,
                mr,
                window_type: window.window_type,
                what,
            })
        };
        let state = core.private::<MrState>();
        let posted = state.and_then(|mr| mr.with(bind));
        posted.ok_or(no_region)??;
        window.bound = (what.len > 0).then_some((lkey, addr));
        std::mem::swap(&mut window.holds, &mut holds);
        Ok(())
    }

    /// A window is unbound, if the key is that of one.
    pub(crate) fn unbound(&self, key: RKey) {
        let mut known = self.known.lock();
        let window = known.windows.get_mut(&key.index());
        let gone = window.map(|window| {
            window.bound = None;
            take(&mut window.holds)
        });
        drop(known);
        drop(gone);
    }

    /// Peers may have unbound windows by the messages of these completions.
    #[inline(always)]
    pub(crate) fn polled(&self, wcs: &[Wc]) {
        if self.has_windows.load(Relaxed) {
            self.find_unbound(wcs);
        }
    }

    #[cold]
    fn find_unbound(&self, wcs: &[Wc]) {
        let done = wcs.iter().filter(|wc| wc.is_ok());
        done.filter_map(Wc::invalidated)
            .for_each(|key| self.unbound(key));
    }

    /// Checks the rights that the sink of a READ needs on this transport and that the device would report only by a
    /// broken connection.
    #[inline]
    pub(crate) fn check_sink(&self, payload: &Payload<'_>) -> Result<(), PostError> {
        match self.sink.is_empty() {
            true => Ok(()),
            false => self.look_at_sink(payload),
        }
    }

    fn look_at_sink(&self, payload: &Payload<'_>) -> Result<(), PostError> {
        let sges = match payload {
            Payload::One(sge) => std::slice::from_ref(sge),
            Payload::List(sges) => sges,
            Payload::Inline(_) => &[],
        };
        let known = self.known.lock();
        for sge in sges.iter().filter(|sge| sge.len > 0) {
            // The device refuses an unknown key.
            if let Some(region) = known.regions.get(&sge.lkey.value()) {
                let (lkey, missing) = (sge.lkey, self.sink - region.access);
                if !missing.is_empty() {
                    return Err(PostError::ReadSink { lkey, missing });
                }
            }
        }
        Ok(())
    }
}

/// The number of a window's type in C.
pub(crate) fn type_number(window_type: WindowType) -> u32 {
    match window_type {
        WindowType::One => 1,
        WindowType::TwoA | WindowType::TwoB => 2,
    }
}

#[cfg(test)]
mod tests {
    use verbs_core::testing::Null;
    use verbs_core::{Device, Memory, Sge};

    use super::*;

    /// Goal: RDMA over TCP wants REMOTE_WRITE of a READ's sink, in each of its pieces; other transports do not.
    #[test]
    fn the_sink_of_a_read_needs_the_rights_of_its_transport() {
        let device = Device::open(Arc::new(Null::default()))
            .wait()
            .expect("a device");
        let pd = device.alloc_pd().wait().expect("a domain");
        let register = |access| {
            let memory = Memory::alloc(64).expect("memory");
            pd.register(memory, access).wait().expect("a region")
        };
        let local = register(Access::LOCAL_WRITE);
        let open = register(Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        let (lkey, missing) = (local.lkey(), Access::REMOTE_WRITE);
        let refused = Err(PostError::ReadSink { lkey, missing });
        for (transport, expected) in [
            (TransportType::Iwarp, refused),
            (TransportType::InfiniBand, Ok(())),
        ] {
            let keys = Keys::new(transport);
            keys.add_region(local.target());
            keys.add_region(open.target());
            let one = Payload::One(local.slice(0..8));
            assert_eq!(keys.check_sink(&one), expected);
            let both = [open.slice(0..8), local.slice(0..8)];
            assert_eq!(keys.check_sink(&Payload::List(&both)), expected);
            assert_eq!(keys.check_sink(&Payload::List(&both[..1])), Ok(()));
            // A piece without bytes is not looked at, and an unknown key is refused by the device.
            let empty = Payload::One(local.slice(0..0));
            assert_eq!(keys.check_sink(&empty), Ok(()));
            let unknown = Payload::One(Sge {
                lkey: LKey::new(0x0055_5501),
                ..local.slice(0..8)
            });
            assert_eq!(keys.check_sink(&unknown), Ok(()));
            keys.remove_region(lkey);
            assert_eq!(keys.check_sink(&one), Ok(()));
        }
    }
}
