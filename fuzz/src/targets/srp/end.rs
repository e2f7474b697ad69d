//! An end of a connection that sends whatever a script requests.

use verbs_cm::Connection;
use verbs_core::{
    Access, Cq, Device, Memory, Mr, Pd, Qp, QpInit, Recv, Send, SendWr, Wc, WcOpcode,
};

use crate::Script;

/// Receives of an end, and bytes of each.
const RECEIVES: usize = 40;
const ROOM: usize = 1152;
/// Units that are under way at a time; a later one replaces the first.
const SENDS: usize = 8;
/// Bytes that an end shares with its peer: all, and those that the peer may write.
pub(super) const DATA: usize = 32 << 10;

/// The objects that a queue pair needs, before there is a connection.
pub(super) struct Parts {
    pub(super) pd: Pd,
    pub(super) cq: Cq,
    pub(super) rooms: Mr,
    pub(super) data: Mr,
}

impl Parts {
    /// With a queue pair whose receives are posted.
    pub(super) async fn new(device: &Device) -> (Self, Qp) {
        let pd = device.alloc_pd().await.expect("room for a domain");
        let cq = device.create_cq(256).await.expect("room for a queue");
        let room = |len| Memory::alloc(len).expect("memory");
        let rooms = room(ROOM * (RECEIVES + SENDS));
        let rooms = pd.register(rooms, Access::LOCAL_WRITE).await;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let data = pd.register(room(DATA), access).await.expect("a region");
        let init = QpInit::rc(&cq, &cq).depth(64, RECEIVES as u32);
        let mut qp = pd.create_qp(init).await.expect("a queue pair");
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE;
        qp.init(1, remote).await.expect("it is new");
        let rooms = rooms.expect("a region");
        for at in 0..RECEIVES {
            let place = at * ROOM..(at + 1) * ROOM;
            let recv = Recv::new(at as u64).into(rooms.slice(place));
            qp.post_recv(recv).expect("as many as it has room for");
        }
        let parts = Self {
            pd,
            cq,
            rooms,
            data,
        };
        (parts, qp)
    }
}

/// A connected end. It keeps what it has received until that is taken.
pub(super) struct End {
    // Dropped in this order.
    connection: Connection,
    parts: Parts,
    next: usize,
}

impl End {
    pub(super) fn new(connection: Connection, parts: Parts) -> Self {
        Self {
            connection,
            parts,
            next: 0,
        }
    }

    pub(super) fn data(&self) -> &Mr {
        &self.parts.data
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Sends a unit, whatever it is; if there is no room for it, it is not sent.
    pub(super) fn send(&mut self, unit: &[u8]) {
        let unit = &unit[..unit.len().min(ROOM)];
        let at = (RECEIVES + self.next) * ROOM;
        self.next = (self.next + 1) % SENDS;
        let rooms = &self.parts.rooms;
        rooms.write(at, unit).expect("it is in range");
        let piece = rooms.slice(at..at + unit.len());
        self.post(Send::new(u64::MAX).from(piece).signaled());
    }

    /// Posts any work request. The connection may have ended by then, or its queue be full.
    pub(super) fn post<'w>(&mut self, wr: impl Into<SendWr<'w>>) {
        let _sent = self.connection.post_send(wr);
    }

    /// The received units; receives are posted again. `None` when the channel has ended.
    pub(super) fn received(&mut self) -> Option<Vec<Vec<u8>>> {
        let (mut units, mut is_over) = (Vec::new(), false);
        let mut wcs = [Wc::default(); 16];
        loop {
            let polled = self.parts.cq.poll(&mut wcs);
            if polled.is_empty() {
                break;
            }
            for wc in polled.iter() {
                is_over |= !wc.is_ok();
                if !wc.is_ok() || wc.opcode != WcOpcode::Recv {
                    continue;
                }
                let at = wc.wr_id as usize * ROOM;
                let mut unit = vec![0; wc.byte_len as usize];
                let rooms = &self.parts.rooms;
                rooms.read(at, &mut unit).expect("it is in range");
                units.push(unit);
                let recv = Recv::new(wc.wr_id).into(rooms.slice(at..at + ROOM));
                // The connection may have ended.
                let _over = self.connection.post_recv(recv);
            }
        }
        (!is_over || !units.is_empty()).then_some(units)
    }

    /// A key and an address: mostly of the shared memory, else wrong in some respect.
    pub(super) fn piece(&self, script: &mut Script<'_>) -> ulp_srp::iu::MemoryDescriptor {
        let remote = self.data().remote(0);
        let len = match script.below(8) {
            0..=4 => 512 * script.below(18) as u32,
            5 => u32::from(script.u16()),
            6 => script.pick(&[0, 1, 511, DATA as u32, DATA as u32 + 1, u32::MAX]),
            _ => script.u32(),
        };
        let addr = match script.below(8) {
            0..=4 => remote.addr + 512 * script.below(32) as u64,
            5 => remote.addr + u64::from(script.u16()),
            6 => remote.addr.wrapping_sub(script.below(64) as u64),
            _ => script.u64(),
        };
        let rkey = match script.below(8) {
            0..=5 => remote.rkey,
            6 => verbs_core::RKey::new(remote.rkey.value() ^ 1 << script.below(32)),
            _ => self.parts.rooms.rkey(),
        };
        ulp_srp::iu::MemoryDescriptor { addr, rkey, len }
    }

    /// Invalidates the keys of the shared memory, whatever is under way, and shares it again.
    pub(super) async fn share_anew(&mut self) {
        let memory = Memory::alloc(DATA).expect("memory");
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let data = self.parts.pd.register(memory, access).await;
        self.parts.data = data.expect("a region");
    }
}
