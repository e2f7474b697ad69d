//! Which optional features an HCA has, and what it refuses because it lacks them.

use verbs_core::{
    Access, AtomicCap, Attr, Capability, DeviceCap, Error, Layout, Placement, PostError, QpAttr,
    QpState, QpType, SendOp, WindowType,
};

use crate::transport::congestion::Dcqcn;
use crate::transport::iwarp::Extensions;

/// The optional features of an HCA.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Features {
    pub(crate) caps: DeviceCap,
    pub(crate) atomics: AtomicCap,
    pub(crate) masked_atomics: AtomicCap,
    /// Unfenced invalidates take effect when they are posted, before what was posted earlier.
    pub(crate) early_invalidates: bool,
    /// What is fenced waits for earlier READs and atomics. An HCA without this has no memory management extensions.
    pub(crate) fences: bool,
    /// How reliable connections react to congestion notifications, if they do.
    pub(crate) congestion: Option<Dcqcn>,
}

/// The optional features that are implemented. Nothing outlives a power failure, so persistence is not among them.
const CAPS: DeviceCap = DeviceCap::RC_RNR_NAK_GEN
    .union(DeviceCap::AUTO_PATH_MIG)
    .union(DeviceCap::RESIZE_MAX_WR)
    .union(DeviceCap::BAD_PKEY_CNTR)
    .union(DeviceCap::SRQ_RESIZE)
    .union(DeviceCap::N_NOTIFY_CQ)
    .union(DeviceCap::SYS_IMAGE_GUID)
    .union(DeviceCap::XRC)
    .union(DeviceCap::CHANGE_PHY_PORT)
    .union(DeviceCap::PORT_ACTIVE_EVENT)
    .union(DeviceCap::MEM_WINDOW)
    .union(DeviceCap::MEM_MGT_EXTENSIONS)
    .union(DeviceCap::MEM_WINDOW_TYPE_2A)
    .union(DeviceCap::MEM_WINDOW_TYPE_2B)
    .union(DeviceCap::SG_GAPS_REG)
    .union(DeviceCap::BLOCK_LIST)
    .union(DeviceCap::ZERO_BASED)
    .union(DeviceCap::FMR_POOL)
    .union(DeviceCap::FLUSH_GLOBAL)
    .union(DeviceCap::ATOMIC_WRITE)
    .union(DeviceCap::SEND_WITH_IMM)
    .union(DeviceCap::WRITE_WITH_IMM);

/// The features that every HCA of this kind has: its reliable connections know no other answer.
const ALWAYS: DeviceCap = DeviceCap::RC_RNR_NAK_GEN;

/// Pages of one fast registration: 2 MiB of pages of 4 KiB, as in Linux rxe.
pub(crate) const FAST_REG_PAGES: u32 = 512;

impl Default for Features {
    /// All of them.
    fn default() -> Self {
        Self {
            caps: CAPS,
            atomics: AtomicCap::Glob,
            masked_atomics: AtomicCap::Glob,
            early_invalidates: false,
            fences: true,
            congestion: Some(Dcqcn::default()),
        }
    }
}

impl Features {
    /// The features that an RNIC has. iWARP has no FLUSH, ATOMIC WRITE or extended connections, and no
    /// receiver-not-ready; immediate data are a message by themselves (RFC 7306), so they are not sent with a SEND.
    pub(crate) fn iwarp() -> Self {
        let without = DeviceCap::RC_RNR_NAK_GEN
            | DeviceCap::AUTO_PATH_MIG
            | DeviceCap::SEND_WITH_IMM
            | DeviceCap::XRC
            | DeviceCap::FLUSH_GLOBAL
            | DeviceCap::ATOMIC_WRITE;
        Self {
            caps: CAPS.difference(without).union(DeviceCap::READ_WITH_INV),
            congestion: None,
            ..Self::default()
        }
    }

    /// The extensions of RFC 7306 that an RNIC accepts.
    pub(crate) fn extensions(&self) -> Extensions {
        Extensions {
            immediate: self.has(DeviceCap::WRITE_WITH_IMM),
            atomics: self.atomics != AtomicCap::None,
            masked: self.masked_atomics != AtomicCap::None,
        }
    }

