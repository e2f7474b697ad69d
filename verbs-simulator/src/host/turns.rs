//! Whose turn it is: the daemon's or a program's, as the seed decides.

use std::time::Duration;

use verbs_core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_link::time::{Due, Engine, Instant};

use super::node::Node;
use super::port::Process;
use crate::Draw;

/// From one turn to the next, at most, while programs work.
const BUSY: Duration = Duration::from_nanos(1500);
/// The same when nothing is to happen for long.
const IDLE: Duration = Duration::from_millis(5);

pub(super) struct Turns {
    engine: Engine,
    pub(super) node: Mutex<Node>,
    processes: Mutex<Vec<Arc<Process>>>,
    draw: Mutex<Draw>,
    is_idle: AtomicBool,
    itself: Weak<Self>,
}

impl Turns {
    pub(super) fn new(engine: Engine, node: Node, draw: Draw) -> Arc<Self> {
        Arc::new_cyclic(|itself| Self {
            engine,
            node: Mutex::new(node),
            processes: Mutex::default(),
            draw: Mutex::new(draw),
            is_idle: AtomicBool::new(false),
            itself: Weak::clone(itself),
        })
    }

    /// A program takes part.
    pub(super) fn add(&self, process: Arc<Process>) {
        self.node.lock().knows(&process);
        self.processes.lock().push(process);
    }

    /// One of the programs that are alive.
    pub(super) fn any(&self) -> Option<Arc<Process>> {
        let processes = self.processes.lock();
        let place = match processes.len() {
            0 => return None,
            count => self.draw.lock().below(count),
        };
        processes.get(place).cloned()
    }

    /// Nothing happens for long, and turns are rare.
    pub(super) fn idle(&self, is_idle: bool) {
        self.is_idle.store(is_idle, Relaxed);
    }

    /// Begins, or goes on.
    pub(super) fn next(&self, now: Instant) {
        let Some(itself) = self.itself.upgrade() else {
            return;
        };
        let most = if self.is_idle.load(Relaxed) {
            IDLE
        } else {
            BUSY
        };
        let wait = self.draw.lock().duration(Duration::from_nanos(1)..=most);
        let _ = self.engine.at(now + wait, itself, 0);
    }
}

impl Due for Turns {
    fn due(&self, now: Instant, _token: u64) {
        let process = {
            let mut processes = self.processes.lock();
            processes.retain(|process| !process.is_dead());
            // Every other turn is the daemon's.
            let place = self.draw.lock().below(2 * processes.len().max(1));
            processes.get(place).cloned()
        };
        match process {
            Some(process) => process.turn(now),
            None => self.node.lock().turn(now),
        }
        self.next(now);
    }
}
