//! A session with a target, as commands have it: named, told of, and logged out of when the process is told to end.

use std::fmt;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use ulp_srp::initiator::{Error, Event, Initiator, Options, Session, Target};
use ulp_srp::iu::{LoginRejectReason, PortId};
use verbs_cm::Manager;
use verbs_core::Device;
use verbs_core::sync::{Arc, Mutex};

use super::error::SrpError;
use super::notes::Notes;
use super::way::towards;
use crate::connecting::ConnectArgs;
use crate::ending::{Ending, GOODBYE, within};
use crate::wire::{Wire, WireArgs};

/// A session that was logged in.
pub(super) struct LoggedIn {
    pub(super) session: Session,
    /// Kept open until what the target was told last has left.
    manager: Manager,
    _device: Arc<Device>,
    wire: Wire,
}

/// Logs in, within the time that `connect` gives each login. If the process is told to end before, it ends.
pub(super) fn log_in(
    target: &Target,
    wire: &WireArgs,
    connect: ConnectArgs,
    options: Options,
    ending: &Ending,
    listener: impl Fn(Event<'_>) + Send + Sync + 'static,
) -> Result<LoggedIn, SrpError> {
    let wire = towards(target, wire)?;
    let options = Options {
        login_timeout: connect.connect_timeout,
        ..options
    };
    let logging_in = async {
        let device = wire.device().await;
        let device = Arc::new(device.map_err(SrpError::verb("open the device"))?);
        let manager = Manager::of(&device);
        manager.open().await.map_err(SrpError::connect)?;
        let initiator = Initiator::new(&device, options).on_event(listener);
        let login = initiator.login(target.clone());
        let session = connect.await_connection(&device, target, login).await;
        Ok::<_, SrpError>((session, device, manager))
    };
    match block_on(ending.unless_told(logging_in)) {
        Err(signal) => signal.obey(),
        Ok(done) => {
            let (session, device, manager) = done?;
            match session {
                Ok(session) => Ok(LoggedIn {
                    session,
                    manager,
                    _device: device,
                    wire,
                }),
                Err(error) => {
                    // What the target was told last is to leave before the process ends.
                    let _late = within(Instant::now() + GOODBYE, manager.drained());
                    let _lost = wire.finish_capture();
                    Err(refused(target, error))
                }
            }
        }
    }
}

impl LoggedIn {
    /// Does something with the session, and logs out. If the process is told to end before, it ends.
    pub(super) fn run<T>(
        self,
        ending: &Ending,
        work: impl AsyncFnOnce(&Session) -> Result<T, SrpError>,
    ) -> Result<T, SrpError> {
        let done = block_on(ending.unless_told(work(&self.session)));
        let captured = self.log_out();
        match done {
            Ok(done) => done.and_then(|done| captured.map(|()| done)),
            Err(signal) => signal.obey(),
        }
    }

    /// Logs out, and gives the target a moment to hear it.
    pub(super) fn log_out(self) -> Result<(), SrpError> {
        let Self {
            session,
            manager,
            wire,
            ..
        } = self;
        let deadline = Instant::now() + GOODBYE;
        let _late = within(deadline, Box::pin(session.logout()));
        let _late = within(deadline, manager.drained());
        Ok(wire.finish_capture()?)
    }
}

/// The options of a session under that name, or under one of its own.
pub(super) fn named(initiator: Option<PortId>) -> Options {
    initiator.map_or_else(Options::default, Options::new)
}

/// Why there is no session, with what may help.
fn refused(target: &Target, error: Error) -> SrpError {
    let is_unnamed = target.port == PortId::default();
    match error {
        Error::Rejected(LoginRejectReason::CANNOT_ASSOCIATE) if is_unnamed => SrpError::Unnamed {
            at: target.to_string(),
            error,
        },
        error => error.into(),
    }
}

/// Says when a session is lost and when it is there again, once for each outage.
pub(super) struct Outages {
    target: String,
    notes: Notes,
    since: Mutex<Option<Instant>>,
}

impl Outages {
    pub(super) fn of(target: &Target, notes: &Notes) -> Self {
        Self {
            target: target.to_string(),
            notes: notes.clone(),
            since: Mutex::new(None),
        }
    }

    pub(super) fn hear(&self, event: Event<'_>) {
        let target = &self.target;
        match event {
            Event::Lost { error } => {
                let mut since = self.since.lock();
                let is_new = since.is_none();
                since.get_or_insert_with(Instant::now);
                drop(since);
                if is_new {
                    let error = error.clone();
                    self.notes.say(&format_args!(
                        "lost the target at {target}: {error}; trying again"
                    ));
                }
            }
            Event::Restored { attempts } => {
                let since = self.since.lock().take();
                let away = since.map_or(Duration::ZERO, |since| since.elapsed());
                let times = Times(attempts);
                self.notes.say(&format_args!(
                    "logged in again to the target at {target} after {:.1} s, at the {times} attempt",
                    away.as_secs_f64()
                ));
            }
            _ => {}
        }
    }
}

/// A number of order.
struct Times(u32);

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ending = match (self.0 % 10, self.0 % 100) {
            (_, 11..=13) => "th",
            (1, _) => "st",
            (2, _) => "nd",
            (3, _) => "rd",
            _ => "th",
        };
        write!(f, "{}{ending}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_are_counted_in_english() {
        let said = [1, 2, 3, 4, 11, 12, 13, 21, 112].map(|count| Times(count).to_string());
        let expected = [
            "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "112th",
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn a_target_that_wants_its_name_gets_a_hint() {
        let target: Target = "192.0.2.1:5555".parse().expect("an address");
        let error = Error::Rejected(LoginRejectReason::CANNOT_ASSOCIATE);
        let said = refused(&target, error.clone()).to_string();
        assert!(
            said.contains("id_ext=...,ioc_guid=...,dest=192.0.2.1:5555"),
            "{said}"
        );
        let named = Target {
            port: PortId {
                extension: 1,
                ..PortId::default()
            },
            ..target
        };
        assert_eq!(
            refused(&named, error.clone()).to_string(),
            error.to_string()
        );
    }
}
