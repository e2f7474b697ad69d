//! Attachments of datagram queue pairs to multicast groups.

use crate::addr::{Gid, Lid};
use crate::command::{AnyCommand, Command, Kind};
use crate::error::{Attr, Error, Why};
use crate::object::header::IfBusy;
use crate::object::{Base, Child, ObjectKind, Private, Target, core, destroy, handle};
use crate::qp::{Qp, QpCore};
use crate::request::Request;
use crate::sync::Arc;
use crate::verb::{Admit, Verb};

/// An attachment: while it lives, the queue pair receives what is sent to the group, and cannot be
/// destroyed (IBTA vol. 1, 11.3.1).
///
/// Dropping it detaches (K12).
pub struct Mcast {
    core: Arc<McastCore>,
}

/// What an attachment's requests act on.
#[derive(Debug)]
pub struct McastCore {
    base: Base,
    qp: Child<QpCore>,
    mgid: Gid,
    mlid: Lid,
}

core!(McastCore { qp });
handle!(Mcast, McastCore, DetachMcast);

/// Attaches a queue pair to a group; arguments of the verb.
#[derive(Debug)]
pub struct AttachMcast {
    qp: Child<QpCore>,
    /// The group.
    pub mgid: Gid,
    /// The group's LID; 0 where there are none.
    pub mlid: Lid,
}

impl Verb for AttachMcast {
    type Target = QpCore;
    type Output = Mcast;
    type Error = Error;
    const KIND: Kind = Kind::AttachMcast;

    fn command(command: Command<'_, Self>) -> AnyCommand<'_> {
        AnyCommand::AttachMcast(command)
    }

    fn admit(&mut self, _qp: &QpCore) -> Admit<Error> {
        if self.mgid.is_multicast() {
            return Admit::Go;
        }
        Admit::Refuse(Error::Mismatch {
            attr: Attr::Mgid,
            why: Why::NotMulticast,
        })
    }

    fn created(output: &Mcast) -> Option<Arc<dyn Target>> {
        Some(Arc::<McastCore>::clone(&output.core))
    }
}

impl AttachMcast {
    /// The attachment, for a provider that has made it under that number.
    pub fn build(self, number: u32, private: Private) -> Mcast {
        let Self { qp, mgid, mlid } = self;
        let base = Base::new(Target::device(qp.get()), ObjectKind::Mcast, number, private);
        Mcast {
            core: Arc::new(McastCore {
                base,
                qp,
                mgid,
                mlid,
            }),
        }
    }
}

impl McastCore {
    /// The queue pair.
    pub fn qp(&self) -> &Arc<QpCore> {
        self.qp.get()
    }

    /// The group.
    pub fn mgid(&self) -> Gid {
        self.mgid
    }

    /// The group's LID.
    pub fn mlid(&self) -> Lid {
        self.mlid
    }
}

impl Qp {
    /// Attaches the queue pair to a multicast group. The same group twice makes two attachments, of
    /// which each must be detached.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for an address that is not multicast or a queue pair that is not for
    /// datagrams, [`Error::Exhausted`] at the device's limits,
    /// [`Error::Unsupported`] where the device has no multicast.
    pub fn attach_mcast(&self, mgid: Gid, mlid: Lid) -> Request<'_, AttachMcast> {
        let qp = Child::new(self.core(), ObjectKind::Mcast);
        Request::new(self.core(), AttachMcast { qp, mgid, mlid })
    }
}

impl Mcast {
    /// The group.
    pub fn mgid(&self) -> Gid {
        self.core.mgid
    }

    /// The group's LID.
    pub fn mlid(&self) -> Lid {
        self.core.mlid
    }

    /// Detaches the queue pair from the group.
    ///
    /// # Errors
    /// Only [`Error::WouldBlock`] and [`Error::DeviceRemoved`].
    pub fn detach(self) -> Request<'static, DetachMcast> {
        destroy(self, IfBusy::Refuse)
    }
}
