//! One copy under way: the two ends take turns until both have closed.

use std::pin::pin;

use futures::future::select;

use super::receiver::{Receiver, Step, Verdict};
use super::sender::Sender;
use super::window::Plan;
use crate::cli::Fault;
use crate::copy::error::CopyError;
use crate::copy::fabric::Fabric;
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
    /// Posts that found the queue full and were repeated.
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
        let sender = pin!(self.sender.endpoint().ready());
        let receiver = pin!(self.receiver.endpoint().ready());
        select(sender, receiver).await.factor_first().0
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use futures::executor::block_on;
    use hca_sim::clock::VirtualClock;
    use hca_sim::{Hca, Loopback};
    use verbs_core::Access;

    use super::*;
    use crate::copy::endpoint::Endpoint;
    use crate::copy::error::End;
    use crate::copy::sink::{Sink, Target};
    use crate::copy::source::Source;

    /// Goal: a sender that finds its queue full waits, and nothing is lost or doubled. Method: queues
    /// made for one slot, ends that use sixteen, and a receiver that rests until the sender is stuck.
    /// Timers run on a virtual clock, so that it goes the same way every time.
    #[test]
    fn a_full_queue_delays_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let [from, to] = ["src", "dst"].map(|name| dir.path().join(name));
        let content: Vec<u8> = (0..40_000_u32).map(|n| (n % 251) as u8).collect();
        fs::write(&from, &content).expect("room");
        let mut source = Source::open(&from).expect("readable");
        let target = Target::find(&to, Some((Path::new("src"), source.id()))).expect("fits");
        let mut sink = Sink::create(target, 0o600).expect("created");

        let (narrow, wide) = (Plan::new(1600, 1600, 1), Plan::new(40_000, 100, 16));
        assert_eq!(narrow.buffer_bytes(), wide.buffer_bytes());
        let (link, clock) = (Loopback::default(), VirtualClock::new());
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let open = async |end| {
            let hca = Hca::on(&link).clock(clock.clone());
            let device = hca.open().await.expect("a device");
            Endpoint::new(end, device, &narrow, rights)
                .await
                .expect("an end")
        };
        let (verdict, retries) = block_on(async {
            let (sending, receiving) = (open(End::Source).await, open(End::Destination).await);
            let psns = [link.draw_psn(), link.draw_psn()];
            sending.connect(&receiving, psns).await.expect("connected");
            let slots = receiving.data.remote(0);
            let mut sender = Sender::new(sending, &mut source, wide, slots);
            let mut receiver = Receiver::new(receiving, &mut sink, wide);
            while !sender.is_closed() {
                let mut worked = false;
                while sender.step().expect("sent") {
                    worked = true;
                }
                while receiver.step().expect("received") != Step::Idle {
                    worked = true;
                }
                if !worked {
                    clock.step().expect("a message waits for its timer");
                }
            }
            assert_eq!(sender.writes(), 400);
            (
                receiver.verdict().expect("both have closed"),
                sender.retries(),
            )
        });
        assert!(retries > 0, "the queue never was full");
        assert_eq!(verdict.arrived.digest, blake3::hash(&content));
        sink.commit().expect("complete");
        assert_eq!(fs::read(&to).expect("there"), content);
    }
}
