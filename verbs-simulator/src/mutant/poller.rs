//! Injected defects between a completion queue and its pollers.

use std::future::pending;

use verbs_core::{Cq, Qpn, Wc, WcStatus};

use crate::mutant::Mutant;
use crate::{Draw, Ppm};

/// How often a defect shows, of the completions that it can concern.
const OFTEN: Ppm = Ppm::percent(5);

/// Hands completions out, changed if there is a mutant of this place.
pub(crate) struct FaultyPoller {
    mutant: Option<Mutant>,
    draw: Draw,
    /// An event is lost only once, so that the run continues to where it is missed.
    lost: bool,
}

impl FaultyPoller {
    pub(crate) fn new(mutant: Option<Mutant>, draw: Draw) -> Self {
        Self {
            mutant,
            draw,
            lost: false,
        }
    }

    /// Returns what to hand out instead of these completions.
    pub(crate) fn pass(&mut self, polled: &[Wc]) -> Vec<Wc> {
        let mut out = polled.to_vec();
        let Some(mutant) = self.mutant else {
            return out;
        };
        let mut at = 0;
        while let Some(wc) = out.get_mut(at) {
            let next = at + 1;
            if !self.draw.chance(OFTEN) {
                at = next;
                continue;
            }
            let receives = wc.opcode as u8 >= 128 && wc.is_ok();
            match mutant {
                Mutant::FalseSuccess => wc.status = WcStatus::Success,
                Mutant::FalseError if wc.is_ok() => wc.status = WcStatus::LocProtErr,
                Mutant::WrongLength if receives => wc.byte_len += 1,
                Mutant::WrongKey if wc.invalidated().is_some() => wc.imm ^= 0x100,
                Mutant::WrongQpn => wc.qpn = Qpn::new(wc.qpn.value() ^ 1),
                Mutant::DuplicateCqe => {
                    let twice = *wc;
                    out.insert(next, twice);
                    at += 1;
                }
                Mutant::LostCqe => {
                    out.remove(at);
                    continue;
                }
                Mutant::SwappedCqes
                    if out.get(next).is_some_and(|other| {
                        (other.qpn, other.opcode as u8 >= 128)
                            == (out[at].qpn, out[at].opcode as u8 >= 128)
                    }) =>
                {
                    out.swap(at, next);
                    at += 1;
                }
                _ => {}
            }
            at += 1;
        }
        out
    }

    /// Waits until there is something to poll, or the device is removed, of which the task that removed it knows.
    pub(crate) async fn ready(&mut self, cq: &mut Cq) {
        if self.mutant == Some(Mutant::LostWake) && !self.lost && self.draw.chance(OFTEN) {
            self.lost = true;
            pending::<()>().await;
        }
        let _ = cq.ready().await;
    }
}
