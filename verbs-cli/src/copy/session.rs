//! One copy under way: the two ends take turns until both have closed.

use std::pin::pin;

use futures::future::select;

use super::error::CopyError;
use super::fabric::Fabric;
use super::receiver::{Receiver, Step, Verdict};
use super::sender::Sender;
use super::window::Plan;
use crate::cli::Fault;
use crate::report::Progress;

/// The two ends and what they run on.
pub(crate) struct Session<'a> {
    fabric: &'a Fabric,
    sender: Sender<'a>,
    receiver: Receiver<'a>,
    plan: Plan,
    /// Take the destination away when so many chunks have been drained.
    remove_at: Option<u64>,
}

/// What a copy did, when both ends have closed.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) verdict: Verdict,
    /// WRITEs that have completed.
    pub(crate) writes: u64,
    /// WRITEs that had to be posted again.
    pub(crate) retries: u64,
}

impl<'a> Session<'a> {
    pub(crate) fn new(
        fabric: &'a Fabric,
        sender: Sender<'a>,
        receiver: Receiver<'a>,
        plan: Plan,
        fault: Option<Fault>,
    ) -> Self {
        let remove_at = match fault {
            Some(Fault::Remove(chunks)) => Some(chunks),
            _ => None,
        };
        Self {
            fabric,
            sender,
            receiver,
            plan,
            remove_at,
        }
    }

    /// Runs the copy to its end. Blocks in file reads and writes between polls, so it belongs on a
    /// thread of its own and not into a shared executor.
    pub(crate) async fn run(mut self, progress: &Progress) -> Result<Transfer, CopyError> {
        match self.exchange(progress).await {
            Ok(verdict) => {
                let (writes, retries) = (self.sender.writes(), self.sender.retries());
                self.sender.into_endpoint().close().await?;
                self.receiver.into_endpoint().close().await?;
                Ok(Transfer {
                    verdict,
                    writes,
                    retries,
                })
            }
            Err(error) => Err(self.diagnose(error).await),
        }
    }

    async fn exchange(&mut self, progress: &Progress) -> Result<Verdict, CopyError> {
        loop {
            if self
                .remove_at
                .is_some_and(|at| self.receiver.chunks() >= at)
            {
                self.remove_at = None;
                self.fabric.remove_destination();
            }
            let sent = self.sender.step()?;
            let received = self.receiver.step()?;
            if let Step::Drained(bytes) = received {
                progress.advance(bytes as u64);
            }
            if self.sender.is_closed()
                && let Some(verdict) = self.receiver.verdict()
            {
                return Ok(verdict);
            }
            if !sent && received == Step::Idle {
                self.wait().await?;
            }
        }
    }

    /// Waits until one of the ends has something to do.
    async fn wait(&mut self) -> Result<(), CopyError> {
        // A device that has gone need not say so by a completion.
        if let Some(removed) = self.removed().await {
            return Err(removed);
        }
        let sender = pin!(self.sender.endpoint().ready());
        let receiver = pin!(self.receiver.endpoint().ready());
        select(sender, receiver).await;
        Ok(())
    }

    /// The cause behind an error of a device: a device that has gone shows in many ways.
    async fn diagnose(&mut self, error: CopyError) -> CopyError {
        if !error.is_of_device() {
            return error;
        }
        self.removed().await.unwrap_or(error)
    }

    async fn removed(&mut self) -> Option<CopyError> {
        let (arrived, chunks) = (self.receiver.chunks(), self.plan.chunks());
        for endpoint in [self.sender.endpoint(), self.receiver.endpoint()] {
            if endpoint.is_removed().await {
                return Some(CopyError::Removed {
                    end: endpoint.end,
                    arrived,
                    chunks,
                });
            }
        }
        None
    }
}
