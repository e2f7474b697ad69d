//! Memory regions.

use std::fmt;
use std::ops::Range;

use crate::addr::{LKey, RKey};
use crate::command::{AnyCommand, Command, Kind};
use crate::error::{Attr, ByteCount, Error, Why};
use crate::mem::{Access, Keys, Memory};
use crate::object::header::IfBusy;
use crate::object::{Base, Child, ObjectKind, Private, Refused, Target, core, destroy, handle};
use crate::pd::{Pd, PdCore};
use crate::request::Request;
use crate::sync::Arc;
use crate::verb::{Admit, Verb, verb, verb_admitted};
use crate::wr::{Remote, Sge};

/// A memory region: registered memory with the keys that name it.
///
/// The memory stays alive while it is registered. As a peer may write to it at any time, its owner
/// reads and writes through copying calls, which are sound under concurrent access.
///
/// Dropping it deregisters it when no memory window is bound to it any longer (K12).
pub struct Mr {
    core: Arc<MrCore>,
}

/// What a memory region's requests act on.
pub struct MrCore {
    base: Base,
    pd: Child<PdCore>,
    memory: Arc<Memory>,
    access: Access,
    iova: u64,
    lkey: LKey,
    rkey: RKey,
}

core!(MrCore { pd });
handle!(Mr, MrCore, DeregMr);

impl fmt::Debug for MrCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} of {} bytes at {:#x}",
            self.base,
            self.memory.len(),
            self.iova
        )
    }
}

/// Registers memory; arguments of the verb.
pub struct RegMr {
    pd: Child<PdCore>,
    /// What is registered, whole.
    pub memory: Arc<Memory>,
    /// The access rights to it.
    pub access: Access,
    /// The address that work requests and peers reach its first byte at.
    pub iova: u64,
}

/// Asks for what is registered; arguments of the verb.
#[derive(Debug)]
pub struct QueryMr(());

/// Registers again under the same region; arguments of the verb.
pub struct ReregMr {
    old: Option<Mr>,
    pd: Option<Child<PdCore>>,
    /// Other memory than before.
    pub memory: Option<Arc<Memory>>,
    /// Other access rights than before.
    pub access: Option<Access>,
    /// Which keys it has then.
    pub keys: Keys,
}

/// A memory region as a query shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrInfo {
    /// The key for work requests of this process.
    pub lkey: LKey,
    /// The key for work requests of peers.
    pub rkey: RKey,
    /// The address of the first byte, as work requests reach it.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
    /// The access rights to it.
    pub access: Access,
}

verb!(RegMr, PdCore => Mr);
verb!(QueryMr, MrCore => MrInfo);

impl Verb for ReregMr {
    type Target = MrCore;
    type Output = Mr;
    type Error = Refused<Mr>;
    const KIND: Kind = Kind::ReregMr;

    fn command(command: Command<'_, Self>) -> AnyCommand<'_> {
        AnyCommand::ReregMr(command)
    }

    fn admit(&mut self, core: &MrCore) -> Admit<Self::Error> {
        match core.base.header.busy_now() {
            None => Admit::Go,
            Some(busy) => Admit::Refuse(Refused {
                error: Error::Busy,
                busy: Some(busy),
                handle: self.old.take(),
            }),
        }
    }

    fn refuse(self, error: Error) -> Self::Error {
        Refused {
            error,
            busy: None,
            handle: self.old,
        }
    }
}

impl ReregMr {
    /// The protection domain that it is to be in, if that changes.
    pub fn pd(&self) -> Option<&Arc<PdCore>> {
        self.pd.as_ref().map(Child::get)
    }

    /// The address that the region is reached at now.
    pub fn iova(&self) -> u64 {
        self.old.as_ref().map_or(0, Mr::iova)
    }

