//! The reference for random programs: counts, and a list. It knows nothing of headers and slots.

use std::collections::VecDeque;

use verbs_core::{Kind, ObjectKind};

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Done,
    Busy(Vec<(ObjectKind, u32)>),
    Cancelled,
}

/// A request: the number of the step that issued it. Implicit destroys have none.
pub(crate) type Ticket = Option<usize>;

/// A command that the provider holds back, as the model sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    pub(crate) what: What,
    pub(crate) node: usize,
    pub(crate) ticket: Ticket,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Create,
    Query,
    Destroy,
}

/// An object in the model.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) kind: ObjectKind,
    /// In the order in which they are released, once per use.
    pub(crate) parents: Vec<usize>,
    pub(crate) children: [u32; ObjectKind::COUNT],
    /// Pending requests on it.
    pub(crate) users: u32,
    /// The provider has it.
    pub(crate) exists: bool,
    /// The client has its handle.
    pub(crate) owned: bool,
    waits_for_children: bool,
    closed: bool,
    /// The request whose destroy is under way.
    destroyer: Ticket,
}

impl Node {
    pub(crate) fn new(kind: ObjectKind, parents: Vec<usize>) -> Self {
        Self {
            kind,
            parents,
            children: [0; ObjectKind::COUNT],
            users: 0,
            exists: false,
            owned: false,
            waits_for_children: false,
            closed: false,
            destroyer: None,
        }
    }

    fn holders(&self) -> Vec<(ObjectKind, u32)> {
        let counted = ObjectKind::ALL.into_iter().zip(self.children);
        counted.filter(|&(_, n)| n > 0).collect()
    }

    pub(crate) fn total(&self) -> u32 {
        self.children.iter().sum()
    }
}

/// The reference: counts, and a list.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) nodes: Vec<Node>,
    pub(crate) held: VecDeque<Command>,
    pub(crate) ended: Vec<(usize, End)>,
}

/// The device is the first node.
pub(crate) const DEVICE: usize = 0;

impl Model {
    pub(crate) fn new() -> Self {
        let mut device = Node::new(ObjectKind::Device, Vec::new());
        (device.exists, device.owned) = (true, true);
        let (held, ended) = (VecDeque::new(), Vec::new());
        Self {
            nodes: vec![device],
            held,
            ended,
        }
    }

    fn end(&mut self, ticket: Ticket, end: End) {
        if let Some(ticket) = ticket {
            self.ended.push((ticket, end));
        }
    }

    pub(crate) fn hold(&mut self, what: What, node: usize, ticket: Ticket) {
        self.held.push_back(Command { what, node, ticket });
    }

    pub(crate) fn create(&mut self, kind: ObjectKind, parents: &[usize], ticket: usize) -> usize {
        for &parent in parents {
            self.nodes[parent].children[kind as usize] += 1;
        }
        self.nodes[parents[0]].users += 1;
        self.nodes.push(Node::new(kind, parents.to_vec()));
        let node = self.nodes.len() - 1;
        self.hold(What::Create, node, Some(ticket));
        node
    }

    pub(crate) fn destroy(&mut self, node: usize, when_idle: bool, ticket: Ticket) {
        let at = &mut self.nodes[node];
        if at.total() > 0 && !when_idle {
            let holders = at.holders();
            return self.end(ticket, End::Busy(holders));
        }
        (at.owned, at.destroyer) = (false, ticket);
        (at.waits_for_children, at.closed) = (at.total() > 0, at.total() == 0);
        self.go_on(node);
    }

    /// The destroy is passed to the provider when the object has no holders left.
    fn go_on(&mut self, node: usize) {
        let at = &self.nodes[node];
        if at.closed && at.users == 0 {
            let ticket = at.destroyer;
            self.hold(What::Destroy, node, ticket);
        }
    }

    fn leave(&mut self, node: usize) {
        self.nodes[node].users -= 1;
        self.go_on(node);
    }

