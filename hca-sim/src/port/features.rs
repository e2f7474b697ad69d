//! What an HCA has of the optional features, and what it refuses for want of them.

use verbs_core::{Access, AtomicCap, DeviceCap, Error, Layout, Placement, SendOp, WindowType};

/// The optional features of an HCA.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Features {
    pub(crate) caps: DeviceCap,
    pub(crate) atomics: AtomicCap,
    pub(crate) masked_atomics: AtomicCap,
    /// Unfenced invalidates take effect when they are posted, before what was posted earlier.
    pub(crate) early_invalidates: bool,
}

/// What is there of the optional features. Nothing outlives power, so that cannot be asked for.
const CAPS: DeviceCap = DeviceCap::RC_RNR_NAK_GEN
    .union(DeviceCap::RESIZE_MAX_WR)
    .union(DeviceCap::SRQ_RESIZE)
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
    .union(DeviceCap::ATOMIC_WRITE);

/// Pages of one fast registration: 2 MiB of pages of 4 KiB, as Linux rxe has it.
pub(crate) const FAST_REG_PAGES: u32 = 512;

impl Default for Features {
    /// All that there are.
    fn default() -> Self {
        Self {
            caps: CAPS,
            atomics: AtomicCap::Glob,
            masked_atomics: AtomicCap::Glob,
            early_invalidates: false,
        }
    }
}

impl Features {
    /// Whether the HCA has all of these.
    pub(crate) fn has(&self, caps: DeviceCap) -> bool {
        self.caps.contains(caps)
    }

    /// Whether such a work request can be posted.
    pub(crate) fn posts(&self, op: &SendOp) -> bool {
        match op {
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => self.atomics != AtomicCap::None,
            SendOp::MaskedCompareSwap { .. } | SendOp::MaskedFetchAdd { .. } => {
                self.masked_atomics != AtomicCap::None
            }
            SendOp::AtomicWrite(_) => self.has(DeviceCap::ATOMIC_WRITE),
            SendOp::Flush(what) => self.has(flush(what.placement)),
            SendOp::SendWithInv(_) | SendOp::LocalInv(_) => self.has(DeviceCap::MEM_MGT_EXTENSIONS),
            SendOp::RegMr(what) => {
                self.has(DeviceCap::MEM_MGT_EXTENSIONS) && self.grants(what.access)
            }
            SendOp::BindMw(what) => self.caps.intersects(WINDOWS) && self.grants(what.access),
            _ => true,
        }
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

    /// Whether there are memory windows of that type.
    pub(crate) fn binds(&self, window_type: WindowType) -> bool {
        self.has(match window_type {
            WindowType::One => DeviceCap::MEM_WINDOW,
            WindowType::TwoA => DeviceCap::MEM_WINDOW_TYPE_2A,
            WindowType::TwoB => DeviceCap::MEM_WINDOW_TYPE_2B,
        })
    }

    /// Whether such lists can be registered.
    pub(crate) fn takes(&self, layout: Layout) -> bool {
        let cap = match layout {
            Layout::Pages(_) => DeviceCap::empty(),
            Layout::Blocks(_) => DeviceCap::BLOCK_LIST,
            Layout::Gaps => DeviceCap::SG_GAPS_REG,
        };
        self.has(DeviceCap::MEM_MGT_EXTENSIONS | cap)
    }

    /// Whether a queue pair or region may have these rights.
    ///
    /// # Errors
    /// [`Error::Unsupported`].
    pub(crate) fn check(&self, access: Access) -> Result<(), Error> {
        if self.grants(access) {
            Ok(())
        } else {
            Err(Error::Unsupported(verbs_core::Attr::Access))
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
