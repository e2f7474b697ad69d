//! A session: the channels to one port of a target, and what is kept for all of them.

use std::fmt;

use futures::channel::oneshot;
use verbs_cm::Manager;
use verbs_core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use verbs_core::sync::{Arc, Mutex};
use verbs_core::{Access, Device, Memory};

use crate::initiator::address::Target;
use crate::initiator::channel::{Adapter, Channel, Command, Formats, Refused, Routine, Task};
use crate::initiator::config::{Event, Options};
use crate::initiator::error::{Error, Outcome};
use crate::initiator::shared::{Listener, Shared, add};
use crate::initiator::table::Counters;
use crate::iu::{Lun, Tag, TaskFunction};

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
    /// [`Error::Connect`], [`Error::Rejected`], [`Error::Protocol`], [`Error::Verb`], [`Error::Post`].
    ///
    /// # Cancel safety
    /// A future that is dropped ends the channels that were opened.
    pub async fn login(&self, target: Target) -> Result<Session, Error> {
        let shared = Arc::new(Shared {
            published: Mutex::new(Vec::new()),
            channels: Mutex::new(vec![None; self.options.channels.into()]),
            pd: self.device.alloc_pd().await?,
            manager: Manager::of(&self.device),
            device: Arc::clone(&self.device),
            options: self.options.clone(),
            target,
            listener: self.listener.clone(),
            is_closed: AtomicBool::new(false),
            turn: AtomicU32::new(0),
            ends: AtomicU64::new(0),
            waiting: Mutex::new(Vec::new()),
            past: Mutex::default(),
        });
        let session = Session {
            _last: Arc::new(Last(Arc::clone(&shared))),
            shared: Arc::clone(&shared),
        };
        for number in 0..self.options.channels {
            let channel = Channel::open(&shared, number).await?;
            shared.enter(channel);
        }
        Ok(session)
    }
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
        let mut routine = Some(routine);
        let begun = self.shared.channel().and_then(|channel| {
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
        let channel = self.shared.channel()?;
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
        loop {
            let seen = self.shared.ends();
            let (tell, told) = oneshot::channel();
            let sent = self.command(command, move |outcome| {
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
        let channels = self.shared.channels.lock().clone();
        let mut open = channels.iter().flatten();
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

    /// Logs out: tells the target, ends the commands that are under way, and closes the connections.
    pub async fn logout(self) {
        self.shared.is_closed.store(true, Relaxed);
        let channels = self.shared.take_channels();
        for channel in channels {
            if let Some(connection) = channel.log_out() {
                // A target that has gone needs no telling.
                let _ = connection.close().await;
            }
        }
    }

    /// Whether a channel takes commands.
    pub fn is_open(&self) -> bool {
        self.shared.channel().is_ok()
    }

    /// What has happened on all channels, and how commands were named.
    pub fn counters(&self) -> (Counters, Formats) {
        let mut sum = *self.shared.past.lock();
        let channels = self.shared.channels.lock().clone();
        for channel in channels.iter().flatten() {
            sum = add(sum, channel.counters());
        }
        sum
    }

    /// Requests that the target still takes, on all channels.
    pub fn request_limit(&self) -> i32 {
        let channels = self.shared.channels.lock().clone();
        channels
            .iter()
            .flatten()
            .map(|channel| channel.limit())
            .sum()
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
