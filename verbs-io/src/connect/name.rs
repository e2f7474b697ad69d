//! Names of hosts, which the system looks up.
//!
//! The system's call blocks, for seconds where no server answers, and a future may be polled where nothing may wait. So each
//! lookup has a thread of its own, which ends with it: the poll only starts it. There is one in no other case.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use futures::channel::oneshot;
use verbs_core::process::spawn_without_signals;
use verbs_core::sync::Arc;
use verbs_core::sync::atomic::{AtomicU32, Ordering::AcqRel};

use crate::error::Error;

/// Lookups that may be under way at the same time: those of futures that were dropped are among them until the system
/// has given them up.
pub(crate) const LOOKUPS_MAX: u32 = 16;

/// The lookups of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Lookups(Arc<AtomicU32>);

/// One that is under way.
struct Turn(Arc<AtomicU32>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.fetch_sub(1, AcqRel);
    }
}

impl Lookups {
    /// The addresses of a host and a port number, as `"name:7471"`, in the order in which the system would try them.
    ///
    /// # Errors
    /// [`Error::Address`].
    ///
    /// # Cancel safety
    /// The answer is lost; the thread ends when the system has answered it.
    pub(crate) async fn addresses(&self, text: &str) -> Result<Vec<SocketAddr>, Error> {
        let is_named = text
            .rsplit_once(':')
            .is_some_and(|(name, port)| !name.is_empty() && port.parse::<u16>().is_ok());
        if !is_named {
            let why = "it is neither an IP address nor a name, with a port number, like 10.0.0.2:7471 or host:7471";
            return Err(Error::address(text, why));
        }
        let turn = Turn(Arc::clone(&self.0));
        if self.0.fetch_add(1, AcqRel) >= LOOKUPS_MAX {
            let why =
                format!("{LOOKUPS_MAX} names are being looked up; the name server does not answer");
            return Err(Error::address(text, why));
        }
        let (tell, told) = oneshot::channel();
        let asked = text.to_owned();
        let begun = spawn_without_signals("lookup", move || {
            let _turn = turn;
            // A future that was dropped takes no answer.
            let _dropped = tell.send(asked.to_socket_addrs().map(Vec::from_iter));
        });
        begun.map_err(|error| Error::address(text, error))?;
        let found = told
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::Interrupted.into()));
        match found {
            Ok(found) if found.is_empty() => Err(Error::address(text, "the name has no address")),
            Ok(found) => Ok(found),
            Err(error) => Err(Error::address(text, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use futures::FutureExt;
    use futures::executor::block_on;
    use verbs_core::Raise;
    use verbs_core::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn names_have_addresses() {
        let lookups = Lookups::default();
        let found =
            block_on(lookups.addresses("localhost:7471")).expect("every host has that name");
        assert!(
            found
                .iter()
                .all(|addr| addr.port() == 7471 && addr.ip().is_loopback())
        );
        for wrong in [
            "localhost",
            ":7471",
            "localhost:port",
            "localhost:70000",
            "",
        ] {
            let error = block_on(lookups.addresses(wrong)).expect_err(wrong);
            assert!(error.to_string().contains("host:7471"), "{error}");
        }
        let error = block_on(lookups.addresses("nowhere.invalid:1")).expect_err("no such name");
        assert!(
            error
                .to_string()
                .starts_with("'nowhere.invalid:1' cannot be used"),
            "{error}"
        );
    }

    /// Goal: where nothing may wait, a poll only starts the lookup; and no more than the limit run, dropped ones
    /// among them.
    #[test]
    fn a_poll_waits_for_nothing() {
        let lookups = Lookups::default();
        let mut context = Context::from_waker(Waker::noop());
        let mut lookup = Box::pin(lookups.addresses("localhost:7471"));
        let level = Raise::new();
        let first = lookup.poll_unpin(&mut context);
        drop(level);
        // It may be quick.
        assert!(
            matches!(first, Poll::Pending | Poll::Ready(Ok(_))),
            "{first:?}"
        );
        if first.is_pending() {
            block_on(lookup).expect("an address");
        }
        lookups.0.store(LOOKUPS_MAX, Relaxed);
        let error = block_on(lookups.addresses("localhost:7471")).expect_err("too many");
        assert!(error.to_string().contains("does not answer"), "{error}");
        assert_eq!(lookups.0.load(Relaxed), LOOKUPS_MAX);
    }
}
