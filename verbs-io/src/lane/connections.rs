//! Connections of a lane come and go; their ends, with the buffers, stay for others.

use std::collections::VecDeque;

use verbs_core::sync::Arc;
use verbs_core::{Mr, PostError, Qp, QpInit, RecvQueue, SendQueue};

use super::end::{End, Words};
use super::reap;
use super::slot::Fault;
use super::{Lane, POOL, Pool, Sizes, receive};

impl Lane {
    /// Adds a pool with buffers of that size; says its number.
    pub(crate) fn add_pool(&mut self, mr: Mr, count: u32, size: u32) -> u32 {
        let first = self.loans.add(mr, count, size);
        let pool = self.pools.len() as u32 | POOL;
        self.home.resize((first + count) as usize, pool);
        self.pools.push(Pool {
            size,
            free: (first..first + count).rev().collect(),
            takers: VecDeque::new(),
        });
        pool
    }

    /// An end that a connection had before, of which no completion is to come.
    pub(crate) fn vacant(&mut self) -> Option<u32> {
        reap::in_passing(self);
        let conn = position_of_vacant(&self.ends, self.sizes)?;
        self.ends[conn].reset();
        Some(conn as u32)
    }

    /// Whether another connection may be made now.
    pub(crate) fn has_place(&mut self) -> bool {
        reap::in_passing(self);
        self.has_room() || position_of_vacant(&self.ends, self.sizes).is_some()
    }

    /// How many ends are in use.
    pub(crate) fn connections(&mut self) -> u32 {
        reap::in_passing(self);
        self.ends.iter().filter(|end| !end.is_vacant()).count() as u32
    }

    /// The sizes of its parts.
    pub(crate) fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// What the queue pair of a connection is created with.
    pub(crate) fn queue_pair(&self) -> QpInit<'_> {
        let Sizes { depth, .. } = self.sizes;
        QpInit::rc(&self.send_cq, &self.recv_cq).depth(depth, self.sizes.buffers())
    }

    /// Whether another end may be added.
    pub(crate) fn has_room(&self) -> bool {
        self.ends.len() < self.sizes.connections as usize
    }

    /// Adds an end with buffers of its own; the region was made for [`Sizes::bytes`].
    pub(crate) fn add_end(&mut self, mr: Mr) -> Option<u32> {
        if !self.has_room() {
            return None;
        }
        let (conn, sizes) = (self.ends.len() as u32, self.sizes);
        let (offset, all) = sizes.bytes();
        let memory = Arc::clone(mr.memory());
        let words = Words::new(memory, offset, mr.slice(offset..all), sizes.depth);
        let first = self.loans.add(mr, sizes.buffers(), sizes.message);
        let mut end = End::new(sizes.depth, sizes.window, words);
        end.home.extend(first..first + sizes.buffers());
        self.home.resize(self.loans.count() as usize, conn);
        self.ends.push(end);
        Some(conn)
    }

    /// Posts the first receives of a connection that is to be made.
    ///
    /// # Errors
    /// The queue's.
    pub(crate) fn prepare(&mut self, conn: u32, qp: &mut Qp) -> Result<(), PostError> {
        let end = &mut self.ends[conn as usize];
        while let Some(&buf) = end.home.last() {
            qp.post_recv(receive(conn, buf).into(self.loans.sge(buf)))?;
            end.home.pop();
            end.recv_posted += 1;
        }
        Ok(())
    }

    /// The connection is there: posts its receives, unless that was done before.
    pub(crate) fn open(&mut self, conn: u32, queues: (SendQueue, RecvQueue)) {
        let end = &mut self.ends[conn as usize];
        end.queues = Some(queues);
        if end.home.len() >= end.half {
            self.replenish(conn);
        }
    }

    /// The connection has ended, whatever completions say.
    pub(crate) fn over(&mut self, conn: u32, serial: u32) {
        if self.ends[conn as usize].serial == serial {
            reap::in_passing(self);
            self.ends[conn as usize].fail(Fault::Over);
            self.unsettled = true;
            reap::settle_if_needed(self);
        }
    }

    /// The queue pair of an end is destroyed, and its handles are gone. What comes out is to be dropped after the
    /// lane was left.
    pub(crate) fn retire(&mut self, conn: u32) -> Option<(SendQueue, RecvQueue)> {
        reap::in_passing(self);
        let end = &mut self.ends[conn as usize];
        end.fail(Fault::Over);
        let queues = end.queues.take();
        reap::settle(self);
        let end = &mut self.ends[conn as usize];
        for (buf, _) in std::mem::take(&mut end.inbox) {
            self.loans.forget_imm(buf);
            end.home.push(buf);
        }
        end.is_retired = true;
        queues
    }
}

/// An end that another connection may have, with its buffers at home.
fn position_of_vacant(ends: &[End], sizes: Sizes) -> Option<usize> {
    let window = sizes.window as usize;
    let is_vacant = |end: &End| end.is_vacant() && end.home.len() >= window;
    ends.iter().position(is_vacant)
}
