//! How long making a connection may take.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use futures::future::{Either, select};
use verbs_core::Timer;
use verbs_core::sync::Arc;
use verbs_core::time::Instant;
use verbs_core::timer::Sleep;

use crate::error::Error;

/// How long a peer has to show that it is there, unless the user says otherwise: as long as users of
/// `rdma_cm` wait for address, route and answer together, and well above the round trip of any network.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The time of one attempt, which has begun.
pub(crate) struct Limit {
    timer: Option<Arc<dyn Timer>>,
    begun: Instant,
    /// What the user asked for.
    total: Option<Duration>,
}

impl Limit {
    /// Begins now. A device without a timer knows no limit.
    pub(crate) fn begin(timer: Option<&Arc<dyn Timer>>, total: Option<Duration>) -> Self {
        Self {
            timer: timer.cloned(),
            begun: timer.map_or(Instant::ZERO, |timer| timer.now()),
            total,
        }
    }

    /// What is left of it for a peer, or a resolver, to show that it is there.
    pub(crate) fn for_answer(&self) -> Duration {
        self.whole().saturating_sub(self.gone())
    }

    /// Runs a step that the peer, or a resolver, may never answer.
    pub(crate) async fn answered<T>(&self, step: impl Future<Output = T>) -> Option<T> {
        within(self.timer.as_ref(), Some(self.for_answer()), step).await
    }

    /// Runs what a peer that is there may take its time for: unless the user has set a limit, as long as
    /// the peer asks for.
    pub(crate) async fn done<T>(&self, step: impl Future<Output = T>) -> Option<T> {
        let span = self.total.map(|_| self.for_answer());
        within(self.timer.as_ref(), span, step).await
    }

    /// The time is over, or the state machine has given the peer up before.
    pub(crate) fn late(&self, peer: SocketAddr) -> Error {
        // For people to read, without nanoseconds.
        let gone = self.gone().as_millis().div_ceil(10) * 10;
        let gone = Duration::from_millis(u64::try_from(gone).unwrap_or(u64::MAX));
        Error::NoAnswer {
            peer,
            timeout: gone.min(self.whole()),
        }
    }

    fn whole(&self) -> Duration {
        self.total.unwrap_or(CONNECT_TIMEOUT)
    }

    fn gone(&self) -> Duration {
        let timer = self.timer.as_ref();
        timer.map_or(Duration::ZERO, |timer| timer.now().since(self.begun))
    }
}

async fn within<T>(
    timer: Option<&Arc<dyn Timer>>,
    span: Option<Duration>,
    step: impl Future<Output = T>,
) -> Option<T> {
    let (Some(timer), Some(span)) = (timer, span) else {
        return Some(step.await);
    };
    match select(pin!(step), pin!(Sleep::new(timer, span))).await {
        Either::Left((output, _)) => Some(output),
        Either::Right(_) => None,
    }
}
