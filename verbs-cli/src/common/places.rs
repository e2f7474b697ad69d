//! Which client is served, which waits, and which gives way: a client costs a thread, memory and a queue pair, and
//! strangers come too.
//!
//! A client has a place once it has said what it wants. Before that it waits, with others that say nothing: in
//! one room those whose connections are still being made, whose addresses may be forged, and in another
//! those that have connected. Rooms are never full: the one that waits longest gives way, first among those
//! of the same address. When all places are taken, one of a client that does nothing is given to the next.
//! A client that gives way has its connection closed, and its thread finds that out.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use verbs_core::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use verbs_core::sync::{Arc, Mutex, thread};

/// Clients in each of the two rooms at most. An honest one keeps its place there if fewer come in the time
/// of a round trip. Each has a thread, and little memory.
pub(crate) const WAITING_MAX: usize = 256;

/// Clients of one address in a room at most.
pub(crate) const WAITING_PER_ADDRESS_MAX: usize = 64;

/// How long a client that has a place may do nothing before its device has answered, when others want the
/// place. A round trip takes less.
const START_MAX: Duration = Duration::from_secs(1);

/// The same for a client whose device has answered. Writing to a slow disk takes less, mostly.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// How long a client that finds all places taken waits for one: longer than [`START_MAX`], so that clients
/// that take places and do nothing are no hindrance.
const PATIENCE: Duration = Duration::from_millis(1500);

/// How often it looks.
const LOOK: Duration = Duration::from_millis(25);

/// How far a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It has asked for a connection. Its address may be forged.
    Asking,
    /// It is connected, and has not said what it wants.
    Silent,
    /// It has said what it wants, and has a place; its device has not answered.
    Starting,
    /// It is being served.
    Served,
}

impl Stage {
    fn has_place(self) -> bool {
        matches!(self, Self::Starting | Self::Served)
    }

    /// How long it may do nothing while others want its place.
    fn idle_max(self) -> Duration {
        match self {
            Self::Asking | Self::Silent => Duration::ZERO,
            Self::Starting => START_MAX,
            Self::Served => IDLE_MAX,
        }
    }
}

/// Closes a client's connection. Does not block.
pub(crate) type HangUp = Arc<dyn Fn() + Send + Sync>;

/// How many clients may have a place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) clients: u32,
    pub(crate) per_address: u32,
}

/// Why a client got no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Full {
    /// So many others have one.
    #[error("{0} others are being served; try again later")]
    All(u32),
    /// So many others of its address have one.
    #[error("{0} others of your address are being served; try again later")]
    Address(u32),
}

/// The clients of a server.
#[derive(Debug)]
pub(crate) struct Places {
    limits: Limits,
    began: Instant,
    table: Mutex<Table>,
    /// Clients that gave way before they had said anything.
    silent_gone: AtomicU64,
}

/// A client among the others. Dropping it gives its place back, also when its thread panics.
#[derive(Debug)]
pub(crate) struct Ticket<'a> {
    places: &'a Places,
    id: u64,
    /// When it did something, in milliseconds since the server began.
    active: Arc<AtomicU64>,
}

struct Client {
    address: IpAddr,
    stage: Stage,
    active: Arc<AtomicU64>,
    hang_up: HangUp,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?}", self.address, self.stage)
    }
}

/// Clients by number, the first one oldest. Knows no clock.
#[derive(Debug, Default)]
struct Table {
    next: u64,
    clients: BTreeMap<u64, Client>,
}

impl Places {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            began: Instant::now(),
            table: Mutex::default(),
            silent_gone: AtomicU64::new(0),
        }
    }

    /// Lets a client in that waits from now on. Never refuses; another may have to go.
    pub(crate) fn enter(&self, address: IpAddr, stage: Stage, hang_up: HangUp) -> Ticket<'_> {
        let active = Arc::new(AtomicU64::new(self.now()));
        let client = Client {
            address,
            stage,
            active: Arc::clone(&active),
            hang_up,
        };
        let (id, gone) = self.table.lock().enter(client);
        self.close(gone);
        Ticket {
            places: self,
            id,
            active,
        }
    }

    /// Has all clients go.
    pub(crate) fn close_all(&self) {
        let gone = std::mem::take(&mut self.table.lock().clients);
        gone.into_values().for_each(|client| (client.hang_up)());
    }

    /// Clients that gave way before they had said anything, since the last time that this was asked.
    pub(crate) fn silent_gone(&self) -> u64 {
        self.silent_gone.swap(0, Relaxed)
    }

    /// Clients that have a place.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        let table = self.table.lock();
        let taken = |client: &&Client| client.stage.has_place();
        table.clients.values().filter(taken).count()
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Closes the connections of those that gave way. Under no lock: what is called may take others.
    fn close(&self, gone: Option<Client>) {
        let Some(client) = gone else {
            return;
        };
        if !client.stage.has_place() {
            self.silent_gone.fetch_add(1, Relaxed);
        }
        (client.hang_up)();
    }
}

