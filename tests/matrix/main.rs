//! Every verb, issued from every context, with commands that complete inline, later, and out of
//! order (K1, K2, K3): one table.
//!
//! Goal: no verb blocks, and none needs another thread. Method: a process of one thread, in which every system call
//! that blocks is fatal, and a virtual clock that this thread steps. A verb that blocked would kill the process; one
//! that needed another thread would never complete.
//!
//! In each cell: `i` answered inline, `p` pended and completed later, `f` refused because the slots for pending
//! requests were full; for the three timings in turn. The last column says that the software HCA refuses the verb as
//! unsupported, which it has to do in every context.

mod caps;
mod context;
mod filter;
mod transport;

use std::io::Write;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll, Waker};

use verbs_core::testing::{Answer, AnyFuture, NotOffered, Stage, Subject};
use verbs_core::{Error, Issued, Kind, no_block};

use context::{Act, Context, FEW, Timing, run_in, subject};

/// The part of this binary that runs without the filter.
const OVER_SOCKETS: &str = "sockets";

fn main() {
    // The part of the test harness's interface that this binary implements.
    if std::env::args().any(|arg| arg == "--list") {
        println!("every_verb_from_every_context: test");
        return;
    }
    filter::play_role((OVER_SOCKETS, caps::table_over_sockets));
    filter::elsewhere(OVER_SOCKETS);
    filter::is_fatal_to_waiters();
    filter::install();
    assert_eq!(threads(), 1, "nobody else is alive");

    print!("{:16}", "verb");
    for context in Context::ALL {
        print!("{:>11}", context.name());
    }
    println!();
    let mut tally = Tally::default();
    for &kind in Kind::ALL {
        row(kind, &mut tally);
    }
    tally.judge();
    caps::table();
}

/// Threads of this process.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("procfs");
    tasks.count()
}

/// How one cell ended.
struct Cell {
    letter: char,
    /// Refused as unsupported, by itself or because its object was.
    unsupported: bool,
    /// Whether a query that was issued after it completed before it.
    overtaken: bool,
}

#[derive(Default)]
struct Tally {
    cells: u32,
    supported: u32,
    /// Cells whose verb was overtaken: with commands delayed in order, and out of order.
    overtaken: [u32; 2],
}

impl Tally {
    fn judge(&self) {
        let Self {
            cells,
            supported,
            overtaken: [in_order, out_of_order],
        } = self;
        let wanted = Kind::ALL.len() * Context::ALL.len() * Timing::ALL.len();
        println!("{cells} cells; {supported} verbs supported; {out_of_order} verbs overtaken");
        assert_eq!(*cells as usize, wanted, "every cell was looked at");
        assert_eq!(*in_order, 0, "commands complete in order where they must");
        assert!(*out_of_order > 20, "commands complete out of order");
        assert!(*supported >= 15, "most verbs are there");
    }
}

fn row(kind: Kind, tally: &mut Tally) {
    // A name that is not followed by a cell shows where the process was killed.
    print!("{:16}", kind.name());
    let mut unsupported = None;
    for context in Context::ALL {
        let mut letters = String::new();
        for timing in Timing::ALL {
            tally.cells += 1;
            let seed = u64::from(tally.cells);
            let cell = Trial {
                kind,
                context,
                timing,
            }
            .run(seed);
            letters.push(cell.letter);
            let before = unsupported.replace(cell.unsupported);
            let differs = before.is_some_and(|before| before != cell.unsupported);
            assert!(
                !differs,
                "{kind}: supported in one context and not in another"
            );
            match timing {
                Timing::Delayed => tally.overtaken[0] += u32::from(cell.overtaken),
                Timing::OutOfOrder => tally.overtaken[1] += u32::from(cell.overtaken),
                Timing::Inline => assert!(!cell.overtaken, "{kind}, {context:?}: inline"),
            }
        }
        print!("{letters:>11}");
        std::io::stdout().flush().expect("standard output");
    }
    let unsupported = unsupported.unwrap_or_default();
    tally.supported += u32::from(!unsupported);
    println!("{}", if unsupported { "  unsupported" } else { "" });
}

