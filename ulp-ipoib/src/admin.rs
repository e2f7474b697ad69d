//! Whom an interface asks for paths and groups.

use futures::future::BoxFuture;
use verbs_cm::Error;
use verbs_cm::sa::{Change, Group, Join, PathQuery, SaClient};
use verbs_core::mad::sa::{McMemberRecord, PathRecord};

/// What an interface needs of the subnet's administrator. [`SaClient`] is one; a test can be another.
///
/// Neither the calls nor their futures may block.
pub trait Administration: Send + Sync {
    /// The path to a port.
    ///
    /// # Errors
    /// Of the future: there is none, or nobody answers.
    fn path(&self, query: PathQuery) -> BoxFuture<'static, Result<PathRecord, Error>>;

    /// Joins a group. Dropping what comes of it leaves the group.
    ///
    /// # Errors
    /// Of the future: there is no such group, or nobody answers.
    fn join(&self, join: Join) -> BoxFuture<'static, Result<Box<dyn Membership>, Error>>;
}

/// Membership in a group, which sees to itself that the administrator does not forget it.
pub trait Membership: Send + Sync {
    /// The group as the administrator has it now.
    fn record(&self) -> McMemberRecord;

    /// Has every change that was not asked for told, under NoBlock.
    fn on_change(&mut self, handler: Box<dyn Fn(&Change) + Send + Sync>);
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
}