impl Ticket<'_> {
    /// The client is connected now, and is closed like that.
    pub(crate) fn connected(&self, hang_up: HangUp) {
        let connected = {
            let mut table = self.places.table.lock();
            table.connected(self.id, hang_up)
        };
        match connected {
            Ok(gone) => self.places.close(gone),
            Err(hang_up) => hang_up(),
        }
    }

    /// The client has said what it wants: gives it a place. Blocks for as long as it may have to wait.
    ///
    /// # Errors
    /// [`Full`].
    pub(crate) fn take_place(&self) -> Result<(), Full> {
        let until = Instant::now() + PATIENCE;
        loop {
            let taken = {
                let mut table = self.places.table.lock();
                table.take_place(self.places.now(), self.id, self.places.limits)
            };
            match taken {
                Ok(gone) => {
                    self.places.close(gone);
                    self.moved();
                    return Ok(());
                }
                Err(full) if Instant::now() >= until => return Err(full),
                Err(_) => thread::sleep(LOOK),
            }
        }
    }

    /// The client's device has answered.
    pub(crate) fn served(&self) {
        self.moved();
        if let Some(client) = self.places.table.lock().clients.get_mut(&self.id) {
            client.stage = Stage::Served;
        }
    }

    /// The client has done something.
    pub(crate) fn moved(&self) {
        self.active.store(self.places.now(), Release);
    }

    /// Whether the client had to give way.
    pub(crate) fn gave_way(&self) -> bool {
        !self.places.table.lock().clients.contains_key(&self.id)
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let client = self.places.table.lock().clients.remove(&self.id);
        // What closes it is dropped under no lock.
        drop(client);
    }
}

impl Table {
    /// The client's number, and the one that has to go for it.
    fn enter(&mut self, client: Client) -> (u64, Option<Client>) {
        let gone = self.make_room(client.stage, client.address);
        let id = self.next;
        self.next += 1;
        self.clients.insert(id, client);
        (id, gone)
    }

    /// The client that has to go for one that is connected now. Gives back what closes it, if it had to go before.
    fn connected(&mut self, id: u64, hang_up: HangUp) -> Result<Option<Client>, HangUp> {
        let Some(address) = self.clients.get(&id).map(|client| client.address) else {
            return Err(hang_up);
        };
        let gone = self.make_room(Stage::Silent, address);
        if let Some(client) = self.clients.get_mut(&id) {
            (client.stage, client.hang_up) = (Stage::Silent, hang_up);
        }
        Ok(gone)
    }

    /// Gives a client a place; returns the one that has to go for it.
    fn take_place(&mut self, now: u64, id: u64, limits: Limits) -> Result<Option<Client>, Full> {
        let Some(address) = self.clients.get(&id).map(|client| client.address) else {
            // It gave way; its connection is closed.
            return Ok(None);
        };
        let of_address = self.count(|client| client.stage.has_place() && client.address == address);
        let all = self.count(|client| client.stage.has_place());
        let full = match all >= limits.clients {
            true => Full::All(all),
            false => Full::Address(of_address),
        };
        let gone = if of_address >= limits.per_address {
            let idle = self.idlest(now, |client| client.address == address);
            Some(idle.ok_or(full)?)
        } else if all >= limits.clients {
            Some(self.idlest(now, |_| true).ok_or(full)?)
        } else {
            None
        };
        if let Some(client) = self.clients.get_mut(&id) {
            client.stage = Stage::Starting;
        }
        Ok(gone.and_then(|gone| self.clients.remove(&gone)))
    }

    /// Takes out the client that waits longest, if the room of that stage is full.
    fn make_room(&mut self, stage: Stage, address: IpAddr) -> Option<Client> {
        let waiting = self.clients.iter().filter(|(_, one)| one.stage == stage);
        let all = waiting.clone().count();
        let mut of_address = waiting.clone().filter(|(_, one)| one.address == address);
        let oldest = if of_address.clone().count() >= WAITING_PER_ADDRESS_MAX {
            of_address.next()
        } else if all >= WAITING_MAX {
            waiting.clone().next()
        } else {
            None
        };
        let id = *oldest?.0;
        self.clients.remove(&id)
    }