/// One cell of the table.
#[derive(Clone, Copy, Debug)]
struct Trial {
    kind: Kind,
    context: Context,
    timing: Timing,
}

/// The reports of routines, in the order in which they ran.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Told>>>);

enum Told {
    Verb(Answer),
    Rival,
}

impl Log {
    fn tell(&self, told: Told) {
        self.0.lock().expect("no routine panics").push(told);
    }

    fn len(&self) -> usize {
        self.0.lock().expect("no routine panics").len()
    }
}

impl Trial {
    fn run(self, seed: u64) -> Cell {
        let subject = subject(self.context, self.timing, seed);
        let mut stage = match Stage::set(&subject, self.kind) {
            Ok(stage) => stage,
            Err(NotOffered { verb, error }) => {
                let refused = error.is_unsupported();
                assert!(refused, "{self:?}: {verb} failed: {error}");
                let (letter, unsupported, overtaken) = ('-', true, false);
                return Cell {
                    letter,
                    unsupported,
                    overtaken,
                };
            }
        };
        let helper = Stage::set(&subject, Kind::NextEvent).expect("a device opens");
        let filler = self.fill(&stage, &helper);
        let cell = match self.context {
            Context::Task => self.awaited(&subject, &mut stage),
            _ => {
                let cell;
                (cell, stage) = self.issued(&subject, stage, &helper);
                cell
            }
        };
        assert!(!no_block(), "{self:?}: the level is back");
        assert_eq!(threads(), 1, "{self:?}: somebody else is alive");
        if let Some(Issued::Pending(handle)) = filler {
            handle.cancel();
        }
        stage.clear(&subject);
        helper.clear(&subject);
        cell
    }

    /// Takes the slots, in the context where they are full.
    fn fill(self, stage: &Stage, helper: &Stage) -> Option<Issued> {
        match (self.context, self.timing, &stage.device) {
            // A request for an event holds the only slot for pending requests.
            (Context::SlotsFull, Timing::Inline, Some(device)) => {
                Some(device.next_event().issue(drop))
            }
            // A query is in the only command slot.
            (Context::SlotsFull, Timing::Delayed | Timing::OutOfOrder, _) => {
                Some(helper.device().query().issue(drop))
            }
            _ => None,
        }
    }

    /// Issues the verb in the context, and another one behind it.
    fn issued(self, subject: &Subject, stage: Stage, helper: &Stage) -> (Cell, Stage) {
        let probe = Stage::set(subject, self.kind).expect("as the one before");
        let nudge = stage.nudge(self.kind);
        let (log, place) = (Log::default(), Arc::new(Mutex::new(None)));
        let (theirs, back) = (log.clone(), Arc::clone(&place));
        let rival = Arc::downgrade(helper.device());
        let act: Act = Box::new(move || {
            let (mut stage, mut probe, log) = (stage, probe, theirs);
            if self.context.is_no_block() {
                self.may_not_wait(&mut probe);
            }
            let verb = log.clone();
            let routine = Box::new(move |answer| verb.tell(Told::Verb(answer)));
            let issued = stage.request(self.kind).issue(routine);
            if self.context.is_no_block() {
                assert_eq!(log.len(), 0, "{self:?}: the routine ran inside");
            }
            let rival = rival.upgrade().expect("the helper is still there");
            let _ = rival.query().issue(move |_| log.tell(Told::Rival));
            *back.lock().expect("no routine panics") = Some((issued, stage, probe));
        });
        run_in(self.context, subject, helper, act);
        let mut issued = None;
        subject.until(format_args!("{self:?} runs"), || {
            issued = place.lock().expect("no routine panics").take();
            issued.is_some()
        });
        let (issued, stage, probe) = issued.expect("it has run");
        nudge.give();
        drop(nudge);
        subject.until(format_args!("{self:?} completes"), || log.len() == 2);
        (0..4).for_each(|_| subject.advance());
        let told = std::mem::take(&mut *log.0.lock().expect("no routine panics"));
        probe.clear(subject);
        (self.cell(matches!(issued, Issued::Completed), told), stage)
    }

