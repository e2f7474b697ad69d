//! Groups: joining them, sending to them, and packets that wait for a join.

use verbs_core::Gid;
use verbs_core::time::Instant;

use super::State;
use super::action::{Action, Verdict};
use crate::config::{GROUPS_MAX, REFUSAL_PAUSE};
use crate::link::buffers::Packet;
use crate::link::entry::group::{Group, Joined, Phase};
use crate::wire::HEADER_LEN;

impl State {
    /// Sends a packet to a group, or queues it until the group is joined.
    pub(in crate::link) fn send_to_group(
        &mut self,
        mgid: Gid,
        packet: Packet,
        now: Instant,
    ) -> Verdict {
        let mtu = self.datagram_mtu();
        if packet.len as usize > mtu + HEADER_LEN {
            return Verdict::TooBig(mtu);
        }
        if !self.groups.contains_key(&mgid) {
            if self.groups.len() >= GROUPS_MAX {
                self.counters.unreachable += 1;
                self.give_back(packet.slot);
                return Verdict::Taken;
            }
            self.groups.insert(mgid, Group::new(Phase::Refused(now), 0));
        }
        let Some(group) = self.groups.get_mut(&mgid) else {
            unreachable!("it was just put there");
        };
        group.used = now;
        match &group.phase {
            Phase::Joined(joined) => {
                let to = joined.to;
                return self.post(packet, &to);
            }
            Phase::Refused(until) if *until > now => {
                self.counters.unreachable += 1;
                self.give_back(packet.slot);
                return Verdict::Taken;
            }
            Phase::Refused(_) => {
                group.phase = Phase::Joining;
                self.actions.push(Action::Join(mgid));
            }
            Phase::Joining => {}
        }
        let oldest = group.queue.is_full().then(|| group.queue.remove(0));
        group.queue.push(packet);
        self.counters.pushed_out += self.drop_all(oldest);
        Verdict::Taken
    }

    /// A subscriber wants packets to a group. Returns whether there is room for it.
    pub(in crate::link) fn subscribe(&mut self, mgid: Gid, now: Instant) -> bool {
        if let Some(group) = self.groups.get_mut(&mgid) {
            group.subscribers += 1;
            if group.subscribers > 1 {
                return true;
            }
            // It was only sent to: joined again as a full member, it receives as well.
            match std::mem::replace(&mut group.phase, Phase::Joining) {
                Phase::Joined(joined) => {
                    self.actions
                        .push(Action::Leave(Box::new(Group::parting(joined))));
                }
                // The answer to the earlier request finds that the purpose has changed.
                Phase::Joining | Phase::Refused(_) => {}
            }
            self.actions.push(Action::Join(mgid));
            return true;
        }
        let has_room = self.groups.len() < GROUPS_MAX;
        if has_room {
            // While the link is down, it is joined when the link comes up.
            let phase = match self.link {
                Some(_) => Phase::Joining,
                None => Phase::Refused(now),
            };
            if self.link.is_some() {
                self.actions.push(Action::Join(mgid));
            }
            self.groups.insert(mgid, Group::new(phase, 1));
        }
        has_room
    }

    /// The last subscriber no longer wants packets to a group.
    pub(in crate::link) fn unsubscribe(&mut self, mgid: Gid) {
        let Some(group) = self.groups.get_mut(&mgid) else {
            return;
        };
        group.subscribers = group.subscribers.saturating_sub(1);
        if group.subscribers == 0
            && let Some(group) = self.groups.remove(&mgid)
        {
            self.let_go(group);
        }
    }

    /// The stack behind the face reports that it wants a group, or no longer wants it: one subscription, however
    /// often it is reported.
    pub(in crate::link) fn follow(&mut self, mgid: Gid, is_wanted: bool, now: Instant) {
        let is_known = |group: &mut Group| std::mem::replace(&mut group.is_reported, is_wanted);
        match (self.groups.get_mut(&mgid).is_some_and(is_known), is_wanted) {
            (false, true) => {
                if !self.subscribe(mgid, now) {
                    self.counters.groups_full += 1;
                }
                if let Some(group) = self.groups.get_mut(&mgid) {
                    group.is_reported = true;
                }
            }
            (true, false) => self.unsubscribe(mgid),
            (true, true) | (false, false) => {}
        }
    }

