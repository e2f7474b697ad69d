//! RDMA operations of a node that have not ended.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::id::Key;
use crate::rdma::{Notification, Rdma, RdmaStatus};

/// See the module's documentation. The memory of an operation is kept until it has ended, or its queue pair is gone.
#[derive(Default)]
pub(crate) struct Operations {
    last: u32,
    all: BTreeMap<u64, Operation>,
}

struct Operation {
    rdma: Rdma,
    from: SocketAddr,
    to: SocketAddr,
    key: Key,
    posted: bool,
    /// Why it failed; its connection is being taken down.
    failed: Option<RdmaStatus>,
}

impl Operation {
    fn end(self, status: RdmaStatus) -> Option<Notification> {
        let token = self.rdma.notify?;
        Some(Notification { token, status })
    }
}

impl Operations {
    /// A number for an operation that is to be queued; it fits into 32 bits, and none that has not ended has it.
    pub(crate) fn next_id(&mut self) -> u64 {
        loop {
            self.last = self.last.wrapping_add(1);
            if !self.all.contains_key(&self.last.into()) {
                return self.last.into();
            }
        }
    }

    /// An operation waits with its datagram.
    pub(super) fn queue(
        &mut self,
        id: u64,
        rdma: &Rdma,
        (from, to): (SocketAddr, SocketAddr),
        key: Key,
    ) {
        let operation = Operation {
            rdma: rdma.clone(),
            from,
            to,
            key,
            posted: false,
            failed: None,
        };
        self.all.insert(id, operation);
    }

    /// It is posted now.
    pub(super) fn begin(&mut self, id: u64) -> Option<Rdma> {
        let operation = self.all.get_mut(&id)?;
        operation.posted = true;
        Some(operation.rdma.clone())
    }

    /// It has ended: whose it was, and what is to be told.
    pub(super) fn ended(
        &mut self,
        id: u64,
        status: RdmaStatus,
    ) -> Option<(SocketAddr, Option<Notification>)> {
        if status != RdmaStatus::Success {
            // It is told when the queue pair is gone, and with it whatever may still touch the memory.
            self.all.get_mut(&id)?.failed = Some(status);
            return None;
        }
        let operation = self.all.remove(&id)?;
        Some((operation.from, operation.end(status)))
    }

    /// The queue pair is gone: those that were posted have ended.
    pub(super) fn lost(&mut self, key: Key) -> Vec<(SocketAddr, Option<Notification>)> {
        let of_it = self
            .all
            .extract_if(.., |_, operation| operation.posted && operation.key == key);
        let end = |(_, operation): (u64, Operation)| {
            let status = operation.failed.unwrap_or(RdmaStatus::Dropped);
            (operation.from, operation.end(status))
        };
        of_it.map(end).collect()
    }

    /// The datagrams of a socket to there are taken back: operations that have not begun never will.
    pub(super) fn cancel(
        &mut self,
        from: SocketAddr,
        to: Option<SocketAddr>,
    ) -> Vec<Option<Notification>> {
        let meant = self.all.extract_if(.., |_, operation| {
            !operation.posted && operation.from == from && to.is_none_or(|to| to == operation.to)
        });
        meant
            .map(|(_, operation)| operation.end(RdmaStatus::Cancelled))
            .collect()
    }
}
