//! What is known here of a port that another process hosts, and what is said about it.

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
use verbs_link::{Change, Managed, PortSheet};

/// Messages that wait for room in the socket; of reports of keys, more are forgotten.
const WAITING_MAX: usize = 256;
/// Changes that the HCA is still to be told; of more, the oldest are forgotten.
const CHANGES_MAX: usize = 64;

pub(super) struct Manager {
    socket: Arc<OwnedFd>,
    /// Never held while anything is waited for.
    state: Mutex<State>,
}

struct State {
    sheet: PortSheet,
    changes: VecDeque<Change>,
    waiting: VecDeque<Vec<u8>>,
}

impl Manager {
    pub(super) fn new(socket: Arc<OwnedFd>, sheet: PortSheet) -> Self {
        let state = State {
            sheet,
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

    /// Says something to the host, now or when there is room.
    pub(super) fn say(&self, message: &Message) {
        let mut state = self.state.lock();
        if state.waiting.len() < WAITING_MAX {
            state.waiting.push_back(message.encode());
        }
        self.flush_waiting(&mut state);
    }

    /// Says what had no room.
    pub(super) fn flush(&self) {
        // Most often nothing waits, and nobody else is here.
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

    /// Takes what the host has said, other than packets. Whether it made sense.
    pub(super) fn take(&self, bytes: &[u8]) -> bool {
        let Ok(Message::Changed { change, sheet }) = Message::decode(bytes) else {
            return false;
        };
        let mut state = self.state.lock();
        state.sheet = sheet;
        state.note(change);
        true
    }

    /// The host has gone, and with it the subnet.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.sheet.info.state = LinkState::DOWN;
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
    fn sheet(&self) -> PortSheet {
        self.state.lock().sheet.clone()
    }

    /// The host answers for the port, before anything comes here.
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
            .field("lid", &state.sheet.info.lid)
            .field("state", &state.sheet.info.state)
            .finish_non_exhaustive()
    }
}
