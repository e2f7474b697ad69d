//! A session: the channels to one port of a target, and what is kept for all of them.

use std::fmt;
use std::future::IntoFuture;
use std::time::Duration;

use futures::channel::oneshot;
use futures::future::join_all;
use rustix::rand::{GetRandomFlags, getrandom};
use verbs_cm::Manager;
use verbs_core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use verbs_core::sync::{Arc, Mutex};
use verbs_core::{Access, Device, Guid, Memory};

use crate::initiator::address::Target;
use crate::initiator::channel::{Adapter, Command, Formats, Refused, Routine, Task};
use crate::initiator::config::{Event, Options};
use crate::initiator::error::{Error, Outcome};
use crate::initiator::shared::{Listener, Shared, add};
use crate::initiator::table::Counters;
use crate::iu::{Lun, PortId, Tag, TaskFunction};

/// Logs in to targets.
///
/// ```no_run
/// use ulp_srp::initiator::{Initiator, Options};
/// use ulp_srp::iu::Lun;
/// use verbs_core::sync::Arc;
/// use verbs_core::{Extent, Memory};
///
/// # async fn example(device: Arc<verbs_core::Device>) -> Result<(), ulp_srp::initiator::Error> {
/// let initiator = Initiator::new(&device, Options::default());
/// let session = initiator.login("10.0.0.2:5555".parse()?).await?;
/// let memory = Arc::new(Memory::alloc(1 << 20)?);
/// let list = [Extent { memory: &memory, offset: 0, len: 4096 }];
/// session.read(Lun(0), 0, 8, &list).await?;
/// session.logout().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Initiator {
    device: Arc<Device>,
    options: Options,
    listener: Option<Listener>,
}

/// A session with a target's port; a handle to it. When the last handle goes, the session ends.
///
/// # Context
/// [`Session::command`] never blocks, and is legal under NoBlock: in routines, handlers, or what else may
/// not wait. So are all others; the asynchronous ones finish in completions, without a thread of ours.
#[derive(Clone)]
pub struct Session {
    shared: Arc<Shared>,
    _last: Arc<Last>,
}

/// Ends the session when the last handle goes.
struct Last(Arc<Shared>);

impl Drop for Last {
    fn drop(&mut self) {
        self.0.close(&Error::LoggedOut);
    }
}

impl Initiator {
    /// An initiator on a device.
    pub fn new(device: &Arc<Device>, options: Options) -> Self {
        Self {
            device: Arc::clone(device),
            options: options.bounded(),
            listener: None,
        }
    }

