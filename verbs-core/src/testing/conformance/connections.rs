//! Connections that the provider makes itself: limits, the order of events, the backlog. Providers without these
//! verbs pass; so does one that reaches no peer, not even itself, but for the limits. The others are for
//! connections over TCP: where a queue pair has to be in INIT before it connects, and the device has addresses of
//! its own, the provider's tests make the connections.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::Make;
use crate::cm::{CmEndpoint, CmEvent, CmParam, CmReply, CmRequest, CmSink};
use crate::command::Kind;
use crate::cq::Cq;
use crate::device::Device;
use crate::error::{Attr, Error};
use crate::pd::Pd;
use crate::provider_attr::{CmLimits, PortCaps};
use crate::qp::{Qp, QpInit};
use crate::sync::{Arc, Mutex};
use crate::testing::Subject;

/// Where endpoints are bound: to any port number.
const LOCAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// What a client has got, in order.
#[derive(Debug, PartialEq, Eq)]
enum Got {
    Result(bool),
    Disconnected,
    Closed,
}

/// What has been told: requests are kept, and so not answered.
#[derive(Default)]
struct Log {
    got: Mutex<Vec<Got>>,
    requests: Mutex<Vec<CmRequest>>,
}

impl CmSink for Log {
    fn event(&self, event: CmEvent) {
        let got = match event {
            CmEvent::ConnectRequest(request) => return self.requests.lock().push(request),
            CmEvent::Disconnected => Got::Disconnected,
            CmEvent::Closed => Got::Closed,
        };
        self.got.lock().push(got);
    }
}

/// A device with what connections need. Fields are dropped in this order.
struct Bed {
    cq: Cq,
    pd: Pd,
    device: Device,
    subject: Subject,
    limits: CmLimits,
}

impl Bed {
    /// `None`: the provider has no such verbs.
    fn new(make: Make<'_>) -> Option<Self> {
        let subject = make();
        let device = subject.device();
        let attr = device.core().provider.query_provider(1);
        if !subject.has(Kind::BindCm) || !attr.caps.has_cm_verbs() {
            return None;
        }
        Some(Self {
            cq: subject.must(device.create_cq(8)),
            pd: subject.must(device.alloc_pd()),
            device,
            subject,
            limits: attr.cm,
        })
    }

    /// `None`: the provider makes no connections over TCP.
    fn over_tcp(make: Make<'_>) -> Option<Self> {
        let bed = Self::new(make)?;
        let caps = bed.device.core().provider.query_provider(1).caps;
        caps.contains(PortCaps::IW_CM).then_some(bed)
    }

    fn qp(&self) -> Qp {
        let init = QpInit::rc(&self.cq, &self.cq);
        self.subject.must(self.pd.create_qp(init))
    }

    fn bind(&self, log: &Arc<Log>) -> CmEndpoint {
        let sink = Arc::<Log>::clone(log);
        self.subject.must(self.device.bind_cm(LOCAL, sink))
    }

    /// Begins to connect; the reply stands in the place.
    fn connect(&self, from: &CmEndpoint, qp: &Qp, to: &CmEndpoint, log: &Arc<Log>) -> Place {
        let place = Place::default();
        let (theirs, log) = (Arc::clone(&place), Arc::clone(log));
        let request = from.connect(qp, to.local(), CmParam::default(), Vec::new());
        let _ = request.issue(move |reply| {
            let is_there = matches!(reply, Ok(CmReply::Established(_)));
            log.got.lock().push(Got::Result(is_there));
            *theirs.lock() = Some(reply);
        });
        place
    }
}

type Place = Arc<Mutex<Option<Result<CmReply, Error>>>>;

/// What [`CmLimits`] says is refused by its name, with the value and the bound, before the provider has it.
pub fn limits_of_connections_are_refused_by_name(make: Make<'_>) {
    let Some(bed) = Bed::new(make) else { return };
    let (log, limits) = (Arc::new(Log::default()), bed.limits);
    let (endpoint, qp) = (bed.bind(&log), bed.qp());
    let data = vec![0; usize::from(limits.private_data) + 1];
    let too_much = Error::Invalid {
        attr: Attr::PrivateData,
        got: u32::from(limits.private_data) + 1,
        max: limits.private_data.into(),
    };
    let none = CmParam::default();
    let connect = endpoint.connect(&qp, endpoint.local(), none, data.clone());
    assert_eq!(bed.subject.finish(connect), Err(too_much));
    let accept = endpoint.accept(&qp, none, data.clone());
    assert_eq!(bed.subject.finish(accept), Err(too_much));
    assert_eq!(bed.subject.finish(endpoint.reject(data)), Err(too_much));
    let depths = [
        (
            Attr::ResponderResources,
            limits.max_ird,
            CmParam {
                responder_resources: limits.max_ird.saturating_add(1),
                ..none
            },
        ),
        (
            Attr::InitiatorDepth,
            limits.max_ord,
            CmParam {
                initiator_depth: limits.max_ord.saturating_add(1),
                ..none
            },
        ),
    ];
    for (attr, max, param) in depths.into_iter().filter(|(_, max, _)| *max < u8::MAX) {
        let refused = Err(Error::Invalid {
            attr,
            got: u32::from(max) + 1,
            max: max.into(),
        });
        let connect = endpoint.connect(&qp, endpoint.local(), param, Vec::new());
        assert_eq!(bed.subject.finish(connect), refused);
    }
    // What was refused has taken nothing.
    bed.subject.must(qp.destroy());
}

