//! Where routines run is the client's choice: a queue that the client drains.
//!
//! [`Request::issue`] runs the routine where the request completes. [`Request::issue_on`] puts it
//! into a [`ClientQueue`] instead, and it runs where and when the client says:
//!
//! ```
//! # use std::sync::Arc;
//! # use verbs_core::{ClientQueue, Device, testing::Null};
//! let device = Device::open(Arc::new(Null::default())).wait()?;
//! let queue = ClientQueue::new(16);
//! let _ = device.query_port(1).issue_on(&queue, |port| println!("{port:?}"));
//! assert_eq!(queue.len(), 1); // Completed, not run.
//! assert_eq!(queue.run(), 1);
//! # Ok::<(), verbs_core::Error>(())
//! ```

mod line;

use std::fmt;
use std::future::poll_fn;
use std::task::{Context, Poll};

use crate::client_queue::line::{Line, Place, Pushed};
use crate::panics::FirstPanic;
use crate::request::{Issued, Request};
use crate::routine;
use crate::sync::Arc;
use crate::verb::Verb;

/// Completed requests whose routines wait for the client to run them, oldest completion first.
///
/// Any thread may drain it. What a completion needs is reserved when its request is issued (K7): a
/// place here and the memory of its result; completing takes no lock and allocates nothing.
///
/// Dropping the queue runs what waits in it, and what completes later runs inline: every routine
/// runs once, whatever becomes of the queue (K1).
pub struct ClientQueue {
    line: Arc<Line<Completed>>,
    capacity: u32,
}

/// A routine with its result.
type Completed = Box<dyn Job>;

trait Job: Send {
    fn run(self: Box<Self>);
}

struct Delivery<V: Verb, F> {
    routine: F,
    result: Option<Result<V::Output, V::Error>>,
}

impl<V, F> Job for Delivery<V, F>
where
    V: Verb,
    F: FnOnce(Result<V::Output, V::Error>) + Send + 'static,
{
    fn run(self: Box<Self>) {
        let Self { routine, result } = *self;
        if let Some(result) = result {
            routine(result);
        }
    }
}

/// A place that is reserved for one completion.
struct Reserved {
    line: Arc<Line<Completed>>,
    place: Option<Place>,
}

impl Reserved {
    fn deliver(mut self, completed: Completed) {
        let Some(place) = self.place.take() else {
            return;
        };
        let Pushed { waker, closed } = self.line.push(place, completed);
        if let Some(waker) = waker {
            routine::wake(waker);
        }
        if closed {
            run(&self.line);
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            self.line.give_back(place);
        }
    }
}

/// The queue had no room for another request. Nothing was issued; both come back.
pub struct NoRoom<R, F> {
    /// The request.
    pub request: R,
    /// Its routine.
    pub routine: F,
    /// Requests that the queue has room for.
    pub capacity: u32,
}

impl<R, F> fmt::Display for NoRoom<R, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.capacity;
        write!(
            f,
            "the client queue has room for {n} requests, and all of it is taken; drain it"
        )
    }
}

impl<R, F> fmt::Debug for NoRoom<R, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NoRoom")
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

impl<R, F> std::error::Error for NoRoom<R, F> {}

impl<V: Verb> Request<'_, V> {
    /// Issues; `routine` runs exactly once, when the client drains `queue` (K1).
    ///
    /// # Completion
    /// As with [`Request::issue`], except that a completion only enters the queue.
    /// [`Issued::Completed`] says that the routine can be run.
    ///
    /// # Errors
    /// [`NoRoom`] when as many requests as the queue has room for are issued on it or wait in it.
    ///
    /// # Context
    /// Never blocks; legal everywhere. Allocates room for routine and result, once per request.
    #[track_caller]
    pub fn issue_on<F>(self, queue: &ClientQueue, routine: F) -> Result<Issued, NoRoom<Self, F>>
    where
        F: FnOnce(Result<V::Output, V::Error>) + Send + 'static,
    {
        let Some(place) = queue.line.take_place() else {
            return Err(NoRoom {
                request: self,
                routine,
                capacity: queue.capacity,
            });
        };
        let reserved = Reserved {
            line: Arc::clone(&queue.line),
            place: Some(place),
        };
        let mut delivery = Box::new(Delivery::<V, F> {
            routine,
            result: None,
        });
        Ok(self.issue(move |result| {
            delivery.result = Some(result);
            reserved.deliver(delivery);
        }))
    }
}

impl ClientQueue {
    /// A queue with room for `capacity` requests: those issued on it that have not completed, and
    /// those whose routines have not begun.
    pub fn new(capacity: u32) -> Self {
        Self {
            line: Arc::new(Line::new(capacity)),
            capacity,
        }
    }

    /// Runs the oldest completed request's routine; `false` if there is none.
    ///
    /// # Context
    /// The routine runs under NoBlock, like every routine (K3), and with no lock held (K4). Its
    /// place is free before it begins, so it may issue on the same queue. Called under NoBlock, this
    /// returns first, and the routine runs when the present one is done (K1).
    pub fn run_one(&self) -> bool {
        run_one(&self.line)
    }

    /// Runs the routines of all that have completed and of all that complete in the meantime, oldest
    /// first. Says how many.
    ///
    /// # Panics
    /// As the first routine that does, when all have run.
    ///
    /// # Context
    /// As [`ClientQueue::run_one`].
    pub fn run(&self) -> usize {
        run(&self.line)
    }

    /// Waits until there is a routine to run. For one task at a time: a second one takes the first
    /// one's place.
    ///
    /// # Cancel safety
    /// Takes nothing from the queue; dropping the future loses nothing.
    ///
    /// # Context
    /// Needs no executor of a particular kind. The waker is called where requests complete.
    pub async fn ready(&self) {
        poll_fn(|cx| self.poll_ready(cx)).await;
    }

    /// The polling form of [`ClientQueue::ready`].
    pub fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.line.poll_ready(cx)
    }

    /// Requests that have completed and whose routines have not begun. By the time one looks at it,
    /// it may be another number.
    pub fn len(&self) -> usize {
        self.line.len() as usize
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for ClientQueue {
    fn drop(&mut self) {
        self.line.close();
        run(&self.line);
    }
}

impl fmt::Debug for ClientQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientQueue")
            .field("capacity", &self.capacity)
            .field("completed", &self.len())
            .finish()
    }
}

fn run_one(line: &Line<Completed>) -> bool {
    let Some(completed) = line.pop() else {
        return false;
    };
    routine::defer(move || completed.run());
    true
}

fn run(line: &Line<Completed>) -> usize {
    let (mut panics, mut ran) = (FirstPanic::default(), 0);
    while panics.catch(|| run_one(line)).unwrap_or(true) {
        ran += 1;
    }
    panics.resume();
    ran
}
