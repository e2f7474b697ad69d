//! `verbs copy`: a file crosses from one software HCA to another.
//!
//! ```text
//!  Source ─▶ Sender ─▶ registered slots ══ RDMA WRITE ══▶ registered slots ─▶ Receiver ─▶ Sink
//!                └──────── SEND: announcement, closing ──────▶┘
//!                ┌◀─────── SEND: credit, closing ─────────────┘
//! ```
//!
//! [`window`] says which chunk may go where; [`session`] lets the two ends take turns; the sink gets
//! its name only after the digests were compared.

mod carrier;
mod endpoint;
mod error;
mod fabric;
mod file;
mod flow;
mod message;
pub(crate) mod remote;

pub(crate) use file::{sink, source};
pub(crate) use flow::{receiver, sender, session, window};

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use futures::executor::block_on;

use crate::cli::{CopyArgs, Fault, Origin};
use crate::report::{Progress, Report};
use crate::wire::Network;

use self::error::CopyError;
use self::fabric::Fabric;
use self::receiver::{Receiver, Verdict};
use self::sender::Sender;
use self::session::{Session, Transfer};
use self::sink::{Sink, Target};
use self::source::Source;
use self::window::Plan;

/// Why the command failed, and what that means for the target.
#[derive(Debug)]
pub(crate) struct Failure {
    error: CopyError,
    /// Where it failed on the way to the target; `None` before there was anything to lose.
    target: Option<String>,
}

impl Failure {
    /// A failure on the way to a target; `fate` is what that leaves there.
    fn at(error: CopyError, fate: String) -> Self {
        let target = error.spares_target().then_some(fate);
        Self { error, target }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        self.error.exit_code()
    }
}

impl From<CopyError> for Failure {
    fn from(error: CopyError) -> Self {
        Self {
            error,
            target: None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)?;
        self.target
            .as_ref()
            .map_or(Ok(()), |target| write!(f, "; {target}"))
    }
}

/// Runs the command. Blocks until the copy is complete.
pub(crate) fn run(args: &CopyArgs, network: &dyn Network) -> Result<Report, Failure> {
    match &args.src {
        Origin::File(path) => run_here(args, path, || Source::open(path)),
        Origin::Stdin => run_here(args, Path::new("stdin"), Source::stdin),
        Origin::Served(url) => remote::fetch(args, url, network),
    }
}

/// From a file of this host, or from stdin.
fn run_here(
    args: &CopyArgs,
    src: &Path,
    open: impl FnOnce() -> Result<Source, CopyError>,
) -> Result<Report, Failure> {
    if let Some(option) = args.wire.given() {
        let when = "is a roce://, rdma:// or iwarp:// URL";
        return Err(CopyError::Useless { option, when }.into());
    }
    let mut source = open()?;
    let target = Target::find(&args.dst, Some((src, source.id())))?;
    let plan = Plan::new(source.size(), args.chunk, args.window);
    check_fault(args, src, &plan)?;
    let fate = target.fate();
    let started = Instant::now();
    let copied = copy(args, src, &plan, &mut source, target);
    let Copied {
        verdict,
        chunk,
        window,
        writes,
        retries,
        sync,
    } = copied.map_err(|error| Failure::at(error, fate))?;
    Ok(Report {
        source: src.display().to_string(),
        destination: args.dst.display().to_string(),
        bytes: verdict.arrived.bytes,
        chunk,
        window,
        writes,
        retries,
        seconds: started.elapsed().as_secs_f64(),
        sync_seconds: sync.as_secs_f64(),
        digest: verdict.arrived.digest.to_string(),
    })
}

/// A copy that is complete.
struct Copied {
    verdict: Verdict,
    chunk: u32,
    window: u32,
    writes: u64,
    retries: u64,
    /// What it took to make it durable and give it its name.
    sync: Duration,
}

/// From the first byte to the target's name.
fn copy(
    args: &CopyArgs,
    src: &Path,
    plan: &Plan,
    source: &mut Source,
    target: Target,
) -> Result<Copied, CopyError> {
    let mut sink = Sink::create(target, source.mode())?;
    let progress = Progress::new(plan.size(), args.quiet);
    let transfer = block_on(transfer(args, plan, source, &mut sink, &progress));
    progress.finish();
    let Transfer {
        verdict,
        writes,
        retries,
    } = transfer?;
    compare(src, &verdict)?;
    if let Some(fault) = args.fault {
        return Err(CopyError::FaultMissed(fault));
    }
    let started = Instant::now();
    sink.commit()?;
    Ok(Copied {
        verdict,
        chunk: args.chunk,
        window: args.window,
        writes,
        retries,
        sync: started.elapsed(),
    })
}

/// Refuses what arrived if it is not what was sent.
fn compare(src: &Path, verdict: &Verdict) -> Result<(), CopyError> {
    if verdict.sent == verdict.arrived {
        return Ok(());
    }
    Err(CopyError::Mismatch {
        path: src.into(),
        sent: verdict.sent.digest,
        arrived: verdict.arrived.digest,
    })
}

async fn transfer(
    args: &CopyArgs,
    plan: &Plan,
    source: &mut Source,
    sink: &mut Sink,
    progress: &Progress,
) -> Result<Transfer, CopyError> {
    let fabric = Fabric::new(args.fault);
    let (sending, receiving) = fabric.connect(args, plan).await?;
    let slots = receiving.data.remote(0);
    let sender = Sender::new(sending, source, *plan, slots);
    let receiver = Receiver::new(receiving, sink, *plan);
    Session::new(&fabric, sender, receiver, *plan, args.fault)
        .run(progress)
        .await
}

/// Refuses a fault that the file is too short for.
fn check_fault(args: &CopyArgs, src: &Path, plan: &Plan) -> Result<(), CopyError> {
    let chunks = plan.chunks();
    let Some(fault) = args.fault else {
        return Ok(());
    };
    let (got, max) = match fault {
        Fault::Flip(chunk) => (chunk, chunks.checked_sub(1)),
        Fault::Remove(after) => (after, Some(chunks)),
    };
    match max {
        None => Err(CopyError::NoChunks {
            fault,
            path: src.into(),
        }),
        Some(max) if got > max => Err(CopyError::NoSuchChunk {
            fault,
            path: src.into(),
            chunks,
            max,
        }),
        Some(_) => Ok(()),
    }
}