    /// The region under its new keys, for a provider that has registered it again. The old handle
    /// is closed by this without a command of its own.
    ///
    /// # Errors
    /// [`Error::Closing`] if the handle is gone, which no request of this crate lets happen.
    pub fn build(
        mut self,
        lkey: LKey,
        rkey: RKey,
        iova: u64,
        private: Private,
    ) -> Result<Mr, Refused<Mr>> {
        let Some(old) = self.old.take() else {
            return Err(Error::Closing.into());
        };
        let core = Arc::clone(&old.core);
        // No window can be bound in the meantime: that takes the handle.
        let _ = core.base.header.close(IfBusy::Refuse);
        let pd = self
            .pd
            .take()
            .unwrap_or_else(|| Child::new(core.pd.get(), ObjectKind::Mr));
        core.pd.release();
        let memory = self
            .memory
            .take()
            .unwrap_or_else(|| Arc::clone(&core.memory));
        let access = self.access.unwrap_or(core.access);
        let base = Base::new(
            Target::device(pd.get()),
            ObjectKind::Mr,
            lkey.value(),
            private,
        );
        Ok(Mr {
            core: Arc::new(MrCore {
                base,
                pd,
                memory,
                access,
                iova,
                lkey,
                rkey,
            }),
        })
    }
}

impl Request<'_, ReregMr> {
    /// Registers other memory.
    pub fn memory(mut self, memory: impl Into<Arc<Memory>>) -> Self {
        self.args.memory = Some(memory.into());
        self
    }

    /// Gives other access rights.
    pub fn access(mut self, access: Access) -> Self {
        self.args.access = Some(access);
        self
    }

    /// Keeps its keys, as the providers of rdma-core do: work requests and peers that have them reach the region as
    /// it is then. Until the request has completed they miss.
    pub fn keep_keys(mut self) -> Self {
        self.args.keys = Keys::Kept;
        self
    }

    /// Moves the region to another protection domain.
    pub fn pd(mut self, pd: &Pd) -> Self {
        self.args.pd = Some(Child::new(pd.core(), ObjectKind::Mr));
        self
    }
}

impl Pd {
    /// Registers memory: makes it reachable for work requests and, with remote access rights, for
    /// peers. The region is addressed by the memory's own virtual addresses.
    ///
    /// Takes constant time: nothing is pinned.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for remote write or atomic access without local write,
    /// [`Error::Exhausted`] at the device's `max_mr`.
    pub fn register(&self, memory: impl Into<Arc<Memory>>, access: Access) -> Request<'_, RegMr> {
        RegMr::request(self, memory.into(), access)
    }
}

impl RegMr {
    pub(crate) fn request(pd: &Pd, memory: Arc<Memory>, access: Access) -> Request<'_, Self> {
        let iova = if access.contains(Access::ZERO_BASED) {
            0
        } else {
            memory.addr()
        };
        let pd_child = Child::new(pd.core(), ObjectKind::Mr);
        Request::new(
            pd.core(),
            Self {
                pd: pd_child,
                memory,
                access,
                iova,
            },
        )
    }

    /// The region, for a provider that has registered it under these keys.
    pub fn build(self, lkey: LKey, rkey: RKey, private: Private) -> Mr {
        let Self {
            pd,
            memory,
            access,
            iova,
        } = self;
        let base = Base::new(
            Target::device(pd.get()),
            ObjectKind::Mr,
            lkey.value(),
            private,
        );
        Mr {
            core: Arc::new(MrCore {
                base,
                pd,
                memory,
                access,
                iova,
                lkey,
                rkey,
            }),
        }
    }
}

impl MrCore {
    /// What is registered.
    pub fn info(&self) -> MrInfo {
        let Self {
            iova,
            lkey,
            rkey,
            access,
            ..
        } = *self;
        MrInfo {
            lkey,
            rkey,
            iova,
            len: self.memory.len() as u64,
            access,
        }
    }

    /// The registered memory.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The protection domain that it is in.
    pub fn pd(&self) -> &Arc<PdCore> {
        self.pd.get()
    }
}

impl Request<'_, RegMr> {
    /// The address that work requests and peers reach the region's first byte at, instead of the
    /// memory's own.
    pub fn iova(mut self, iova: u64) -> Self {
        self.args.iova = iova;
        self
    }
}

