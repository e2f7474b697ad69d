//! Models of pins, touch words and grace jobs, checked by loom in every interleaving up to three
//! preemptions.
//!
//! Mutations tried by hand, each found by the model named: the second look of `grace::after` left out
//! (`pin_leave`), the count of searches not compared (`pin_leave_two`), pins not counted (`pin_reenter`), a pin
//! entered without release (`mr_fenced`), a record handed on without release (`rec_claim_is_exclusive`), an object taken
//! away without acquire (`mr_killed_by_another`).
//!
//! What loom does not cover: the process-wide barrier (here both halves are fences, so that the second barrier of a
//! fenced object is not missed; the torture test in `tests.rs` covers the real one), more than a few threads, and load
//! buffering. Each model has an ablation: the same model without one fence must fail, or it would show nothing.

use super::barrier::{self, Part, leave_out};
use super::grace::{self, Waits};
use super::pin::{self, pin};
use super::touch::TouchWord;
use crate::mem::{Access, Memory, MrTable, Region};
use crate::sync::atomic::{AtomicUsize, Ordering::*};
use crate::sync::{Arc, UnsafeCell, plain, thread};

const TAG: u32 = 0x105;

/// An object with a touch word; loom reports every access that races with its reuse.
struct Object {
    word: TouchWord,
    data: UnsafeCell<u32>,
    reused: AtomicUsize,
}

// SAFETY: that `data` is used by one thread at a time is what the models check.
unsafe impl Sync for Object {}
// SAFETY: as above.
unsafe impl Send for Object {}

impl Object {
    fn new(fenced: bool) -> Arc<Self> {
        let object = Self::dead();
        object.revive(fenced);
        object
    }

    fn dead() -> Arc<Self> {
        Arc::new(Self {
            word: TouchWord::dead(),
            data: UnsafeCell::new(0),
            reused: AtomicUsize::new(0),
        })
    }

    fn revive(&self, fenced: bool) {
        if fenced {
            self.word.revive_fenced(TAG);
        } else {
            self.word.revive(TAG);
        }
    }

    /// A verb that creates the object.
    fn publish(&self, fenced: bool) {
        // SAFETY: checked by loom.
        self.data.with_mut(|data| unsafe { *data = 0 });
        self.revive(fenced);
    }

    /// A use of the object on the data path.
    fn use_once(&self) {
        let pin = pin();
        if self.word.admits(&pin, TouchWord::TAG, TAG) {
            self.look();
        }
    }

    fn look(&self) {
        // SAFETY: checked by loom.
        self.data.with(|data| assert_eq!(unsafe { *data }, 0));
    }

    /// The owner's step after the grace period.
    fn reuse(&self) {
        // SAFETY: checked by loom.
        self.data.with_mut(|data| unsafe { *data = 1 });
        self.reused.fetch_add(1, Relaxed);
    }

    /// A verb that takes the object away.
    fn take_away(self: &Arc<Self>) {
        let touched = self.word.kill().expect("one killer");
        let object = Arc::clone(self);
        grace::after(touched, move || object.reuse());
    }
}

fn model(body: impl Fn() + Sync + Send + 'static) {
    bounded(3, body);
}

/// The bound is for everyday runs; `LOOM_MAX_PREEMPTIONS` overrides it.
fn bounded(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.check(body);
}

/// A thread touches the object for the first time and once more; another takes it away. No thread reads the
/// object after its grace period.
fn pin_kill() {
    model(|| {
        let object = Object::new(false);
        let user = thread::spawn({
            let object = Arc::clone(&object);
            move || {
                object.use_once();
                object.use_once();
            }
        });
        object.take_away();
        user.join().unwrap();
        grace::help();
        assert_eq!(object.reused.load(Relaxed), 1);
    });
}

#[test]
fn loom_pin_kill() {
    pin_kill();
}

#[test]
#[should_panic = "Causality violation"]
fn loom_pin_kill_fails_without_the_killers_fence() {
    leave_out(&[Part::Heavy]);
    pin_kill();
}

#[test]
#[should_panic = "Causality violation"]
fn loom_pin_kill_fails_without_the_fence_on_entering() {
    leave_out(&[Part::Enter]);
    pin_kill();
}

/// The killer or the last leaver runs the job, exactly once, without another thread's help. Of two threads that
/// are inside, one shares its bit.
fn pin_leave(threads: usize, preemptions: usize) {
    bounded(preemptions, move || {
        let object = Object::new(false);
        let users: Vec<_> = (0..threads)
            .map(|_| {
                let object = Arc::clone(&object);
                thread::spawn(move || object.use_once())
            })
            .collect();
        object.take_away();
        for user in users {
            user.join().unwrap();
        }
        assert_eq!(object.reused.load(Relaxed), 1, "the job ran once");
    });
}

