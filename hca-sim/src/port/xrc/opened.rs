//! Targets that programs of one host open by their number: which of a port's own others have opened, and questions to the
//! homes of others.
//!
//! A question may be lost, and so may its answer: it is asked again, and answered in the same way each time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use verbs_core::command::{Pending, RequestId};
use verbs_core::sync::{Arc, Mutex};
use verbs_core::xrcd::{OpenTargetQp, XrcdName};
use verbs_core::{Attr, Error, QpCap, Qpn, Why};

use super::Domain;
use crate::clock::Instant;
use crate::link::door_of;
use crate::queue::base::events::Job;
use crate::wire::target::{About, TargetMessage};

/// A question is asked again after this time.
const AGAIN: Duration = Duration::from_millis(50);
/// A question is given up after this time.
const PATIENCE: Duration = Duration::from_secs(5);
/// Handles of other programs that a port's targets may have at most.
const HANDLES_MAX: usize = 1 << 14;
/// Messages that wait to be sent at most; more are lost.
const LETTERS_MAX: usize = 1 << 12;

/// A target of another program that is open here: behind its handle.
#[derive(Debug)]
pub(crate) struct RemoteTarget {
    pub(crate) target: Qpn,
    number: u32,
    name: XrcdName,
}

/// See the module's documentation. The lock is taken for a look or a change and nothing else.
#[derive(Default)]
pub(crate) struct Opened(Mutex<State>);

#[derive(Default)]
struct State {
    questions: BTreeMap<u32, Question>,
    /// The number of the last handle; the first one cannot be guessed.
    count: u32,
    /// Targets of others that are open here, and the numbers of their handles.
    remote: BTreeSet<(Qpn, u32)>,
    /// Messages, and the numbers that they go to.
    letters: VecDeque<(Qpn, TargetMessage)>,
    held: BTreeMap<Qpn, Held>,
    handles: usize,
    messenger: Option<Qpn>,
    /// When the engine calls the messenger, if it does.
    calls_at: Option<Instant>,
}

struct Question {
    target: Qpn,
    name: XrcdName,
    kind: Kind,
    /// When it was first asked, and last; nothing yet if it was not.
    asked: Option<(Instant, Instant)>,
}

enum Kind {
    Open(OpenTargetQp, Pending<OpenTargetQp>),
    Close,
}

/// A target of this port that others have opened.
struct Held {
    /// It lives as long.
    _domain: Arc<Domain>,
    /// The handles: the number where the program is reached, and the program's number of the handle.
    by: BTreeSet<(Qpn, u32)>,
    /// The program itself has closed it.
    is_orphan: bool,
}

/// What is to be done for questions and messages now.
pub(crate) struct Due {
    pub(crate) letters: VecDeque<(Qpn, TargetMessage)>,
    /// Requests that end.
    pub(crate) ended: Vec<Job>,
    /// When to call the messenger, if nothing else does.
    pub(crate) call: Option<Instant>,
}

/// Sizes of a queue pair that has no queues.
pub(crate) const NO_QUEUES: QpCap = QpCap {
    max_send_wr: 0,
    max_recv_wr: 0,
    max_send_sge: 0,
    max_recv_sge: 0,
    max_inline_data: 0,
};

/// There is no such target.
pub(crate) const fn missing() -> Error {
    Error::Mismatch {
        attr: Attr::TargetQpn,
        why: Why::Missing,
    }
}

impl Question {
    fn message(&self, number: u32) -> TargetMessage {
        TargetMessage {
            target: self.target,
            visit: number,
            about: match self.kind {
                Kind::Open(..) => About::Open(self.name),
                Kind::Close => About::Close,
            },
        }
    }

    /// The end of a question without an answer.
    fn give_up(self, error: Error) -> Option<Job> {
        match self.kind {
            Kind::Open(_, pending) => Some(Box::new(move || pending.complete(Err(error)))),
            Kind::Close => None,
        }
    }
}

