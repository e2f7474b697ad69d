//! Address handles: addresses of peers that datagrams name.

use crate::device::verb;
#[cfg(doc)]
use crate::error::Error;
use crate::object::{Base, Child, ObjectKind, Private, Target, core, destroy, handle};
use crate::pd::{Pd, PdCore};
use crate::qp_attr::Av;
use crate::request::Request;
use crate::sync::{Arc, Mutex};

/// An address handle (IBTA vol. 1, 11.2.2). The address is copied into each work request that names
/// the handle, so destroying it disturbs no send.
///
/// Dropping it destroys it (K12).
pub struct Ah {
    core: Arc<AhCore>,
}

/// What an address handle's requests act on.
#[derive(Debug)]
pub struct AhCore {
    base: Base,
    pd: Child<PdCore>,
    av: Mutex<Av>,
}

core!(AhCore { pd });
handle!(Ah, AhCore, DestroyAh);

/// Creates an address handle; arguments of the verb.
#[derive(Debug)]
pub struct CreateAh {
    pd: Child<PdCore>,
    /// The address.
    pub av: Av,
}

/// Changes the address; arguments of the verb.
#[derive(Debug)]
pub struct ModifyAh {
    /// The new address.
    pub av: Av,
}

/// Asks for the address; arguments of the verb.
#[derive(Debug)]
pub struct QueryAh(());

verb!(CreateAh, PdCore => Ah);
verb!(ModifyAh, AhCore => ());
verb!(QueryAh, AhCore => Av);

impl CreateAh {
    /// The handle, for a provider that has created it under that number.
    pub fn build(self, number: u32, private: Private) -> Ah {
        let base = Base::new(
            Target::device(self.pd.get()),
            ObjectKind::Ah,
            number,
            private,
        );
        Ah {
            core: Arc::new(AhCore {
                base,
                pd: self.pd,
                av: Mutex::new(self.av),
            }),
        }
    }
}

impl AhCore {
    /// The address as it is now.
    pub fn av(&self) -> Av {
        *self.av.lock()
    }

    /// Takes over a new address, for a provider that accepts it.
    pub fn replace(&self, av: Av) {
        *self.av.lock() = av;
    }
}

impl Pd {
    /// Creates an address handle.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a port or table index that the device does not have,
    /// [`Error::Exhausted`] at the device's `max_ah`.
    pub fn create_ah(&self, av: Av) -> Request<'_, CreateAh> {
        Request::new(
            self.core(),
            CreateAh {
                pd: Child::new(self.core(), ObjectKind::Ah),
                av,
            },
        )
    }
}

impl Ah {
    /// The address as it is now.
    pub fn av(&self) -> Av {
        self.core.av()
    }

    /// Changes the address; later sends use the new one.
    ///
    /// # Errors
    /// As [`Pd::create_ah`].
    pub fn modify(&self, av: Av) -> Request<'_, ModifyAh> {
        Request::new(&self.core, ModifyAh { av })
    }

    /// Asks the device for the address.
    ///
    /// # Errors
    /// The provider's.
    pub fn query(&self) -> Request<'_, QueryAh> {
        Request::new(&self.core, QueryAh(()))
    }

    /// Destroys the handle. Never Busy: sends have copied the address.
    ///
    /// # Errors
    /// Only [`Error::WouldBlock`] and [`Error::DeviceRemoved`].
    pub fn destroy(self) -> Request<'static, DestroyAh> {
        destroy(self, false)
    }
}
