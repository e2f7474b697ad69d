//! The memory of one end of a session: its layout, and the registrations.

use verbs_core::sync::Arc;
use verbs_core::{Access, Memory, Mr};

use crate::Draw;
use crate::check::MemoryModel;
use crate::run::Mode;

/// Bytes of each area.
pub(crate) const AREA: usize = 8192;
/// Bytes of the area of a connection for atomics.
pub(crate) const ATOMICS: usize = 512;
/// The most connections of one session.
pub(crate) const CONNS: usize = 3;
/// All areas of one connection.
const LANE: usize = 4 * AREA + ATOMICS;

/// What an area is for.
#[derive(Clone, Copy)]
pub(crate) enum Area {
    /// Source of messages; nothing writes there while a connection lives.
    Out,
    /// Results of READs and atomics.
    Back,
    /// Receives.
    In,
    /// Target of the peer's WRITEs, and source of its READs.
    Target,
    /// Target of the peer's atomics.
    Atomic,
}

/// Where the area of a connection begins.
pub(crate) const fn begin(conn: usize, area: Area) -> usize {
    conn * LANE + area as usize * AREA
}

/// Memory with its model and its registration.
pub(crate) struct Region {
    pub(crate) model: MemoryModel,
    pub(crate) memory: Arc<Memory>,
    /// `None` while it is not registered.
    pub(crate) mr: Option<Mr>,
    pub(crate) access: Access,
    /// The same in every run, unlike the memory's own address.
    pub(crate) iova: u64,
}

impl Region {
    /// Memory with random bytes; `None` if none can be allocated.
    pub(crate) fn new(len: usize, access: Access, iova: u64, draw: &mut Draw) -> Option<Self> {
        let memory = Arc::new(Memory::alloc(len).ok()?);
        let mut model = MemoryModel::new(Arc::clone(&memory));
        let mut bytes = vec![0; len];
        draw.fill(&mut bytes);
        model.store(0, &bytes);
        Some(Self {
            model,
            memory,
            mr: None,
            access,
            iova,
        })
    }

    /// The main region of an end.
    pub(crate) fn main(mode: Mode, draw: &mut Draw) -> Option<Self> {
        let mut access = Access::LOCAL_WRITE | Access::REMOTE;
        access.set(Access::FLUSH_GLOBAL, mode != Mode::Streams);
        Self::new(CONNS * LANE, access, 0x1_0000_0000, draw)
    }

    /// A region that is registered and deregistered while the peer uses it.
    pub(crate) fn spare(draw: &mut Draw) -> Option<Self> {
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        Self::new(AREA, access, 0x2_0000_0000, draw)
    }

    /// A region that no peer may write to.
    pub(crate) fn read_only(draw: &mut Draw) -> Option<Self> {
        Self::new(AREA, Access::REMOTE_READ, 0x3_0000_0000, draw)
    }
}
