//! Whether a completion queue that is armed for solicited completions fires for one in error.

use verbs_core::sync::Arc;
use verbs_core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use verbs_core::{Arm, Cq, Wc};

/// Counts the events of a completion queue, which it keeps armed for solicited completions.
#[derive(Default)]
pub(crate) struct Listener {
    events: Arc<AtomicU32>,
    /// How many events there were when the queue was armed, if it is.
    armed_at: Option<u32>,
}

impl Listener {
    /// The handler that the queue calls.
    pub(crate) fn handler(&self) -> impl FnMut() + Send + 'static {
        let events = Arc::clone(&self.events);
        move || {
            events.fetch_add(1, Relaxed);
        }
    }

    /// The queue was polled until it was empty, and is armed again.
    ///
    /// # Errors
    /// A completion in error was among the polled ones, and there was no event (IBTA vol. 1, 11.4.2.2).
    pub(crate) fn polled(&mut self, cq: &mut Cq, polled: &[Wc]) -> Result<(), String> {
        let events = self.events.load(Relaxed);
        let failed = polled.iter().find(|wc| !wc.is_ok());
        if let (Some(before), Some(wc)) = (self.armed_at, failed)
            && events == before
        {
            return Err(format!(
                "{:#x} is {}, and the queue that is armed for solicited completions has not fired",
                wc.wr_id, wc.status
            ));
        }
        // It was armed when it was empty, so completions since then must have raised an event.
        if self.armed_at != Some(events) {
            self.armed_at = Some(events);
            let _ = cq.arm(Arm::Solicited);
        }
        Ok(())
    }
}
