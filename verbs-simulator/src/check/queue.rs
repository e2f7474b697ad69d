//! The expected completions of a send queue: one for each work request that asks for it or fails, in order, and only
//! flushes after the first failure.

use std::collections::VecDeque;

use verbs_core::WcStatus;

/// A work request on a send queue, with what the run needs to know when it ends.
#[derive(Debug)]
pub(crate) struct Sent<T> {
    pub(crate) wr_id: u64,
    pub(crate) signaled: bool,
    pub(crate) what: T,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct SendModel<T> {
    posted: VecDeque<Sent<T>>,
    failed: bool,
}

/// What a completion implies: the work requests that succeeded without one, and the one that it is for.
#[derive(Debug)]
pub(crate) struct Retired<T> {
    pub(crate) silent: Vec<Sent<T>>,
    pub(crate) ended: Sent<T>,
}

impl<T> Default for SendModel<T> {
    fn default() -> Self {
        Self {
            posted: VecDeque::new(),
            failed: false,
        }
    }
}

impl<T> SendModel<T> {
    pub(crate) fn post(&mut self, sent: Sent<T>) {
        self.posted.push_back(sent);
    }

    /// Work requests that have not ended according to completions.
    pub(crate) fn len(&self) -> usize {
        self.posted.len()
    }

    /// Work requests that have no completion although the queue was flushed. Those before the first failure that did
    /// not ask for one may have succeeded silently.
    pub(crate) fn unaccounted(&self) -> usize {
        let owed = |sent: &&Sent<T>| self.failed || sent.signaled;
        self.posted.iter().filter(owed).count()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    /// Whether a work request has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Sent<T>> {
        self.posted.iter_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sent<T>> {
        self.posted.iter()
    }

    /// The queue pair sends again after SQE, in which everything was flushed.
    pub(crate) fn mend(&mut self) {
        self.failed = false;
    }

    /// The queue pair was reset: posted work no longer makes completions.
    pub(crate) fn reset(&mut self) -> Vec<Sent<T>> {
        self.failed = false;
        self.posted.drain(..).collect()
    }

    /// Takes a completion.
    ///
    /// # Errors
    /// Why it is not permitted now.
    pub(crate) fn complete(&mut self, wr_id: u64, status: WcStatus) -> Result<Retired<T>, String> {
        let Some(place) = self.posted.iter().position(|sent| sent.wr_id == wr_id) else {
            return Err(format!(
                "{status} for work request {wr_id:#x}, which is not posted or has completed"
            ));
        };
        let ok = status == WcStatus::Success;
        if self.failed && status != WcStatus::WrFlushErr {
            return Err(format!(
                "{status} for work request {wr_id:#x} behind a failed one"
            ));
        }
        if let Some(skipped) = self
            .posted
            .iter()
            .take(place)
            .find(|sent| sent.signaled || self.failed)
        {
            return Err(format!(
                "{status} for work request {wr_id:#x}, and none for {:#x} before it",
                skipped.wr_id
            ));
        }
        if ok && !self.posted[place].signaled {
            return Err(format!(
                "success for work request {wr_id:#x}, which did not ask for it"
            ));
        }
        let silent = self.posted.drain(..place).collect();
        self.failed |= !ok;
        let ended = self.posted.pop_front();
        Ok(Retired {
            silent,
            ended: ended.expect("the work request was just found"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> SendModel<()> {
        let mut queue = SendModel::default();
        for (wr_id, signaled) in [(1, false), (2, true), (3, true), (4, false)] {
            let what = ();
            queue.post(Sent {
                wr_id,
                signaled,
                what,
            });
        }
        queue
    }

    #[test]
    fn completions_come_once_in_order_and_nothing_but_flushes_behind_a_failure() {
        use WcStatus::{RetryExcErr, Success, WrFlushErr};
        assert_eq!(queue().complete(2, Success).unwrap().silent.len(), 1);
        assert!(queue().complete(1, Success).is_err(), "was not asked for");
        assert!(queue().complete(3, Success).is_err(), "2 is missing");
        assert!(queue().complete(9, Success).is_err(), "there is none");
        let mut failed = queue();
        assert!(failed.complete(2, RetryExcErr).is_ok());
        assert!(failed.complete(2, WrFlushErr).is_err(), "twice");
        assert!(failed.complete(3, Success).is_err());
        assert!(failed.complete(4, WrFlushErr).is_err(), "3 is missing");
        assert!(failed.complete(3, WrFlushErr).is_ok());
        assert!(failed.complete(4, WrFlushErr).is_ok());
        assert!(failed.is_empty());
    }
}
