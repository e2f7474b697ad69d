//! `verbs rds ping`.

use std::fmt;
use std::io::Write;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use futures::future::{Either, select};
use serde::Serialize;
use ulp_rds::RdsSocket;
use verbs_core::timer::Sleep;

use super::args::PingArgs;
use super::report::{show_json, write};
use super::{Host, RdsError, info};
use crate::ending::Ending;

/// How often a ping that waits looks whether somebody is there.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What all pings gave.
#[derive(Debug, Default, Serialize)]
struct Sum {
    sent: u64,
    answered: u64,
    min_us: f64,
    average_us: f64,
    max_us: f64,
}

pub(super) fn run(args: &PingArgs, out: &mut (dyn Write + Send)) -> Result<(), RdsError> {
    let host = Host::towards(&args.net, args.interface, args.address)?;
    let ending = Ending::begin().map_err(RdsError::system("be told of INT and TERM"))?;
    let _shown = info::publish(&host.node);
    let mut times = Vec::new();
    let pinged = block_on(ending.unless_told(ping(args, &host, &mut times, out)));
    let sum = Sum::of(&times);
    if args.json {
        show_json(out, &sum)?;
    } else if sum.sent > 1 {
        write(out, &sum)?;
    }
    host.wire.finish_capture()?;
    match pinged {
        Ok(done) => done?,
        Err(signal) if args.count.is_some() => signal.obey(),
        // It was to go on until then.
        Err(_) => {}
    }
    match (sum.answered, nobody(args, &host)) {
        (0, Some(why)) if sum.sent > 0 => Err(RdsError::Nobody(why)),
        (0, None) if sum.sent > 0 => Err(RdsError::Silent {
            peer: SocketAddr::new(args.address, 0),
            timeout: args.timeout,
            done: 0,
        }),
        _ => Ok(()),
    }
}

/// The peer's host says that nobody is there. Every other reason may go away while a ping waits.
fn nobody(args: &PingArgs, host: &Host) -> Option<verbs_cm::Error> {
    match host.node.last_error(host.local, args.address) {
        Some(ulp_rds::Error::Cm(why @ verbs_cm::Error::PortUnreachable(_))) => Some(why),
        _ => None,
    }
}

/// Waits until an answer is no longer waited for.
async fn given_up(args: &PingArgs, host: &Host) {
    let timer = host.node.timer();
    let until = Instant::now() + args.timeout;
    while nobody(args, host).is_none() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        Sleep::new(timer, left.min(LOOK_AGAIN)).await;
    }
}

/// Pings until it was often enough. `None` among the times is a ping that was not answered in time.
async fn ping(
    args: &PingArgs,
    host: &Host,
    times: &mut Vec<Option<Duration>>,
    out: &mut (dyn Write + Send),
) -> Result<(), RdsError> {
    let bind = || {
        let socket = RdsSocket::bind(&host.node, SocketAddr::new(host.local, 0))?;
        socket.set_tos(args.tos)?;
        Ok::<_, RdsError>(socket)
    };
    let mut socket = bind()?;
    let peer = SocketAddr::new(args.address, 0);
    let timer = host.node.timer();
    while args.count.is_none_or(|count| (times.len() as u64) < count) {
        let begun = Instant::now();
        let all = async {
            socket.send_to(&[], peer).await?;
            let _answer = socket.recv().await;
            Ok::<(), RdsError>(())
        };
        let took = match select(pin!(all), pin!(given_up(args, host))).await {
            Either::Left((done, _)) => done.map(|()| Some(begun.elapsed()))?,
            Either::Right(_) => None,
        };
        times.push(took);
        if took.is_none() {
            // An answer that comes late is not taken for that of a later ping; one of a peer that was restarted never comes.
            socket = bind()?;
        }
        if !args.json {
            let number = times.len();
            match took {
                Some(took) => write(out, &format_args!("{number:4}: {} usec", took.as_micros()))?,
                None => match nobody(args, host) {
                    Some(why) => write(out, &format_args!("{number:4}: {why}"))?,
                    None => write(
                        out,
                        &format_args!("{number:4}: no answer within {:?}", args.timeout),
                    )?,
                },
            }
        }
        if args.count != Some(times.len() as u64) {
            Sleep::new(timer, args.interval.saturating_sub(begun.elapsed())).await;
        }
    }
    Ok(())
}

impl Sum {
    fn of(times: &[Option<Duration>]) -> Self {
        let answered: Vec<f64> = times
            .iter()
            .flatten()
            .map(|took| took.as_secs_f64() * 1e6)
            .collect();
        let count = answered.len() as u64;
        if count == 0 {
            let sent = times.len() as u64;
            return Self {
                sent,
                ..Self::default()
            };
        }
        Self {
            sent: times.len() as u64,
            answered: count,
            min_us: answered.iter().copied().fold(f64::INFINITY, f64::min),
            average_us: answered.iter().sum::<f64>() / count as f64,
            max_us: answered.iter().copied().fold(0.0, f64::max),
        }
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            sent,
            answered,
            min_us,
            average_us,
            max_us,
        } = self;
        write!(f, "{sent} pings, {answered} answered")?;
        match answered {
            0 => Ok(()),
            _ => write!(
                f,
                "; min/avg/max {min_us:.0}/{average_us:.0}/{max_us:.0} usec"
            ),
        }
    }
}
