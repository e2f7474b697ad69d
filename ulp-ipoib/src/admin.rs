//! The source of an interface's paths and groups.

use futures::future::{BoxFuture, ready};
use verbs_cm::Error;
use verbs_cm::sa::{Change, Group, Join, PathQuery, SaClient};
use verbs_core::mad::sa::{McMemberRecord, PathRecord};

/// What an interface needs of the subnet's administrator. [`SaClient`] implements it; a test can implement it
/// too.
///
/// Neither the calls nor their futures may block.
pub trait Administration: Send + Sync {
    /// The path to a port.
    ///
    /// # Errors
    /// The future's: there is none, or the administrator does not answer.
    fn path(&self, query: PathQuery) -> BoxFuture<'static, Result<PathRecord, Error>>;

    /// Joins a group. Dropping the result leaves the group.
    ///
    /// # Errors
    /// The future's: there is no such group, or the administrator does not answer.
    fn join(&self, join: Join) -> BoxFuture<'static, Result<Box<dyn Membership>, Error>>;
}

/// Membership in a group; it keeps itself registered with the administrator.
pub trait Membership: Send + Sync + 'static {
    /// The administrator's current record of the group.
    fn record(&self) -> McMemberRecord;

    /// Sets the handler for changes that this side did not request; it is called under NoBlock.
    fn on_change(&mut self, handler: Box<dyn Fn(&Change) + Send + Sync>);

    /// Leaves the group. The future ends when the administrator has answered; by default at once, as if the membership were
    /// dropped.
    ///
    /// # Errors
    /// The future's: the administrator may think that the port is a member still.
    ///
    /// # Cancel safety
    /// If the future is dropped, the membership ends all the same.
    fn leave(self: Box<Self>) -> BoxFuture<'static, Result<(), Error>> {
        drop(self);
        Box::pin(ready(Ok(())))
    }
}

impl Administration for SaClient {
    fn path(&self, query: PathQuery) -> BoxFuture<'static, Result<PathRecord, Error>> {
        Box::pin(Self::path(self, query).into_future())
    }

    fn join(&self, join: Join) -> BoxFuture<'static, Result<Box<dyn Membership>, Error>> {
        let step = Self::join(self, join);
        Box::pin(async move {
            let group: Box<dyn Membership> = Box::new(step.await?);
            Ok(group)
        })
    }
}

impl Membership for Group {
    fn record(&self) -> McMemberRecord {
        Self::record(self)
    }

    fn on_change(&mut self, handler: Box<dyn Fn(&Change) + Send + Sync>) {
        Self::on_change(self, handler);
    }

    fn leave(self: Box<Self>) -> BoxFuture<'static, Result<(), Error>> {
        Box::pin(Self::leave(*self).into_future())
    }
}
