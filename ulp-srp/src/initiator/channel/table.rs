//! The requests of one channel: slots, tags, and the request limit. Sans-IO.
//!
//! A slot is taken for a command, [made ready](Table::ready) when its unit is written, and sent when the target's
//! request limit allows, in order. Its answer, an abort or the loss of the channel *claims* it: exactly one of
//! them does; the others find another generation or state. A claimed slot is [released](Table::release) when
//! nothing of the command is left.
//!
//! | state | by | to |
//! |---|---|---|
//! | free | `take` | preparing |
//! | preparing | `ready` | ready |
//! | ready | `next_to_send` | sent |
//! | sent | `answered` | claimed |
//! | preparing, ready, sent | `claim` | claimed |
//! | claimed | `release` | free |

use std::collections::VecDeque;

use crate::iu::Tag;

/// Slots, tags and the request limit of one channel.
#[derive(Debug)]
pub struct Table {
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Ready to be sent, in order; slots that have been claimed since are skipped.
    ready: VecDeque<SlotId>,
    /// Requests that the target still takes.
    limit: i32,
    /// Of these, reserved for task management.
    reserve: i32,
    channel: u8,
    counters: Counters,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    generation: u32,
    state: State,
}

/// The state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not in use.
    Free,
    /// Taken; its unit is not written yet.
    Preparing,
    /// Waits for the request limit.
    Ready,
    /// The target has it.
    Sent,
    /// Its outcome is decided.
    Claimed,
}

/// A slot's name: stale once the slot is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotId {
    /// The index of the slot.
    pub index: u16,
    /// Which use of it.
    pub generation: u32,
}

/// What an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// This slot, which it has claimed.
    Claimed(SlotId),
    /// A request of this channel whose outcome was decided before: aborted, or answered twice.
    Late,
    /// No request that was ever sent, or one that was not sent yet: the target breaks the protocol.
    Unknown,
}

/// Counters of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// Requests that were sent.
    pub sent: u64,
    /// Answers that claimed a request.
    pub answered: u64,
    /// Answers that came too late, or twice.
    pub late: u64,
    /// Requests that had to wait for the request limit.
    pub waited: u64,
}

impl Table {
    /// A table with that many slots for commands, and one for task management.
    pub fn new(channel: u8, commands: u16) -> Self {
        let slot = Slot {
            generation: 1,
            state: State::Free,
        };
        Self {
            slots: vec![slot; usize::from(commands) + 1],
            free: (0..commands).rev().collect(),
            ready: VecDeque::with_capacity(usize::from(commands)),
            limit: 0,
            reserve: 0,
            channel,
            counters: Counters::default(),
        }
    }

    /// The channel is open: the target takes `limit` requests at first. One of them is reserved for task
    /// management, unless there is only one.
    pub fn open(&mut self, limit: i32) {
        self.limit = limit;
        self.reserve = i32::from(limit > 1);
    }

    /// A slot for a command; `None` when all are taken.
    pub fn take(&mut self) -> Option<SlotId> {
        let index = self.free.pop()?;
        let slot = &mut self.slots[usize::from(index)];
        slot.state = State::Preparing;
        let generation = slot.generation;
        Some(SlotId { index, generation })
    }

    /// The slot for task management, if the request limit allows sending now; it is sent.
    pub fn take_task(&mut self) -> Option<SlotId> {
        let index = self.task_index();
        let slot = &mut self.slots[usize::from(index)];
        if slot.state != State::Free || self.limit <= 0 {
            return None;
        }
        self.limit -= 1;
        self.counters.sent += 1;
        slot.state = State::Sent;
        let generation = slot.generation;
        Some(SlotId { index, generation })
    }

    /// The slot's unit is written. `false`: its outcome was already decided.
    pub fn ready(&mut self, id: SlotId) -> bool {
        if self.state(id) != State::Preparing {
            return false;
        }
        self.slots[usize::from(id.index)].state = State::Ready;
        self.counters.waited += u64::from(self.limit <= self.reserve);
        self.ready.push_back(id);
        true
    }

