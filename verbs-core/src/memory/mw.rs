//! Memory windows: keys to parts of regions, which work requests bind and unbind.
//!
//! A window of type 1 is bound again at any time; every bind changes its key. One of type 2 is bound to one
//! queue pair, and unbound by an invalidate before it is bound again (IBTA vol. 1, 10.6.7.2).

use std::fmt;

use crate::addr::{LKey, Qpn, RKey};
#[cfg(doc)]
use crate::error::Error;
use crate::mem::Access;
pub use crate::mem::WindowType;
use crate::object::header::IfBusy;
use crate::object::{Base, Child, ObjectKind, Private, Target, core, destroy, handle};
use crate::pd::{Pd, PdCore};
use crate::qp::SendQueue;
use crate::queue::PostError;
use crate::request::Request;
use crate::sync::Arc;
use crate::verb::verb;
use crate::wr::{BindMw, Binding, Remote, Sge};

/// A memory window. While it is bound, its region cannot be deregistered, nor the queue pair destroyed
/// that a window of type 2 is bound to.
///
/// Dropping it unbinds and deallocates it (K12).
pub struct Mw {
    core: Arc<MwCore>,
    rkey: RKey,
}

/// What a memory window's requests act on.
#[derive(Debug)]
pub struct MwCore {
    base: Base,
    pd: Child<PdCore>,
    kind: WindowType,
}

core!(MwCore { pd });
handle!(Mw, MwCore, DeallocMw);

/// Allocates a memory window; arguments of the verb.
#[derive(Debug)]
pub struct AllocMw {
    pd: Child<PdCore>,
    /// What kind.
    pub window_type: WindowType,
}

/// Asks what a window shows; arguments of the verb.
#[derive(Debug)]
pub struct QueryMw(());

/// A memory window as a query shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MwInfo {
    /// The key that the device knows it by: that of the last bind that was carried out.
    pub rkey: RKey,
    /// What kind of window it is.
    pub window_type: WindowType,
    /// What it is bound to; `None` if it is not.
    pub bound: Option<MwRange>,
}

/// The part of a region that a window shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MwRange {
    /// The address that peers reach its first byte at.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// What peers may do.
    pub access: Access,
    /// The one queue pair whose peer may do it, of a window of type 2.
    pub qpn: Option<Qpn>,
}

verb!(AllocMw, PdCore => Mw);
verb!(QueryMw, MwCore => MwInfo);

impl AllocMw {
    /// The window, for a provider that has reserved this key.
    pub fn build(self, rkey: RKey, private: Private) -> Mw {
        let base = Base::new(
            Target::device(self.pd.get()),
            ObjectKind::Mw,
            rkey.value(),
            private,
        );
        let (pd, kind) = (self.pd, self.window_type);
        Mw {
            core: Arc::new(MwCore { base, pd, kind }),
            rkey,
        }
    }
}

impl MwCore {
    /// What kind of window it is.
    pub fn window_type(&self) -> WindowType {
        self.kind
    }
}

impl Pd {
    /// Allocates a memory window.
    ///
    /// # Errors
    /// [`Error::NoCapability`] if the device does not have that type, [`Error::Exhausted`] at its
    /// `max_mw`.
    pub fn alloc_mw(&self, window_type: WindowType) -> Request<'_, AllocMw> {
        let pd = Child::new(self.core(), ObjectKind::Mw);
        Request::new(self.core(), AllocMw { pd, window_type })
    }
}

impl Mw {
    /// What kind of window it is.
    pub fn window_type(&self) -> WindowType {
        self.core.kind
    }

    /// The key: of the last bind that was posted through this handle.
    pub fn rkey(&self) -> RKey {
        self.rkey
    }

    /// The work request that binds the window to those bytes of a region and lets peers do this with them.
    /// Its key is the current one with the next key byte. With [`Access::ZERO_BASED`], addresses count from
    /// the window's first byte.
    ///
    /// [`SendQueue::bind`] posts it and remembers the key. A caller that posts it otherwise does that by
    /// [`Mw::set_rkey`].
    pub fn bind(&self, wr_id: u64, to: impl Into<Sge>, access: Access) -> BindMw<'static> {
        let Sge { addr, len, lkey } = to.into();
        self.bind_long(wr_id, lkey, addr, u64::from(len), access)
    }

    /// As [`Mw::bind`], for windows beyond 4 GiB.
    pub fn bind_long(
        &self,
        wr_id: u64,
        lkey: LKey,
        addr: u64,
        len: u64,
        access: Access,
    ) -> BindMw<'static> {
        let what = Binding {
            mw: self.rkey,
            rkey: self.rkey.next(),
            lkey,
            access,
            addr,
            len,
        };
        BindMw::new(wr_id, what)
    }

    /// The work request that unbinds a window of type 1: a bind of no bytes. Type 2 is unbound by
    /// [`LocalInv`](crate::LocalInv).
    pub fn unbind(&self, wr_id: u64) -> BindMw<'static> {
        self.bind_long(wr_id, LKey::new(0), 0, 0, Access::empty())
    }

    /// Says what the key is: after a bind that was posted elsewhere, or one that completed in error and
    /// left the key as it was.
    pub fn set_rkey(&mut self, rkey: RKey) {
        self.rkey = rkey;
    }

    /// The place at that address of the window, for a peer's work request.
    pub fn remote(&self, addr: u64) -> Remote {
        let rkey = self.rkey;
        Remote { addr, rkey }
    }

    /// Asks the device for the window's key and for what it is bound to (IBTA vol. 1, 11.2.8.11).
    ///
    /// # Errors
    /// The provider's: [`Error::Unsupported`] where windows cannot be asked.
    pub fn query(&self) -> Request<'_, QueryMw> {
        Request::new(&self.core, QueryMw(()))
    }

    /// Deallocates the window, unbinding it if it is bound. When it has completed, no access through its
    /// key happens any longer (K11).
    ///
    /// # Errors
    /// Only [`Error::WouldBlock`] and [`Error::DeviceRemoved`].
    pub fn dealloc(self) -> Request<'static, DeallocMw> {
        destroy(self, IfBusy::Refuse)
    }
}

impl SendQueue {
    /// Posts the bind of a window, as `ibv_bind_mw` does: the handle has the new key at once, and peers may
    /// be told of it by a SEND behind the bind. If the bind completes in error the key stays what it was,
    /// which the handle is to be told by [`Mw::set_rkey`].
    ///
    /// # Errors
    /// [`PostError`]; the handle is as before.
    pub fn bind(&mut self, mw: &mut Mw, bind: BindMw<'_>) -> Result<RKey, PostError> {
        self.post(bind)?;
        if let Some(what) = bind.binding() {
            mw.rkey = what.rkey;
        }
        Ok(mw.rkey)
    }
}

impl fmt::Display for WindowType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::One => "type 1",
            Self::TwoA => "type 2A",
            Self::TwoB => "type 2B",
        })
    }
}
