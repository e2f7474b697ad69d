//! How clients of all commands connect: within what time, and what is said when that takes long.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::pin::pin;
use std::time::Duration;

use clap::Args;
use futures::future::{Either, select};
use verbs_core::Device;
use verbs_core::timer::Sleep;

use crate::report::remark;
use crate::units::{TIMES, time};

/// After this long without an answer a person wants to know that something still happens.
const SILENCE_MAX: Duration = Duration::from_secs(2);

/// How long the other end has.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct ConnectArgs {
    /// How long the other end may take until a connection is there, like 500ms, 5s or 2m
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    pub(crate) connect_timeout: Duration,
}

impl Default for ConnectArgs {
    fn default() -> Self {
        Self {
            connect_timeout: verbs_cm::CONNECT_TIMEOUT,
        }
    }
}

impl ConnectArgs {
    /// Awaits a connection that ends in time by itself, and says so on stderr if it takes long.
    pub(crate) async fn await_connection<T>(
        self,
        device: &Device,
        peer: impl fmt::Display,
        connecting: impl Future<Output = T>,
    ) -> T {
        let Some(timer) = device.target().provider_of().timer() else {
            return connecting.await;
        };
        let connecting = pin!(connecting);
        match select(connecting, Sleep::new(&timer, SILENCE_MAX)).await {
            Either::Left((connected, _)) => connected,
            Either::Right(((), connecting)) => {
                self.say(peer);
                connecting.await
            }
        }
    }

    /// Connects by TCP. Blocks.
    pub(crate) fn connect_tcp(self, peer: &SocketAddr) -> io::Result<TcpStream> {
        let first = self.connect_timeout.min(SILENCE_MAX);
        let rest = self.connect_timeout - first;
        match TcpStream::connect_timeout(peer, first) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut && !rest.is_zero() => {
                self.say(*peer);
                TcpStream::connect_timeout(peer, rest)
            }
            result => result,
        }
        .map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => io::Error::new(
                io::ErrorKind::TimedOut,
                format!(
                    "no answer within {:?} (--connect-timeout)",
                    self.connect_timeout
                ),
            ),
            _ => error,
        })
    }

    fn say(self, peer: impl fmt::Display) {
        if self.connect_timeout > SILENCE_MAX {
            let timeout = self.connect_timeout;
            remark(format_args!(
                "verbs: still trying to reach {peer}, for {timeout:?} in all (--connect-timeout)"
            ));
        }
    }
}

/// A span of time.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    match time(text) {
        None => Err(TIMES.into()),
        Some(Duration::ZERO) => Err("a connection takes longer than no time".into()),
        // The timer counts nanoseconds.
        Some(span) if span <= DURATION_MAX => Ok(span),
        Some(_) => Err("a day (24h) is the longest".into()),
    }
}

const DURATION_MAX: Duration = Duration::from_secs(24 * 60 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_of_some_time() {
        for (text, millis) in [
            ("500ms", 500),
            ("5s", 5000),
            ("5", 5000),
            ("1.5s", 1500),
            ("2m", 120_000),
            ("1440m", 86_400_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in [
            "",
            "s",
            "0",
            "0s",
            "-1s",
            "+1s",
            "25h",
            "5 s",
            "1441m",
            "99999999999999999999s",
            "5S",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert_eq!(
            ConnectArgs::default().connect_timeout,
            Duration::from_secs(5)
        );
    }
}