    /// Removes these features.
    pub(crate) fn remove(&mut self, caps: DeviceCap) {
        self.caps.remove(caps.difference(ALWAYS));
    }

    /// Refuses what needs one of these features if the HCA does not have it.
    ///
    /// # Errors
    /// [`Error::NoCapability`].
    pub(crate) fn require(&self, cap: DeviceCap, attr: Attr) -> Result<(), Error> {
        if self.has(cap) {
            return Ok(());
        }
        let missing = Capability::of(cap.difference(self.caps));
        Err(Error::NoCapability { attr, missing })
    }

    /// Whether the HCA has all of these.
    pub(crate) fn has(&self, caps: DeviceCap) -> bool {
        self.caps.contains(caps)
    }

    /// Whether such a work request can be posted.
    pub(crate) fn posts(&self, op: &SendOp) -> bool {
        match op {
            SendOp::SendWithImm(_) => self.has(DeviceCap::SEND_WITH_IMM),
            SendOp::WriteWithImm(..) => self.has(DeviceCap::WRITE_WITH_IMM),
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => self.atomics != AtomicCap::None,
            SendOp::MaskedCompareSwap { .. } | SendOp::MaskedFetchAdd { .. } => {
                self.masked_atomics != AtomicCap::None
            }
            SendOp::AtomicWrite(_) => self.has(DeviceCap::ATOMIC_WRITE),
            SendOp::Flush(what) => self.has(flush(what.placement)),
            SendOp::SendWithInv(_) | SendOp::LocalInv(_) => self.has(DeviceCap::MEM_MGT_EXTENSIONS),
            SendOp::ReadWithInv(_) => {
                self.has(DeviceCap::MEM_MGT_EXTENSIONS | DeviceCap::READ_WITH_INV)
            }
            SendOp::RegMr(what) => {
                self.has(DeviceCap::MEM_MGT_EXTENSIONS) && self.grants(what.access)
            }
            SendOp::BindMw(what) => self.caps.intersects(WINDOWS) && self.grants(what.access),
            _ => true,
        }
    }

    /// Why such a work request, which can be posted with other flags or on another device only, is refused.
    #[cold]
    pub(crate) fn why_not(&self, op: &SendOp) -> PostError {
        if self.posts(op) {
            return PostError::Unsupported;
        }
        PostError::NoCapability(self.missing(|features| features.posts(op)))
    }

    /// The refusal of what `allows` finds possible with some features, and not with these.
    #[cold]
    pub(crate) fn refusal(&self, attr: Attr, allows: impl Fn(&Self) -> bool) -> Error {
        let missing = self.missing(allows);
        Error::NoCapability { attr, missing }
    }

    /// What is missing here. It is found by taking from an HCA with all features those that this one does not have, one
    /// by one: the one is missing that makes the difference.
    fn missing(&self, allows: impl Fn(&Self) -> bool) -> Capability {
        let mut left = Self {
            caps: DeviceCap::all(),
            atomics: AtomicCap::Glob,
            masked_atomics: AtomicCap::Glob,
            ..*self
        };
        for (_, bit) in DeviceCap::all().difference(self.caps).iter_names() {
            left.caps.remove(bit);
            if !allows(&left) {
                return Capability::of(bit);
            }
        }
        left.atomics = self.atomics;
        match allows(&left) {
            false => Capability::ATOMICS,
            true => Capability::MASKED_ATOMICS,
        }
    }

    /// Refuses queue pairs of an optional type that the HCA does not have.
    ///
    /// # Errors
    /// [`Error::NoCapability`].
    pub(crate) fn check_type(&self, qp_type: QpType) -> Result<(), Error> {
        match qp_type {
            QpType::XrcSend | QpType::XrcRecv => self.require(DeviceCap::XRC, Attr::QpType),
            _ => Ok(()),
        }
    }

