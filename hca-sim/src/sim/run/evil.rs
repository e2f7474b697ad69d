//! Work requests that have to fail.

use verbs_core::{Remote, SendFlags, SendOp, Sge, WcStatus};

use crate::sim::coverage::Operation;
use crate::sim::run::area::{Area, begin};
use crate::sim::run::conn::Place;
use crate::sim::run::draft::Draft;
use crate::sim::run::session::Session;

impl Session {
    /// Reaches for the spare region of that end by keys that it had before.
    pub(super) fn post_stale(&mut self, end: usize, key: Remote) {
        let conn = &self.conns[0];
        if !conn.live || conn.broken {
            return;
        }
        let out = begin(0, Area::Out);
        let Some(mr) = &self.ends[1 - end].main.mr else {
            return;
        };
        let mut draft = Draft::new(Operation::Write, SendOp::Write(key));
        draft.sges.push(mr.slice(out..out + 8));
        draft.flags = SendFlags::SIGNALED;
        if self.post(0, 1 - end, draft) {
            let conn = &mut self.conns[0];
            conn.broken = true;
            conn.lanes[1 - end].evil = Some((conn.send_id(1 - end), &[WcStatus::RemAccessErr]));
        }
    }

    /// Posts a work request that has to fail, and takes the connection down.
    pub(super) fn post_evil(&mut self, index: usize, end: usize) {
        use WcStatus::{LocProtErr, RemAccessErr, RemInvReqErr};
        let conn = &self.conns[index];
        if !conn.live || conn.broken {
            return;
        }
        let remote = |place, at| self.remote(1 - end, place, at);
        let (Some(main), Some(read_only), Some(mr)) = (
            remote(Place::Main, begin(index, Area::Target)),
            remote(Place::ReadOnly, 0),
            self.ends[end].main.mr.as_ref(),
        ) else {
            return;
        };
        let out = begin(index, Area::Out);
        let piece = mr.slice(out..out + 8);
        let wrong_key = Remote {
            rkey: main.rkey.next(),
            ..main
        };
        let outside = Remote {
            addr: main.addr + (1 << 24),
            ..main
        };
        let too_long = self.ends[1 - end].slot + 1;
        let local = Sge {
            lkey: piece.lkey.next(),
            ..piece
        };
        let (op, sge, legal): (_, _, &'static [WcStatus]) = match self.draw.below(8) {
            0 => (SendOp::Write(wrong_key), piece, &[RemAccessErr]),
            1 => (SendOp::Write(outside), piece, &[RemAccessErr]),
            2 => (SendOp::Write(read_only), piece, &[RemAccessErr]),
            3 => (SendOp::Read(wrong_key), piece, &[RemAccessErr]),
            4 => (
                SendOp::FetchAdd {
                    remote: read_only,
                    add: 1,
                },
                piece,
                &[RemAccessErr],
            ),
            5 => (SendOp::Write(main), local, &[LocProtErr]),
            6 => (SendOp::Send, local, &[LocProtErr]),
            _ => (SendOp::Send, mr.slice(out..out + too_long), &[RemInvReqErr]),
        };
        let mut draft = Draft::new(Operation::Write, op);
        draft.sges.push(sge);
        draft.flags = SendFlags::SIGNALED;
        if self.post(index, end, draft) {
            let conn = &mut self.conns[index];
            conn.broken = true;
            conn.lanes[end].evil = Some((conn.send_id(end), legal));
        }
    }
}
