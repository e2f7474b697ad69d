//! `verbs srp target`: a file, or memory, as a disk.

use std::future::pending;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{ArgGroup, Args};
use futures::executor::block_on;
use ulp_srp::iu::PortId;
use ulp_srp::lun::{FileUnit, LogicalUnit, MemoryUnit};
use ulp_srp::scsi::Identity;
use ulp_srp::target::{Target, TargetConfig};
use verbs_core::sync::Arc;

use super::error::SrpError;
use super::offload::Threads;
use crate::cli::WireArgs;
use crate::wire::{Network, Roce, Wire};

pub(super) const ABOUT: &str = "\
Offer files, or memory, as disks to initiators that log in by the SCSI RDMA Protocol.

The first disk is logical unit 0, the next one 1. What was written to a file is in the system's page cache when \
a command ends, and outlives this process; it is on the medium after SYNCHRONIZE CACHE, or when it was written \
with FUA. No privileges are needed. Ends when it is interrupted.";

pub(super) const EXAMPLES: &str = "\
Examples:
  verbs srp target --file disk.img --listen 192.0.2.1:5555
  verbs srp target --file disk.img --size 4g --listen 192.0.2.1:5555   make it, or make it as large
  verbs srp target --memory 256m --listen 192.0.2.1:5555 --allow 00000000000000000200000000000001

Linux logs in to what the first line of the output says:
  echo id_ext=...,ioc_guid=...,dest=192.0.2.1:5555 > /sys/class/infiniband_srp/srp-rxe0-1/add_target";

/// Threads that wait for files.
const THREADS: i64 = 4;

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("disk").required(true).multiple(true).args(["file", "memory"]))]
pub(super) struct TargetArgs {
    /// A file or block device to offer; may be repeated
    #[arg(long, value_name = "FILE")]
    file: Vec<PathBuf>,
    /// Make the files this large, and create those that are not there; k, m, g and t stand for KiB to TiB
    #[arg(long, value_name = "BYTES", value_parser = bytes, requires = "file")]
    size: Option<u64>,
    /// Nothing can be written to the files
    #[arg(long, conflicts_with = "size", requires = "file")]
    read_only: bool,
    /// Memory to offer, gone with the process; may be repeated
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    memory: Vec<u64>,
    /// Where initiators come
    #[arg(long, value_name = "ADDR:PORT")]
    listen: SocketAddr,
    /// Who may log in, by the name of its port: 32 hexadecimal digits; may be repeated. Default: everybody
    #[arg(long, value_name = "PORTID")]
    allow: Vec<PortId>,
    /// The name of this target's port
    #[arg(
        long,
        value_name = "PORTID",
        default_value = "00000000000000000000000000000000"
    )]
    name: PortId,
    /// Requests that an initiator may have outstanding on a channel
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..=1024))]
    request_limit: u16,
    /// Threads that wait for files
    #[arg(long, value_name = "N", default_value_t = THREADS as u32,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,
    #[command(flatten)]
    wire: WireArgs,
}

/// Runs the command. Ends only when it cannot begin.
pub(super) fn run(args: &TargetArgs, out: &mut dyn Write) -> Result<(), SrpError> {
    let units = units(args)?;
    let network = Roce::new(&args.wire);
    let wire = wire(args, &network)?;
    block_on(async {
        let device = wire.device().await;
        let device = device.map_err(SrpError::verb("open the device"))?;
        let target = Target::open(Arc::new(device), config(args)).await?;
        for (number, unit) in (0..).zip(units) {
            target.export(number, unit).await?;
        }
        let at = target.listen(args.listen).await?;
        let PortId { extension, guid } = target.port_id();
        let login = format!(
            "id_ext={extension:016x},ioc_guid={:016x},dest={at}\n",
            guid.0
        );
        let said = out.write_all(login.as_bytes()).and_then(|()| out.flush());
        said.map_err(SrpError::Stdout)?;
        pending().await
    })
}

fn config(args: &TargetArgs) -> TargetConfig {
    let mut config = TargetConfig::new(args.name);
    config.request_limit = args.request_limit;
    config.allow = (!args.allow.is_empty()).then(|| args.allow.clone());
    config
}

fn units(args: &TargetArgs) -> Result<Vec<Arc<dyn LogicalUnit>>, SrpError> {
    let mut units: Vec<Arc<dyn LogicalUnit>> = Vec::new();
    if !args.file.is_empty() {
        let threads = Threads::start(args.threads);
        let threads = threads.map_err(|error| SrpError::System {
            doing: "start threads",
            error,
        })?;
        for path in &args.file {
            let opened = match args.size {
                Some(size) => FileUnit::create(path, size, Arc::<Threads>::clone(&threads)),
                None => FileUnit::open(path, args.read_only, Arc::<Threads>::clone(&threads)),
            };
            let unit = opened.map_err(|error| SrpError::File {
                doing: "offer",
                path: path.clone(),
                error,
            })?;
            units.push(Arc::new(unit));
        }
    }
    for (number, &bytes) in args.memory.iter().enumerate() {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let unit = MemoryUnit::new(bytes, 512).map_err(SrpError::verb("allocate the disk"))?;
        units.push(Arc::new(
            unit.identity(Identity::new(format!("memory {number}"))),
        ));
    }
    Ok(units)
}

/// The addresses that were named, or the one that is listened at.
fn wire(args: &TargetArgs, network: &dyn Network) -> Result<Wire, SrpError> {
    let address = args.listen.ip();
    Ok(match &args.wire.bind[..] {
        [] if address.is_unspecified() => network.attach_all()?,
        [] => network.attach(&[address])?,
        named => network.attach(named)?,
    })
}

/// A number of bytes with an optional suffix.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        suffix => return Err(format!("`{suffix}` is no unit; k, m, g and t are")),
    };
    let count: Result<u64, _> = digits.parse();
    let bytes = count.ok().and_then(|count| count.checked_mul(1 << shift));
    match bytes {
        Some(512..) => Ok(bytes.unwrap_or(0)),
        _ => Err("at least 512 bytes would be right, such as 64m".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(bytes("64m"), Ok(64 << 20));
        assert_eq!(bytes("1T"), Ok(1 << 40));
        assert_eq!(bytes("512"), Ok(512));
        for wrong in ["", "511", "m", "1x", "-1", "99999999999t"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
