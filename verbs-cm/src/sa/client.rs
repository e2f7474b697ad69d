//! The client at work: requests out, answers and reports in. There is one for each port, and it has no
//! thread: the thread that brings an answer wakes the task that waits for it.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use futures::channel::oneshot;
use verbs_core::device::DeviceCore;
use verbs_core::event::{EventType, EventWatcher, Subject};
use verbs_core::mad::header::{emit_header, header_of};
use verbs_core::mad::sa::SaStatus;
use verbs_core::mad::{
    Address, AgentError, Class, Delivery, MadAgent, MadBytes, MadClient, MadHeader, MadService,
    Method, Retry, Status, TransactionId, sa,
};
use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_core::time::Instant;
use verbs_core::{AsyncEvent, Av, Device, Lid, Timer, collect};

use crate::error::Error;
use crate::sa::cache::kept::Kept;
use crate::sa::error::SaError;
use crate::sa::held::{Held, Key};
use crate::sa::notice::mailbox::Mailbox;
use crate::sa::record::{Answer, Question};

/// The client of one port.
pub(super) struct Core {
    /// What the service and the device refer to. Goes first, so that they see that it is gone.
    below: Arc<Below>,
    pub(super) service: MadService,
    agent: Result<MadAgent, AgentError>,
    /// Never held while foreign code runs (K4).
    pub(super) state: Mutex<State>,
}

/// What the lock guards.
#[derive(Default)]
pub(super) struct State {
    waiting: BTreeMap<TransactionId, oneshot::Sender<Ended>>,
    pub(super) held: BTreeMap<Key, Arc<Held>>,
    pub(super) caches: Vec<Weak<Kept>>,
    pub(super) mailboxes: Vec<Weak<Mailbox>>,
    /// Counts what makes registrations void.
    pub(super) epoch: u64,
}

type Ended = Result<(MadHeader, Answer), SaError>;

impl Core {
    /// The client of that port, opened if need be.
    pub(super) async fn of(
        device: Arc<DeviceCore>,
        service: MadService,
    ) -> Result<Arc<Self>, Error> {
        let number = service.port().number;
        let core = device.service(
            |core: &Self| core.service.port().number == number,
            || Self::new(service.clone(), &device),
        );
        match &core.agent {
            Ok(_) => Ok(core),
            Err(error) => Err(Error::Service(*error)),
        }
    }

    fn new(service: MadService, device: &Arc<DeviceCore>) -> Arc<Self> {
        let core = Arc::new_cyclic(|weak: &Weak<Self>| {
            let below = Arc::new(Below(Weak::clone(weak)));
            let client: Arc<dyn MadClient> = Arc::<Below>::clone(&below);
            let client = Arc::downgrade(&client);
            let methods = &[Method::REPORT];
            Self {
                agent: service.register(Class::SA, sa::CLASS_VERSION, methods, client),
                below,
                service,
                state: Mutex::default(),
            }
        });
        let watcher: Arc<dyn EventWatcher> = Arc::<Below>::clone(&core.below);
        device.watch_events(&watcher);
        core
    }

    /// Asks, and again while the administrator is busy.
    pub(super) async fn ask(&self, question: &Question, retry: Retry) -> Result<Answer, Error> {
        let mut attempts = 0;
        loop {
            let (header, answer) = self.ask_once(question, retry).await?;
            let status = header.status;
            if status.contains(Status::BUSY) && attempts < retry.retries {
                attempts += 1;
                self.pause(retry.timeout).await;
                continue;
            }
            return match SaStatus::from_code(status.class_specific()) {
                Some(refusal) => Err(SaError::Refused(refusal).into()),
                None if status == Status::OK => Ok(answer),
                None => Err(SaError::Status(status).into()),
            };
        }
    }

    async fn ask_once(
        &self,
        question: &Question,
        retry: Retry,
    ) -> Result<(MadHeader, Answer), Error> {
        let to = self.administrator().await?;
        let asked = self.send(to, question.mad(), retry)?;
        let ended = asked.wait().await;
        let (header, answer) = ended?;
        if header.attribute != header_of(question.mad()).attribute() {
            return Err(SaError::Malformed.into());
        }
        Ok((header, answer))
    }

    /// Where the administrator is: the manager's port, as the port has it now.
    async fn administrator(&self) -> Result<Address, Error> {
        let number = self.service.port().number;
        let port = self.service.device().query_port(number).await?;
        if port.sm_lid == Lid(0) {
            return Err(SaError::NoAdministrator(number).into());
        }
        let av = Av {
            sl: port.sm_sl,
            ..Av::to_lid(number, port.sm_lid)
        };
        Ok(Address::gsi(av))
    }