impl State {
    fn ask(&mut self, target: Qpn, name: XrcdName, number: u32, kind: Kind) {
        let question = Question {
            target,
            name,
            kind,
            asked: None,
        };
        self.questions.insert(number, question);
    }

    /// A handle is closed. Returns the target if nobody has it open any longer.
    fn release(&mut self, target: Qpn, is_one: impl Fn(&(Qpn, u32)) -> bool) -> Option<Qpn> {
        let held = self.held.get_mut(&target)?;
        let before = held.by.len();
        held.by.retain(|handle| !is_one(handle));
        self.handles -= before - held.by.len();
        if !held.by.is_empty() {
            return None;
        }
        let held = self.held.remove(&target)?;
        held.is_orphan.then_some(target)
    }
}

impl Opened {
    /// The queue pair that sends messages, and where the numbers of handles begin. False if there is one.
    pub(crate) fn set_messenger(&self, qpn: Qpn, first: u32) -> bool {
        let mut state = self.0.lock();
        let is_first = state.messenger.is_none();
        if is_first {
            (state.messenger, state.count) = (Some(qpn), first);
        }
        is_first
    }

    pub(crate) fn messenger(&self) -> Option<Qpn> {
        self.0.lock().messenger
    }

    /// A message for the program at that number.
    pub(crate) fn say(&self, to: Qpn, message: TargetMessage) {
        let mut state = self.0.lock();
        if state.letters.len() < LETTERS_MAX {
            state.letters.push_back((to, message));
        }
    }

    /// Asks a target's home to open it.
    pub(crate) fn open(&self, args: OpenTargetQp, name: XrcdName, pending: Pending<OpenTargetQp>) {
        let mut state = self.0.lock();
        state.count = state.count.wrapping_add(1);
        let (target, number) = (args.qpn, state.count);
        state.ask(target, name, number, Kind::Open(args, pending));
    }

    /// A handle of such a target is closed here.
    pub(crate) fn close(&self, remote: &RemoteTarget) {
        let mut state = self.0.lock();
        state.remote.remove(&(remote.target, remote.number));
        state.ask(remote.target, remote.name, remote.number, Kind::Close);
    }

    /// Ends the request early, if it opens a target.
    pub(crate) fn cancel(&self, id: RequestId) -> Option<Job> {
        let mut state = self.0.lock();
        let is_it = |question: &Question| match &question.kind {
            Kind::Open(_, pending) => pending.id() == id,
            Kind::Close => false,
        };
        let found = state.questions.iter().find(|(_, question)| is_it(question));
        let number = *found?.0;
        let question = state.questions.remove(&number)?;
        // The home may have opened it.
        state.ask(question.target, question.name, number, Kind::Close);
        question.give_up(Error::Cancelled)
    }

    /// What is to be done now.
    pub(crate) fn due(&self, now: Instant) -> Due {
        let mut state = self.0.lock();
        let mut due = Due {
            letters: std::mem::take(&mut state.letters),
            ended: Vec::new(),
            call: None,
        };
        let mut over = Vec::new();
        for (&number, question) in &mut state.questions {
            let (first, is_due) = match question.asked {
                Some((first, last)) => (first, now >= last + AGAIN),
                None => (now, true),
            };
            if now >= first + PATIENCE {
                over.push(number);
            } else if is_due {
                question.asked = Some((first, now));
                let to = door_of(question.target).unwrap_or(question.target);
                due.letters.push_back((to, question.message(number)));
            }
        }
        for number in over {
            let question = state.questions.remove(&number);
            due.ended
                .extend(question.and_then(|question| question.give_up(missing())));
        }
        // A call that has come may seem to be ahead, as a round's time is a little old.
        let is_called = state.calls_at.is_some_and(|at| at > now + AGAIN / 2);
        if !state.questions.is_empty() && !is_called {
            state.calls_at = Some(now + AGAIN);
            due.call = state.calls_at;
        }
        due
    }

