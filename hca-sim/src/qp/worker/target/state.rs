//! The state of a target that several programs share: where it is, and what is to be sent about it.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use verbs_core::host::Block;
use verbs_core::{EventType, PKey, Psn, Qpn, Srqn};

use crate::clock::Instant;
use crate::link::Route;
use crate::transport::{Incoming, Outlet, TxContext};
use crate::wire::target::{About, Begin, Phase, Recall, Standing, TargetMessage};
use crate::wire::{Bth, BthFlags, Deth, Extended, Head, Opcode, Operation, Service, XrcEth};

/// A message is not repeated before this time.
const REPEAT: Duration = Duration::from_millis(1);

/// Requests that wait while the target is on its way; more are lost, and the initiator sends them again.
const HELD_MAX: usize = 256;

/// Packets that wait for room on the link; more are lost, and the initiator sends them again.
const OUT_MAX: usize = 1024;

/// The part of a target queue pair that deals with other programs.
pub(in crate::qp::worker) struct SharedTarget {
    pub(super) place: Place,
    /// What is to be sent to the other program.
    pub(super) out: VecDeque<Out>,
}

pub(super) enum Place {
    Home(Home),
    Guest(Guest),
    /// It is no target: it sends messages about targets that are not here.
    Messenger,
}

/// A packet to another program.
pub(super) enum Out {
    /// A request that was handed on.
    Request(Box<Kept>),
    /// A message, and where it comes from and goes to.
    Message(Ends, TargetMessage),
}

/// The doors of two programs ([`door_of`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) from: Qpn,
    pub(super) to: Qpn,
}

/// A request that was taken out of its packet.
pub(super) struct Kept {
    pub(super) head: Head,
    pub(super) payload: Vec<u8>,
    pub(super) tclass: u8,
}

impl SharedTarget {
    pub(super) fn new(place: Place) -> Self {
        Self {
            place,
            out: VecDeque::new(),
        }
    }

    /// The target is in RESET. Who has been visited is told so.
    pub(in crate::qp::worker) fn reset(&mut self) {
        if let Place::Home(home) = &mut self.place {
            home.stay = None;
            home.held.clear();
            home.refused = None;
        }
    }

    pub(super) fn home(&mut self) -> Option<&mut Home> {
        match &mut self.place {
            Place::Home(home) => Some(home),
            Place::Guest(_) | Place::Messenger => None,
        }
    }

    /// The target at its home, and what is to be sent.
    pub(super) fn at_home(&mut self) -> Option<(&mut Home, &mut VecDeque<Out>)> {
        match &mut self.place {
            Place::Home(home) => Some((home, &mut self.out)),
            Place::Guest(_) | Place::Messenger => None,
        }
    }

    pub(super) fn guest(&mut self) -> Option<&mut Guest> {
        match &mut self.place {
            Place::Guest(guest) => Some(guest),
            Place::Home(_) | Place::Messenger => None,
        }
    }

    /// Hands a request on.
    pub(super) fn hand_on(out: &mut VecDeque<Out>, packet: &Incoming<'_>) {
        if let Some(head) = exchanged(packet.head).filter(|_| out.len() < OUT_MAX) {
            let kept = Kept::of(packet);
            out.push_back(Out::Request(Box::new(Kept { head, ..kept })));
        }
    }

    /// Sends what waits. Returns whether there is more when the link has room.
    pub(super) fn send(&mut self, qpn: Qpn, here: IpAddr, mail: &mut TxContext<'_>) -> bool {
        let near = Route {
            src: here,
            dst: here,
            tclass: 0,
            hop_limit: 64,
            local: None,
        };
        let mut lane = mail.of(qpn, &near);
        while let Some(next) = self.out.front() {
            if !lane.is_ready() {
                return true;
            }
            match next {
                Out::Request(kept) => {
                    let fill: &mut dyn FnMut(&mut [u8]) -> _ = &mut |out| {
                        out.copy_from_slice(&kept.payload);
                        Ok(())
                    };
                    let _ = lane.put(&kept.head, kept.payload.len(), false, fill);
                }
                Out::Message(ends, message) => {
                    let bytes = message.emit();
                    let fill: &mut dyn FnMut(&mut [u8]) -> _ = &mut |out| {
                        out.copy_from_slice(&bytes);
                        Ok(())
                    };
                    if let Some(head) = head_of(*ends) {
                        let _ = lane.put(&head, bytes.len(), true, fill);
                    }
                }
            }
            self.out.pop_front();
        }
        false
    }
}

impl Kept {
    pub(super) fn of(packet: &Incoming<'_>) -> Self {
        Self {
            head: *packet.head,
            payload: packet.payload.to_vec(),
            tclass: packet.tclass,
        }
    }

    /// As a packet from that peer.
    pub(super) fn packet(&self, route: &Route) -> Incoming<'_> {
        Incoming {
            src: route.dst,
            dst: route.src,
            tclass: self.tclass,
            local: None,
            pkey_index: 0,
            head: &self.head,
            payload: &self.payload,
            long: None,
        }
    }
}

