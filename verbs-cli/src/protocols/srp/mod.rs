//! `verbs srp`: disks by the SCSI RDMA Protocol.

mod attach;
mod bench;
mod error;
mod ls;
mod nbd;
mod notes;
mod offload;
mod session;
mod target;
mod way;

use std::io::Write;

use clap::{Args, Subcommand};

use self::attach::AttachArgs;
use self::bench::BenchArgs;
pub(crate) use self::error::SrpError;
use self::ls::LsArgs;
use self::target::TargetArgs;

pub(crate) const ABOUT: &str = "\
Serve and use disks by the SCSI RDMA Protocol.

Ends meet through the RDMA connection manager; either can be Linux's (ib_srpt, ib_srp) with a RoCE v2 device.";

pub(crate) const EXAMPLES: &str = "\
Exit codes:
  0  done
  1  a file or an address could not be had, or the target not be reached
  2  the arguments are wrong
  5  a verb or a command failed, or the target has gone
INT and TERM log out first, within a second, and then end the program as they would have.";

/// `verbs srp`.
#[derive(Args, Debug)]
pub(crate) struct SrpArgs {
    #[command(subcommand)]
    command: SrpCommand,
}

#[derive(Debug, Subcommand)]
enum SrpCommand {
    /// Offer a file, or memory, as a disk
    #[command(long_about = target::ABOUT, after_help = target::EXAMPLES)]
    Target(TargetArgs),
    /// Give programs a disk of a target as an NBD export
    #[command(long_about = attach::ABOUT, after_help = attach::EXAMPLES)]
    Attach(AttachArgs),
    /// Log in to a target and list its disks
    #[command(after_help = ls::EXAMPLES)]
    Ls(LsArgs),
    /// Measure reads and writes of a target's disk, or of one in memory
    #[command(long_about = bench::ABOUT, after_help = bench::EXAMPLES)]
    Bench(BenchArgs),
}

/// Runs the command.
pub(crate) fn run(args: &SrpArgs, out: &mut dyn Write) -> Result<(), SrpError> {
    match &args.command {
        SrpCommand::Target(args) => target::run(args, out),
        SrpCommand::Attach(args) => attach::run(args, out),
        SrpCommand::Ls(args) => ls::run(args, out),
        SrpCommand::Bench(args) => bench::run(args, out),
    }
}
