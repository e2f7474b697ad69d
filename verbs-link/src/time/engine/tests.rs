//! Goal: every timer is called once, in order, on the right thread, or not at all when it was cancelled; and the thread
//! exists exactly while it is needed.

use std::fs;
use std::path::PathBuf;

use verbs_core::no_block;
use verbs_core::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use verbs_core::sync::{Mutex, thread};

use super::*;
use crate::time::VirtualClock;
use crate::time::agenda::Driver;

/// Keeps what it was called with.
#[derive(Default)]
struct Log(Mutex<Vec<(Instant, u64)>>);

impl Due for Log {
    fn due(&self, now: Instant, token: u64) {
        assert!(no_block(), "K3");
        self.0.lock().push((now, token));
    }
}

impl Log {
    fn tokens(&self) -> Vec<u64> {
        self.0.lock().iter().map(|&(_, token)| token).collect()
    }
}

/// Calls a closure.
struct Call<F>(F);

impl<F: Fn(Instant, u64) + Send + Sync> Due for Call<F> {
    fn due(&self, now: Instant, token: u64) {
        (self.0)(now, token);
    }
}

fn call(f: impl Fn(Instant, u64) + Send + Sync + 'static) -> Arc<dyn Due> {
    Arc::new(Call(f))
}

const fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

/// The system's name for the thread of that engine, if it has one.
fn thread_of(number: u64) -> Option<String> {
    let tasks = fs::read_dir("/proc/self/task").expect("procfs");
    let mut tasks = tasks.flatten().map(|task| task.path());
    let is_its = |path: &PathBuf| {
        fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == thread_name(number))
    };
    tasks
        .find(is_its)
        .map(|path| path.to_string_lossy().into_owned())
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let clock = Clock::wall();
    while !done() {
        assert!(clock.now() < at(20_000_000_000), "waited 20 s for {what}");
        thread::yield_now();
    }
}

#[test]
fn deadlines_are_called_in_order_and_ties_by_insertion() {
    let clock = VirtualClock::new();
    let (one, two) = (Engine::new(clock.clone()), Engine::new(clock.clone()));
    let log = Arc::new(Log::default());
    one.at(at(20), log.clone(), 1);
    two.at(at(10), log.clone(), 2);
    two.at(at(20), log.clone(), 3);
    one.at(at(10), log.clone(), 4);
    assert_eq!(one.turn(), 0, "nothing is due yet");
    assert_eq!(clock.step(), Some(at(10)));
    assert_eq!(log.tokens(), [2, 4]);
    assert_eq!(clock.next_deadline(), Some(at(20)));
    assert_eq!(clock.run_until(at(25)), 2);
    assert_eq!(
        *log.0.lock(),
        [(at(10), 2), (at(10), 4), (at(20), 1), (at(20), 3)]
    );
    assert_eq!(clock.now(), at(25));
}

#[test]
fn a_passed_deadline_is_due_at_once_but_never_inside_at() {
    let clock = VirtualClock::new();
    clock.run_until(at(100));
    let (engine, log) = (Engine::new(clock.clone()), Arc::new(Log::default()));
    engine.at(at(5), log.clone(), 1);
    assert_eq!(log.tokens(), []);
    assert_eq!(engine.turn(), 1);
    assert_eq!(*log.0.lock(), [(at(100), 1)], "time does not go back");
}

#[test]
fn what_is_set_meanwhile_waits_for_the_next_turn() {
    let clock = VirtualClock::new();
    let engine = Engine::new(clock.clone());
    let calls = Arc::new(AtomicUsize::new(0));
    let again = {
        let (engine, calls, log) = (engine.clone(), calls.clone(), Arc::new(Log::default()));
        call(move |now, token| {
            calls.fetch_add(1, SeqCst);
            engine.at(now, log.clone(), token + 1);
        })
    };
    engine.at(at(0), again, 1);
    assert_eq!((engine.turn(), engine.turn(), engine.turn()), (1, 1, 0));
    assert_eq!(calls.load(SeqCst), 1);
}

#[test]
fn a_cancelled_timer_is_not_called_and_a_stale_name_misses() {
    let clock = VirtualClock::new();
    let (engine, log) = (Engine::new(clock.clone()), Arc::new(Log::default()));
    let first = engine.at(at(10), log.clone(), 1);
    let second = engine.at(at(10), log.clone(), 2);
    assert!(engine.cancel(first));
    assert!(!engine.cancel(first), "once");
    let third = engine.at(at(30), log.clone(), 3);
    assert!(
        !engine.cancel(first),
        "the place was taken again, the name was not (K13)"
    );
    clock.run_until(at(20));
    assert!(!engine.cancel(second), "it has been called");
    assert!(engine.cancel(third));
    assert_eq!(engine.next_deadline(), None);
    assert_eq!(log.tokens(), [2]);
}

