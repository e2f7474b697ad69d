//! Where reports wait for their subscriber.

use std::collections::VecDeque;
use std::task::Waker;

use verbs_core::mad::MadBytes;
use verbs_core::mad::sa;
use verbs_core::mad::sm::{Notice, NoticeView, TrapNumber};
use verbs_core::sync::{Arc, Mutex};
use verbs_core::task;

/// Reports that wait for a subscriber at most. With more the oldest is lost, and counted: a program that
/// does not look for so long asks the administrator again anyway.
pub const NOTICES_MAX: usize = 256;

/// All of something, in a subscription.
pub(super) const ANY: u16 = 0xffff;

pub(super) type Handler = dyn Fn(&Notice) + Send + Sync;

/// Where a subscriber's reports wait.
pub(in crate::sa) struct Mailbox {
    pub(super) event: TrapNumber,
    pub(super) inner: Mutex<Inner>,
}

#[derive(Default)]
pub(super) struct Inner {
    pub(super) waiting: VecDeque<Notice>,
    pub(super) handler: Option<Arc<Handler>>,
    pub(super) waker: Option<Waker>,
    pub(super) lost: u64,
}

impl Mailbox {
    pub(super) fn of(event: TrapNumber) -> Self {
        Self {
            event,
            inner: Mutex::default(),
        }
    }

    /// Takes a report, if it is about this event.
    pub(in crate::sa) fn put(&self, mad: &MadBytes) {
        let Some(view) = NoticeView::new(sa::record(mad)) else {
            return;
        };
        let notice = Notice::parse(view);
        if notice.trap != self.event && self.event.0 != ANY {
            return;
        }
        let mut inner = self.inner.lock();
        if let Some(handler) = inner.handler.clone() {
            drop(inner);
            return handler(&notice);
        }
        if inner.waiting.len() >= NOTICES_MAX {
            inner.waiting.pop_front();
            inner.lost += 1;
        }
        inner.waiting.push_back(notice);
        let waker = inner.waker.take();
        drop(inner);
        if let Some(waker) = waker {
            task::wake(waker);
        }
    }
}
