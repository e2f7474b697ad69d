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

mod endpoint;
mod error;
mod fabric;
mod message;
mod receiver;
mod sender;
mod session;
mod sink;
mod source;
mod window;

use std::fmt;
use std::time::{Duration, Instant};

use futures::executor::block_on;

use crate::cli::{CopyArgs, Fault};
use crate::report::{Progress, Report};

use self::error::CopyError;
use self::fabric::Fabric;
use self::receiver::Receiver;
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
pub(crate) fn run(args: &CopyArgs) -> Result<Report, Failure> {
    let mut source = Source::open(&args.src)?;
    let target = Target::find(&args.dst, &args.src, source.id())?;
    let plan = Plan::new(source.size(), args.chunk, args.window);
    check_fault(args, &plan)?;
    let fate = target.fate();
    let started = Instant::now();
    let copied = copy(args, &plan, &mut source, target);
    let Copied { transfer, sync } = copied.map_err(|error| Failure {
        target: error.spares_target().then_some(fate),
        error,
    })?;
    let arrived = transfer.verdict.arrived;
    Ok(Report {
        source: args.src.display().to_string(),
        destination: args.dst.display().to_string(),
        bytes: arrived.bytes,
        chunk: args.chunk,
        window: args.window,
        writes: transfer.writes,
        retries: transfer.retries,
        seconds: started.elapsed().as_secs_f64(),
        sync_seconds: sync.as_secs_f64(),
        digest: arrived.digest.to_string(),
    })
}

/// A copy that is complete.
struct Copied {
    transfer: Transfer,
    /// What it took to make it durable and give it its name.
    sync: Duration,
}

/// From the first byte to the target's name.
fn copy(
    args: &CopyArgs,
    plan: &Plan,
    source: &mut Source,
    target: Target,
) -> Result<Copied, CopyError> {
    let mut sink = Sink::create(target, source.mode())?;
    let progress = Progress::new(plan.size(), args.quiet);
    let transfer = block_on(transfer(args, plan, source, &mut sink, &progress));
    progress.finish();
    let transfer = transfer?;
    let (sent, arrived) = (transfer.verdict.sent, transfer.verdict.arrived);
    if sent != arrived {
        return Err(CopyError::Mismatch {
            path: args.src.clone(),
            sent: sent.digest,
            arrived: arrived.digest,
        });
    }
    if let Some(fault) = args.fault {
        return Err(CopyError::FaultMissed(fault));
    }
    let started = Instant::now();
    sink.commit()?;
    Ok(Copied {
        transfer,
        sync: started.elapsed(),
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
fn check_fault(args: &CopyArgs, plan: &Plan) -> Result<(), CopyError> {
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
            path: args.src.clone(),
        }),
        Some(max) if got > max => Err(CopyError::NoSuchChunk {
            fault,
            path: args.src.clone(),
            chunks,
            max,
        }),
        Some(_) => Ok(()),
    }
}
