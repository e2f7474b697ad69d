//! What one client may have, and all clients of one user.

use std::fmt;

use crate::host::bytes::encode;

/// What a client has a bounded number of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Quota {
    /// Blocks of queue pair numbers: 1,024 numbers each.
    Blocks,
    /// Commands that have not been answered.
    Commands,
    /// Objects that it has made with commands.
    Objects,
    /// Port numbers that it listens at.
    Listeners,
    /// Connections of the connection manager, in any state.
    Connections,
    /// Multicast groups that it is a member of.
    Groups,
    /// Clients of one process: a port each.
    Clients,
    /// Memory that is allocated for it, in MiB.
    Memory,
    /// Channels: memory that is shared with another client.
    Channels,
    /// Channels that are being made, until the client has said that it has changed over.
    NewChannels,
}

encode! {
    enum Quota("quota") {
        Blocks = 1,
        Commands = 2,
        Objects = 3,
        Listeners = 4,
        Connections = 5,
        Groups = 6,
        Clients = 7,
        Memory = 8,
        Channels = 9,
        NewChannels = 10,
    }
}

/// Who has a bounded number of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Holder {
    /// A client; of [`Quota::Clients`], a process.
    Process,
    /// All processes of one user. What is left is for other users.
    User,
    /// All clients of the daemon.
    Host,
}

encode! {
    enum Holder("holder") { Process = 1, User = 2, Host = 3 }
}

impl Quota {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Blocks,
        Self::Commands,
        Self::Objects,
        Self::Listeners,
        Self::Connections,
        Self::Groups,
        Self::Clients,
        Self::Memory,
        Self::Channels,
        Self::NewChannels,
    ];

    /// How many one client may have; of [`Quota::Clients`], one process.
    pub const fn max(self) -> u32 {
        match self {
            Self::Commands | Self::Listeners | Self::Memory | Self::Channels => 256,
            Self::Objects => 16_384,
            Self::Connections => 4096,
            Self::Groups | Self::Clients => 64,
            Self::Blocks | Self::NewChannels => 16,
        }
    }

    /// How many that holder may have: of what the host has a bounded number of, a user leaves some to others; of the rest,
    /// it may have as many as four clients.
    pub const fn max_of(self, holder: Holder) -> u32 {
        match (holder, self) {
            (Holder::Process, _) => self.max(),
            (Holder::Host, Self::Clients) => 4096,
            (Holder::Host, Self::Blocks) => 16_382,
            (Holder::Host, Self::Groups) => 256,
            (Holder::Host, _) => u32::MAX,
            (Holder::User, Self::Clients | Self::Blocks | Self::Groups) => {
                self.max_of(Holder::Host) / 4 * 3
            }
            (Holder::User, _) => 4 * self.max(),
        }
    }

    const fn what(self) -> &'static str {
        match self {
            Self::Blocks => "blocks of queue pair numbers",
            Self::Commands => "commands without an answer",
            Self::Objects => "objects",
            Self::Listeners => "listeners",
            Self::Connections => "connections",
            Self::Groups => "multicast groups",
            Self::Clients => "ports of the host's daemon",
            Self::Memory => "MiB of registered memory",
            Self::Channels => "channels to other processes",
            Self::NewChannels => "channels that are being made",
        }
    }

    /// The error at the limit of one client.
    pub const fn exceeded(self) -> QuotaError {
        self.exceeded_by(Holder::Process)
    }

    /// The error at the limit of that holder.
    pub const fn exceeded_by(self, holder: Holder) -> QuotaError {
        QuotaError {
            quota: self,
            max: self.max_of(holder),
            holder,
        }
    }
}

/// More than somebody may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaError {
    /// Of what.
    pub quota: Quota,
    /// How many it may have.
    pub max: u32,
    /// Who has them.
    pub holder: Holder,
}

encode! { struct QuotaError { quota, max, holder } }

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = match self.holder {
            Holder::Process => "this process has",
            Holder::User => "the processes of this user have",
            Holder::Host => "the processes of this host have",
        };
        write!(
            f,
            "{whose} {} {} already, the maximum",
            self.max,
            self.quota.what()
        )
    }
}

impl std::error::Error for QuotaError {}

/// How much of its quotas a client has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage([u32; Quota::ALL.len()]);

impl Usage {
    /// One more.
    ///
    /// # Errors
    /// [`QuotaError`]; nothing is changed.
    pub const fn take(&mut self, quota: Quota) -> Result<(), QuotaError> {
        let count = &mut self.0[quota as usize];
        if *count >= quota.max() {
            return Err(quota.exceeded());
        }
        *count += 1;
        Ok(())
    }

    /// So many more, or none.
    ///
    /// # Errors
    /// [`QuotaError`]; nothing is changed.
    pub fn take_many(&mut self, quota: Quota, count: u64) -> Result<(), QuotaError> {
        let sum = u64::from(self.of(quota)).saturating_add(count);
        if sum > u64::from(quota.max()) {
            return Err(quota.exceeded());
        }
        self.put(quota, sum as u32);
        Ok(())
    }

    /// One less.
    pub const fn give_back(&mut self, quota: Quota) {
        let count = &mut self.0[quota as usize];
        debug_assert!(*count > 0, "only what was taken is given back");
        *count = count.saturating_sub(1);
    }

    /// So many, as counted elsewhere.
    pub const fn put(&mut self, quota: Quota, count: u32) {
        self.0[quota as usize] = count;
    }

    /// How many it has.
    pub const fn of(&self, quota: Quota) -> u32 {
        self.0[quota as usize]
    }

    /// Whether it has nothing.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&count| count == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each quota has an error of its own, and takes nothing from the others.
    #[test]
    fn quotas_hold_and_are_named() {
        let mut texts = std::collections::BTreeSet::new();
        for (place, quota) in Quota::ALL.into_iter().enumerate() {
            assert_eq!(quota as usize, place);
            let mut usage = Usage::default();
            for _ in 0..quota.max() {
                usage.take(quota).expect("there is room");
            }
            let refused = usage.take(quota).expect_err("there is no more");
            assert_eq!(refused, quota.exceeded());
            for holder in [Holder::Process, Holder::User, Holder::Host] {
                texts.insert(quota.exceeded_by(holder).to_string());
            }
            let [user, host] = [Holder::User, Holder::Host].map(|holder| quota.max_of(holder));
            assert!(quota.max() <= user && user < host, "{quota:?}");
            let others = Quota::ALL.into_iter().filter(|&other| other != quota);
            assert!(others.map(|other| usage.of(other)).all(|count| count == 0));
            usage.give_back(quota);
            usage.take(quota).expect("there is room again");
        }
        assert_eq!(texts.len(), 3 * Quota::ALL.len());
    }
}
