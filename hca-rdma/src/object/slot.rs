//! An object of the library, until it is destroyed.

use verbs_core::Error;
use verbs_core::sync::{Arc, Mutex};

/// Holds an object that others use by this slot, even after its destroy, which leaves the slot empty.
pub(crate) struct Slot<T>(Mutex<Option<Arc<T>>>);

impl<T> Slot<T> {
    pub(crate) fn new(object: T) -> Self {
        Self(Mutex::new(Some(Arc::new(object))))
    }

    /// The object, which exists as long as the result is held. For commands: verbs-core destroys nothing that a command
    /// names.
    ///
    /// # Errors
    /// [`Error::Closing`].
    pub(crate) fn get(&self) -> Result<Arc<T>, Error> {
        self.0.lock().clone().ok_or(Error::Closing)
    }

    /// Calls `f`, which does not wait, with the object. The object's destroy waits for that. For posting and polling.
    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&T) -> R) -> Option<R> {
        self.0.lock().as_deref().map(f)
    }

    /// Destroys the object, unless a child still holds it, which verbs-core prevents. May wait for the kernel.
    pub(crate) fn destroy(&self) {
        let object = self.0.lock().take();
        drop(object);
    }
}