#[test]
fn loom_pin_leave() {
    pin_leave(1, 3);
}

#[test]
fn loom_pin_leave_two() {
    pin_leave(2, 4);
}

#[test]
#[should_panic = "the job ran once"]
fn loom_pin_leave_fails_without_the_fence_on_leaving() {
    leave_out(&[Part::Leave]);
    pin_leave(1, 3);
}

/// A thread that uses the object twice enters a third pin without using it: a job that waits for an earlier pin
/// does not wait for the third.
fn pin_reenter() {
    model(|| {
        let object = Object::new(false);
        let entered_again = Arc::new(AtomicUsize::new(0));
        let user = thread::spawn({
            let object = Arc::clone(&object);
            let entered_again = Arc::clone(&entered_again);
            move || {
                object.use_once();
                object.use_once();
                let _third = pin();
                entered_again.store(1, Release);
            }
        });
        let touched = object.word.kill().expect("one killer");
        let mut waits = Waits::announce(touched.threads, false);
        barrier::heavy();
        waits.look();
        let seen = waits.first_seen();
        let again = entered_again.load(Acquire) == 1;
        let over = waits.over();
        if over {
            object.reuse();
        }
        if seen.inside() && seen.count() < 2 && again {
            assert!(over, "the third pin does not count");
        }
        user.join().unwrap();
        assert!(waits.over(), "nobody is inside any more");
    });
}

#[test]
fn loom_pin_reenter() {
    pin_reenter();
}

#[test]
#[should_panic = "Causality violation"]
fn loom_pin_reenter_fails_without_the_killers_fence() {
    leave_out(&[Part::Heavy]);
    pin_reenter();
}

/// The object is taken away on the data path: the killer needs only a fence, the other threads need one each time
/// they enter. Entering and leaving a pin are no fences here, as with the kernel's barrier.
fn mr_fenced(left_out: &'static [Part]) {
    leave_out(left_out);
    model(|| {
        let object = Object::new(true);
        let user = thread::spawn({
            let object = Arc::clone(&object);
            move || {
                object.use_once();
                object.use_once();
            }
        });
        object.take_away();
        user.join().unwrap();
        grace::help();
        assert_eq!(object.reused.load(Relaxed), 1);
    });
}

#[test]
fn loom_mr_fenced() {
    mr_fenced(&[Part::Enter, Part::Leave, Part::Heavy]);
}

#[test]
#[should_panic = "Causality violation"]
fn loom_mr_fenced_fails_without_its_fences() {
    mr_fenced(&[Part::Enter, Part::Leave, Part::Heavy, Part::Full]);
}

/// A thread that touched the object ends and its record passes to another thread, which uses the object as well:
/// the job for the first thread's pin still runs, once.
#[test]
fn loom_rec_recycle() {
    static RECYCLED: plain::AtomicU64 = plain::AtomicU64::new(0);
    model(|| {
        let object = Object::new(false);
        let user = thread::spawn({
            let object = Arc::clone(&object);
            move || object.use_once()
        });
        let heir = thread::spawn({
            let object = Arc::clone(&object);
            move || {
                user.join().unwrap();
                object.use_once();
                let record = pin::current().expect("this thread entered a pin");
                if record.look().count() > 1 {
                    RECYCLED.fetch_add(1, Relaxed);
                }
            }
        });
        object.take_away();
        heir.join().unwrap();
        assert_eq!(object.reused.load(Relaxed), 1, "the job ran once");
    });
    let recycled = RECYCLED.load(Relaxed);
    assert!(recycled > 0, "no interleaving handed the record on");
}

/// Two threads that begin and end at any time never own one record together, and a thread that takes over a
/// record continues its count. Without the fences of the pin, which would hide a hand-over that is too weak for
/// the kernel's barrier.
#[test]
fn loom_rec_claim_is_exclusive() {
    fn enter_once() -> (u64, u64) {
        let pin = pin();
        let record = pin::current().expect("this thread entered a pin");
        assert!(record.look().inside());
        (pin.bit(), record.look().count())
    }
    leave_out(&[Part::Enter, Part::Leave]);
    model(|| {
        let other = thread::spawn(enter_once);
        let mine = enter_once();
        assert_ne!(mine, other.join().unwrap(), "one pin, two threads");
    });
}

