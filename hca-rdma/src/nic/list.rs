//! The system's NICs on a list of devices.

use std::fmt;

use verbs_core::DeviceList;
use verbs_core::sync::{Arc, Weak};

use super::Nic;
use crate::RdmaCore;
use crate::error::OpenError;

/// The system's NICs on a list of devices, which programs may have other devices on as well: [`RdmaCore::follow`].
///
/// A NIC that the kernel removes goes off the list at once. For those that arrive the system is asked at each
/// [`look`](Self::look): no thread does that by itself. Dropping the value takes the NICs off the list; devices that are open
/// on them continue to work.
pub struct Nics {
    rdma: RdmaCore,
    list: DeviceList,
    /// Those that were put on it. The list and their devices keep them.
    known: Vec<(String, Weak<Nic>)>,
}

impl Nics {
    /// Those of that rdma-core, on that list; none yet.
    pub(crate) fn new(rdma: RdmaCore, list: &DeviceList) -> Self {
        Self {
            rdma,
            list: list.clone(),
            known: Vec::new(),
        }
    }

    /// Asks the system for its devices. Those that are new, or back after a removal, are opened and put on the list; those that
    /// are not there any longer are removed, as by [`Nic::remove`]. Returns why some could not be had; they are tried again
    /// the next time.
    ///
    /// # Context
    /// Asks the kernel, and opens devices: not for use under NoBlock.
    #[must_use = "what could not be opened is not on the list"]
    pub fn look(&mut self) -> Vec<OpenError> {
        let names = match self.rdma.devices() {
            Ok(names) => names,
            Err(error) => return vec![error],
        };
        self.known.retain(|(name, nic)| {
            let Some(nic) = nic.upgrade() else {
                return false;
            };
            if !names.contains(name) {
                nic.remove();
            }
            !nic.shared.is_removed()
        });
        let mut failed = Vec::new();
        for name in names {
            if self.known.iter().any(|(known, _)| *known == name) {
                continue;
            }
            match self.rdma.open(&name) {
                Ok(nic) => {
                    nic.join(&self.list);
                    self.known.push((name, Arc::downgrade(&nic)));
                }
                Err(error) => failed.push(error),
            }
        }
        failed
    }

    /// Those that were put on the list and were not removed.
    pub fn nics(&self) -> Vec<Arc<Nic>> {
        let nics = self.known.iter().filter_map(|(_, nic)| nic.upgrade());
        nics.filter(|nic| !nic.shared.is_removed()).collect()
    }
}

impl Drop for Nics {
    fn drop(&mut self) {
        self.nics().iter().for_each(|nic| nic.leave());
    }
}

impl fmt::Debug for Nics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.known.iter().map(|(name, _)| name);
        f.debug_list().entries(names).finish()
    }
}
