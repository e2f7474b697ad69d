//! `verbs srp ls`: the disks of a target.

use std::io::Write;

use clap::Args;
use serde::Serialize;
use ulp_srp::initiator::{Session, Target};
use ulp_srp::iu::{Lun, PortId};

use super::error::SrpError;
use super::session::{log_in, named};
use crate::connecting::ConnectArgs;
use crate::ending::Ending;
use crate::report;
use crate::wire::WireArgs;

pub(super) const EXAMPLES: &str = "\
Examples:
  verbs srp ls 192.0.2.1:5555
  verbs srp ls id_ext=505400fffe770002,ioc_guid=505400fffe770002,dest=192.0.2.1:5555
  verbs srp ls --json 192.0.2.1:5555 | jq '.[].bytes'";

#[derive(Args, Debug)]
pub(super) struct LsArgs {
    /// The target: ADDR:PORT, or the string that Linux logs in with
    target: Target,
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

/// A disk.
#[derive(Debug, Serialize)]
struct Disk {
    lun: String,
    vendor: String,
    product: String,
    revision: String,
    block_bytes: u32,
    blocks: u64,
    bytes: u64,
}

/// Runs the command.
pub(super) fn run(args: &LsArgs, out: &mut dyn Write) -> Result<(), SrpError> {
    let ending = Ending::begin().map_err(SrpError::system("catch signals"))?;
    let options = named(args.initiator);
    let logged_in = log_in(
        &args.target,
        &args.wire,
        args.connect,
        options,
        &ending,
        |_| (),
    )?;
    let disks = logged_in.run(&ending, list)?;
    let said = match args.json {
        true => report::json(out, &disks),
        false => out
            .write_all(table(&disks).as_bytes())
            .and_then(|()| out.flush()),
    };
    said.map_err(SrpError::Stdout)
}

async fn list(session: &Session) -> Result<Vec<Disk>, SrpError> {
    let mut disks = Vec::new();
    for lun in session.luns().await? {
        disks.push(disk(session, lun).await?);
    }
    Ok(disks)
}

async fn disk(session: &Session, lun: Lun) -> Result<Disk, SrpError> {
    let inquiry = session.inquiry(lun).await?;
    let capacity = session.capacity(lun).await?;
    Ok(Disk {
        lun: lun.to_string(),
        vendor: inquiry.vendor,
        product: inquiry.product,
        revision: inquiry.revision,
        block_bytes: capacity.block_len,
        blocks: capacity.blocks,
        bytes: capacity.bytes(),
    })
}

fn table(disks: &[Disk]) -> String {
    let mut text = format!(
        "{:<4} {:<8} {:<16} {:<4} {:>6} {:>14} {:>16}\n",
        "LUN", "vendor", "product", "rev", "block", "blocks", "bytes"
    );
    for disk in disks {
        text += &format!(
            "{:<4} {:<8} {:<16} {:<4} {:>6} {:>14} {:>16}\n",
            disk.lun,
            disk.vendor,
            disk.product,
            disk.revision,
            disk.block_bytes,
            disk.blocks,
            disk.bytes
        );
    }
    text
}
