//! The memory of one end of a session: what lies where, and the registrations.

use verbs_core::sync::Arc;
use verbs_core::{Access, Memory, Mr};

use crate::sim::Draw;
use crate::sim::check::MemoryModel;

/// Bytes of each area.
pub(super) const AREA: usize = 8192;
/// Bytes of the area of a connection that atomics go to.
pub(super) const ATOMICS: usize = 512;
/// Connections of one session at most.
pub(super) const CONNS: usize = 3;
/// All areas of one connection.
const LANE: usize = 4 * AREA + ATOMICS;

/// What an area is for.
#[derive(Clone, Copy)]
pub(super) enum Area {
    /// Sent from; nobody writes there while a connection lives.
    Out,
    /// Results of READs and atomics.
    Back,
    /// Receives.
    In,
    /// The peer's WRITEs go there, and its READs come from there.
    Target,
    /// The peer's atomics go there.
    Atomic,
}

/// Where the area of a connection begins.
pub(super) const fn begin(conn: usize, area: Area) -> usize {
    conn * LANE + area as usize * AREA
}

/// Memory with its model and its registration.
pub(super) struct Region {
    pub(super) model: MemoryModel,
    pub(super) memory: Arc<Memory>,
    /// `None` while it is not registered.
    pub(super) mr: Option<Mr>,
    pub(super) access: Access,
    /// The same in every run, unlike the address of the memory.
    pub(super) iova: u64,
}

impl Region {
    /// Memory with random bytes; `None` if there is none to be had.
    pub(super) fn new(len: usize, access: Access, iova: u64, draw: &mut Draw) -> Option<Self> {
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
    pub(super) fn main(draw: &mut Draw) -> Option<Self> {
        let access = Access::LOCAL_WRITE | Access::REMOTE | Access::FLUSH_GLOBAL;
        Self::new(CONNS * LANE, access, 0x1_0000_0000, draw)
    }

    /// One that is registered and deregistered while the peer uses it.
    pub(super) fn spare(draw: &mut Draw) -> Option<Self> {
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        Self::new(AREA, access, 0x2_0000_0000, draw)
    }

    /// One that nobody may write to.
    pub(super) fn read_only(draw: &mut Draw) -> Option<Self> {
        Self::new(AREA, Access::REMOTE_READ, 0x3_0000_0000, draw)
    }
}