    /// The home has answered whether the target is open. Returns the request, if there was one.
    pub(crate) fn answered(
        &self,
        target: Qpn,
        number: u32,
    ) -> Option<(OpenTargetQp, Pending<OpenTargetQp>, RemoteTarget)> {
        let mut state = self.0.lock();
        let is_it = |question: &Question| {
            question.target == target && matches!(question.kind, Kind::Open(..))
        };
        if !state.questions.get(&number).is_some_and(is_it) {
            return None;
        }
        let question = state.questions.remove(&number)?;
        let Kind::Open(args, pending) = question.kind else {
            return None;
        };
        let remote = RemoteTarget {
            target,
            number,
            name: question.name,
        };
        Some((args, pending, remote))
    }

    /// The target is open here from now on.
    pub(crate) fn enter(&self, remote: &RemoteTarget) {
        let handle = (remote.target, remote.number);
        self.0.lock().remote.insert(handle);
    }

    /// Whether that handle of that target is open here.
    pub(crate) fn has_handle(&self, target: Qpn, number: u32) -> bool {
        self.0.lock().remote.contains(&(target, number))
    }

    /// The home has closed the target.
    pub(crate) fn closed(&self, target: Qpn, number: u32) {
        let mut state = self.0.lock();
        let is_it =
            |question: &Question| question.target == target && matches!(question.kind, Kind::Close);
        if state.questions.get(&number).is_some_and(is_it) {
            state.questions.remove(&number);
        }
    }

    /// Another program opens a target of this port. False if there are too many handles.
    pub(crate) fn hold(&self, target: Qpn, by: (Qpn, u32), domain: &Arc<Domain>) -> bool {
        let mut state = self.0.lock();
        if state.handles >= HANDLES_MAX {
            return state
                .held
                .get(&target)
                .is_some_and(|held| held.by.contains(&by));
        }
        let held = state.held.entry(target).or_insert_with(|| Held {
            _domain: Arc::clone(domain),
            by: BTreeSet::new(),
            is_orphan: false,
        });
        let is_new = held.by.insert(by);
        state.handles += usize::from(is_new);
        true
    }

    /// Another program closes a target of this port. Returns it if nobody has it open any longer.
    pub(crate) fn release(&self, target: Qpn, by: (Qpn, u32)) -> Option<Qpn> {
        self.0.lock().release(target, |handle| *handle == by)
    }

    /// This program has closed a target. Returns whether others have it open: it goes on until the last of them closes it.
    pub(crate) fn orphan(&self, target: Qpn) -> bool {
        let mut state = self.0.lock();
        let held = state.held.get_mut(&target);
        held.is_some_and(|held| {
            held.is_orphan = true;
            true
        })
    }

    /// The handles that other programs have of a target of this port.
    pub(crate) fn holders(&self, target: Qpn) -> Vec<(Qpn, u32)> {
        let state = self.0.lock();
        let held = state.held.get(&target);
        held.into_iter()
            .flat_map(|held| held.by.iter().copied())
            .collect()
    }

    /// Programs with these numbers have ended. Returns the targets that nobody has open any longer, and the requests that
    /// end.
    pub(crate) fn gone(&self, qpns: &Range<u32>) -> (Vec<Qpn>, Vec<Job>) {
        let mut state = self.0.lock();
        let targets: Vec<_> = state.held.keys().copied().collect();
        let is_gone = |qpn: Qpn| qpns.contains(&qpn.value());
        let released = targets
            .into_iter()
            .filter_map(|target| state.release(target, |by| is_gone(by.0)));
        let released = released.collect();
        let gone: Vec<_> = state
            .questions
            .iter()
            .filter(|(_, question)| is_gone(question.target))
            .map(|(&number, _)| number)
            .collect();
        let ended = gone
            .into_iter()
            .filter_map(|number| state.questions.remove(&number)?.give_up(missing()));
        (released, ended.collect())
    }
}
