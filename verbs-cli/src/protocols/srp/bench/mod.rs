//! `verbs srp bench`: reads and writes of a disk, as fast as they go.

mod calls;
mod load;
mod memory;
mod report;

use std::io::Write;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};
use futures::executor::block_on;
use serde::Serialize;
use ulp_srp::initiator::{Mechanism, Options, Session, Target};
use ulp_srp::iu::{Lun, PortId};

use self::load::Load;
use self::report::Report;
use super::error::SrpError;
use super::session::{log_in, named};
use crate::connecting::ConnectArgs;
use crate::ending::Ending;
use crate::report::json;
use crate::units::time_within;
use crate::wire::WireArgs;

pub(super) const ABOUT: &str = "\
Measure reads and writes of a target's disk, or of one in memory of this process.

Keeps so many commands under way, each of one block size at a random place. Writes destroy what is on the disk: \
without --read 100 it has to be named by --lun. With several fragments, the memory of each command is in as many \
pieces, which no two pages of hold together but a memory handle: compare --mechanism published, which names each \
piece to the target.";

pub(super) const EXAMPLES: &str = "\
Examples:
  verbs srp bench --memory 64m
  verbs srp bench --memory 64m --block 64k --fragments 16 --mechanism published
  verbs srp bench 192.0.2.1:5555 --lun 0 --depth 16 --block 4k --read 70 --time 10
  verbs srp bench 192.0.2.1:5555 --read 100 --json | jq .iops";

/// Size of a page, and so of a fragment at least.
const PAGE: u32 = 4096;

/// How long the bench may take.
fn duration(text: &str) -> Result<Duration, String> {
    let sensible = Duration::from_secs(1)..=Duration::from_secs(3600);
    time_within(text, sensible, "from 1s to 1h")
}

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("disk").required(true).args(["target", "memory"]))]
pub(super) struct BenchArgs {
    /// The target: ADDR:PORT, or the string that Linux logs in with
    target: Option<Target>,
    /// A target in this process, with a disk of so many bytes; k, m and g stand for KiB to GiB
    #[arg(long, value_name = "BYTES", value_parser = super::target::bytes)]
    memory: Option<u64>,
    /// Which of the target's disks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=0x3fff))]
    lun: Option<u16>,
    /// Commands under way
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    depth: u16,
    /// Bytes of a command
    #[arg(long, value_name = "BYTES", default_value = "4k", value_parser = super::target::bytes)]
    block: u64,
    /// Pieces of a command's memory; each a page at least
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=255))]
    fragments: u32,
    /// Per cent of the commands that read
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=100))]
    read: u32,
    /// How memory is named to the target
    #[arg(long, value_enum, default_value_t = Way::FastReg)]
    mechanism: Way,
    /// Writes of up to so many bytes carry their data
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    immediate: u32,
    /// Connections to the target
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    channels: u8,
    /// How long to measure, 1s to 1h
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = duration)]
    time: Duration,
    /// The name to log in with: 32 hexadecimal digits. Default: one that no other program has
    #[arg(long, value_name = "PORTID")]
    initiator: Option<PortId>,
    /// For programs
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    wire: WireArgs,
}

/// [`Mechanism`] by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Way {
    /// A fast registration before each command
    FastReg,
    /// A mapping of a pool of fast memory regions
    Fmr,
    /// A handle that is allocated for each command
    Request,
    /// A long-lived key of all memory: a table of pieces
    Published,
}

impl From<Way> for Mechanism {
    fn from(way: Way) -> Self {
        match way {
            Way::FastReg => Self::FastReg,
            Way::Fmr => Self::Fmr,
            Way::Request => Self::Request,
            Way::Published => Self::Published,
        }
    }
}

impl From<Mechanism> for Way {
    fn from(mechanism: Mechanism) -> Self {
        match mechanism {
            Mechanism::FastReg => Self::FastReg,
            Mechanism::Fmr => Self::Fmr,
            Mechanism::Request => Self::Request,
            Mechanism::Published => Self::Published,
        }
    }
}

/// Runs the command.
pub(super) fn run(args: &BenchArgs, out: &mut dyn Write) -> Result<(), SrpError> {
    check(args)?;
    let report = match (&args.target, args.memory) {
        (Some(target), _) => {
            let ending = Ending::begin().map_err(SrpError::system("catch signals"))?;
            let logged_in = log_in(
                target,
                &args.wire,
                args.connect,
                options(args),
                &ending,
                |_| (),
            )?;
            logged_in.run(&ending, async |session| measure(args, session).await)?
        }
        // Both ends are in this process, and end with it.
        (None, bytes) => block_on(async {
            let bed = memory::Bed::new(bytes.unwrap_or(0)).await?;
            let session = bed.login(options(args)).await?;
            let report = measure(args, &session).await;
            session.logout().await;
            report
        })?,
    };
    let said = match args.json {
        true => json(out, &report),
        false => write!(out, "{report}").and_then(|()| out.flush()),
    };
    said.map_err(SrpError::Stdout)
}

fn check(args: &BenchArgs) -> Result<(), SrpError> {
    if args.target.is_some() && args.lun.is_none() && args.read < 100 {
        return Err(SrpError::Arguments(
            "writes destroy what is on a disk; --lun names it, or --read 100 only reads",
        ));
    }
    let pages = args.block / u64::from(PAGE);
    let fragments = u64::from(args.fragments);
    if args.block > 1 << 30
        || fragments > 1 && (fragments > pages || !args.block.is_multiple_of(PAGE.into()))
    {
        return Err(SrpError::Arguments(
            "a command has 1 GiB at most, and each of several fragments a page of 4 KiB at least",
        ));
    }
    Ok(())
}

fn options(args: &BenchArgs) -> Options {
    let pages = u32::try_from(args.block.div_ceil(PAGE.into())).unwrap_or(u32::MAX) + 1;
    Options {
        mechanism: args.mechanism.into(),
        queue_depth: args.depth.div_ceil(args.channels.into()).max(1),
        channels: args.channels,
        pages_max: pages,
        immediate_max: args.immediate,
        ..named(args.initiator)
    }
}

async fn measure(args: &BenchArgs, session: &Session) -> Result<Report, SrpError> {
    // The parser has looked at it.
    let lun = Lun::new(args.lun.unwrap_or(0)).unwrap_or_default();
    let capacity = session.capacity(lun).await?;
    let load = Load {
        lun,
        capacity,
        depth: args.depth,
        bytes: u32::try_from(args.block).unwrap_or(u32::MAX),
        fragments: args.fragments,
        read_percent: args.read,
        time: args.time,
    };
    let result = load.run(session).await?;
    let calls = match args.memory {
        Some(_) => Some(calls::per_second(&load)?),
        None => None,
    };
    let (_, formats) = session.counters();
    let mechanism = session.mechanism().into();
    Ok(Report::new(args, mechanism, &result, formats, calls))
}
