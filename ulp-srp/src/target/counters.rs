//! The counters of a channel.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Events of a channel since its login.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters { $($(#[$doc])* pub $name: u64,)* }

        /// The counters of a live channel: written by the thread that drives it, read by any thread.
        #[derive(Debug, Default)]
        pub(super) struct Live { $(pub(super) $name: Count,)* }

        impl Live {
            pub(super) fn snapshot(&self) -> Counters {
                Counters { $($name: self.$name.0.load(Relaxed),)* }
            }
        }

        impl Counters {
            /// The sum of both.
            pub fn plus(self, other: Self) -> Self {
                Self { $($name: self.$name + other.$name,)* }
            }

            /// Names and numbers, for a table.
            pub fn rows(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Commands.
    commands,
    /// Commands without data.
    no_data,
    /// Commands whose data are in one piece.
    direct,
    /// Commands whose data are in several pieces.
    indirect,
    /// Commands that carried their data.
    immediate,
    /// Memory descriptors of all commands.
    descriptors,
    /// Tables of descriptors of which a command contained only the head.
    tables_fetched,
    /// RDMA READs posted.
    rdma_reads,
    /// RDMA WRITEs posted.
    rdma_writes,
    /// Bytes fetched from the initiator.
    bytes_out,
    /// Bytes written to the initiator.
    bytes_in,
    /// Commands that ended in CHECK CONDITION.
    check_conditions,
    /// Commands that contradicted themselves.
    invalid_fields,
    /// Commands that were aborted.
    aborted,
    /// Task management requests.
    task_management,
    /// Answers whose SEND invalidated a key.
    invalidations,
    /// Commands that had to wait for a buffer.
    buffer_waits,
    /// RDMA WRITEs of no bytes that probed a silent initiator's device.
    keepalives,
    /// Malformed units: they end the channel.
    bad_units,
}

/// One counter. One thread at a time counts, so no atomic addition is needed.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }
}
