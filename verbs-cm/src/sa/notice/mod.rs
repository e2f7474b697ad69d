//! Subscriptions to events of the subnet.

pub(super) mod mailbox;

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::{Stream, StreamExt};
use verbs_core::mad::sa::InformInfo;
use verbs_core::mad::sm::{Notice, TrapNumber};
use verbs_core::mad::{Method, TimeCode};
use verbs_core::sync::Arc;
use verbs_core::task::OwnWaker;
use verbs_core::{Lid, Qpn};

use self::mailbox::{ANY, Handler, Mailbox};
use crate::sa::SaClient;
use crate::sa::held::{Hold, Key, Terms};
use crate::sa::record::{Components, Question};
use crate::step::Step;

pub use self::mailbox::NOTICES_MAX;

/// Within what time a report is answered: 0.27 s, of which nothing is needed.
const RESPONSE_TIME: TimeCode = TimeCode::new(16);

impl SaClient {
    /// Subscribes to an event of the subnet, such as [`TrapNumber::GID_OUT_OF_SERVICE`]. The
    /// administrator reports it to this port from now on, and again after a change of the manager.
    ///
    /// # Errors
    /// [`Error::Sa`](crate::Error::Sa), [`Error::Verb`](crate::Error::Verb).
    ///
    /// # Cancel safety
    /// A step that is dropped ends the subscription, if the administrator has heard of it already.
    pub fn subscribe(&self, event: TrapNumber) -> Step<Subscription> {
        let client = self.clone();
        Step::new(async move {
            let inform = |subscribe| InformInfo {
                lid_range_begin: Lid(ANY),
                is_generic: 1,
                subscribe,
                event_type: ANY,
                trap_number: event.0,
                qpn: Qpn::new(1),
                response_time: RESPONSE_TIME,
                producer_type: Notice::MANAGER,
                ..InformInfo::default()
            };
            let question =
                |subscribe| Question::new(Method::SET, &inform(subscribe), Components::default());
            let terms = Terms {
                key: Key::Trap(event.0),
                set: question(1),
                undo: question(0),
                period: None,
            };
            // The first report may come before the answer.
            let mailbox = Arc::new(Mailbox::of(event));
            let boxes = Arc::downgrade(&mailbox);
            client.core.state.lock().mailboxes.push(boxes);
            let hold = Hold::take(Arc::clone(&client.core), terms, client.retry).await?;
            Ok(Subscription { hold, mailbox })
        })
    }
}

/// A subscription: a stream of reports that never ends by itself. Dropping it ends it.
pub struct Subscription {
    hold: Hold,
    mailbox: Arc<Mailbox>,
}

impl Subscription {
    /// The next report.
    ///
    /// # Cancel safety
    /// A future that is dropped takes no report with it.
    pub async fn notice(&mut self) -> Notice {
        match self.next().await {
            Some(notice) => notice,
            None => unreachable!("the stream of reports never ends"),
        }
    }

    /// Has every report handed over, under NoBlock, instead of keeping it; those that wait come first.
    pub fn on_notice(&self, handler: impl Fn(&Notice) + Send + Sync + 'static) {
        let handler: Arc<Handler> = Arc::new(handler);
        let waiting = {
            let mut inner = self.mailbox.inner.lock();
            inner.handler = Some(Arc::clone(&handler));
            std::mem::take(&mut inner.waiting)
        };
        waiting.iter().for_each(|notice| handler(notice));
    }

    /// Reports that were lost because they were not taken.
    pub fn lost(&self) -> u64 {
        self.mailbox.inner.lock().lost
    }

    /// Ends it. It goes on when the step is dropped after its beginning.
    ///
    /// # Errors
    /// [`Error::Sa`](crate::Error::Sa), [`Error::Verb`](crate::Error::Verb).
    pub fn end(self) -> Step<()> {
        Step::new(self.hold.leave())
    }
}

impl Stream for Subscription {
    type Item = Notice;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Notice>> {
        let mut waker = OwnWaker::of(cx.waker());
        let mut inner = self.mailbox.inner.lock();
        if let Some(notice) = inner.waiting.pop_front() {
            return Poll::Ready(Some(notice));
        }
        waker.replace(&mut inner.waker);
        Poll::Pending
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("event", &self.mailbox.event)
            .finish_non_exhaustive()
    }
}