    /// Whether a modify may name the attributes that it names.
    ///
    /// # Errors
    /// [`Error::NoCapability`].
    pub(crate) fn check_modify(&self, from: QpState, change: &QpAttr) -> Result<(), Error> {
        let moves = from == QpState::Sqd && change.port.is_some();
        if moves {
            self.require(DeviceCap::CHANGE_PHY_PORT, Attr::Port)?;
        }
        change.access.map_or(Ok(()), |access| self.check(access))
    }

    /// Whether these rights can be given.
    pub(crate) fn grants(&self, access: Access) -> bool {
        let needs = [
            (Access::ZERO_BASED, DeviceCap::ZERO_BASED),
            (Access::FLUSH_GLOBAL, DeviceCap::FLUSH_GLOBAL),
            (Access::FLUSH_PERSISTENT, DeviceCap::FLUSH_PERSISTENT),
        ];
        let missing =
            |&(right, cap): &(Access, DeviceCap)| access.contains(right) && !self.has(cap);
        !needs.iter().any(missing)
    }

    /// Refuses memory windows of a type that the HCA does not have.
    ///
    /// # Errors
    /// [`Error::NoCapability`].
    pub(crate) fn check_window(&self, window_type: WindowType) -> Result<(), Error> {
        let cap = match window_type {
            WindowType::One => DeviceCap::MEM_WINDOW,
            WindowType::TwoA => DeviceCap::MEM_WINDOW_TYPE_2A,
            WindowType::TwoB => DeviceCap::MEM_WINDOW_TYPE_2B,
        };
        self.require(cap, Attr::MemoryWindow)
    }

    /// Whether such lists can be registered by work requests.
    pub(crate) fn takes(&self, layout: Layout) -> bool {
        self.has(DeviceCap::MEM_MGT_EXTENSIONS) && self.lists(layout)
    }

    /// Whether such lists can be registered.
    pub(crate) fn lists(&self, layout: Layout) -> bool {
        let cap = match layout {
            Layout::Pages(_) => DeviceCap::empty(),
            Layout::Blocks(_) => DeviceCap::BLOCK_LIST,
            Layout::Gaps => DeviceCap::SG_GAPS_REG,
        };
        self.has(cap)
    }

    /// Whether a queue pair or region may have these rights.
    ///
    /// # Errors
    /// [`Error::NoCapability`].
    pub(crate) fn check(&self, access: Access) -> Result<(), Error> {
        if self.grants(access) {
            Ok(())
        } else {
            Err(self.refusal(Attr::Access, |features| features.grants(access)))
        }
    }
}

const WINDOWS: DeviceCap = DeviceCap::MEM_WINDOW
    .union(DeviceCap::MEM_WINDOW_TYPE_2A)
    .union(DeviceCap::MEM_WINDOW_TYPE_2B);

fn flush(placement: Placement) -> DeviceCap {
    let mut caps = DeviceCap::empty();
    caps.set(
        DeviceCap::FLUSH_GLOBAL,
        placement.contains(Placement::GLOBAL),
    );
    caps.set(
        DeviceCap::FLUSH_PERSISTENT,
        placement.contains(Placement::PERSISTENT),
    );
    caps
}

#[cfg(test)]
mod tests {
    use verbs_core::{Binding, FlushRange, LKey, RKey, Registration, Remote};

    use super::*;

