//! What sessions of the unreliable services have in common.

use std::rc::Rc;
use std::time::Duration;

use verbs_core::{QpAttr, QpState, Wc};

use crate::check::{Rule, Tag};
use crate::run::endpoint::Endpoint;
use crate::run::service::{self, PROBE_MAX, PROBE_PAUSE};
use crate::run::world::{LIVE_MAX, World};

/// Bytes that every receive has room for.
pub(crate) const SMALL: usize = 64;

/// A session in which each queue pair belongs to one endpoint. See the module's documentation.
pub(crate) trait Unreliable<'w> {
    fn world(&self) -> &'w Rc<World>;

    fn endpoints(&mut self) -> &mut [Endpoint];

    /// Takes a queue pair from RESET to RTS.
    async fn ready(&mut self, at: usize) -> Option<()>;

    /// Posts a message that every receive has room for; `None` if none can be sent now.
    fn send_small(&mut self, from: usize, to: usize) -> Option<Tag>;

    /// Posts a receive that has just enough room for it.
    fn post_small(&mut self, at: usize);

    fn was_told(&self, tag: Tag) -> bool;

    /// Judges the completion of a work request.
    fn sent(&mut self, at: usize, wc: &Wc);

    /// Judges the completion of a receive.
    fn received(&mut self, at: usize, wc: &Wc);

    /// Enters into the table the messages that can meet no further faults, or all of them.
    fn land(&mut self, all: bool);

    fn is_orphaned(&mut self) -> bool {
        service::is_orphaned(self.endpoints())
    }

    /// Polls everything, and judges the completions.
    fn reap(&mut self) {
        let world = self.world();
        let mut any = false;
        for at in 0..self.endpoints().len() {
            let polled = self.endpoints()[at].poll(world);
            any |= !polled.is_empty();
            for wc in polled {
                let endpoint = &self.endpoints()[at];
                if !endpoint.is_mine(world, &wc, endpoint.qpn) {
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
            let endpoints = self.endpoints().iter_mut();
            endpoints.for_each(|endpoint| endpoint.look(world));
        }
        self.land(false);
    }

    /// Takes a queue pair through RESET; the others continue.
    async fn reset(&mut self, at: usize) -> Option<()> {
        let world = self.world();
        self.reap();
        let to = QpAttr::to(QpState::Reset);
        self.endpoints()[at].modify(world, &[to]).await?;
        self.reap();
        self.endpoints()[at].forget();
        self.ready(at).await
    }

    /// Takes a queue pair to ERR, where everything is flushed, and back.
    async fn fail(&mut self, at: usize) -> Option<()> {
        let world = self.world();
        self.reap();
        self.endpoints()[at].broken = true;
        let to = QpAttr::to(QpState::Err);
        self.endpoints()[at].modify(world, &[to]).await?;
        world.sim.sleep(Duration::from_nanos(1)).await;
        self.reap();
        self.endpoints()[at].account(world);
        self.reset(at).await
    }

    /// Sends small messages until one gets through. `false`: none did, or a fault prevented it.
    async fn gets_through(&mut self, from: usize, to: usize) -> bool {
        let world = self.world();
        let begun = world.sim.now();
        let mut sent = Vec::new();
        loop {
            let mut endpoints = self.endpoints().iter();
            let unfit = endpoints.any(|endpoint| endpoint.broken || endpoint.qp.is_none());
            if unfit || self.is_orphaned() || world.is_spent() {
                return false;
            }
            self.post_small(to);
            sent.extend(self.send_small(from, to));
            world.sim.sleep(PROBE_PAUSE).await;
            self.reap();
            if self.endpoints()[from].mend(world).await.is_none() {
                return false;
            }
            if sent.iter().any(|&tag| self.was_told(tag)) {
                return true;
            }
            if world.sim.now() - begun > PROBE_MAX {
                let what = format!("none of {} messages in a row arrives", sent.len());
                world.violated(Rule::Liveness, what);
                return false;
            }
        }
    }

    /// Waits until everything that is signaled has been sent.
    async fn leave(&mut self) {
        let world = self.world();
        let begun = world.sim.now();
        let waits = |endpoint: &Endpoint| {
            endpoint.is_healthy() && endpoint.sends.iter().any(|sent| sent.signaled)
        };
        while self.endpoints().iter().any(waits) && !self.is_orphaned() {
            world.sim.sleep(Duration::from_micros(50)).await;
            self.reap();
            if world.sim.now() - begun > LIVE_MAX {
                let what = "messages that nobody answers do not leave";
                return world.violated(Rule::Liveness, what);
            }
        }
    }
}
