//! An administrator that every port reaches without sending requests: paths and groups of a network without LIDs.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use futures::future::{BoxFuture, ready};
use ulp_ipoib::{Administration, Membership};
use verbs_cm::Error;
use verbs_cm::sa::{Change, Join, PathQuery, SaError};
use verbs_core::mad::Bits;
use verbs_core::mad::sa::{JoinState, McMemberRecord, PathRecord, SaStatus};
use verbs_core::{Gid, Lid, Mtu, PKey, QKey};

type Handler = Arc<dyn Fn(&Change) + Send + Sync>;

/// The administrator of a network. Clones are the same.
#[derive(Clone)]
pub(crate) struct Admin(Arc<Mutex<State>>);

struct State {
    groups: BTreeMap<Gid, McMemberRecord>,
    members: Vec<(Gid, JoinState)>,
    handlers: Vec<(Gid, Handler)>,
    paths_asked: u32,
    has_paths: bool,
    joins: u32,
    refuses: bool,
    /// The requests that wait until they are answered again, while they are not.
    held: Option<Vec<Waker>>,
    mtu: Mtu,
    qkey: QKey,
}

impl Admin {
    pub(crate) fn new(mtu: Mtu) -> Self {
        Self(Arc::new(Mutex::new(State {
            groups: BTreeMap::new(),
            members: Vec::new(),
            handlers: Vec::new(),
            paths_asked: 0,
            has_paths: true,
            joins: 0,
            refuses: false,
            held: None,
            mtu,
            qkey: QKey(0x0b1c),
        })))
    }

    pub(crate) fn paths_asked(&self) -> u32 {
        self.0.lock().unwrap().paths_asked
    }

    /// From now on paths exist, or none do.
    pub(crate) fn paths(&self, are_there: bool) {
        self.0.lock().unwrap().has_paths = are_there;
    }

    /// Joins that were asked for.
    pub(crate) fn joins(&self) -> u32 {
        self.0.lock().unwrap().joins
    }

    /// From now on every join is refused, or none that can be granted.
    pub(crate) fn refuse(&self, all: bool) {
        self.0.lock().unwrap().refuses = all;
    }

    /// From now on no join and no leave is answered, or all are: those that waited, in reverse order.
    pub(crate) fn hold(&self, is_held: bool) {
        let mut state = self.0.lock().unwrap();
        let waiting = std::mem::replace(&mut state.held, is_held.then(Vec::new));
        drop(state);
        waiting.into_iter().flatten().rev().for_each(Waker::wake);
    }

    /// Members of all groups.
    pub(crate) fn all_members(&self) -> usize {
        self.0.lock().unwrap().members.len()
    }

    /// Members of that kind in a group.
    pub(crate) fn members(&self, mgid: Gid, kind: JoinState) -> usize {
        let state = self.0.lock().unwrap();
        let all = state.members.iter();
        all.filter(|&&member| member == (mgid, kind)).count()
    }

    /// The manager has restarted with another Q_Key, and all members have joined again.
    pub(crate) fn restart(&self, qkey: QKey) {
        let handlers: Vec<Handler> = {
            let mut state = self.0.lock().unwrap();
            state.qkey = qkey;
            for record in state.groups.values_mut() {
                record.qkey = qkey;
            }
            state
                .handlers
                .iter()
                .map(|(_, handler)| Arc::clone(handler))
                .collect()
        };
        for handler in handlers {
            handler(&Change::Renewed);
        }
    }
}

impl Administration for Admin {
    fn path(&self, query: PathQuery) -> BoxFuture<'static, Result<PathRecord, Error>> {
        let mut state = self.0.lock().unwrap();
        state.paths_asked += 1;
        if !state.has_paths {
            return Box::pin(ready(Err(SaError::Refused(SaStatus::NoRecords).into())));
        }
        let (asked, _) = query.parts();
        let record = PathRecord {
            hop_limit: 64,
            mtu: Bits::truncated(state.mtu as u32),
            packet_lifetime: Bits::truncated(10),
            ..asked
        };
        Box::pin(ready(Ok(record)))
    }

    fn join(&self, join: Join) -> BoxFuture<'static, Result<Box<dyn Membership>, Error>> {
        let admin = self.clone();
        admin.0.lock().unwrap().joins += 1;
        Box::pin(async move {
            admin.released().await;
            admin.joined(&join)
        })
    }
}

impl Admin {
    /// Waits while requests are not answered.
    async fn released(&self) {
        let released = |cx: &mut Context<'_>| match &mut self.0.lock().unwrap().held {
            Some(waiting) => {
                waiting.push(cx.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        };
        poll_fn(released).await;
    }

    fn joined(&self, join: &Join) -> Result<Box<dyn Membership>, Error> {
        let (asked, _) = join.parts();
        let mut state = self.0.lock().unwrap();
        let is_broadcast = asked.mgid.0[10..] == [0, 0, 0xff, 0xff, 0xff, 0xff];
        let makes = is_broadcast || asked.join_state == JoinState::FULL_MEMBER;
        let is_there = makes || state.groups.contains_key(&asked.mgid);
        if state.refuses || !is_there {
            return Err(SaError::Refused(SaStatus::NoRecords).into());
        }
        let record = McMemberRecord {
            mgid: asked.mgid,
            pkey: PKey::DEFAULT,
            qkey: state.qkey,
            mlid: Lid(0),
            mtu: Bits::truncated(state.mtu as u32),
            hop_limit: 64,
            ..McMemberRecord::default()
        };
        state.groups.entry(asked.mgid).or_insert(record);
        state.members.push((asked.mgid, asked.join_state));
        let member: Box<dyn Membership> = Box::new(Member {
            admin: self.clone(),
            mgid: asked.mgid,
            kind: asked.join_state,
        });
        Ok(member)
    }
}

struct Member {
    admin: Admin,
    mgid: Gid,
    kind: JoinState,
}

impl Membership for Member {
    fn record(&self) -> McMemberRecord {
        self.admin.0.lock().unwrap().groups[&self.mgid]
    }

    fn on_change(&mut self, handler: Box<dyn Fn(&Change) + Send + Sync>) {
        let mut state = self.admin.0.lock().unwrap();
        state.handlers.push((self.mgid, Arc::from(handler)));
    }

    fn leave(self: Box<Self>) -> BoxFuture<'static, Result<(), Error>> {
        Box::pin(async move {
            self.admin.released().await;
            Ok(())
        })
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut state = self.admin.0.lock().unwrap();
        let own = (self.mgid, self.kind);
        let place = state.members.iter().position(|&member| member == own);
        state.members.swap_remove(place.unwrap());
    }
}