impl Mr {
    /// The piece of the region from `range.start` to `range.end`, counted from its first byte, for a
    /// work request.
    ///
    /// The bounds are checked where all local pieces are: when the work request is carried out. A
    /// range that leaves the region ends it with
    /// [`WcStatus::LocProtErr`](crate::WcStatus::LocProtErr), one beyond 4 GiB as well.
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> Sge {
        let core = &*self.core;
        let len = u32::try_from(range.end.saturating_sub(range.start)).unwrap_or(u32::MAX);
        Sge {
            addr: core.iova.wrapping_add(range.start as u64),
            len,
            lkey: core.lkey,
        }
    }

    /// As [`Mr::slice`], with the bounds checked now.
    ///
    /// ```
    /// # use futures::executor::block_on;
    /// # use verbs_core::testing::Null;
    /// use verbs_core::{Access, Device, Error, Memory};
    ///
    /// # let device = Device::open(std::sync::Arc::new(Null::default())).wait()?;
    /// # let pd = device.alloc_pd().wait()?;
    /// let mr = pd.register(Memory::alloc(4096)?, Access::LOCAL_WRITE).wait()?;
    /// assert_eq!(mr.try_slice(0..64)?, mr.slice(0..64));
    /// assert!(matches!(mr.try_slice(4000..4097), Err(Error::OutOfRange { .. })));
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the range leaves the region or ends before it starts; [`Error::Invalid`] if it
    /// has 4 GiB less one byte or more, which is too long for one piece of a work request.
    pub fn try_slice(&self, range: Range<usize>) -> Result<Sge, Error> {
        if range.start > range.end || range.end > self.len() {
            return Err(Error::OutOfRange {
                end: ByteCount::new(range.end.max(range.start) as u64),
                size: ByteCount::new(self.len() as u64),
            });
        }
        match u32::try_from(range.len()) {
            Ok(len) if len < u32::MAX => Ok(self.slice(range)),
            _ => Err(Error::Invalid {
                attr: Attr::MrSize,
                got: u32::MAX,
                max: u32::MAX - 1,
            }),
        }
    }

    /// The whole region; see [`Mr::slice`].
    pub fn all(&self) -> Sge {
        self.slice(0..self.len())
    }

    /// The place `offset` bytes into the region, for a peer's work request.
    ///
    /// Useless to the peer unless the region grants it access.
    pub fn remote(&self, offset: usize) -> Remote {
        Remote {
            addr: self.core.iova.wrapping_add(offset as u64),
            rkey: self.core.rkey,
        }
    }

    /// What requests act on, as providers see it.
    pub fn target(&self) -> &Arc<MrCore> {
        &self.core
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.core.memory.len()
    }

    /// Whether it has no bytes; legal, and grants nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key for work requests of this process.
    pub fn lkey(&self) -> LKey {
        self.core.lkey
    }

    /// The key for work requests of peers.
    pub fn rkey(&self) -> RKey {
        self.core.rkey
    }

    /// The address of the first byte, as work requests reach it.
    pub fn iova(&self) -> u64 {
        self.core.iova
    }

    /// The access rights to it.
    pub fn access(&self) -> Access {
        self.core.access
    }

    /// The registered memory, to read and write by copying.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.core.memory
    }

    /// Copies bytes out of the region, from `offset` on. A peer that writes there at the same time
    /// may tear them.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the range leaves the region.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        self.core.memory.read(offset, into)
    }

    /// Copies bytes into the region, from `offset` on.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the range leaves the region.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), Error> {
        self.core.memory.write(offset, from)
    }

    /// Asks the device for what is registered.
    ///
    /// # Errors
    /// The provider's.
    pub fn query(&self) -> Request<'_, QueryMr> {
        Request::new(&self.core, QueryMr(()))
    }

    /// Registers the region again, with what the request is told to change, under new keys: the old
    /// ones miss at once, and no peer reaches the old memory through them when this has completed
    /// ([`keep_keys`](Request::keep_keys) keeps them instead).
    ///
    /// # Errors
    /// [`Refused`] gives the unchanged handle back: with [`Error::Busy`] while memory windows are
    /// bound, or as [`Pd::register`].
    pub fn rereg(self) -> Request<'static, ReregMr> {
        let core = Arc::clone(&self.core);
        Request::owned(
            core,
            ReregMr {
                old: Some(self),
                pd: None,
                memory: None,
                access: None,
                keys: Keys::New,
            },
        )
    }

    /// Deregisters the memory: Busy while memory windows are bound to it (K10). When it has
    /// completed, no access through its keys happens any longer (K11).
    ///
    /// # Errors
    /// [`Refused`] with [`Error::Busy`], which gives the handle back.
    pub fn dereg(self) -> Request<'static, DeregMr> {
        destroy(self, IfBusy::Refuse)
    }

    /// As [`Mr::dereg`], but waits for the last window instead of answering Busy (K12).
    ///
    /// # Errors
    /// Only [`Error::DeviceRemoved`].
    pub fn dereg_when_idle(self) -> Request<'static, DeregMr> {
        destroy(self, IfBusy::Wait)
    }
}

