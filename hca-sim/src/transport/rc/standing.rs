//! How a responder stands between two requests, and one that goes on where another one stood.

use super::Rc;
use super::responder::{ACK, Doing, INVALID, Responder};
use crate::transport::{Ends, Events, Path};
use crate::wire::target::{Again, Recall, Standing};

/// What becomes of a target because of a request that is for a queue elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Elsewhere {
    /// The target goes there, as soon as what is due was answered.
    Goes,
    /// It stays: the request is not the next one, or another request is under way.
    Stays,
}

impl Rc {
    /// A request is for a queue elsewhere.
    pub(crate) fn asked_elsewhere(
        &mut self,
        ends: &Ends<'_>,
        recall: Recall,
        events: &mut Events,
    ) -> Elsewhere {
        let asked = asked_elsewhere(&mut self.responder, ends, recall, events);
        self.stopped |= events.fail;
        asked
    }

    /// Whether the responder is between two requests: none is under way, and no READ, atomic or refusal is to be answered.
    pub(crate) fn stands_still(&mut self, path: &Path) -> bool {
        !self.stopped && stands_still(&mut self.responder, path)
    }

    /// How the responder stands, if it [stands still](Self::stands_still).
    pub(crate) fn standing(&mut self, path: &Path) -> Option<Standing> {
        let stands = self.stands_still(path);
        stands.then(|| standing(&mut self.responder, path))
    }

    /// Whether it stands as it did when that was said.
    pub(crate) fn stands_at(&self, standing: &Standing) -> bool {
        self.responder.expected() == standing.expected
    }

    /// Goes on where another responder stood.
    pub(crate) fn go_on_from(&mut self, standing: &Standing) {
        go_on_from(&mut self.responder, standing);
        self.contacted = true;
    }
}

fn asked_elsewhere(
    responder: &mut Responder,
    ends: &Ends<'_>,
    Recall { psn, again }: Recall,
    events: &mut Events,
) -> Elsewhere {
    responder.begin(ends.path);
    match psn.since(responder.expected()) {
        0 if matches!(responder.doing, Doing::Nothing) => Elsewhere::Goes,
        0 => {
            // All packets of a message are for one queue.
            responder.conclude(ends, psn, Err(INVALID), events);
            Elsewhere::Stays
        }
        1.. => {
            responder.missed(ends);
            Elsewhere::Stays
        }
        _ if again == Again::Read => Elsewhere::Goes,
        _ => {
            responder.executed_before(ends, psn, again);
            Elsewhere::Stays
        }
    }
}

fn stands_still(responder: &mut Responder, path: &Path) -> bool {
    responder.begin(path);
    let is_idle = matches!(responder.doing, Doing::Nothing);
    // A refusal is sent first; an acknowledgement need not be.
    let refuses = !matches!(responder.answer, None | Some((_, ACK)));
    is_idle && !refuses && responder.resources.first_due().is_none()
}

fn standing(responder: &mut Responder, path: &Path) -> Standing {
    Standing {
        expected: responder.expected(),
        msn: responder.msn,
        newest_read: responder.newest_read,
        kept: responder.resources.kept(path.max_dest_rd_atomic),
    }
}

fn go_on_from(responder: &mut Responder, standing: &Standing) {
    // What was executed here is acknowledged from here.
    let answer = responder.answer.filter(|&(_, syndrome)| syndrome == ACK);
    responder.reset();
    responder.begin_at(standing.expected);
    responder.msn = standing.msn;
    responder.newest_read = standing.newest_read;
    responder.answer = answer;
    responder.resources.keep(&standing.kept);
}
