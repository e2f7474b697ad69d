//! The table of a channel's requests, against a target that loses, duplicates and delays answers.
//!
//! Goal: the request limit is never overdrawn and one credit stays for task management; every request ends
//! exactly once, by an answer or a claim; answers to ended requests are late and change nothing; all slots become
//! free again. Method: random steps over the table and a model of the wire.

use proptest::collection::vec;
use proptest::prelude::*;
use ulp_srp::initiator::table::{Answered, SlotId, State, Table};
use ulp_srp::iu::Tag;

const SLOTS: u16 = 6;

#[derive(Clone, Debug)]
enum Step {
    /// Takes a slot and makes it ready.
    Begin,
    /// Takes a slot that is not ready yet.
    Prepare,
    /// Makes the oldest of these ready.
    Ready,
    /// Sends what may be sent.
    Send,
    /// The target answers one of its requests, and its answer arrives that many times.
    Answer { which: usize, times: u8 },
    /// An earlier answer arrives again.
    Again(usize),
    /// Another event claims a request.
    Claim(usize),
    /// Task management is sent, and answered at once.
    Task,
    /// The target withdraws a credit, or grants one more.
    Grant(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Begin),
        1 => Just(Step::Prepare),
        1 => Just(Step::Ready),
        3 => Just(Step::Send),
        3 => (any::<usize>(), 0_u8..3).prop_map(|(which, times)| Step::Answer { which, times }),
        1 => any::<usize>().prop_map(Step::Again),
        1 => any::<usize>().prop_map(Step::Claim),
        1 => Just(Step::Task),
        1 => any::<bool>().prop_map(Step::Grant),
    ]
}

#[derive(Default)]
struct Model {
    /// Taken but not ended.
    open: Vec<SlotId>,
    preparing: Vec<SlotId>,
    /// The requests that the target has, and those it has answered.
    at_target: Vec<Tag>,
    answered: Vec<Tag>,
    credit: i32,
    begun: u64,
    ended: u64,
}

impl Model {
    fn end(&mut self, table: &mut Table, id: SlotId) {
        assert_eq!(table.state(id), State::Claimed);
        let before = self.open.len();
        self.open.retain(|open| *open != id);
        assert_eq!(self.open.len() + 1, before, "it ends once");
        self.preparing.retain(|preparing| *preparing != id);
        table.release(id);
        assert_eq!(table.claim(id), None, "its name is stale");
        self.ended += 1;
    }

    /// An answer arrives that many times; zero means that it is lost, with the connection.
    fn answer(&mut self, table: &mut Table, which: usize, times: u8) {
        if self.at_target.is_empty() {
            return;
        }
        // The credit arrives with the answer, and only with its first copy.
        let tag = self.at_target.remove(which % self.at_target.len());
        self.credit += 1;
        table.grant(1);
        if times == 0 {
            // The loss results in a claim.
            let id = table.slot_of(tag).expect("a tag of this channel");
            if table.claim(id).is_some() {
                self.end(table, id);
            }
            return;
        }
        self.answered.push(tag);
        for _ in 0..times {
            if let Answered::Claimed(id) = table.answered(tag) {
                self.end(table, id);
            }
        }
    }

    fn step(&mut self, table: &mut Table, step: Step) {
        match step {
            Step::Begin | Step::Prepare => {
                let Some(id) = table.take() else {
                    assert_eq!(self.open.len(), usize::from(SLOTS));
                    return;
                };
                self.begun += 1;
                self.open.push(id);
                match step {
                    Step::Begin => assert!(table.ready(id)),
                    _ => self.preparing.push(id),
                }
            }
            Step::Ready => {
                if !self.preparing.is_empty() {
                    assert!(table.ready(self.preparing.remove(0)));
                }
            }
            Step::Send => {
                while let Some(id) = table.next_to_send() {
                    assert!(self.credit > 1, "one is kept back");
                    self.credit -= 1;
                    assert!(self.open.contains(&id));
                    self.at_target.push(table.tag(id));
                }
            }
            Step::Answer { which, times } => self.answer(table, which, times),
            Step::Again(which) => {
                if let Some(&tag) = self.answered.get(which % self.answered.len().max(1)) {
                    assert_eq!(table.answered(tag), Answered::Late);
                }
            }
            Step::Claim(which) => {
                if self.open.is_empty() {
                    return;
                }
                let id = self.open[which % self.open.len()];
                if table.claim(id).is_some() {
                    self.end(table, id);
                }
            }
            Step::Task => match table.take_task() {
                Some(id) => {
                    assert!(self.credit > 0);
                    assert_eq!(table.take_task(), None, "one at a time");
                    table.grant(1);
                    assert_eq!(table.answered(table.tag(id)), Answered::Claimed(id));
                    table.release(id);
                }
                None => assert!(self.credit <= 0),
            },
            Step::Grant(more) => {
                let delta = if more { 1 } else { -1 };
                self.credit += delta;
                table.grant(delta);
            }
        }
        assert_eq!(table.limit(), self.credit);
    }
}

proptest! {
    #[test]
    fn every_request_ends_once(limit in 2_i32..10, steps in vec(step(), 0..200)) {
        let mut table = Table::new(3, SLOTS);
        table.open(limit);
        let mut model = Model { credit: limit, ..Model::default() };
        for step in steps {
            model.step(&mut table, step);
        }
        // The channel is lost: every request that has not ended ends now.
        for index in 0..SLOTS {
            if let Some(id) = table.used(index) {
                prop_assert!(table.claim(id).is_some());
                model.end(&mut table, id);
            }
        }
        prop_assert_eq!(model.begun, model.ended);
        prop_assert_eq!(table.available(), usize::from(SLOTS));
    }

    #[test]
    fn tags_of_others_are_unknown(tag: u64) {
        let mut table = Table::new(3, SLOTS);
        table.open(4);
        let sent = table.take().map(|id| (table.ready(id), table.next_to_send()));
        prop_assert!(sent.is_some());
        // Generation 1 is in use; no tag of a later one was ever issued.
        let known = tag >> 32 == 1 && tag as u32 == 3 << 16 || tag >> 32 == 0;
        if !known {
            prop_assert_eq!(table.answered(Tag(tag)), Answered::Unknown);
        }
    }
}

/// Goal: answers that arrive too late, or twice, are counted, and only those. Method: a request that was given
/// up, whose answer arrives before and after its slot is free again; one that is answered twice.
#[test]
fn late_answers_are_counted() {
    let mut table = Table::new(3, SLOTS);
    table.open(4);
    let begin = |table: &mut Table| {
        let id = table.take().expect("a free slot");
        assert!(table.ready(id));
        assert_eq!(table.next_to_send(), Some(id));
        id
    };
    let given_up = begin(&mut table);
    assert_eq!(table.claim(given_up), Some(State::Sent));
    let late = table.tag(given_up);
    assert_eq!(table.answered(late), Answered::Late);
    table.release(given_up);
    assert_eq!(table.answered(late), Answered::Late);
    let done = begin(&mut table);
    let tag = table.tag(done);
    assert_eq!(table.answered(tag), Answered::Claimed(done));
    assert_eq!(table.answered(tag), Answered::Late);
    let counters = table.counters();
    assert_eq!((counters.sent, counters.answered, counters.late), (2, 1, 3));
}