    /// Has sessions tell what happens to them: under NoBlock, on the thread where it happens.
    pub fn on_event(mut self, listener: impl Fn(Event<'_>) + Send + Sync + 'static) -> Self {
        self.listener = Some(Arc::new(listener));
        self
    }

    /// Logs in: opens all channels.
    ///
    /// # Errors
    /// [`Error::Connect`], [`Error::Rejected`], [`Error::NoAnswer`], [`Error::Protocol`], [`Error::Verb`],
    /// [`Error::Post`].
    ///
    /// # Cancel safety
    /// A future that is dropped ends the channels that were opened.
    pub async fn login(&self, target: Target) -> Result<Session, Error> {
        let initiator = match self.options.initiator {
            Some(name) => name,
            None => own_name(self.device.query().await?.node_guid)?,
        };
        let shared = Arc::new(Shared {
            published: Mutex::new(Vec::new()),
            channels: Mutex::default(),
            pd: self.device.alloc_pd().await?,
            manager: Manager::of(&self.device),
            device: Arc::clone(&self.device),
            options: self.options.clone(),
            target,
            listener: self.listener.clone(),
            initiator,
            is_closed: AtomicBool::new(false),
            over: Mutex::new(None),
            pace: Mutex::default(),
            turn: AtomicU32::new(0),
            ends: AtomicU64::new(0),
            waiting: Mutex::new(Vec::new()),
            past: Mutex::default(),
        });
        let session = Session {
            _last: Arc::new(Last(Arc::clone(&shared))),
            shared: Arc::clone(&shared),
        };
        shared.log_in(None).await?;
        Ok(session)
    }
}

/// A name that no other session has: of the device, and drawn.
fn own_name(guid: Guid) -> Result<PortId, Error> {
    let mut extension = [0; 8];
    // Eight bytes come whole or not at all.
    let drawn = getrandom(&mut extension, GetRandomFlags::empty());
    drawn.map_err(|_| verbs_core::Error::DeviceFailed)?;
    Ok(PortId {
        extension: u64::from_ne_bytes(extension),
        guid,
    })
}

impl Session {
    /// Sends a command; `routine` is called once with how it ended, under NoBlock. Its tag, for an abort.
    ///
    /// The scatter list's memory is shared with the device until then, and no longer: when the routine is
    /// called, no key leads to it any more but those of [published](Session::publish) memory.
    ///
    /// # Completion
    /// Later, where the completion is made, never in this call. Commands that the request limit does not
    /// allow yet wait in the order in which they came.
    ///
    /// # Errors
    /// [`Refused`] gives the routine back: with [`Error::Busy`] or [`Error::Reconnecting`], to be tried
    /// again later; [`Error::TooLong`], [`Error::UnitTooLong`], [`Error::Unit`], [`Error::Verb`] for what
    /// is wrong with the command; [`Error::LoggedOut`].
    ///
    /// # Context
    /// Never blocks. Allocates for the routine; see [`Session::command_for`].
    pub fn command<F>(&self, command: &Command<'_>, routine: F) -> Result<Tag, Refused<F>>
    where
        F: FnOnce(Outcome) + Send + 'static,
    {
        self.command_of(None, command, routine)
    }

    fn command_of<F>(
        &self,
        login: Option<u64>,
        command: &Command<'_>,
        routine: F,
    ) -> Result<Tag, Refused<F>>
    where
        F: FnOnce(Outcome) + Send + 'static,
    {
        let mut routine = Some(routine);
        let begun = self.shared.channel(login).and_then(|channel| {
            channel.command(command, || match routine.take() {
                Some(call) => Routine::new(call),
                None => unreachable!("a routine is asked for once"),
            })
        });
        match (begun, routine) {
            (Err(error), Some(routine)) => Err(Refused { error, routine }),
            (Ok(tag), _) => Ok(tag),
            (Err(_), None) => unreachable!("a routine is asked for by commands that are accepted"),
        }
    }

    /// As [`Session::command`], for a driver that tells its commands apart by number.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Context
    /// Never blocks. Allocates nothing where the mechanism is
    /// [`FastReg`](crate::initiator::Mechanism::FastReg) or
    /// [`Published`](crate::initiator::Mechanism::Published).
    pub fn command_for(
        &self,
        adapter: &Arc<dyn Adapter>,
        number: u64,
        command: &Command<'_>,
    ) -> Result<Tag, Error> {
        let channel = self.shared.channel(None)?;
        channel.command(command, || Routine::Adapter(Arc::clone(adapter), number))
    }

    /// Sends a command and waits for its end; for room first, while other commands are under way.
    ///
    /// # Errors
    /// As [`Session::command`], and those of an [`Outcome`].
    ///
    /// # Cancel safety
    /// Of a future that is dropped the command goes on, and the memory stays shared until it has ended.
    pub async fn run(&self, command: &Command<'_>) -> Outcome {
        self.run_of(None, command).await
    }

    /// As [`Session::run`], by the channels of that login and of no later one: a target that was lost may be
    /// another one when it is there again.
    ///
    /// # Errors
    /// As there; [`Error::Reconnecting`] when the channels are of another login, with nothing done.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn run_on(&self, login: u64, command: &Command<'_>) -> Outcome {
        self.run_of(Some(login), command).await
    }

    /// Waits until commands are taken; yields the number of the login, for [`Session::run_on`]: 0 for the first
    /// one, and a larger one whenever the session was lost and made again.
    ///
    /// # Errors
    /// Why the session is over: [`Error::LoggedOut`], [`Error::Replaced`], [`Error::GivenUp`], [`Error::OtherDisk`].
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    pub async fn opened(&self) -> Result<u64, Error> {
        let look = |shared: &Shared| match shared.is_closed.load(Relaxed) {
            true => Some(Err(shared.why_over())),
            false => shared.login().map(Ok),
        };
        self.shared.until(look).await
    }

    /// Waits until the session is over, and yields why, as [`Session::opened`] tells it.
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    pub async fn over(&self) -> Error {
        let look = |shared: &Shared| {
            let is_over = shared.is_closed.load(Relaxed);
            is_over.then(|| shared.why_over())
        };
        self.shared.until(look).await
    }

    async fn run_of(&self, login: Option<u64>, command: &Command<'_>) -> Outcome {
        loop {
            let seen = self.shared.ends();
            let (tell, told) = oneshot::channel();
            let sent = self.command_of(login, command, move |outcome| {
                // Whoever has dropped the future does not want to know.
                let _ = tell.send(outcome);
            });
            match sent {
                Ok(_) => return told.await.unwrap_or(Err(Error::ConnectionLost)),
                Err(Refused {
                    error: Error::Busy, ..
                }) if self.shared.another_end(seen).await => {}
                Err(refused) => return Err(refused.error),
            }
        }
    }

    /// Gives memory a long-lived key, for [`Mechanism::Published`](crate::initiator::Mechanism::Published)
    /// and as what stands in when handles run out. The target can reach all of it until the session ends.
    ///
    /// # Errors
    /// [`Error::Verb`].
    pub async fn publish(&self, memory: &Arc<Memory>) -> Result<(), Error> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = self.shared.pd.register(Arc::clone(memory), access).await?;
        self.shared.published.lock().push(mr);
        Ok(())
    }

