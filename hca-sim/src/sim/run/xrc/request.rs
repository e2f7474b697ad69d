//! What the initiator posts, and where the processes take it.

use verbs_core::{Dest, SendOp, Srqn, WcStatus};

use crate::sim::Ppm;
use crate::sim::check::Tag;
use crate::sim::coverage::Operation;
use crate::sim::run::parcel::{Data, Parcel};
use crate::sim::run::posted::Out;
use crate::sim::run::service;
use crate::sim::run::stand::{BACK, MESSAGE_MAX, TARGET};
use crate::sim::run::xrc::{About, INI, LANE, Session};

impl Session<'_> {
    pub(super) fn srqn(&self, process: usize) -> Option<Srqn> {
        Some(self.stands[process].srq.as_ref()?.srqn())
    }

    /// Posts a request that names the queue of that process.
    pub(super) fn request(&mut self, process: usize) {
        if !self.stands[INI].is_healthy() {
            return;
        }
        let len = self.stands[INI].sizes.length(&mut self.draw, MESSAGE_MAX);
        let _ = match self.draw.below(10) {
            0..=5 => self.send(process, len),
            6..=7 => self.write(process, len),
            _ => self.read(process, len),
        };
    }

    fn send(&mut self, process: usize, len: usize) -> Option<()> {
        let tag = self.stands[INI].next_tag();
        let named = len < Tag::LEN || self.draw.chance(Ppm::percent(30));
        let imm = named.then(|| tag.number());
        let op = imm.map_or(SendOp::Send, SendOp::SendWithImm);
        let data = Data::Bytes(tag.compose(len));
        self.post(process, tag, op, Operation::XrcSend, data, true)?;
        self.tell_later(process, tag, len, imm, false);
        Some(())
    }

    fn write(&mut self, process: usize, len: usize) -> Option<()> {
        let len = len.min(TARGET.len());
        let at = TARGET.start + self.draw.below(TARGET.len() - len + 1);
        let remote = self.stands[process].region.mr.as_ref()?.remote(at);
        let tag = self.stands[INI].next_tag();
        let imm = self.draw.chance(Ppm::percent(50)).then(|| tag.number());
        let op = match imm {
            Some(imm) => SendOp::WriteWithImm(remote, imm),
            None => SendOp::Write(remote),
        };
        let bytes = tag.compose(len);
        let data = Data::Bytes(bytes.clone());
        self.post(process, tag, op, Operation::XrcWrite, data, imm.is_some())?;
        if imm.is_some() {
            self.tell_later(process, tag, len, imm, true);
        }
        // It may take effect before READs that were posted earlier.
        for sent in self.stands[INI].sends.iter_mut() {
            if let (Some((_, read)), true) = (&mut sent.what.read, sent.what.to == process) {
                read.overtake(at, &bytes);
            }
        }
        let model = &mut self.stands[process].region.model;
        model.write(LANE, u64::from(tag.seq), at, bytes);
        Some(())
    }

    fn read(&mut self, process: usize, len: usize) -> Option<()> {
        let waits = |out: &Out| out.read.is_some();
        if self.stands[INI].sends.iter().any(|sent| waits(&sent.what)) {
            // There is room for one result.
            return None;
        }
        let len = len.min(TARGET.len());
        let at = TARGET.start + self.draw.below(TARGET.len() - len + 1);
        let remote = self.stands[process].region.mr.as_ref()?.remote(at);
        let tag = self.stands[INI].next_tag();
        let back = BACK.start..BACK.start + len;
        let data = Data::Into(back.clone());
        let op = SendOp::Read(remote);
        self.post(process, tag, op, Operation::XrcRead, data, false)?;
        let model = &mut self.stands[INI].region.model;
        model.lend(LANE, u64::from(tag.seq), back.start, len);
        Some(())
    }

    /// A message was posted that takes a receive.
    fn tell_later(&mut self, to: usize, tag: Tag, len: usize, imm: Option<u32>, writes: bool) {
        let at_post = service::seen(self.world, &self.stands, true);
        let about = About {
            to,
            writes,
            at_post,
        };
        self.messages.post(tag, len, imm, about);
        self.expected[to].push_back(tag);
    }

    fn post(
        &mut self,
        process: usize,
        tag: Tag,
        op: SendOp,
        operation: Operation,
        data: Data,
        receives: bool,
    ) -> Option<u64> {
        let srqn = self.srqn(process)?;
        let read = match (&op, &data) {
            (SendOp::Read(remote), Data::Into(back)) => {
                let region = &self.stands[process].region;
                let at = usize::try_from(remote.addr - region.iova).ok()?;
                Some(region.model.read(LANE, at..at + back.len()))
            }
            _ => None,
        };
        let parcel = Parcel {
            op,
            dest: Dest::Srq(srqn),
            operation,
            data,
            seq: u64::from(tag.seq),
            to: process,
            receives,
            fenced: false,
            read,
            seen: service::seen(self.world, &self.stands, true),
        };
        self.stands[INI].post(self.world, &mut self.draw, parcel)
    }

    pub(super) fn post_receives(&mut self, process: usize) {
        for _ in 0..=self.draw.below(4) {
            let stand = &mut self.stands[process];
            if !stand.post_receive(self.world, &mut self.draw, MESSAGE_MAX) {
                return;
            }
        }
    }

    /// Posts a request that has to fail, and takes the connection down.
    pub(super) fn post_evil(&mut self, process: usize) {
        if !self.stands[INI].is_healthy() {
            return;
        }
        let other = 3 - process;
        let (Some(named), Some(mr)) = (self.srqn(process), &self.stands[other].region.mr) else {
            return;
        };
        let (op, srqn, status) = match self.draw.below(3) {
            // No queue, or one of another target.
            0 => (SendOp::Send, Srqn::new(0xff_fff0), WcStatus::RemInvReqErr),
            // The memory of the process that is not named.
            1 => (SendOp::Write(mr.remote(0)), named, WcStatus::RemAccessErr),
            _ => (SendOp::Read(mr.remote(0)), named, WcStatus::RemAccessErr),
        };
        let data = match op {
            SendOp::Read(_) => Data::Into(BACK.start..BACK.start + 8),
            _ => Data::Bytes(vec![0; 8]),
        };
        let parcel = Parcel {
            op,
            dest: Dest::Srq(srqn),
            operation: Operation::XrcSend,
            data,
            seq: 0,
            to: process,
            receives: false,
            fenced: false,
            read: None,
            seen: service::seen(self.world, &self.stands, true),
        };
        let ini = &mut self.stands[INI];
        let posted = ini.post(self.world, &mut self.draw, parcel);
        ini.evil = posted.map(|wr_id| (wr_id, status));
        ini.broken |= posted.is_some();
    }
}
