//! What verbs allocate on the software HCA: nothing, once there has been one of each.

use std::future::{Future, IntoFuture};
use std::hint::black_box;
use std::pin::pin;
use std::time::Duration;

use futures::FutureExt;
use hca_sim::clock::VirtualClock;
use hca_sim::command::{CommandConfig, CommandTime};
use hca_sim::{Hca, connect};
use verbs_core::verb::{Verb, VerbError};
use verbs_core::{Access, Cq, Device, Pd, Qp, QpAttr, QpInfo, QpInit, QpState, Request};

use crate::allocator;

/// Requests of each test.
const REQUESTS: u32 = 1_000_000;
/// Requests of one round.
const ROUND: u32 = 8;

struct Subject {
    /// Connected.
    qp: Qp,
    /// Goes from RESET to ERR and back.
    spare: Qp,
    /// What the last query returned.
    info: Option<Box<QpInfo>>,
    device: Device,
    clock: VirtualClock,
    _rest: (Qp, Cq, Pd),
}

impl Subject {
    fn new(commands: CommandConfig) -> Self {
        let clock = VirtualClock::new();
        let builder = Hca::loopback().clock(clock.clone()).commands(commands);
        let made = async {
            let device = builder.open().await?;
            let pd = device.alloc_pd().await?;
            let cq = device.create_cq(16).await?;
            let init = || QpInit::rc(&cq, &cq);
            let (mut qp, mut peer) = (pd.create_qp(init()).await?, pd.create_qp(init()).await?);
            let spare = pd.create_qp(init()).await?;
            connect(&mut qp, &mut peer).await?;
            let info = Some(qp.query().await?);
            Ok::<_, verbs_core::Error>((device, pd, cq, qp, peer, spare, info))
        };
        let (device, pd, cq, qp, peer, spare, info) = by(&clock, made).expect("a connection");
        Self {
            qp,
            spare,
            info,
            device,
            clock,
            _rest: (peer, cq, pd),
        }
    }

    fn ask<V: Verb>(&self, request: Request<'_, V>) -> V::Output {
        match by(&self.clock, request.into_future()) {
            Ok(output) => output,
            Err(error) => panic!("{}", VerbError::reason(&error)),
        }
    }

    /// Requests that answer inline, that pend for a grace period, and that take an attribute away.
    fn round(&mut self) {
        black_box(self.ask(self.device.query_port(1)));
        let info = self.info.take().expect("the last one");
        self.info = Some(self.ask(self.qp.query_into(info)));
        let attr = QpAttr {
            min_rnr_timer: Some(7),
            ..QpAttr::default()
        };
        self.ask(self.qp.modify(attr));
        let access = Some(Access::REMOTE_READ);
        self.ask(self.qp.modify(QpAttr {
            access,
            ..QpAttr::default()
        }));
        self.ask(self.spare.init(1, Access::empty()));
        let info = self.info.take().expect("the last one");
        self.info = Some(self.ask(self.spare.query_into(info)));
        self.ask(self.spare.modify(QpAttr::to(QpState::Err)));
        self.ask(self.spare.modify(QpAttr::to(QpState::Reset)));
    }
}

/// The future's output; the clock goes from one deadline to the next while it waits.
fn by<T>(clock: &VirtualClock, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Some(output) = future.as_mut().now_or_never() {
            return output;
        }
        clock.step().expect("a command under way has a deadline");
    }
}

fn allocates_nothing(commands: CommandConfig) {
    let mut subject = Subject::new(commands);
    for _ in 0..3 {
        subject.round();
    }
    let before = allocator::calls();
    (0..REQUESTS / ROUND).for_each(|_| subject.round());
    assert_eq!(allocator::calls() - before, 0, "in {REQUESTS} requests");
}

#[test]
fn requests_reuse_their_storage() {
    allocates_nothing(CommandConfig::default());
}

#[test]
fn requests_that_wait_reuse_their_storage() {
    let time = CommandTime::Fixed(Duration::from_micros(1));
    allocates_nothing(CommandConfig {
        time,
        ..CommandConfig::default()
    });
}
