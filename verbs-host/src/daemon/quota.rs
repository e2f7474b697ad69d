//! What a client takes counts for it, and for its user: what one user's programs may have leaves something to others.

use std::collections::BTreeSet;

use verbs_core::host::quota::{Holder, Quota, QuotaError};

use super::Daemon;
use crate::client::{Client, ClientId, User, members};

impl Daemon {
    /// Whether one more process, or one more port of a process, may become a client.
    pub(super) fn may_enter(&self, user: User) -> Result<(), QuotaError> {
        let count = |counts: &dyn Fn(&Client) -> bool| {
            members(&self.clients)
                .filter(|(_, client)| counts(client))
                .count()
        };
        // A process of another namespace has no number here, and only its user is known.
        let is_same_process = |client: &Client| user.pid != 0 && client.user == user;
        for (holder, count) in [
            (Holder::Process, count(&is_same_process)),
            (Holder::User, count(&|client| client.user.uid == user.uid)),
            (Holder::Host, count(&|_| true)),
        ] {
            if count >= Quota::Clients.max_of(holder) as usize {
                return Err(Quota::Clients.exceeded_by(holder));
            }
        }
        Ok(())
    }

    /// A client takes one of something.
    ///
    /// # Errors
    /// It, or its user, has as many as it may; nothing is changed.
    pub(super) fn take_one(&mut self, client: ClientId, quota: Quota) -> Result<(), QuotaError> {
        let Some(user) = self.clients.get(&client).map(|known| known.user) else {
            return Ok(());
        };
        // Channels are the user's; how far they are made is a matter of each client, which may be stopped.
        let is_users = quota != Quota::NewChannels;
        if is_users && self.used_by(user.uid, quota) >= quota.max_of(Holder::User) {
            return Err(quota.exceeded_by(Holder::User));
        }
        let known = self.clients.get_mut(&client);
        known.map_or(Ok(()), |known| known.usage.take(quota))
    }

    /// How much a user's clients have. Groups are the host's, however many clients are in one.
    fn used_by(&self, uid: u32, quota: Quota) -> u32 {
        let theirs = self
            .clients
            .values()
            .filter(|client| client.user.uid == uid);
        match quota {
            Quota::Groups => {
                let groups: BTreeSet<_> = theirs.flat_map(|client| client.groups.keys()).collect();
                groups.len() as u32
            }
            _ => theirs.map(|client| client.usage.of(quota)).sum(),
        }
    }
}