/// The headers of a message.
pub(super) fn head_of(Ends { from, to }: Ends) -> Option<Head> {
    let bth = Bth {
        opcode: Opcode::new(Service::Ud, Operation::SendOnly)?,
        flags: BthFlags::empty(),
        pkey: PKey::DEFAULT,
        dest_qpn: to,
        psn: Psn::new(0),
    };
    let deth = Some(Deth {
        qkey: TargetMessage::QKEY,
        src_qpn: from,
    });
    let ext = Extended {
        deth,
        ..Extended::default()
    };
    Head::new(bth, ext).ok()
}

/// The headers of a request with the numbers of target and shared receive queue exchanged: as it is handed on, and back.
pub(super) fn exchanged(head: &Head) -> Option<Head> {
    let (mut bth, mut ext) = (*head.bth(), *head.ext());
    let named = ext.xrceth?.srqn;
    ext.xrceth = Some(XrcEth {
        srqn: Srqn::new(bth.dest_qpn.value()),
    });
    bth.dest_qpn = Qpn::new(named.value());
    Head::new(bth, ext).ok()
}

/// The program that a number belongs to, by its block.
pub(super) fn program_of(number: u32) -> Option<Block> {
    Block::of(Qpn::new(number)).filter(|block| *block != Block::DAEMON)
}

/// A target at its home.
pub(super) struct Home {
    /// The number of the last visit.
    pub(super) visits: u32,
    pub(super) stay: Option<Stay>,
    /// The last visit of each program that has been visited.
    pub(super) been: BTreeMap<Block, (Ends, u32)>,
    pub(super) held: VecDeque<Kept>,
    /// The program that does not answer: requests for it are refused here.
    pub(super) refused: Option<Block>,
}

/// The target is elsewhere.
pub(super) struct Stay {
    pub(super) program: Block,
    /// Of the messages about it.
    pub(super) ends: Ends,
    pub(super) begin: Box<Begin>,
    /// How the connection stood when that was last known.
    pub(super) standing: Standing,
    /// The visited program has answered.
    pub(super) confirmed: bool,
    pub(super) recalled: Option<Recall>,
    pub(super) began: Instant,
    /// When the last message was sent.
    pub(super) said: Instant,
}

impl Home {
    /// Visits count from a number that programs elsewhere cannot guess.
    pub(super) fn new(visits: u32) -> Self {
        Self {
            visits,
            stay: None,
            been: BTreeMap::new(),
            held: VecDeque::new(),
            refused: None,
        }
    }

    pub(super) fn hold(&mut self, packet: &Incoming<'_>) {
        if self.held.len() < HELD_MAX {
            self.held.push_back(Kept::of(packet));
        }
    }
}

impl Stay {
    /// A request is for another program.
    pub(super) fn recall(
        &mut self,
        (target, visit): (Qpn, u32),
        recall: Recall,
        now: Instant,
        out: &mut VecDeque<Out>,
    ) {
        (self.recalled, self.said) = (Some(recall), now);
        let message = TargetMessage {
            target,
            visit,
            about: About::Recall(recall),
        };
        out.push_back(Out::Message(self.ends, message));
    }

    /// The announcement of the visit, and what else is to be repeated.
    pub(super) fn repeat(
        &mut self,
        (target, visit): (Qpn, u32),
        now: Instant,
        out: &mut VecDeque<Out>,
    ) {
        if now < self.said + REPEAT {
            return;
        }
        self.said = now;
        let say = |about| TargetMessage {
            target,
            visit,
            about,
        };
        if !self.confirmed {
            let begin = About::Begin(self.begin.clone());
            out.push_back(Out::Message(self.ends, say(begin)));
        }
        if let Some(recall) = self.recalled {
            out.push_back(Out::Message(self.ends, say(About::Recall(recall))));
        }
    }
}

/// A target of another program.
pub(super) struct Guest {
    pub(super) target: Qpn,
    /// Of the messages about it: to its home.
    pub(super) ends: Ends,
    pub(super) visit: u32,
    pub(super) is_here: bool,
    /// The request that another program is to execute.
    pub(super) recalled: Option<Recall>,
    /// What was last reported.
    pub(super) told: Standing,
    /// What no completion reports about its failure.
    pub(super) event: Option<EventType>,
}

impl Guest {
    /// Whether its home is such a program.
    pub(super) fn is_of(&self, program: impl FnOnce(Block) -> bool) -> bool {
        program_of(self.ends.to.value()).is_some_and(program)
    }

    pub(super) fn report(&self, phase: Phase) -> Out {
        let message = TargetMessage {
            target: self.target,
            visit: self.visit,
            about: About::Report(phase, Box::new(self.told.clone())),
        };
        Out::Message(self.ends, message)
    }
}

pub(super) fn report_now(shared: &mut SharedTarget, phase: Phase) {
    if let Some(guest) = shared.guest() {
        let report = guest.report(phase);
        shared.out.push_back(report);
    }
}
