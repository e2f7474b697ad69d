//! A load of commands whose routines are counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use futures::channel::oneshot;
use futures::future::join_all;
use ulp_srp::initiator::{Command, Data, Outcome, Session, transfer_cdb};
use ulp_srp::iu::{Cdb, Lun, Tag, TaskAttribute};
use verbs_core::{Extent, Memory};

use crate::bed::{PAGE, get, pattern, put, scattered};
use crate::target::BLOCK;

/// Commands of a load.
pub(crate) const LOAD: usize = 24;

/// A load of reads, and how often the routine of each was called.
pub(crate) struct Load {
    ended: Arc<Vec<AtomicU32>>,
    outcomes: Vec<oneshot::Receiver<Outcome>>,
    pub(crate) tags: Vec<Tag>,
}

impl Load {
    pub(crate) fn start(session: &Session, memory: &Arc<Memory>) -> Self {
        let ended = Arc::new((0..LOAD).map(|_| AtomicU32::new(0)).collect::<Vec<_>>());
        let mut load = Self {
            ended,
            outcomes: Vec::new(),
            tags: Vec::new(),
        };
        for number in 0..LOAD {
            let (tell, told) = oneshot::channel();
            let ended = Arc::clone(&load.ended);
            let list = [Extent {
                memory,
                offset: number * PAGE,
                len: PAGE as u32,
            }];
            let cdb = transfer_cdb(false, 8 * number as u64, 8);
            let command = Command {
                cdb: Cdb::new(&cdb).unwrap(),
                lun: Lun(0),
                attribute: TaskAttribute::SIMPLE,
                data: Data::In(&list),
            };
            let begun = session.command(&command, move |outcome| {
                ended[number].fetch_add(1, SeqCst);
                // The receiver may have been dropped.
                let _ = tell.send(outcome);
            });
            load.tags.push(begun.unwrap());
            load.outcomes.push(told);
        }
        load
    }

    pub(crate) async fn finish(self) -> Vec<Outcome> {
        let outcomes = join_all(self.outcomes).await;
        assert!(self.ended.iter().all(|ended| ended.load(SeqCst) == 1));
        outcomes.into_iter().map(Result::unwrap).collect()
    }
}

pub(crate) fn memory() -> Arc<Memory> {
    Arc::new(Memory::alloc(LOAD * PAGE).unwrap())
}

/// Checks that a session works: what is written is read.
pub(crate) async fn works(session: &Session) {
    // It may have been lost again before its target was repaired.
    session.opened().await.unwrap();
    let memory = Arc::new(Memory::alloc(8 * PAGE).unwrap());
    session.publish(&memory).await.unwrap();
    let list = scattered(&memory, 4);
    let bytes = pattern(4 * PAGE, 9);
    put(&list, &bytes);
    let blocks = 4 * PAGE as u32 / BLOCK;
    session.write(Lun(0), 64, blocks, &list).await.unwrap();
    put(&list, &vec![0; bytes.len()]);
    session.read(Lun(0), 64, blocks, &list).await.unwrap();
    assert!(get(&list) == bytes);
}