/// Registers the memory of a region once more, with keys, rights, protection domain and address of its own (IBTA vol.
/// 1, 11.2.8.8); arguments of the verb.
#[derive(Debug)]
pub struct RegSharedMr {
    pd: Child<PdCore>,
    /// The access rights through the new keys.
    pub access: Access,
    /// The address that work requests and peers reach the new region's first byte at.
    pub iova: u64,
}

verb_admitted!(RegSharedMr, MrCore => Mr, |args, mr| {
    let device = |pd: &Arc<PdCore>| Arc::as_ptr(Target::device(pd));
    match device(args.pd.get()) == device(mr.pd()) {
        true => Admit::Go,
        false => Admit::Refuse(Error::Mismatch {
            attr: Attr::Pd,
            why: Why::OtherDevice,
        }),
    }
});

impl RegSharedMr {
    /// The protection domain that the new region is in.
    pub fn pd(&self) -> &Arc<PdCore> {
        self.pd.get()
    }

    /// The new region over `memory`, the first one's, for a provider that has registered it under these keys.
    pub fn build(self, memory: Arc<Memory>, lkey: LKey, rkey: RKey, private: Private) -> Mr {
        let Self { pd, access, iova } = self;
        let registered = RegMr {
            pd,
            memory,
            access,
            iova,
        };
        registered.build(lkey, rkey, private)
    }
}

impl Request<'_, RegSharedMr> {
    /// The address that the new region's first byte is reached at, instead of the first region's.
    pub fn iova(mut self, iova: u64) -> Self {
        self.args.iova = iova;
        self
    }
}

impl Mr {
    /// Registers the same memory a second time, in that protection domain and with those rights: a peer can be given a
    /// key that only reads, and its key be taken away without the other's.
    ///
    /// The two regions know nothing of each other: each is deregistered alone, memory windows are bound to one of them,
    /// and the memory goes with the last. The first byte is reached at the address that it has in this region, unless
    /// one of the two counts from zero.
    ///
    /// # Errors
    /// As [`Pd::register`]; [`Error::Mismatch`] if the domain belongs to another device.
    ///
    /// # Examples
    /// ```
    /// # use verbs_core::testing::Null;
    /// use verbs_core::{Access, Device, Memory};
    ///
    /// # let device = Device::open(std::sync::Arc::new(Null::default())).wait()?;
    /// # let pd = device.alloc_pd().wait()?;
    /// let whole = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    /// let mr = pd.register(Memory::alloc(4096)?, whole).wait()?;
    /// let to_read = mr.register_shared(&pd, Access::REMOTE_READ).wait()?;
    /// assert_ne!(to_read.rkey(), mr.rkey());
    /// assert_eq!(to_read.iova(), mr.iova());
    /// # Ok::<(), verbs_core::Error>(())
    /// ```
    pub fn register_shared(&self, pd: &Pd, access: Access) -> Request<'_, RegSharedMr> {
        let iova = if access.contains(Access::ZERO_BASED) {
            0
        } else if self.core.access.contains(Access::ZERO_BASED) {
            self.core.memory.addr()
        } else {
            self.core.iova
        };
        let pd = Child::new(pd.core(), ObjectKind::Mr);
        Request::new(&self.core, RegSharedMr { pd, access, iova })
    }
}