    fn send(&self, to: Address, mad: &MadBytes, retry: Retry) -> Result<Asked<'_>, Error> {
        let agent = self
            .agent
            .as_ref()
            .map_err(|&error| Error::Service(error))?;
        let (tell, told) = oneshot::channel();
        // The answer may come on another thread before the request's number is known here: it finds
        // the lock taken. What results from the sending on this thread comes when the lock is free.
        let tid = collect(|| {
            let mut state = self.state.lock();
            let tid = agent.request(to, mad, retry)?;
            state.waiting.insert(tid, tell);
            Ok::<_, AgentError>(tid)
        })?;
        Ok(Asked {
            core: self,
            tid,
            told: Some(told),
        })
    }

    /// Lets that much time pass; none where the device has no timer.
    pub(super) async fn pause(&self, time: Duration) {
        if let Some(timer) = self.service.timer() {
            pause(&**timer, time).await;
        }
    }

    /// A report of the administrator: it is answered, and goes to its subscribers.
    fn report(&self, from: Address, mad: &MadBytes) {
        let header = MadHeader::parse(header_of(mad));
        let mut answer = *mad;
        emit_header(&header.response(Status::OK), &mut answer);
        if let Ok(agent) = &self.agent {
            agent.send([(from, answer)]);
        }
        let mailboxes: Vec<_> = {
            let mut state = self.state.lock();
            state.mailboxes.retain(|mailbox| mailbox.strong_count() > 0);
            state.mailboxes.iter().filter_map(Weak::upgrade).collect()
        };
        for mailbox in mailboxes {
            mailbox.put(mad);
        }
    }

    /// What the administrator was told may be forgotten there: it is told again. What it has told is
    /// forgotten here.
    fn renew(self: &Arc<Self>) {
        let (held, caches, epoch) = {
            let mut state = self.state.lock();
            state.epoch += 1;
            state.caches.retain(|cache| cache.strong_count() > 0);
            let held: Vec<_> = state.held.values().cloned().collect();
            let caches: Vec<_> = state.caches.iter().filter_map(Weak::upgrade).collect();
            (held, caches, state.epoch)
        };
        caches.iter().for_each(|cache| cache.invalidate());
        for held in held {
            Held::renew(self, &held, epoch);
        }
    }
}

/// Lets that much time pass.
pub(super) async fn pause(timer: &dyn Timer, time: Duration) {
    let due: Instant = timer.now() + time;
    poll_fn(|cx| {
        if timer.now() >= due {
            return Poll::Ready(());
        }
        timer.wake_at(due, cx.waker().clone());
        Poll::Pending
    })
    .await;
}

/// A request on its way; dropping it forgets it.
struct Asked<'a> {
    core: &'a Core,
    tid: TransactionId,
    told: Option<oneshot::Receiver<Ended>>,
}

impl Asked<'_> {
    async fn wait(mut self) -> Ended {
        let Some(told) = &mut self.told else {
            return Err(SaError::Malformed);
        };
        // The other half goes without a word only when the agent does.
        let ended = told.await.unwrap_or(Err(SaError::TimedOut));
        self.told = None;
        ended
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if self.told.is_none() {
            return;
        }
        let gone = self.core.state.lock().waiting.remove(&self.tid);
        drop(gone);
        if let Ok(agent) = &self.core.agent {
            agent.cancel(self.tid);
        }
    }
}

/// What comes from below: answers, reports, and that the port has changed.
struct Below(Weak<Core>);

impl MadClient for Below {
    fn deliver(&self, delivery: Delivery) {
        let Some(core) = self.0.upgrade() else {
            return;
        };
        let (tid, ended) = match delivery {
            Delivery::Response {
                tid, mad, payload, ..
            } => {
                let header = MadHeader::parse(header_of(&mad));
                (tid, Ok((header, Answer::new(&mad, payload))))
            }
            Delivery::TimedOut { tid, .. } => (tid, Err(SaError::TimedOut)),
            Delivery::TransferFailed { tid, status, .. } => (tid, Err(SaError::Transfer(status))),
            Delivery::Request { from, mad, .. } => return core.report(from, &mad),
            Delivery::Responded { .. } => return,
        };
        let waiting = core.state.lock().waiting.remove(&tid);
        if let Some(tell) = waiting {
            // The task that asked may have gone.
            let _gone = tell.send(ended);
        }
    }
}

impl EventWatcher for Below {
    fn event(&self, event: AsyncEvent) {
        let voids = matches!(
            event.event,
            EventType::LidChange
                | EventType::SmChange
                | EventType::ClientReregister
                | EventType::PortActive
        );
        if let Some(core) = self.0.upgrade()
            && voids
            && event.subject == Subject::Port(core.service.port().number)
        {
            core.renew();
        }
    }
}

/// The service of that port, and the device's core.
pub(super) fn open(
    device: &Device,
    port: u8,
) -> impl Future<Output = Result<Arc<Core>, Error>> + Send + use<> {
    let service = MadService::of(device, port);
    let core = Arc::clone(device.target());
    async move { Core::of(core, service.await?).await }
}
