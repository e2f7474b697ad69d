//! Logging in: the first time, and again when the session was lost.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Poll, Waker};
use std::time::Duration;

use verbs_core::sync::atomic::Ordering::SeqCst;
use verbs_core::sync::{Arc, Weak};
use verbs_core::task::OwnWaker;
use verbs_core::time::Instant;

use crate::initiator::channel::Channel;
use crate::initiator::config::{Event, Options};
use crate::initiator::error::Error;
use crate::initiator::shared::Shared;

/// Attempts on a device that has no clock.
const UNTIMED_ATTEMPTS: u32 = 8;

/// When attempts are made. It outlives an outage, so a target that ends every session at once is not asked all
/// the time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// The pause before the next attempt.
    pause: Duration,
    /// When the session was last restored.
    restored: Instant,
}

impl Pace {
    /// The session is lost: the pause before the first attempt.
    fn lost(&mut self, options: &Options, now: Instant) -> Duration {
        if now.since(self.restored) > options.backoff_max {
            self.pause = Duration::ZERO;
        }
        self.attempt(options)
    }

    /// The pause before an attempt.
    fn attempt(&mut self, options: &Options) -> Duration {
        let pause = self.pause;
        let longer = (2 * pause).max(options.backoff);
        self.pause = longer.min(options.backoff_max);
        pause
    }
}

/// How much longer than its connections a login may take: the error of a connection says more than a timeout.
const GRACE: Duration = Duration::from_millis(100);

impl Shared {
    /// Logs in: opens all channels, within the time allowed.
    pub(super) async fn log_in(self: &Arc<Self>, until: Option<Instant>) -> Result<(), Error> {
        let limit = self.options.login_timeout;
        let timer = self.timer();
        let deadline = timer.as_ref().map(|timer| timer.now() + limit + GRACE);
        let until = deadline.map(|deadline| until.map_or(deadline, |until| until.min(deadline)));
        let opened = self.unless_over(until, self.open_all()).await;
        let all = opened.unwrap_or_else(|| match self.is_closed.load(SeqCst) {
            true => Err(self.why_over()),
            false => Err(Error::NoAnswer(limit)),
        })?;
        self.enter(all);
        Ok(())
    }

    /// Opens all channels. If one of them fails, the others end.
    async fn open_all(self: &Arc<Self>) -> Result<Vec<Arc<Channel>>, Error> {
        let mut opened = Opened(Vec::new());
        for number in 0..self.options.channels {
            opened.0.push(Channel::open(self, number).await?);
        }
        Ok(std::mem::take(&mut opened.0))
    }

    /// The future's result; `None` if the session ends, or the time runs out, before that.
    async fn unless_over<F: Future>(&self, until: Option<Instant>, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let timer = self.timer();
        let mut armed: Option<Waker> = None;
        poll_fn(|cx| {
            let mut waker = OwnWaker::of(cx.waker());
            waker.join(&mut self.waiting.lock());
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            if self.is_closed.load(SeqCst) {
                return Poll::Ready(None);
            }
            let Some((timer, until)) = timer.as_ref().zip(until) else {
                return Poll::Pending;
            };
            if timer.now() >= until {
                return Poll::Ready(None);
            }
            if !armed
                .as_ref()
                .is_some_and(|armed| armed.will_wake(cx.waker()))
            {
                armed = Some(cx.waker().clone());
                timer.wake_at(until, cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// Waits for a time on the device's clock, or until the session is over.
    pub(super) async fn pause(&self, until: Option<Instant>) {
        if until.is_some() {
            self.unless_over(until, std::future::pending::<()>()).await;
        }
    }
}

/// Channels that are abandoned on drop unless they are taken out.
struct Opened(Vec<Arc<Channel>>);

impl Drop for Opened {
    fn drop(&mut self) {
        for channel in &self.0 {
            channel.abandon(&Error::ConnectionLost);
        }
    }
}

/// Logs in again, with growing pauses, until the session is restored or over, or its time has run out.
pub(super) async fn restore(session: Weak<Shared>, why: Error) {
    let Some(shared) = session.upgrade() else {
        return;
    };
    let options = shared.options.clone();
    let timer = shared.timer();
    let now = || timer.as_ref().map(|timer| timer.now());
    let begun = now();
    let until = begun
        .zip(options.reconnect_timeout)
        .map(|(begun, limit)| begun + limit);
    let mut pause = shared.pace.lock().lost(&options, begun.unwrap_or_default());
    drop(shared);
    let (mut attempts, mut last) = (0, why);
    loop {
        let Some(shared) = session.upgrade() else {
            return;
        };
        let next = now().map(|now| now + pause);
        shared
            .pause(next.map(|next| until.map_or(next, |until| until.min(next))))
            .await;
        if shared.is_closed.load(SeqCst) {
            return;
        }
        // Without a clock there are no pauses, so the number of attempts is bounded instead.
        let is_late = options.reconnect_timeout == Some(Duration::ZERO)
            || timer.is_none() && attempts == UNTIMED_ATTEMPTS
            || now().zip(until).is_some_and(|(now, until)| now >= until);
        if is_late || shared.device.target().is_removed() {
            return give_up(&shared, last, now().zip(begun));
        }
        attempts += 1;
        match shared.log_in(until).await {
            Ok(()) => {
                shared.pace.lock().restored = now().unwrap_or_default();
                shared.tell(Event::Restored { attempts });
                return shared.room();
            }
            Err(_) if shared.is_closed.load(SeqCst) => return,
            Err(error) => last = error,
        }
        pause = shared.pace.lock().attempt(&options);
    }
}

fn give_up(shared: &Arc<Shared>, last: Error, time: Option<(Instant, Instant)>) {
    let after = time.map_or(Duration::ZERO, |(now, begun)| now.since(begun));
    let error = match shared.device.target().is_removed() {
        true => Error::Verb(verbs_core::Error::DeviceRemoved),
        false => Error::GivenUp {
            after,
            error: Box::new(last),
        },
    };
    shared.close(&error);
    shared.tell(Event::GivenUp { error: &error });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_go_on_after_a_short_life() {
        let (options, ms) = (Options::default(), Duration::from_millis);
        let mut pace = Pace::default();
        let later = Instant::ZERO + ms(20_000);
        let first = pace.lost(&options, later);
        let mut pauses = vec![first];
        pauses.extend((0..12).map(|_| pace.attempt(&options)));
        let wanted = [
            0, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120, 10_000, 10_000,
        ];
        assert_eq!(pauses, wanted.map(ms));
        pace.restored = later;
        assert_eq!(pace.lost(&options, later + ms(9_999)), ms(10_000));
        assert_eq!(pace.lost(&options, later + ms(10_001)), ms(0));
    }
}