    /// What the operations below are named for when they are posted.
    fn operations() -> [(SendOp, &'static [&'static str]); 15] {
        let remote = Remote {
            addr: 0,
            rkey: RKey::new(0x100),
        };
        let range = FlushRange {
            remote,
            len: None,
            placement: Placement::GLOBAL,
        };
        let registration = |access| {
            SendOp::RegMr(Registration {
                key: LKey::new(0x100),
                access,
                iova: 0,
                mapping: 1,
            })
        };
        let (add, compare, swap) = (1, 2, 3);
        [
            (SendOp::Send, &[]),
            (SendOp::Write(remote), &[]),
            (SendOp::Read(remote), &[]),
            (SendOp::SendWithImm(1), &["send imm"]),
            (SendOp::WriteWithImm(remote, 1), &["write imm"]),
            (SendOp::FetchAdd { remote, add }, &["atomics"]),
            (
                SendOp::CompareSwap {
                    remote,
                    compare,
                    swap,
                },
                &["atomics"],
            ),
            (
                SendOp::MaskedFetchAdd {
                    remote,
                    add,
                    boundary: 0,
                },
                &["masked"],
            ),
            (SendOp::AtomicWrite(remote), &["atomic write"]),
            (SendOp::Flush(range), &["flush"]),
            (SendOp::SendWithInv(RKey::new(1)), &["extensions"]),
            (SendOp::LocalInv(RKey::new(1)), &["extensions"]),
            (
                SendOp::ReadWithInv(remote),
                &["extensions", "read with inv"],
            ),
            (registration(Access::LOCAL_WRITE), &["extensions"]),
            (
                registration(Access::LOCAL_WRITE | Access::ZERO_BASED),
                &["extensions", "zero based"],
            ),
        ]
    }

    /// Goal: an operation can be posted as long as the HCA has the features that the operation needs, and these alone
    /// decide. Method: one feature after another is taken away from an HCA that has all.
    #[test]
    fn an_operation_needs_its_own_features() {
        let all = Features {
            caps: CAPS | DeviceCap::READ_WITH_INV,
            ..Features::default()
        };
        let without = |caps| Features {
            caps: all.caps - caps,
            ..all
        };
        let features = [
            ("send imm", without(DeviceCap::SEND_WITH_IMM)),
            ("write imm", without(DeviceCap::WRITE_WITH_IMM)),
            ("atomic write", without(DeviceCap::ATOMIC_WRITE)),
            ("flush", without(DeviceCap::FLUSH_GLOBAL)),
            ("extensions", without(DeviceCap::MEM_MGT_EXTENSIONS)),
            ("read with inv", without(DeviceCap::READ_WITH_INV)),
            ("zero based", without(DeviceCap::ZERO_BASED)),
            (
                "atomics",
                Features {
                    atomics: AtomicCap::None,
                    ..all
                },
            ),
            (
                "masked",
                Features {
                    masked_atomics: AtomicCap::None,
                    ..all
                },
            ),
        ];
        for (op, needs) in operations() {
            assert!(all.posts(&op), "{op:?}");
            for (name, left) in &features {
                assert_eq!(left.posts(&op), !needs.contains(name), "{op:?}, no {name}");
                let why = match (needs.contains(name), *name) {
                    (false, _) => PostError::Unsupported,
                    (true, "atomics") => PostError::NoCapability(Capability::ATOMICS),
                    (true, "masked") => PostError::NoCapability(Capability::MASKED_ATOMICS),
                    (true, _) => PostError::NoCapability(Capability::of(all.caps - left.caps)),
                };
                assert_eq!(left.why_not(&op), why, "{op:?}, no {name}");
            }
        }
    }

    /// Goal: a bind is refused only where there are no windows at all, and one of their bits is named then.
    #[test]
    fn a_bind_needs_windows_of_any_type() {
        let bind = SendOp::BindMw(Binding {
            mw: RKey::new(0x100),
            rkey: RKey::new(0x101),
            lkey: LKey::new(0x200),
            addr: 0,
            len: 0,
            access: Access::empty(),
        });
        let mut left = Features::default();
        for (_, cap) in WINDOWS.iter_names() {
            assert!(left.posts(&bind));
            left.remove(cap);
        }
        let Some(missing) = (match left.why_not(&bind) {
            PostError::NoCapability(missing) => missing.bit(),
            other => panic!("{other}"),
        }) else {
            panic!("a window has a bit");
        };
        assert!(WINDOWS.contains(missing));
    }

    /// Goal: what every HCA of this kind has cannot be taken away; anything else can.
    #[test]
    fn some_features_stay() {
        let mut left = Features::default();
        left.remove(DeviceCap::all());
        assert_eq!(left.caps, ALWAYS);
    }
}
