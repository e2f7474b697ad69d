//! The address handles of a protection domain.
//!
//! A work request names the address of its datagram; `ibv_post_send` needs an `ibv_ah`. All handles of one address
//! share one `ibv_ah`. It is kept for a while after the last of them is destroyed: a driver may read it when the
//! datagram is sent, which can be later.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use verbs_core::sync::{Arc, Mutex};
use verbs_core::{Av, Error};

use crate::convert::{av_out, error};
use crate::slot::Slot;
use crate::sys::{Ah, Pd};

/// How many `ibv_ah` are kept after the last handle of their address was destroyed.
const IDLE_MAX: usize = 64;

/// The handles.
pub(crate) struct AddressHandles {
    pd: Slot<Pd>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    handles: HashMap<Av, Handle>,
    /// Addresses whose last handle was destroyed, each once, oldest first. An address that has a handle again is still
    /// listed.
    idle: VecDeque<Av>,
}

struct Handle {
    ah: Arc<Ah>,
    users: u32,
}

impl AddressHandles {
    pub(crate) fn new(pd: Pd) -> Self {
        Self {
            pd: Slot::new(pd),
            known: Mutex::default(),
        }
    }

    /// The domain that they are in.
    pub(crate) fn pd(&self) -> &Slot<Pd> {
        &self.pd
    }

    /// Counts one more user of the address. Waits for the kernel; called only by the command thread.
    pub(crate) fn add(&self, av: Av) -> Result<(), Error> {
        if let Some(handle) = self.known.lock().handles.get_mut(&av) {
            handle.users += 1;
            return Ok(());
        }
        let pd = self.pd.get()?;
        let ah = Arc::new(Ah::create(&pd, av_out(&av)?).map_err(error)?);
        self.known
            .lock()
            .handles
            .insert(av, Handle { ah, users: 1 });
        Ok(())
    }

    /// Counts one user fewer. Waits for the kernel; called only by the command thread.
    pub(crate) fn remove(&self, av: Av) {
        let old = self.known.lock().remove(av);
        drop(old);
    }

    /// Calls `f`, which does not wait, with the handle of that address; `None` if there is none.
    pub(crate) fn with<R>(&self, av: &Av, f: impl FnOnce(&Ah) -> R) -> Option<R> {
        let known = self.known.lock();
        known.handles.get(av).map(|handle| f(&handle.ah))
    }

    /// Destroys the domain and the handles that are left. Waits for the kernel.
    pub(crate) fn destroy(&self) {
        let known = std::mem::take(&mut *self.known.lock());
        drop(known);
        self.pd.destroy();
    }
}

impl Known {
    /// Removes one user; returns the handle that has to be destroyed as a result.
    fn remove(&mut self, av: Av) -> Option<Arc<Ah>> {
        let handle = self.handles.get_mut(&av)?;
        handle.users = handle.users.saturating_sub(1);
        if handle.users > 0 {
            return None;
        }
        self.idle.retain(|other| *other != av);
        self.idle.push_back(av);
        if self.idle.len() <= IDLE_MAX {
            return None;
        }
        match self.handles.entry(self.idle.pop_front()?) {
            Entry::Occupied(oldest) if oldest.get().users == 0 => Some(oldest.remove().ah),
            _ => None,
        }
    }
}