/// B8: the ends of a connection follow its results on both sides, once each, in order, also when the peer
/// leaves as soon as it has accepted.
pub fn b8_an_end_follows_its_result(make: Make<'_>) {
    let Some(bed) = Bed::over_tcp(make) else {
        return;
    };
    let (active, passive) = (Arc::new(Log::default()), Arc::new(Log::default()));
    let listener = bed.bind(&passive);
    bed.subject.must(listener.listen(4));
    let (here, there) = (bed.qp(), bed.qp());
    let endpoint = bed.bind(&active);
    let reply = bed.connect(&endpoint, &here, &listener, &active);
    let has_come = || reply.lock().is_some() || !passive.requests.lock().is_empty();
    bed.subject.until("the request comes", has_come);
    let request = passive.requests.lock().pop();
    let Some(request) = request else {
        assert_eq!(*reply.lock(), Some(Ok(CmReply::Unreachable)));
        return;
    };
    let own = Arc::new(Log::default());
    request.endpoint.events_to(Arc::<Log>::clone(&own));
    let accept = request
        .endpoint
        .accept(&there, CmParam::default(), Vec::new());
    bed.subject.must(accept);
    bed.subject.must(request.endpoint.unbind());
    bed.subject.until("the connection ends", || {
        active.got.lock().contains(&Got::Closed)
    });
    let ended = [Got::Result(true), Got::Disconnected, Got::Closed];
    let got = active.got.lock();
    // A provider may say that it is closed only.
    assert!(
        got[..] == ended || got[..] == [Got::Result(true), Got::Closed],
        "{got:?}"
    );
    assert!(own.got.lock().is_empty(), "nothing comes after the unbind");
}

/// The routine that receives a failed connect may connect again with the same endpoint and queue pair: the first
/// attempt is over before its result is delivered.
pub fn a_failed_connect_is_tried_again_by_its_routine(make: Make<'_>) {
    let Some(bed) = Bed::over_tcp(make) else {
        return;
    };
    let log = Arc::new(Log::default());
    // It does not listen.
    let nobody = bed.bind(&log).local();
    let (endpoint, qp) = (Arc::new(bed.bind(&log)), Arc::new(bed.qp()));
    let place = Arc::new(Mutex::new(None));
    let (again, again_qp, theirs) = (Arc::clone(&endpoint), Arc::clone(&qp), Arc::clone(&place));
    let attempt = endpoint.connect(&qp, nobody, CmParam::default(), Vec::new());
    let _ = attempt.issue(move |first| {
        assert!(!matches!(first, Ok(CmReply::Established(_))), "{first:?}");
        let attempt = again.connect(&again_qp, nobody, CmParam::default(), Vec::new());
        let _ = attempt.issue(move |second| *theirs.lock() = Some((first, second)));
    });
    bed.subject
        .until("both are answered", || place.lock().is_some());
    let replies = place.lock().take();
    let (first, second) = replies.expect("it was looked at");
    assert_eq!(first, second, "the second attempt is as good as the first");
    assert!(log.got.lock().is_empty(), "a failure is told by its result");
}

/// Requests that are not answered wait as far as the backlog goes; more are rejected, and the others stay. An endpoint that
/// listens may do so again, with another backlog.
pub fn requests_beyond_the_backlog_are_rejected(make: Make<'_>) {
    const BACKLOG: usize = 2;
    const ASKING: usize = 5;
    let Some(bed) = Bed::over_tcp(make) else {
        return;
    };
    let (log, replies) = (Arc::new(Log::default()), Arc::new(Log::default()));
    let listener = bed.bind(&log);
    bed.subject.must(listener.listen(BACKLOG as u32));
    let asking = || -> Vec<(Qp, CmEndpoint)> {
        let one = |_| (bed.qp(), bed.bind(&replies));
        (0..ASKING).map(one).collect()
    };
    let connect =
        |(qp, endpoint): &(Qp, CmEndpoint)| bed.connect(endpoint, qp, &listener, &replies);
    let first = asking();
    let places: Vec<Place> = first.iter().map(connect).collect();
    let answered = || places.iter().filter(|place| place.lock().is_some()).count();
    bed.subject
        .until("those beyond the backlog are answered", || {
            answered() >= ASKING - BACKLOG
        });
    for place in &places {
        match &*place.lock() {
            Some(Ok(CmReply::Unreachable)) => return,
            Some(reply) => assert!(
                matches!(reply, Ok(CmReply::Rejected(_) | CmReply::Refused)),
                "{reply:?}"
            ),
            None => {}
        }
    }
    assert_eq!(log.requests.lock().len(), BACKLOG);
    assert_eq!(listener.target().unanswered(), BACKLOG as u32);
    // Answering makes room.
    log.requests.lock().clear();
    bed.subject
        .until("all are answered", || answered() == ASKING);
    assert_eq!(listener.target().unanswered(), 0);
    bed.subject.must(listener.listen(ASKING as u32));
    let second = asking();
    let places: Vec<Place> = second.iter().map(connect).collect();
    bed.subject
        .until("all wait", || log.requests.lock().len() == ASKING);
    assert!(places.iter().all(|place| place.lock().is_none()));
    log.requests.lock().clear();
    bed.subject.until("they are answered", || {
        places.iter().all(|place| place.lock().is_some())
    });
}