#[test]
fn a_callee_may_cancel_set_and_drop_the_engine() {
    let clock = VirtualClock::new();
    let engine = Arc::new(Mutex::new(Some(Engine::new(clock.clone()))));
    let log = Arc::new(Log::default());
    let held = engine.lock().clone().expect("not dropped yet");
    let victim = held.at(at(10), log.clone(), 1);
    drop(held);
    let due = {
        let (engine, log) = (engine.clone(), log.clone());
        call(move |now, _| {
            let held = engine.lock().take().expect("dropped here");
            assert!(held.cancel(victim));
            held.at(now, log.clone(), 2);
        })
    };
    let held = engine.lock().clone().expect("not dropped yet");
    held.at(at(5), due, 0);
    drop(held);
    assert_eq!(clock.advance(Duration::from_nanos(20)), 1);
    assert_eq!(log.tokens(), [], "what the engine had set went with it");
    assert_eq!(Arc::strong_count(&log), 1, "nothing is kept");
}

#[test]
fn an_engine_that_goes_takes_only_its_own_timers() {
    let clock = VirtualClock::new();
    let (one, two) = (Engine::new(clock.clone()), Engine::new(clock.clone()));
    let log = Arc::new(Log::default());
    one.at(at(1), log.clone(), 1);
    two.at(at(2), log.clone(), 2);
    drop(one);
    clock.run_until(at(3));
    assert_eq!(log.tokens(), [2]);
}

#[test]
fn a_million_timers_are_called_in_order() {
    const N: u64 = 1_000_000;
    let clock = VirtualClock::new();
    let engine = Engine::new(clock.clone());
    let log = Arc::new(Log::default());
    for n in 0..N {
        // A permutation, since the factor is odd and not a multiple of 5, with ties by sixteen.
        engine.at(at(n * 7_919 % N / 16), log.clone(), n);
    }
    assert_eq!(clock.run_until(at(N)), 1_000_000);
    let log = log.0.lock();
    assert_eq!(log.len(), 1_000_000);
    assert!(
        log.windows(2).all(|w| (w[0].0, w[0].1) < (w[1].0, w[1].1)),
        "by deadline, then insertion"
    );
    assert!(
        log.iter().all(|&(now, n)| now == at(n * 7_919 % N / 16)),
        "each at its time"
    );
}

/// Goal: the program's signals are for the program's threads. Method: the mask that the engine's thread shows.
#[test]
fn the_thread_takes_no_signals() {
    const TERMINATE: u32 = 15;
    let engine = Engine::new(Clock::wall());
    let mask = Arc::new(Mutex::new(None));
    let kept = Arc::clone(&mask);
    let look = call(move |_, _| {
        let status = fs::read_to_string("/proc/thread-self/status").expect("procfs");
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        *kept.lock() = line.map(|mask| u64::from_str_radix(mask.trim(), 16));
    });
    engine.after(Duration::ZERO, look, 0);
    until("the mask", || mask.lock().is_some());
    let mask = mask.lock().take().expect("it was there");
    let mask = mask.expect("a hexadecimal number");
    assert_eq!(mask >> (TERMINATE - 1) & 1, 1, "{mask:x}");
}

#[test]
fn the_wall_clock_has_a_thread_which_sleeps_and_ends_with_the_engine() {
    let engine = Engine::new(Clock::wall());
    let number = engine.core.number;
    let log = Arc::new(Log::default());
    assert_eq!(thread_of(number), None, "no deadline, no thread");
    let far = engine.after(Duration::from_secs(3600), log.clone(), 1000);
    for n in 0..100 {
        engine.after(Duration::from_micros(200 - n), log.clone(), n);
    }
    until("a hundred timers", || log.0.lock().len() == 100);
    let thread = thread_of(number).expect("a thread");
    let asleep =
        || fs::read_to_string(format!("{thread}/stat")).is_ok_and(|stat| stat.contains(") S "));
    until("the thread to sleep", asleep);
    assert!(!log.tokens().contains(&1000));
    assert!(engine.cancel(far));
    drop(engine);
    until("the thread to end", || thread_of(number).is_none());
    assert_eq!(Arc::strong_count(&log), 1);
}