/// A thread that shares the last bit has touched the object before, so its bit is set, and is outside. Another
/// thread, whose record is not in the list yet and which shares that bit too, enters by the fast path, while the
/// object is taken away.
fn pin_newcomer(fenced: bool) {
    model(move || {
        drop(pin()); // This thread has the bit of its own.
        let object = Object::new(fenced);
        object.word.mark(pin::SHARED);
        let user = thread::spawn({
            let object = Arc::clone(&object);
            move || object.use_once()
        });
        object.take_away();
        user.join().unwrap();
        grace::help();
        assert_eq!(object.reused.load(Relaxed), 1);
    });
}

#[test]
fn loom_pin_newcomer() {
    pin_newcomer(false);
}

#[test]
fn loom_pin_newcomer_fenced() {
    pin_newcomer(true);
}

/// An object is created while two threads that know its name look for it: an admitted thread finds everything
/// that was written before. The two share a bit, so the second enters by a load alone.
fn mr_published(fenced: bool, mask: u32) {
    model(move || {
        drop(pin());
        let object = Object::dead();
        let users: Vec<_> = (0..2)
            .map(|_| {
                let object = Arc::clone(&object);
                thread::spawn(move || {
                    let pin = pin();
                    if object.word.admits(&pin, mask, TAG & mask) {
                        object.look();
                    }
                })
            })
            .collect();
        object.publish(fenced);
        for user in users {
            user.join().unwrap();
        }
    });
}

/// An object is created while a thread that knows its name takes it away, as a peer that invalidates a key: what
/// was written before comes before what follows the grace period.
#[test]
fn loom_mr_killed_by_another() {
    model(|| {
        drop(pin());
        let object = Object::dead();
        let killer = thread::spawn({
            let object = Arc::clone(&object);
            move || {
                if let Some(touched) = object.word.kill() {
                    let reused = Arc::clone(&object);
                    grace::after(touched, move || reused.reuse());
                }
            }
        });
        object.publish(false);
        killer.join().unwrap();
        grace::help();
    });
}

#[test]
fn loom_mr_published() {
    mr_published(false, TouchWord::TAG);
}

#[test]
fn loom_mr_published_by_its_flags() {
    mr_published(false, 1);
}

#[test]
fn loom_mr_published_fenced() {
    mr_published(true, TouchWord::TAG);
}

/// A key is issued, checked, withdrawn and issued to another region, whose key was guessed: an admitted thread
/// finds consistent values (loom tracks them), and no region is released while a thread is inside.
#[test]
fn loom_mr_registered_again() {
    bounded(2, || {
        drop(pin());
        let memory = Arc::new(Memory::alloc(8).expect("a model has memory"));
        let region = || Region::new(Arc::clone(&memory), Access::LOCAL_WRITE, 1);
        let keys = {
            let twin = Arc::new(MrTable::new(1, 0));
            let first = twin.register(region()).expect("there is room").0;
            twin.deregister(first, || ()).expect("it is there");
            [first, twin.register(region()).expect("there is room").0]
        };
        let table = Arc::new(MrTable::new(1, 0));
        let addr = memory.addr();
        let users: Vec<_> = (0..1)
            .map(|n| {
                let table = Arc::clone(&table);
                thread::spawn(move || {
                    for key in keys.into_iter().skip(n) {
                        let pin = pin();
                        let found = table.check(&pin, key.value(), addr, 8, 1, Access::empty());
                        drop(found);
                    }
                })
            })
            .collect();
        let first = table.register(region()).expect("there is room").0;
        assert_eq!(first, keys[0]);
        table.deregister(first, || ()).expect("it is there");
        let again = table.register(region()).map(|keys| keys.0);
        for user in users {
            user.join().unwrap();
        }
        grace::help();
        if again.is_err() {
            let again = table.register(region()).map(|keys| keys.0);
            assert_eq!(again, Ok(keys[1]), "the slot is free when nobody is inside");
        }
    });
}

/// Two threads share the last bit, each with a record of its own: the job waits for both, whatever the order in
/// which they enter the list.
#[test]
fn loom_pin_shared_records() {
    model(|| {
        drop(pin());
        let object = Object::new(false);
        let users: Vec<_> = (0..2)
            .map(|_| {
                let object = Arc::clone(&object);
                thread::spawn(move || object.use_once())
            })
            .collect();
        object.take_away();
        for user in users {
            user.join().unwrap();
        }
        assert_eq!(object.reused.load(Relaxed), 1, "the job ran once");
    });
}