    /// Whether memory has no other key than that of its publication.
    pub(crate) fn needs_publishing(&self) -> bool {
        self.shared.options.mechanism == crate::initiator::Mechanism::Published
            || self.shared.options.pool() == 0
    }

    /// Takes the key of memory back.
    pub(crate) fn unpublish(&self, memory: &Arc<Memory>) {
        let mut published = self.shared.published.lock();
        let at = published
            .iter()
            .position(|mr| Arc::ptr_eq(mr.memory(), memory));
        let taken = at.map(|at| published.swap_remove(at));
        // Its implicit destroy runs outside of the lock.
        drop(published);
        drop(taken);
    }

    /// Asks the target to do something about commands that are under way; `call` gets what became of it.
    /// An abort names the command by its tag.
    ///
    /// Commands that it ended have [`Error::Aborted`]. Never blocks.
    pub fn manage(
        &self,
        function: TaskFunction,
        lun: Lun,
        tag: Option<Tag>,
        call: impl FnOnce(Outcome) + Send + 'static,
    ) {
        let channels = self.shared.channels.lock().all.clone();
        let mut open = channels.iter();
        let found = match tag {
            None => open.next().map(|channel| (channel, None)),
            Some(tag) => open.find_map(|channel| Some((channel, Some(channel.slot_of(tag)?)))),
        };
        match found {
            Some((channel, slot)) => {
                channel.manage(Task::new(function, lun, slot, Routine::new(call)));
            }
            None => verbs_core::defer(move || call(Err(Error::Reconnecting))),
        }
    }

    /// Aborts a command.
    ///
    /// # Errors
    /// [`Error::Reconnecting`], [`Error::ConnectionLost`]; [`Error::Response`] if the target did not.
    pub async fn abort(&self, lun: Lun, tag: Tag) -> Result<(), Error> {
        self.managed(TaskFunction::ABORT_TASK, lun, Some(tag)).await
    }

    /// Resets a logical unit: all its commands end.
    ///
    /// # Errors
    /// As [`Session::abort`].
    pub async fn reset(&self, lun: Lun) -> Result<(), Error> {
        self.managed(TaskFunction::LUN_RESET, lun, None).await
    }

    async fn managed(
        &self,
        function: TaskFunction,
        lun: Lun,
        tag: Option<Tag>,
    ) -> Result<(), Error> {
        let (tell, told) = oneshot::channel();
        self.manage(function, lun, tag, move |outcome| {
            // Whoever has dropped the future does not want to know.
            let _ = tell.send(outcome);
        });
        let done = told.await.unwrap_or(Err(Error::ConnectionLost))?;
        match done.response {
            Some(code) if code != crate::iu::ResponseCode::COMPLETE => Err(Error::Response(code)),
            _ => Ok(()),
        }
    }

    /// Logs out: tells the target, ends the commands that are under way, and closes the connections. A target that
    /// has gone is asked for as long as the connection manager has patience: who cannot wait drops the future.
    ///
    /// # Cancel safety
    /// The session is over when the future was polled once, whether it is dropped then or not.
    pub async fn logout(self) {
        self.shared.end(&Error::LoggedOut);
        let channels = self.shared.take_channels();
        let closing = channels.iter().filter_map(|channel| channel.log_out());
        let closing: Vec<_> = closing.map(|it| it.close().into_future()).collect();
        self.shared.room();
        // A target that has gone needs no telling.
        let _told = join_all(closing).await;
    }

    /// Whether a channel takes commands.
    pub fn is_open(&self) -> bool {
        self.shared.login().is_some()
    }

    /// The name that it has logged in under.
    pub fn initiator(&self) -> PortId {
        self.shared.initiator
    }

    /// What has happened on all channels, and how commands were named.
    pub fn counters(&self) -> (Counters, Formats) {
        let mut sum = *self.shared.past.lock();
        let channels = self.shared.channels.lock().all.clone();
        for channel in &channels {
            sum = add(sum, channel.counters());
        }
        sum
    }

    /// Requests that the target still takes, on all channels.
    pub fn request_limit(&self) -> i32 {
        let channels = self.shared.channels.lock().all.clone();
        channels.iter().map(|channel| channel.limit()).sum()
    }

    /// Ends the session for that reason.
    pub(crate) fn end(&self, error: &Error) {
        self.shared.close(error);
    }

    /// Waits for a time on the device's clock, or until the session is over.
    pub(crate) async fn pause(&self, time: Duration) {
        let until = self.shared.timer().map(|timer| timer.now() + time);
        self.shared.pause(until).await;
    }

    /// Who was logged in to.
    pub fn target(&self) -> &Target {
        &self.shared.target
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("target", &self.shared.target)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Initiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Initiator")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