    /// The blocking front end refuses at once and does nothing (K3).
    fn may_not_wait(self, probe: &mut Stage) {
        assert!(no_block(), "{self:?}");
        let count = |stage: &Stage| {
            let device = stage.device.as_ref();
            device.map(|device| (device.objects(), device.in_flight().len()))
        };
        let before = count(probe);
        let answer = probe.request(self.kind).wait();
        assert_eq!(answer.error(), Some(Error::WouldBlock), "{self:?}");
        // Closing has consumed the device; it is in the answer.
        if let (Some(before), Some(after)) = (before, count(probe)) {
            assert_eq!(before, after, "{self:?}: refused with an effect");
        }
    }

    /// Awaits the verb in a task, and another one behind it in the same task.
    fn awaited(self, subject: &Subject, stage: &mut Stage) -> Cell {
        let nudge = stage.nudge(self.kind);
        let mut future = stage.request(self.kind).future();
        let mut inline = true;
        let answer = loop {
            if let Poll::Ready(answer) = poll(&mut future) {
                break answer;
            }
            inline = false;
            nudge.give();
            subject.advance();
        };
        drop((future, nudge));
        self.cell(inline, vec![Told::Verb(answer), Told::Rival])
    }

    fn cell(self, inline: bool, told: Vec<Told>) -> Cell {
        assert_eq!(told.len(), 2, "{self:?} completes once");
        let overtaken = matches!(told[0], Told::Rival);
        let mut answers = told.into_iter().filter_map(|told| match told {
            Told::Verb(answer) => Some(answer),
            Told::Rival => None,
        });
        let answer = answers.next().expect("one of the two is the verb");
        let full = Error::TooManyRequests { max: FEW };
        let parks = self.kind == Kind::NextEvent;
        // A verb that takes something away waits for threads that are still looking at it.
        let takes = matches!(
            self.kind,
            Kind::DestroyQp
                | Kind::DeregMr
                | Kind::ReregMr
                | Kind::ResizeCq
                | Kind::FreeMr
                | Kind::DeallocMw
                | Kind::FlushFmrPool
                | Kind::DestroyFmrPool
        );
        let unsupported = match answer.error() {
            None => false,
            Some(error) if error.is_unsupported() => true,
            Some(error) => {
                let slots = self.context == Context::SlotsFull && self.timing == Timing::Inline;
                // A destroy has a slot of its own (K7).
                let pends = parks || takes && !self.kind.destroys();
                assert!(error == full && pends && slots, "{self:?}: {error}");
                return Cell {
                    letter: 'f',
                    unsupported: false,
                    overtaken: false,
                };
            }
        };
        // A close waits until the request that fills the slots has ended.
        let closes = self.kind == Kind::CloseDevice && self.context == Context::SlotsFull;
        let may_pend = parks || closes || takes || self.timing != Timing::Inline;
        // A device that makes no connections has no endpoints, which the core reports without asking it.
        let is_refused_before = unsupported && self.kind == Kind::BindCm;
        let may_not = self.timing == Timing::Inline && !parks || is_refused_before;
        let right = if inline { may_not } else { may_pend };
        assert!(right, "{self:?}: answered inline: {inline}");
        Cell {
            letter: if inline { 'i' } else { 'p' },
            // Every provider refuses an extension that does not exist.
            unsupported: unsupported && self.kind != Kind::CallExtension,
            overtaken: overtaken && !parks,
        }
    }
}

fn poll(future: &mut AnyFuture<'_>) -> Poll<Answer> {
    Pin::new(future).poll(&mut TaskContext::from_waker(Waker::noop()))
}