    /// The object no longer exists, or was never made: its parents are released.
    fn release(&mut self, node: usize) {
        let kind = self.nodes[node].kind;
        for parent in self.nodes[node].parents.clone() {
            let at = &mut self.nodes[parent];
            at.children[kind as usize] -= 1;
            if at.waits_for_children && at.total() == 0 {
                at.closed = true;
                self.go_on(parent);
            }
        }
    }

    pub(crate) fn carry(&mut self, place: usize) {
        let Command { what, node, ticket } = self.held.remove(place).expect("it is there");
        self.end(ticket, End::Done);
        match what {
            What::Create => {
                (self.nodes[node].exists, self.nodes[node].owned) = (true, true);
                self.leave(self.nodes[node].parents[0]);
            }
            What::Query => self.leave(node),
            What::Destroy => {
                self.nodes[node].exists = false;
                self.release(node);
            }
        }
    }

    pub(crate) fn cancel(&mut self, place: usize) {
        let Command { what, node, ticket } = self.held[place];
        if what == What::Destroy || ticket.is_none() {
            return;
        }
        self.held.remove(place);
        self.end(ticket, End::Cancelled);
        match what {
            What::Create => {
                self.release(node);
                self.leave(self.nodes[node].parents[0]);
            }
            _ => self.leave(node),
        }
    }

    /// Destroys that were accepted and have not reached the provider.
    pub(crate) fn parked(&self) -> usize {
        let parked =
            |node: &&Node| node.waits_for_children && !node.closed || node.closed && node.users > 0;
        self.nodes.iter().filter(parked).count()
    }

    /// Nodes of that kind that the client can name.
    fn owned(&self, kind: ObjectKind) -> Vec<usize> {
        let owned = |&n: &usize| self.nodes[n].owned && self.nodes[n].kind == kind;
        (0..self.nodes.len()).filter(owned).collect()
    }

    /// The objects that a new object of that kind is made from; the create acts on the first.
    pub(crate) fn parents(&self, kind: ObjectKind, picks: [u8; 4]) -> Option<Vec<usize>> {
        use ObjectKind as K;
        let pick = |kind, n: usize| {
            let owned = self.owned(kind);
            let place = usize::from(picks[n]).checked_rem(owned.len())?;
            owned.get(place).copied()
        };
        Some(match kind {
            K::Pd | K::Cq | K::Xrcd => vec![DEVICE],
            K::Srq | K::Mr | K::Ah => vec![pick(K::Pd, 0)?],
            K::Mcast => vec![pick(K::Qp, 0)?],
            K::Qp => {
                let mut parents = vec![pick(K::Pd, 0)?, pick(K::Cq, 1)?, pick(K::Cq, 2)?];
                // Every other one takes its receives from a shared queue, if there is one.
                let srq = picks[3].is_multiple_of(2);
                parents.extend(srq.then(|| pick(K::Srq, 3)).flatten());
                parents
            }
            other => unreachable!("no step makes a {other}"),
        })
    }
}

/// The verb of a command in the model.
pub(crate) fn verb(what: What, kind: ObjectKind) -> Kind {
    use ObjectKind as K;
    let [create, query, destroy] = match kind {
        K::Device => [Kind::OpenDevice, Kind::QueryDevice, Kind::CloseDevice],
        K::Pd => [Kind::AllocPd, Kind::AllocPd, Kind::DeallocPd],
        K::Xrcd => [Kind::AllocXrcd, Kind::AllocXrcd, Kind::DeallocXrcd],
        K::Cq => [Kind::CreateCq, Kind::ModifyCq, Kind::DestroyCq],
        K::Qp => [Kind::CreateQp, Kind::QueryQp, Kind::DestroyQp],
        K::Srq => [Kind::CreateSrq, Kind::QuerySrq, Kind::DestroySrq],
        K::Mr => [Kind::RegMr, Kind::QueryMr, Kind::DeregMr],
        K::Ah => [Kind::CreateAh, Kind::QueryAh, Kind::DestroyAh],
        K::Mcast => [Kind::AttachMcast, Kind::AttachMcast, Kind::DetachMcast],
        other => unreachable!("no step makes a {other}"),
    };
    match what {
        What::Create => create,
        What::Query => query,
        What::Destroy => destroy,
    }
}
