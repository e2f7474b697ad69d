//! A client that sends bytes, and a filter that records what the provider receives.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use verbs_core::host::Handle;
use verbs_core::host::command::{Answer, Call, Failure, decode_result, encode_call};
use verbs_core::sync::Mutex;
use verbs_core::{
    AnyCommand, Error, Kind, ObjectKind, Origin, Provider, ProviderAttr, QpCap, QpType, Qpn,
    RequestId, Timer,
};
use verbs_host::{ClientId, Session};

/// A command that the provider received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) kind: Kind,
    pub(crate) origin: Origin,
}

/// A filter in front of a provider.
pub(crate) struct Log {
    inner: Arc<dyn Provider>,
    seen: Mutex<Vec<Seen>>,
}

impl Log {
    pub(crate) fn over(inner: Arc<dyn Provider>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            seen: Mutex::default(),
        })
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().clone()
    }

    pub(crate) fn forget(&self) {
        self.seen.lock().clear();
    }
}

impl Provider for Log {
    fn issue(&self, command: AnyCommand<'_>) {
        let (kind, origin) = (command.kind(), command.origin());
        self.seen.lock().push(Seen { kind, origin });
        self.inner.issue(command);
    }

    fn cancel(&self, id: RequestId) {
        self.inner.cancel(id);
    }

    fn query_provider(&self, port: u8) -> ProviderAttr {
        self.inner.query_provider(port)
    }

    fn timer(&self) -> Option<Arc<dyn Timer>> {
        self.inner.timer()
    }
}

pub(crate) struct Client {
    pub(crate) session: Session,
}

type Answered = Result<Answer, Failure>;

impl Client {
    pub(crate) fn new(provider: Arc<dyn Provider>, number: u32) -> Self {
        let client = ClientId::new(number).expect("not 0");
        Self {
            session: Session::new(provider, client),
        }
    }

    pub(crate) fn open(log: &Arc<Log>, number: u32) -> Self {
        let client = Self::new(Arc::clone(log) as Arc<_>, number);
        client
            .ask(Handle::DEVICE, Call::OpenDevice {})
            .expect("a device");
        client
    }

    pub(crate) fn ask_bytes(&self, bytes: &[u8]) -> Answered {
        let (sender, answer) = channel();
        let reply = move |bytes: Vec<u8>| sender.send(bytes).expect("somebody waits");
        self.session.command(bytes, Box::new(reply));
        decode_result(&answer.recv().expect("an answer")).expect("a result")
    }

    pub(crate) fn ask(&self, target: Handle, call: Call) -> Answered {
        self.ask_bytes(&encode_call(target, &call))
    }

    /// A command whose answer arrives later.
    pub(crate) fn begin(&self, target: Handle, call: Call) -> Receiver<Answered> {
        let (sender, answer) = channel();
        let reply = move |bytes: Vec<u8>| {
            let _ = sender.send(decode_result(&bytes).expect("a result"));
        };
        self.session
            .command(&encode_call(target, &call), Box::new(reply));
        answer
    }

    pub(crate) fn pd(&self) -> Handle {
        match self.ask(Handle::DEVICE, Call::AllocPd {}) {
            Ok(Answer::AllocPd(made)) => made.handle,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn cq(&self, cqe: u32) -> Handle {
        let call = Call::CreateCq {
            cqe,
            comp_vector: 0,
            timestamps: false,
        };
        match self.ask(Handle::DEVICE, call) {
            Ok(Answer::CreateCq(made)) => made.handle,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn qp(&self, pd: Handle, cq: Handle) -> (Handle, Qpn) {
        self.qp_of(pd, cq, QpType::Rc)
    }

    pub(crate) fn qp_of(&self, pd: Handle, cq: Handle, qp_type: QpType) -> (Handle, Qpn) {
        let call = Call::CreateQp {
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            qp_type,
            cap: QpCap::default(),
            sq_sig_all: false,
            low_latency: false,
            block_multicast_loopback: false,
        };
        match self.ask(pd, call) {
            Ok(Answer::CreateQp((made, _))) => (made.handle, Qpn::new(made.number)),
            other => panic!("{other:?}"),
        }
    }

    /// The client has ended: returns what was reported.
    pub(crate) fn end(&self) -> Vec<(ObjectKind, Result<(), Error>)> {
        let reported = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&reported);
        self.session.end(Arc::new(move |kind, result| {
            log.lock().push((kind, result));
        }));
        let reported = reported.lock();
        reported.clone()
    }
}