    /// The next slot that may be sent, if there is one; it counts as sent.
    pub fn next_to_send(&mut self) -> Option<SlotId> {
        while self.limit > self.reserve {
            let id = self.ready.pop_front()?;
            if self.state(id) == State::Ready {
                self.limit -= 1;
                self.counters.sent += 1;
                self.slots[usize::from(id.index)].state = State::Sent;
                return Some(id);
            }
        }
        None
    }

    /// The slot just taken for sending could not be sent, because a queue was full; it is the next one again.
    pub fn unsend(&mut self, id: SlotId) {
        if self.state(id) == State::Sent {
            self.limit += 1;
            self.counters.sent -= 1;
            self.slots[usize::from(id.index)].state = State::Ready;
            self.ready.push_front(id);
        }
    }

    /// The target changes the request limit.
    pub fn grant(&mut self, delta: i32) {
        self.limit = self.limit.saturating_add(delta);
    }

    /// The target has answered.
    pub fn answered(&mut self, tag: Tag) -> Answered {
        let Some(id) = self.slot_of(tag) else {
            return Answered::Unknown;
        };
        let now = self.slots[usize::from(id.index)].generation;
        match self.state(id) {
            State::Sent => {
                self.slots[usize::from(id.index)].state = State::Claimed;
                self.counters.answered += 1;
                Answered::Claimed(id)
            }
            State::Claimed => self.late(),
            // An earlier use of the slot. (When generations have wrapped, after 2^32 uses, a late answer may be
            // mistaken for an unknown one.)
            State::Free if id.generation < now => self.late(),
            _ => Answered::Unknown,
        }
    }

    fn late(&mut self) -> Answered {
        self.counters.late += 1;
        Answered::Late
    }

    /// Decides the outcome of a command that has none yet; returns the state that it was in.
    pub fn claim(&mut self, id: SlotId) -> Option<State> {
        let state = self.state(id);
        if matches!(state, State::Free | State::Claimed) {
            return None;
        }
        self.slots[usize::from(id.index)].state = State::Claimed;
        Some(state)
    }

    /// Nothing of the slot's request is left.
    pub fn release(&mut self, id: SlotId) {
        if self.state(id) != State::Claimed {
            return;
        }
        let task = self.task_index();
        let slot = &mut self.slots[usize::from(id.index)];
        slot.state = State::Free;
        slot.generation = slot.generation.wrapping_add(1);
        if id.index != task {
            self.free.push(id.index);
        }
    }

    /// The slot at that index, if it is in use.
    pub fn used(&self, index: u16) -> Option<SlotId> {
        let slot = self.slots.get(usize::from(index))?;
        let id = SlotId {
            index,
            generation: slot.generation,
        };
        (slot.state != State::Free).then_some(id)
    }

    /// The state of a slot; a slot that has been released since is free.
    pub fn state(&self, id: SlotId) -> State {
        match self.slots.get(usize::from(id.index)) {
            Some(slot) if slot.generation == id.generation => slot.state,
            _ => State::Free,
        }
    }

    /// The tag of a slot's request.
    pub fn tag(&self, id: SlotId) -> Tag {
        let low = u64::from(self.channel) << 16 | u64::from(id.index);
        Tag(u64::from(id.generation) << 32 | low)
    }

    /// The slot that a tag names, if it can be one of this channel.
    pub fn slot_of(&self, tag: Tag) -> Option<SlotId> {
        let [g0, g1, g2, g3, zero, channel, i0, i1] = tag.0.to_be_bytes();
        let index = u16::from_be_bytes([i0, i1]);
        let known = zero == 0 && channel == self.channel && usize::from(index) < self.slots.len();
        known.then_some(SlotId {
            index,
            generation: u32::from_be_bytes([g0, g1, g2, g3]),
        })
    }

    /// Free slots for commands.
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// Requests that the target still takes; negative when it has withdrawn more than there were.
    pub fn limit(&self) -> i32 {
        self.limit
    }

    /// The counters so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The number of slots; the last one is for task management.
    pub fn slots(&self) -> u16 {
        self.task_index() + 1
    }

    fn task_index(&self) -> u16 {
        u16::try_from(self.slots.len() - 1).unwrap_or(u16::MAX)
    }
}
