//! A session: the channels to one port of a target, and their common state.

use std::fmt;
use std::future::IntoFuture;
use std::time::Duration;

use futures::channel::oneshot;
use futures::future::join_all;
use rustix::rand::{GetRandomFlags, getrandom};
use verbs_cm::Manager;
use verbs_core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use verbs_core::sync::{Arc, Mutex};
use verbs_core::{Access, Device, DeviceCap, Guid, Memory};

use crate::initiator::address::Target;
use crate::initiator::channel::{Adapter, Command, Formats, Refused, Routine, Task};
use crate::initiator::config::{Event, Mechanism, Options};
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

/// A session with a target's port; a handle to it. When the last handle is dropped, the session ends.
///
/// # Context
/// [`Session::command`] never blocks, and is legal under NoBlock: in routines, handlers, and wherever else
/// waiting is forbidden. So are all other calls; the asynchronous ones finish in completions, without a thread of
/// this crate.
#[derive(Clone)]
pub struct Session {
    shared: Arc<Shared>,
    _last: Arc<Last>,
}

/// Ends the session when the last handle is dropped.
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

    /// Sets a listener for the events of sessions. It is called under NoBlock, on the thread where the event
    /// happens.
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
    /// When the future is dropped, the opened channels end.
    pub async fn login(&self, target: Target) -> Result<Session, Error> {
        let attr = self.device.query().await?;
        let initiator = match self.options.initiator {
            Some(name) => name,
            None => own_name(attr.node_guid)?,
        };
        let mut options = self.options.clone();
        let has_fast_reg =
            attr.caps.contains(DeviceCap::MEM_MGT_EXTENSIONS) && attr.max_fast_reg_pages > 0;
        if options.mechanism == Mechanism::FastReg && !has_fast_reg {
            options.mechanism = Mechanism::Published;
        }
        let shared = Arc::new(Shared {
            published: Mutex::new(Vec::new()),
            channels: Mutex::default(),
            pd: self.device.alloc_pd().await?,
            manager: Manager::of(&self.device),
            device: Arc::clone(&self.device),
            options,
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

/// A unique name: the device's GUID and a random extension.
fn own_name(guid: Guid) -> Result<PortId, Error> {
    let mut extension = [0; 8];
    // A draw of eight bytes either succeeds or fails as a whole.
    let drawn = getrandom(&mut extension, GetRandomFlags::empty());
    drawn.map_err(|_| verbs_core::Error::DeviceFailed)?;
    Ok(PortId {
        extension: u64::from_ne_bytes(extension),
        guid,
    })
}

impl Session {
    /// Sends a command; `routine` is called once with its outcome, under NoBlock. Returns its tag, for an abort.
    ///
    /// The scatter list's memory is shared with the device until then, and no longer: when the routine is called,
    /// no key gives access to it, except those of [published](Session::publish) memory.
    ///
    /// # Completion
    /// Later, where the completion is handled, never in this call. Commands that the request limit does not yet
    /// allow wait in order.
    ///
    /// # Errors
    /// [`Refused`] gives the routine back: with [`Error::Busy`] or [`Error::Reconnecting`], to be retried later;
    /// [`Error::TooLong`], [`Error::UnitTooLong`], [`Error::Unit`], [`Error::Verb`] for a fault of the command;
    /// [`Error::LoggedOut`].
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

    /// As [`Session::command`], for a driver that numbers its commands.
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

    /// Sends a command and waits for its end; first waits for a free slot, while other commands are in flight.
    ///
    /// # Errors
    /// As [`Session::command`], and those of an [`Outcome`].
    ///
    /// # Cancel safety
    /// When the future is dropped, the command continues, and the memory stays shared until it has ended.
    pub async fn run(&self, command: &Command<'_>) -> Outcome {
        self.run_of(None, command).await
    }

    /// As [`Session::run`], but only on the channels of that login: after an outage the target may be another
    /// one.
    ///
    /// # Errors
    /// As there; [`Error::Reconnecting`] if the channels belong to another login; then nothing was done.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn run_on(&self, login: u64, command: &Command<'_>) -> Outcome {
        self.run_of(Some(login), command).await
    }

    /// Waits until commands are accepted; returns the number of the login, for [`Session::run_on`]: 0 for the
    /// first one, and a larger one after each restore of the session.
    ///
    /// # Errors
    /// Why the session is over: [`Error::LoggedOut`], [`Error::Replaced`], [`Error::GivenUp`], [`Error::OtherDisk`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn opened(&self) -> Result<u64, Error> {
        let look = |shared: &Shared| match shared.is_closed.load(Relaxed) {
            true => Some(Err(shared.why_over())),
            false => shared.login().map(Ok),
        };
        self.shared.until(look).await
    }

    /// Waits until the session is over, and returns the reason, as [`Session::opened`] does.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
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
                // The receiver is closed only if its future was dropped.
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

    /// How memory is described: the mechanism of the [options](Options::mechanism), unless the device lacks it.
    pub fn mechanism(&self) -> Mechanism {
        self.shared.options.mechanism
    }

    /// Gives memory a long-lived key, for [`Mechanism::Published`](crate::initiator::Mechanism::Published) and as
    /// the fallback when handles run out. The target can access all of the memory until the session ends.
    ///
    /// # Errors
    /// [`Error::Verb`].
    pub async fn publish(&self, memory: &Arc<Memory>) -> Result<(), Error> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = self.shared.pd.register(Arc::clone(memory), access).await?;
        self.shared.published.lock().push(mr);
        Ok(())
    }

    /// Whether memory can only have the key of its publication.
    pub(crate) fn needs_publishing(&self) -> bool {
        self.mechanism() == Mechanism::Published || self.shared.options.pool() == 0
    }

    /// Withdraws the key of the memory.
    pub(crate) fn unpublish(&self, memory: &Arc<Memory>) {
        let mut published = self.shared.published.lock();
        let at = published
            .iter()
            .position(|mr| Arc::ptr_eq(mr.memory(), memory));
        let taken = at.map(|at| published.swap_remove(at));
        // Its implicit destroy runs after the lock is released.
        drop(published);
        drop(taken);
    }

    /// Requests task management for commands in flight; `call` gets the result. An abort names the command by its
    /// tag.
    ///
    /// The commands that it ends have the outcome [`Error::Aborted`]. Never blocks.
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
    /// [`Error::Reconnecting`], [`Error::ConnectionLost`]; [`Error::Response`] if the target did not execute it.
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
            // The receiver is closed only if its future was dropped.
            let _ = tell.send(outcome);
        });
        let done = told.await.unwrap_or(Err(Error::ConnectionLost))?;
        match done.response {
            Some(code) if code != crate::iu::ResponseCode::COMPLETE => Err(Error::Response(code)),
            _ => Ok(()),
        }
    }

    /// Logs out: notifies the target, ends the commands in flight, and closes the connections. If the target does
    /// not answer, this waits until the connection manager gives up; to wait no longer, drop the future.
    ///
    /// # Cancel safety
    /// The session is over once the future has been polled, whether it is dropped then or not.
    pub async fn logout(self) {
        self.shared.end(&Error::LoggedOut);
        let channels = self.shared.take_channels();
        let closing = channels.iter().filter_map(|channel| channel.log_out());
        let closing: Vec<_> = closing.map(|it| it.close().into_future()).collect();
        self.shared.room();
        // A target that no longer answers needs no notice.
        let _told = join_all(closing).await;
    }

    /// Whether a channel takes commands.
    pub fn is_open(&self) -> bool {
        self.shared.login().is_some()
    }

    /// The name under which it has logged in.
    pub fn initiator(&self) -> PortId {
        self.shared.initiator
    }

    /// The counters of all channels, and the formats of their commands.
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

    /// Ends the session for this reason.
    pub(crate) fn end(&self, error: &Error) {
        self.shared.close(error);
    }

    /// Waits for a time on the device's clock, or until the session is over.
    pub(crate) async fn pause(&self, time: Duration) {
        let until = self.shared.timer().map(|timer| timer.now() + time);
        self.shared.pause(until).await;
    }

    /// The target of the session.
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
