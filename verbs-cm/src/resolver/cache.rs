//! Answers that are kept until something changes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use futures::FutureExt;
use futures::future::{self, BoxFuture};
use verbs_core::mad::PortInfo;
use verbs_core::sync::{Arc, Mutex};

use crate::error::Error;
use crate::resolver::{Hop, Query, Resolver};

/// Ways that are kept at most; with more, all are forgotten.
pub const CACHE_MAX: usize = 1024;

type Key = (u8, Option<IpAddr>, IpAddr);

/// Keeps the answers of another resolver until the port's addresses or its link change. Failures are
/// not kept.
#[derive(Debug)]
pub struct Cached<R> {
    inner: R,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    ways: BTreeMap<Key, Hop>,
    /// Counts invalidations, so that an answer from before one is not kept after it.
    generation: u64,
}

impl<R: Resolver> Cached<R> {
    /// Keeps what `inner` answers.
    pub fn new(inner: R) -> Self {
        Self {
            inner,
            kept: Arc::default(),
        }
    }

    /// Ways that are kept.
    pub fn len(&self) -> usize {
        self.kept.lock().ways.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<R: Resolver> Resolver for Cached<R> {
    fn resolve(&self, query: Query) -> BoxFuture<'static, Result<Hop, Error>> {
        let key = (query.port.number, query.local, query.remote);
        let generation = {
            let kept = self.kept.lock();
            if let Some(&hop) = kept.ways.get(&key) {
                return future::ready(Ok(hop)).boxed();
            }
            kept.generation
        };
        let kept = Arc::clone(&self.kept);
        let answer = self.inner.resolve(query);
        async move {
            let hop = answer.await?;
            let mut kept = kept.lock();
            if kept.generation == generation {
                if kept.ways.len() >= CACHE_MAX {
                    kept.ways.clear();
                }
                kept.ways.insert(key, hop);
            }
            Ok(hop)
        }
        .boxed()
    }

    fn is_local(&self, addr: IpAddr, port: &PortInfo) -> bool {
        self.inner.is_local(addr, port)
    }

    fn lookup(&self, name: &str) -> Option<IpAddr> {
        self.inner.lookup(name)
    }

    fn invalidate(&self) {
        let mut kept = self.kept.lock();
        kept.generation += 1;
        kept.ways.clear();
        drop(kept);
        self.inner.invalidate();
    }
}

#[cfg(test)]
mod tests {
    use futures::channel::oneshot;
    use futures::executor::block_on;
    use verbs_core::caps::{DeviceAttr, LinkLayer, PortAttr, PortState};
    use verbs_core::mad::PortInfo;
    use verbs_core::{Gid, Lid, Mtu};

    use super::*;

    /// Answers when it is told to, and counts its questions.
    #[derive(Debug, Default)]
    struct Slow {
        asked: Mutex<Vec<oneshot::Sender<Result<Hop, Error>>>>,
    }

    impl Resolver for Slow {
        fn resolve(&self, _: Query) -> BoxFuture<'static, Result<Hop, Error>> {
            let (tell, told) = oneshot::channel();
            self.asked.lock().push(tell);
            async move { told.await.unwrap_or(Err(Error::Cancelled)) }.boxed()
        }
    }

    fn query() -> Query {
        let port = PortAttr {
            gid: Gid::default(),
            max_msg_sz: 0,
            bad_pkey_cntr: 0,
            qkey_viol_cntr: 0,
            lid: Lid(0),
            sm_lid: Lid(0),
            gid_tbl_len: 0,
            pkey_tbl_len: 1,
            state: PortState::Active,
            max_mtu: Mtu::B4096,
            active_mtu: Mtu::B1024,
            sm_sl: 0,
            lmc: 0,
            active_width: 1,
            active_speed: 1,
            link_layer: LinkLayer::Ethernet,
        };
        Query {
            remote: IpAddr::from([10, 0, 0, 2]),
            local: None,
            port: Arc::new(PortInfo {
                number: 1,
                device: Arc::new(DeviceAttr::default()),
                port,
                gids: Vec::new(),
            }),
        }
    }

    fn hop() -> Hop {
        let local = IpAddr::from([10, 0, 0, 1]);
        Hop {
            local,
            local_gid: Gid::from(local),
            remote_gid: Gid::from(query().remote),
            remote_lid: None,
            mtu: None,
        }
    }

    #[test]
    fn answers_are_kept_until_something_changes() {
        let cached = Cached::new(Slow::default());
        let answer = |cached: &Cached<Slow>| {
            let asking = cached.resolve(query());
            let tell = cached.inner.asked.lock().pop();
            if let Some(tell) = tell {
                tell.send(Ok(hop())).expect("it is waited for");
            }
            block_on(asking)
        };
        assert_eq!((answer(&cached), cached.len()), (Ok(hop()), 1));
        assert_eq!(block_on(cached.resolve(query())), Ok(hop()));
        assert!(cached.inner.asked.lock().is_empty(), "nobody was asked");
        cached.invalidate();
        assert!(cached.is_empty());

        // An answer from before a change is not kept after it.
        let asking = cached.resolve(query());
        cached.invalidate();
        let tell = cached.inner.asked.lock().pop().expect("it was asked");
        tell.send(Ok(hop())).expect("it is waited for");
        assert_eq!((block_on(asking), cached.len()), (Ok(hop()), 0));

        // Dropping cancels, and a failure is not kept.
        drop(cached.resolve(query()));
        let tell = cached.inner.asked.lock().pop().expect("it was asked");
        assert!(tell.is_canceled());
        let asking = cached.resolve(query());
        let tell = cached.inner.asked.lock().pop().expect("it was asked");
        tell.send(Err(Error::NoRoute(query().remote)))
            .expect("it is waited for");
        assert!(block_on(asking).is_err() && cached.is_empty());
    }

    /// Goal: an answer serves the question that it was given to and no other, and only so many are kept. Method:
    /// questions that differ in one part, then one question more than are kept.
    #[test]
    fn answers_serve_their_question_and_are_limited() {
        let cached = Cached::new(Slow::default());
        let is_asked = |query: Query| {
            let asking = cached.resolve(query);
            let tell = cached.inner.asked.lock().pop();
            let is_asked = tell.is_some();
            if let Some(tell) = tell {
                tell.send(Ok(hop())).expect("it is waited for");
            }
            assert_eq!(block_on(asking), Ok(hop()));
            is_asked
        };
        let mut of_port = query();
        Arc::make_mut(&mut of_port.port).number = 2;
        let mut from = query();
        from.local = Some(hop().local);
        for query in [query(), of_port, from] {
            assert!(is_asked(query.clone()) && !is_asked(query));
        }
        let remote = |number: usize| {
            let number = u32::try_from(number).unwrap();
            let addr = std::net::Ipv4Addr::from(0x0b00_0000 + number);
            Query {
                remote: addr.into(),
                ..query()
            }
        };
        for number in 3..CACHE_MAX {
            assert!(is_asked(remote(number)));
        }
        assert_eq!(cached.len(), CACHE_MAX);
        assert!(!is_asked(query()), "as many as that are kept");
        assert!(is_asked(remote(CACHE_MAX)));
        assert_eq!(cached.len(), 1, "one more, and the others are forgotten");
        assert!(is_asked(query()));
    }
}