    /// The client with a place that has done nothing for longest, if that was too long.
    fn idlest(&self, now: u64, among: impl Fn(&Client) -> bool) -> Option<u64> {
        let over = |client: &Client| {
            let idle = Duration::from_millis(now.saturating_sub(client.active.load(Acquire)));
            idle.checked_sub(client.stage.idle_max())
        };
        let with_place = self.clients.iter().filter(|(_, one)| one.stage.has_place());
        let idle = with_place.filter(|(_, one)| among(one));
        let idle = idle.filter_map(|(&id, one)| Some((over(one)?, id)));
        idle.max().map(|(_, id)| id)
    }

    fn count(&self, which: impl Fn(&Client) -> bool) -> u32 {
        let count = self.clients.values().filter(|client| which(client)).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    const LIMITS: Limits = Limits {
        clients: 4,
        per_address: 2,
    };

    fn client(host: u8, stage: Stage, active_ms: u64) -> Client {
        Client {
            address: IpAddr::from([10, 0, 0, host]),
            stage,
            active: Arc::new(AtomicU64::new(active_ms)),
            hang_up: Arc::new(|| ()),
        }
    }

    /// Lets a client in that says what it wants at once.
    fn seat(table: &mut Table, host: u8, now: u64) -> Result<(u64, Option<Client>), Full> {
        let (id, _) = table.enter(client(host, Stage::Silent, now));
        table.take_place(now, id, LIMITS).map(|gone| (id, gone))
    }

    #[test]
    fn the_one_that_waits_longest_gives_way() {
        let mut table = Table::default();
        let honest = table.enter(client(1, Stage::Silent, 0)).0;
        for n in 0..3 * WAITING_MAX {
            // Those of one address have their own limit.
            table.enter(client(2, Stage::Silent, n as u64));
            assert!(table.clients.len() <= 1 + WAITING_PER_ADDRESS_MAX);
        }
        assert!(table.clients.contains_key(&honest));
        for n in 0..WAITING_MAX - WAITING_PER_ADDRESS_MAX - 1 {
            let host = 3 + (n / 32) as u8;
            assert!(table.enter(client(host, Stage::Silent, 0)).1.is_none());
        }
        let (_, gone) = table.enter(client(77, Stage::Silent, 0));
        assert_eq!(
            gone.map(|gone| gone.address.to_string()),
            Some("10.0.0.1".into())
        );
        // The other room is another.
        assert!(table.enter(client(2, Stage::Asking, 0)).1.is_none());
    }

    #[test]
    fn places_are_counted_for_each_address_and_in_all() {
        let mut table = Table::default();
        for _ in 0..LIMITS.per_address {
            assert!(seat(&mut table, 1, 0).is_ok());
        }
        assert_eq!(seat(&mut table, 1, 0).err(), Some(Full::Address(2)));
        seat(&mut table, 2, 0).expect("there is room");
        let (last, _) = seat(&mut table, 3, 0).expect("there is room");
        assert_eq!(seat(&mut table, 4, 0).err(), Some(Full::All(4)));
        table.clients.remove(&last);
        assert!(seat(&mut table, 4, 0).is_ok());
    }

    #[test]
    fn who_does_nothing_loses_its_place_when_others_want_it() {
        let mut table = Table::default();
        let ids = [1, 1, 2, 3].map(|host| seat(&mut table, host, 0).expect("room").0);
        for id in &ids[..3] {
            table.clients.get_mut(id).expect("there").stage = Stage::Served;
        }
        let start = START_MAX.as_millis() as u64;
        assert!(seat(&mut table, 4, start - 1).is_err());
        let (_, gone) = seat(&mut table, 4, start).expect("one has not begun");
        assert_eq!(
            gone.map(|gone| gone.address.to_string()),
            Some("10.0.0.3".into())
        );
        let idle = IDLE_MAX.as_millis() as u64;
        for client in table.clients.values_mut() {
            client.stage = Stage::Served;
            client.active.store(idle / 2, Relaxed);
        }
        table.clients[&ids[1]].active.store(3, Relaxed);
        assert!(seat(&mut table, 5, idle - 1).is_err());
        let (_, gone) = seat(&mut table, 5, idle + 3).expect("one is idle");
        assert_eq!(
            gone.map(|gone| gone.address.to_string()),
            Some("10.0.0.1".into())
        );
    }

    #[test]
    fn a_panic_gives_the_place_back() {
        let places = Places::new(Limits {
            clients: 1,
            per_address: 1,
        });
        let address = IpAddr::from([10, 0, 0, 1]);
        let serve = || {
            let ticket = places.enter(address, Stage::Silent, Arc::new(|| ()));
            ticket.take_place().expect("there is room");
            assert_eq!(places.taken(), 1);
            panic!("a defect");
        };
        for _ in 0..3 {
            let panicked = catch_unwind(AssertUnwindSafe(serve));
            assert!(panicked.is_err());
            assert_eq!(places.taken(), 0);
        }
    }
}
