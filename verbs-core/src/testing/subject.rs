//! What is under test: a provider, and what the test has to know and do to work with it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use crate::command::Kind;
use crate::device::{Device, OpenDevice};
use crate::error::Error;
use crate::provider::Provider;
use crate::request::Request;
use crate::sync::{Arc, Mutex, thread};
use crate::verb::{Verb, VerbError};

/// How long anything may take before the suite says that it never will.
pub const PATIENCE: Duration = Duration::from_secs(60);

type Open = dyn Fn() -> Request<'static, OpenDevice> + Send + Sync;
type Act = dyn Fn() + Send + Sync;
type Count = dyn Fn() -> u64 + Send + Sync;

/// A provider under test: fresh, with no device open on it.
///
/// Of most providers the suite needs to know nothing else. One whose commands take time that the
/// test must let pass says how; one that can count what it holds, or be removed, is tested further.
#[derive(Clone)]
pub struct Subject {
    open: Arc<Open>,
    step: Arc<Act>,
    live: Option<Arc<Count>>,
    remove: Option<Arc<Act>>,
    without: Vec<Kind>,
    local: SocketAddr,
}

impl Subject {
    /// A provider that answers inline or by itself, and has every verb.
    pub fn new(provider: Arc<dyn Provider>) -> Self {
        Self::opened_by(move || Device::open(Arc::clone(&provider)))
    }

    /// As [`Subject::new`], with another way to open a device.
    pub fn opened_by(
        open: impl Fn() -> Request<'static, OpenDevice> + Send + Sync + 'static,
    ) -> Self {
        Self {
            open: Arc::new(open),
            step: Arc::new(thread::yield_now),
            live: None,
            remove: None,
            without: Vec::new(),
            local: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        }
    }

    /// What lets commands that wait go on: moves a virtual clock, passes on what is held back. Called
    /// again and again while the suite waits for a completion.
    #[must_use]
    pub fn step(mut self, step: impl Fn() + Send + Sync + 'static) -> Self {
        self.step = Arc::new(step);
        self
    }

    /// How many objects the provider itself holds, devices not counted. With it the suite sees what
    /// a destroy forgot.
    #[must_use]
    pub fn live(mut self, live: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.live = Some(Arc::new(live));
        self
    }

    /// How the device is taken away under its clients; see
    /// [`DeviceCore::remove`](crate::device::DeviceCore::remove).
    #[must_use]
    pub fn remove(mut self, remove: impl Fn() + Send + Sync + 'static) -> Self {
        self.remove = Some(Arc::new(remove));
        self
    }

    /// The verbs that the provider does not have: the suite demands that these are refused with
    /// [`Error::is_unsupported`], and that no other is. A verb on an object that cannot be created for
    /// want of another verb need not be named.
    #[must_use]
    pub fn without(mut self, kinds: &[Kind]) -> Self {
        self.without.extend_from_slice(kinds);
        self
    }

    /// An address that endpoints of connections can be bound to; that of the loopback interface unless named.
    #[must_use]
    pub fn address(mut self, address: IpAddr) -> Self {
        self.local = SocketAddr::new(address, 0);
        self
    }

    /// Where endpoints are bound.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Whether the provider has the verb.
    pub fn has(&self, kind: Kind) -> bool {
        !self.without.contains(&kind)
    }

    /// The request that opens a device.
    pub fn open(&self) -> Request<'static, OpenDevice> {
        (self.open)()
    }

    /// An open device.
    pub fn device(&self) -> Device {
        self.must(self.open())
    }

    /// Lets commands that wait go on, once.
    pub fn advance(&self) {
        (self.step)();
    }

    /// How many objects the provider holds, if it can tell.
    pub fn holds(&self) -> Option<u64> {
        self.live.as_ref().map(|live| live())
    }

    /// Removes the device; `false` if the provider has no such thing.
    pub fn take_away(&self) -> bool {
        self.remove.as_ref().map(|remove| remove()).is_some()
    }

    /// Lets commands go on until `done`.
    ///
    /// # Panics
    /// After [`PATIENCE`], with `what`.
    #[track_caller]
    pub fn until(&self, what: impl fmt::Display, mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
            self.advance();
        }
    }

    /// Issues a request and lets commands go on until its routine has run.
    ///
    /// # Errors
    /// The verb's.
    ///
    /// # Panics
    /// After [`PATIENCE`].
    #[track_caller]
    pub fn finish<V: Verb>(&self, request: Request<'_, V>) -> Result<V::Output, V::Error> {
        let place = Arc::new(Mutex::new(None));
        let theirs = Arc::clone(&place);
        let _ = request.issue(move |result| {
            let twice = theirs.lock().replace(result).is_some();
            assert!(!twice, "{} completed twice (K1)", V::KIND);
        });
        let mut result = None;
        self.until(format_args!("{} completes (K1)", V::KIND), || {
            result = place.lock().take();
            result.is_some()
        });
        result.expect("`until` returns when there is a result")
    }

    /// As [`Subject::finish`], for a request that has to succeed.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn must<V: Verb>(&self, request: Request<'_, V>) -> V::Output {
        match self.finish(request) {
            Ok(output) => output,
            Err(error) => panic!("{} failed: {}", V::KIND, error.reason()),
        }
    }

    /// As [`Subject::finish`], for a request that has to fail.
    ///
    /// # Panics
    /// If it succeeds.
    #[track_caller]
    pub fn must_fail<V: Verb>(&self, request: Request<'_, V>) -> Error {
        match self.finish(request) {
            Ok(_) => panic!("{} succeeded, and had to fail", V::KIND),
            Err(error) => error.reason(),
        }
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("without", &self.without)
            .finish_non_exhaustive()
    }
}
