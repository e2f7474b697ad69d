//! Planted defects between a completion queue and those who poll it.

use std::future::pending;

use verbs_core::{Cq, Qpn, Wc, WcStatus};

use crate::sim::plant::Plant;
use crate::sim::{Draw, Ppm};

/// How often a defect shows, of the completions that it can concern.
const OFTEN: Ppm = Ppm::percent(5);

/// Hands completions out, changed if a defect is planted.
pub(crate) struct Spoiled {
    plant: Option<Plant>,
    draw: Draw,
    /// An event is lost only once, so that the run goes on to where it is missed.
    lost: bool,
}

impl Spoiled {
    pub(crate) fn new(plant: Option<Plant>, draw: Draw) -> Self {
        Self {
            plant,
            draw,
            lost: false,
        }
    }

    /// What is handed out instead of these completions.
    pub(crate) fn pass(&mut self, polled: &[Wc]) -> Vec<Wc> {
        let mut out = polled.to_vec();
        let Some(plant) = self.plant else { return out };
        let mut at = 0;
        while let Some(wc) = out.get_mut(at) {
            let next = at + 1;
            if !self.draw.chance(OFTEN) {
                at = next;
                continue;
            }
            let receives = wc.opcode as u8 >= 128 && wc.is_ok();
            match plant {
                Plant::FalseSuccess => wc.status = WcStatus::Success,
                Plant::FalseError if wc.is_ok() => wc.status = WcStatus::LocProtErr,
                Plant::WrongLength if receives => wc.byte_len += 1,
                Plant::WrongKey if wc.invalidated().is_some() => wc.imm ^= 0x100,
                Plant::WrongQpn => wc.qpn = Qpn::new(wc.qpn.value() ^ 1),
                Plant::DuplicateCqe => {
                    let twice = *wc;
                    out.insert(next, twice);
                    at += 1;
                }
                Plant::LostCqe => {
                    out.remove(at);
                    continue;
                }
                Plant::SwappedCqes
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

    /// Waits until there is something to poll, or the device is gone, which whoever took it away knows.
    pub(crate) async fn ready(&mut self, cq: &mut Cq) {
        if self.plant == Some(Plant::LostWake) && !self.lost && self.draw.chance(OFTEN) {
            self.lost = true;
            pending::<()>().await;
        }
        let _ = cq.ready().await;
    }
}