#[test]
fn a_wall_timer_is_not_called_before_its_deadline_and_an_earlier_one_wakes() {
    let engine = Engine::new(Clock::wall());
    let log = Arc::new(Log::default());
    engine.after(Duration::from_secs(3600), log.clone(), 0);
    // Give the thread the time to fall asleep for an hour.
    until("the thread to sleep", || {
        matches!(engine.core.agenda.state.lock().driver, Driver::Asleep(..))
    });
    let deadline = engine.now() + Duration::from_millis(1);
    engine.at(deadline, log.clone(), 1);
    until("the earlier timer", || !log.0.lock().is_empty());
    let (now, token) = log.0.lock()[0];
    assert_eq!(token, 1);
    assert!(now >= deadline, "{now} is before {deadline}");
}

#[test]
fn an_engine_may_be_dropped_on_its_own_thread() {
    let last = Arc::new(Mutex::new(None::<Engine>));
    let engine = Engine::new(Clock::wall());
    *last.lock() = Some(engine.clone());
    let due = {
        let last = last.clone();
        call(move |_, _| drop(last.lock().take()))
    };
    let (witness, number) = (Arc::downgrade(&engine.core.agenda), engine.core.number);
    engine.after(Duration::from_millis(1), due, 0);
    drop(engine);
    until("the drop", || last.lock().is_none());
    until("the thread to end", || thread_of(number).is_none());
    until("the agenda to be freed", || witness.strong_count() == 0);
}

#[test]
fn a_callee_that_panics_takes_no_other_timer_with_it() {
    let engine = Engine::new(Clock::wall());
    let log = Arc::new(Log::default());
    let now = engine.now();
    engine.at(
        now + Duration::from_millis(1),
        call(|_, _| panic!("meant to")),
        0,
    );
    engine.at(now + Duration::from_millis(2), log.clone(), 1);
    until("the timer behind the panic", || log.tokens() == [1]);
    engine.after(Duration::ZERO, log.clone(), 2);
    until("a timer afterwards", || log.tokens() == [1, 2]);
}

#[test]
fn a_turn_on_the_wall_clock_calls_on_this_thread_what_is_due() {
    let engine = Engine::new(Clock::wall());
    let calls = Arc::new(AtomicUsize::new(0));
    let due = {
        let calls = calls.clone();
        call(move |_, _| {
            calls.fetch_add(1, SeqCst);
        })
    };
    for _ in 0..1000 {
        engine.after(Duration::from_micros(1), Arc::clone(&due), 0);
        engine.turn();
    }
    until("all of them", || calls.load(SeqCst) == 1000);
    assert_eq!(engine.turn(), 0);
    assert_eq!(calls.load(SeqCst), 1000, "each once, whoever called it");
}

/// A receiver that has something each time, and a waiter that returns at once: what they were called.
#[derive(Debug, Default)]
struct Packets {
    attended: AtomicUsize,
    /// How often it was attended to when the thread waited for the second time.
    at_second_wait: AtomicUsize,
    waits: AtomicUsize,
    busy_polls: bool,
}

impl Attend for Packets {
    fn attend(&self) -> bool {
        assert!(no_block(), "K3");
        self.attended.fetch_add(1, SeqCst) == 0
    }

    fn busy_polls(&self) -> bool {
        self.busy_polls
    }

    fn polled_until(&self) -> Instant {
        Instant::ZERO
    }
}

impl Waiter for Packets {
    fn wait(&self, _timeout: Option<Duration>, packets: bool) {
        assert!(packets, "no consumer polls");
        match self.waits.fetch_add(1, SeqCst) {
            0 => {}
            1 => self
                .at_second_wait
                .store(self.attended.load(SeqCst), SeqCst),
            _ => thread::yield_now(),
        }
    }

    fn wake(&self) {}
}

/// Goal: the thread looks again after packets, before it sleeps, where the receiver asks for it and nowhere else.
#[test]
fn the_thread_polls_before_it_sleeps_where_that_is_asked_for() {
    for busy_polls in [false, true] {
        let packets = Arc::new(Packets {
            busy_polls,
            ..Packets::default()
        });
        let engine = Engine::new(Clock::wall());
        let whom = Arc::downgrade(&packets) as Weak<dyn Attend>;
        engine.attend_to(whom, Arc::<Packets>::clone(&packets));
        until("the second wait", || packets.waits.load(SeqCst) > 2);
        let attended = packets.at_second_wait.load(SeqCst);
        assert_eq!(
            attended > 1,
            busy_polls,
            "{attended} before the second wait"
        );
    }
}
