//! What sessions of the unreliable services have in common.

use std::rc::Rc;
use std::time::Duration;

use verbs_core::{QpAttr, QpState, Wc};

use crate::sim::check::{Rule, Tag};
use crate::sim::run::service::{self, PROBE_MAX, PROBE_PAUSE};
use crate::sim::run::stand::Stand;
use crate::sim::run::world::{LIVE_MAX, World};

/// Bytes that every receive has room for.
pub(super) const SMALL: usize = 64;

/// A session on queue pairs of which each is a stand's own. See the module's documentation.
pub(super) trait Unreliable<'w> {
    fn world(&self) -> &'w Rc<World>;

    fn stands(&mut self) -> &mut [Stand];

    /// Takes a queue pair from RESET to RTS.
    async fn ready(&mut self, at: usize) -> Option<()>;

    /// Posts a message that every receive has room for; `None` if none can be sent now.
    fn send_small(&mut self, from: usize, to: usize) -> Option<Tag>;

    /// Posts a receive that has room for it, and no more.
    fn post_small(&mut self, at: usize);

    fn was_told(&self, tag: Tag) -> bool;

    /// Judges the completion of a work request.
    fn sent(&mut self, at: usize, wc: &Wc);

    /// Judges the completion of a receive.
    fn received(&mut self, at: usize, wc: &Wc);

    /// Tells the table of messages that have met all they will meet, or of all of them.
    fn land(&mut self, all: bool);

    fn is_orphaned(&mut self) -> bool {
        service::is_orphaned(self.stands())
    }

    /// Polls everything, and judges what came.
    fn reap(&mut self) {
        let world = self.world();
        let mut any = false;
        for at in 0..self.stands().len() {
            let polled = self.stands()[at].poll(world);
            any |= !polled.is_empty();
            for wc in polled {
                let stand = &self.stands()[at];
                if !stand.is_mine(world, &wc, stand.qpn) {
                    continue;
                }
                if wc.wr_id & 1 == 1 {
                    self.received(at, &wc);
                } else {
                    self.sent(at, &wc);
                }
            }
        }
        if any {
            let stands = self.stands().iter_mut();
            stands.for_each(|stand| stand.look(world));
        }
        self.land(false);
    }

    /// Takes a queue pair through RESET; the others go on.
    async fn reset(&mut self, at: usize) -> Option<()> {
        let world = self.world();
        self.reap();
        let to = QpAttr::to(QpState::Reset);
        self.stands()[at].modify(world, &[to]).await?;
        self.reap();
        self.stands()[at].forget();
        self.ready(at).await
    }

    /// Takes a queue pair to ERR, where everything is flushed, and back.
    async fn fail(&mut self, at: usize) -> Option<()> {
        let world = self.world();
        self.reap();
        self.stands()[at].broken = true;
        let to = QpAttr::to(QpState::Err);
        self.stands()[at].modify(world, &[to]).await?;
        world.sim.sleep(Duration::from_nanos(1)).await;
        self.reap();
        self.stands()[at].account(world);
        self.reset(at).await
    }

    /// Sends small messages until one gets through. `false`: none did, or something is in the way.
    async fn gets_through(&mut self, from: usize, to: usize) -> bool {
        let world = self.world();
        let begun = world.sim.now();
        let mut sent = Vec::new();
        loop {
            let mut stands = self.stands().iter();
            let unfit = stands.any(|stand| stand.broken || stand.qp.is_none());
            if unfit || self.is_orphaned() || world.is_spent() {
                return false;
            }
            self.post_small(to);
            sent.extend(self.send_small(from, to));
            world.sim.sleep(PROBE_PAUSE).await;
            self.reap();
            if self.stands()[from].mend(world).await.is_none() {
                return false;
            }
            if sent.iter().any(|&tag| self.was_told(tag)) {
                return true;
            }
            if world.sim.now() - begun > PROBE_MAX {
                let what = format!("none of {} messages in a row arrives", sent.len());
                world.accuse(Rule::Liveness, what);
                return false;
            }
        }
    }

    /// Waits until everything that is signaled has left.
    async fn leave(&mut self) {
        let world = self.world();
        let begun = world.sim.now();
        let waits =
            |stand: &Stand| stand.is_healthy() && stand.sends.iter().any(|sent| sent.signaled);
        while self.stands().iter().any(waits) && !self.is_orphaned() {
            world.sim.sleep(Duration::from_micros(50)).await;
            self.reap();
            if world.sim.now() - begun > LIVE_MAX {
                let what = "messages that nobody answers do not leave";
                return world.accuse(Rule::Liveness, what);
            }
        }
    }
}
