//! Verbs of a client, which arrive as bytes and are carried out on a device.

mod done;
mod issue;
mod object;

use std::fmt;

use verbs_core::host::command::{Answer, Call, Failure, decode_call};
use verbs_core::host::quota::{Quota, Usage};
use verbs_core::host::{Handle, HandleTable};
use verbs_core::sync::{Arc, Mutex};
use verbs_core::{Device, Error, Origin, Provider};

pub use object::Report;

use crate::client::ClientId;
use done::Done;
use object::{Object, end_all};

/// Takes the result of a command, as bytes, once: at once or later, under NoBlock.
pub type Reply = Box<dyn FnOnce(Vec<u8>) + Send>;

/// One client's device, and the objects that it has made there.
///
/// A command becomes a request on behalf of the [client](verbs_core::Origin): it passes the same filters and the same
/// path as one that this process makes for itself. Handles name the client's own objects; a handle that is stale, or
/// another client's, or of another kind, ends in [`Error::AccessDenied`]. Memory that is registered is allocated here.
///
/// Verbs of the provider's connection manager and extensions are [`Error::Unsupported`]: events of the former and types
/// of the latter have no encoding yet.
///
/// ```
/// use std::sync::{Arc, mpsc};
///
/// use verbs_core::host::Handle;
/// use verbs_core::host::command::{Answer, Call, decode_result, encode_call};
/// use verbs_core::testing::Null;
/// use verbs_host::{ClientId, Session};
///
/// let client = ClientId::new(1).expect("not 0");
/// let session = Session::new(Arc::new(Null::default()), client);
/// let ask = |target, call: Call| {
///     let (sender, answer) = mpsc::channel();
///     session.command(&encode_call(target, &call), Box::new(move |bytes| sender.send(bytes).unwrap()));
///     decode_result(&answer.recv().unwrap()).unwrap()
/// };
/// assert_eq!(ask(Handle::DEVICE, Call::OpenDevice {}), Ok(Answer::OpenDevice(())));
/// let Ok(Answer::AllocPd(pd)) = ask(Handle::DEVICE, Call::AllocPd {}) else { panic!() };
/// assert_eq!(ask(pd.handle, Call::DeallocPd { when_idle: false }), Ok(Answer::DeallocPd(())));
/// session.end(Arc::new(|kind, result| println!("{kind}: {result:?}")));
/// ```
pub struct Session {
    provider: Arc<dyn Provider>,
    origin: Origin,
    state: Arc<Mutex<State>>,
}

/// Never held while a request is issued.
struct State {
    device: Option<Arc<Device>>,
    objects: HandleTable<Arc<Object>>,
    usage: Usage,
    /// The client has ended: objects that are made for it from now on are destroyed again.
    is_over: bool,
}

impl Session {
    /// The session of a client, without a device: its first command opens one.
    pub fn new(provider: Arc<dyn Provider>, client: ClientId) -> Self {
        Self {
            provider,
            origin: client.origin(),
            state: Arc::new(Mutex::new(State {
                device: None,
                objects: HandleTable::new(Quota::Objects.max()),
                usage: Usage::default(),
                is_over: false,
            })),
        }
    }

    /// A command. Never blocks; commands of one client are given one after the other.
    pub fn command(&self, bytes: &[u8], reply: Reply) {
        let done = Done::new(&self.state, self.origin, reply);
        match decode_call(bytes) {
            Ok((target, call)) => self.issue(target, call, done),
            Err(malformed) => done.fail(Failure::Malformed(malformed)),
        }
    }

    /// The client has ended: all its objects are destroyed, and `report` gets each result.
    pub fn end(&self, report: Report) {
        let (objects, device) = {
            let mut state = self.state.lock();
            state.is_over = true;
            (state.objects.drain(), state.device.take())
        };
        // No command is being issued, so they have no other owners.
        let objects = objects.into_iter().filter_map(Arc::into_inner).collect();
        end_all(
            objects,
            device.and_then(Arc::into_inner),
            self.origin,
            &report,
        );
    }

    /// How many objects the client has.
    pub fn objects(&self) -> usize {
        self.state.lock().objects.len()
    }

    /// How much memory was allocated for it, in MiB.
    pub fn memory_mib(&self) -> u32 {
        self.state.lock().usage.of(Quota::Memory)
    }

    fn issue(&self, target: Handle, call: Call, done: Done) {
        if let Call::OpenDevice {} = call {
            return self.open(target, done);
        }
        let device = self.state.lock().device.clone();
        let Some(device) = device else {
            return done.fail(Failure::Verb(Error::AccessDenied));
        };
        match (target == Handle::DEVICE, call) {
            (true, Call::CloseDevice { when_idle }) => {
                drop(device);
                self.close(when_idle, done);
            }
            (true, call) => issue::on_device(&device, call, done),
            (false, call) => {
                drop(device);
                let object = self.state.lock().objects.get(target).cloned();
                match object.filter(|object| target.kind() == Some(object.kind())) {
                    Some(object) => issue::on_object(target, object, call, done),
                    None => done.fail(Failure::Verb(Error::AccessDenied)),
                }
            }
        }
    }

    fn open(&self, target: Handle, done: Done) {
        if target != Handle::DEVICE || self.state.lock().device.is_some() {
            return done.fail(Failure::Verb(Error::AccessDenied));
        }
        let state = Arc::clone(&self.state);
        let request = Device::open(Arc::clone(&self.provider)).on_behalf_of(self.origin);
        request.issue(move |result| {
            let opened = result.map(|device| {
                let mut state = state.lock();
                match state.is_over || state.device.is_some() {
                    true => Some(device),
                    false => {
                        state.device = Some(Arc::new(device));
                        None
                    }
                }
            });
            match opened {
                Ok(None) => done.answer(Answer::OpenDevice(())),
                // Dropped under no lock.
                Ok(Some(_too_many)) => done.fail(Failure::Verb(Error::AccessDenied)),
                Err(error) => done.fail(Failure::Verb(error)),
            }
        });
    }

    fn close(&self, when_idle: bool, done: Done) {
        let device = self.state.lock().device.take().and_then(Arc::into_inner);
        let Some(device) = device else {
            return done.fail(Failure::Verb(Error::Closing));
        };
        let request = match when_idle {
            true => device.close_when_idle(),
            false => device.close(),
        };
        let state = Arc::clone(&self.state);
        request
            .on_behalf_of(self.origin)
            .issue(move |result| match result {
                Ok(()) => done.answer(Answer::CloseDevice(())),
                Err(refused) => {
                    let failure = done::failure_of(&refused);
                    let back = refused.handle.map(Arc::new);
                    let late = {
                        let mut state = state.lock();
                        match state.is_over {
                            true => back,
                            false => std::mem::replace(&mut state.device, back),
                        }
                    };
                    drop(late);
                    done.fail(failure);
                }
            });
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("origin", &self.origin)
            .field("objects", &self.objects())
            .finish_non_exhaustive()
    }
}