    /// A group was joined, or cannot be. Returns a group that is no longer wanted.
    pub(in crate::link) fn group_joined(
        &mut self,
        mgid: Gid,
        joined: Option<Joined>,
        now: Instant,
    ) -> Option<Joined> {
        let Some(group) = self.groups.get_mut(&mgid) else {
            return joined;
        };
        let Some(joined) = joined else {
            if matches!(group.phase, Phase::Joining) {
                group.phase = Phase::Refused(now + REFUSAL_PAUSE);
                let queue = std::mem::take(&mut group.queue);
                self.counters.unreachable += self.drop_all(queue);
            }
            return None;
        };
        let is_wanted = (group.subscribers > 0) == joined.attached.is_some();
        if !is_wanted {
            return Some(joined);
        }
        let to = joined.to;
        let old = std::mem::replace(&mut group.phase, Phase::Joined(joined));
        let queue = std::mem::take(&mut group.queue);
        for packet in queue {
            if self.post(packet, &to) == Verdict::Full {
                self.counters.pushed_out += 1;
                self.give_back(packet.slot);
            }
        }
        match old {
            Phase::Joined(old) => Some(old),
            Phase::Joining | Phase::Refused(_) => None,
        }
    }

    /// Leaves all groups, to be joined again later: the link is down. Subscriptions stay.
    pub(in crate::link) fn leave_groups(&mut self, now: Instant) -> Vec<Joined> {
        let mut left = Vec::new();
        let groups = std::mem::take(&mut self.groups);
        for (mgid, mut group) in groups {
            let queue = std::mem::take(&mut group.queue);
            self.counters.link_down += self.drop_all(queue);
            if let Phase::Joined(joined) = group.phase {
                left.push(joined);
            }
            if group.subscribers > 0 {
                let mut again = Group::new(Phase::Refused(now), group.subscribers);
                again.is_reported = group.is_reported;
                self.groups.insert(mgid, again);
            }
        }
        left
    }

    /// Requests subscribed groups that are not joined again; leaves groups joined only for sending after a time
    /// without a packet, as Linux leaves them with the neighbour entry that they belong to.
    pub(in crate::link) fn tick_groups(&mut self, now: Instant) {
        if self.link.is_none() {
            return;
        }
        self.leave_unused(now);
        for (&mgid, group) in &mut self.groups {
            if let Phase::Refused(until) = group.phase
                && group.subscribers > 0
                && until <= now
            {
                group.phase = Phase::Joining;
                self.actions.push(Action::Join(mgid));
            }
        }
    }

    fn leave_unused(&mut self, now: Instant) {
        let idle = self.config.idle;
        let is_unused = |group: &Group| match group.phase {
            _ if group.subscribers > 0 => false,
            Phase::Joined(_) => now.since(group.used) >= idle,
            Phase::Refused(until) => until <= now,
            Phase::Joining => false,
        };
        let unused = self.groups.iter().filter(|(_, group)| is_unused(group));
        let unused: Vec<Gid> = unused.map(|(&mgid, _)| mgid).collect();
        for mgid in unused {
            if let Some(group) = self.groups.remove(&mgid) {
                self.counters.groups_left += u64::from(matches!(group.phase, Phase::Joined(_)));
                self.let_go(group);
            }
        }
    }

    fn let_go(&mut self, mut group: Group) {
        let queue = std::mem::take(&mut group.queue);
        self.counters.unreachable += self.drop_all(queue);
        if let Phase::Joined(_) = group.phase {
            self.actions.push(Action::Leave(Box::new(group)));
        }
    }
}
