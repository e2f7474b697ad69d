//! The local state of a port that another process hosts, and the messages about it.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use verbs_core::Qpn;
use verbs_core::mad::sm::{BadKey, LinkState};
use verbs_core::mad::{MadArrival, MadBytes, MadVerdict};
use verbs_core::sync::Arc;
use verbs_core::sync::plain::Mutex;

use crate::ipc::message::Message;
use crate::ipc::socket::send;
use verbs_link::{Change, Managed, PortTables};

/// Messages that wait for room in the socket; beyond that, reports of keys are dropped.
const WAITING_MAX: usize = 256;
/// Changes that have not been reported to the HCA yet; beyond that, the oldest are dropped.
const CHANGES_MAX: usize = 64;

pub(super) struct Manager {
    socket: Arc<OwnedFd>,
    /// Never held while waiting.
    state: Mutex<State>,
}

struct State {
    tables: PortTables,
    changes: VecDeque<Change>,
    waiting: VecDeque<Vec<u8>>,
}

impl Manager {
    pub(super) fn new(socket: Arc<OwnedFd>, tables: PortTables) -> Self {
        let state = State {
            tables,
            changes: VecDeque::new(),
            waiting: VecDeque::new(),
        };
        Self {
            socket,
            state: Mutex::new(state),
        }
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends a message to the host, now or when there is room.
    pub(super) fn say(&self, message: &Message) {
        let mut state = self.state.lock();
        if state.waiting.len() < WAITING_MAX {
            state.waiting.push_back(message.encode());
        }
        self.flush_waiting(&mut state);
    }

    /// Sends the messages that had no room.
    pub(super) fn flush(&self) {
        // Usually no message waits, and no other thread is here.
        if let Some(mut state) = self.state.try_lock() {
            self.flush_waiting(&mut state);
        }
    }

    fn flush_waiting(&self, state: &mut State) {
        while let Some(bytes) = state.waiting.front() {
            if let Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) =
                send(self.socket.as_fd(), bytes, false)
            {
                return;
            }
            state.waiting.pop_front();
        }
    }

    /// Handles a message of the host, other than packets. Returns whether it was valid.
    pub(super) fn take(&self, bytes: &[u8]) -> bool {
        let Ok(Message::Changed { change, tables }) = Message::decode(bytes) else {
            return false;
        };
        let mut state = self.state.lock();
        state.tables = tables;
        state.note(change);
        true
    }

    /// The host has ended, and with it the subnet.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.tables.info.state = LinkState::DOWN;
        state.waiting.clear();
        state.note(Change::Down);
    }

    pub(super) fn change(&self) -> Option<Change> {
        self.state.lock().changes.pop_front()
    }
}

impl State {
    fn note(&mut self, change: Change) {
        if self.changes.len() >= CHANGES_MAX {
            self.changes.pop_front();
        }
        self.changes.push_back(change);
    }
}

impl Managed for Manager {
    fn tables(&self) -> PortTables {
        self.state.lock().tables.clone()
    }

    /// The host answers for the port, before any datagram arrives here.
    fn process(&self, _incoming: &MadArrival<'_>, _reply: &mut MadBytes) -> MadVerdict {
        MadVerdict::NotMine
    }

    fn attend(&self, _qpn: Qpn, _attends: bool) {}

    fn offer(&self, set: u32, clear: u32) {
        self.say(&Message::Offer { set, clear });
    }

    fn report(&self, packet: &BadKey) {
        self.say(&Message::Report(*packet));
    }

    fn plug(&self, is_in: bool) {
        self.say(&Message::PlugOwn { is_in });
    }
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Manager")
            .field("lid", &state.tables.info.lid)
            .field("state", &state.tables.info.state)
            .finish_non_exhaustive()
    }
}
