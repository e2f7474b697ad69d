//! `verbs srp target`: a file, or memory, as a disk.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;

use clap::{ArgGroup, Args};
use futures::executor::block_on;
use ulp_srp::iu::PortId;
use ulp_srp::lun::{FileOptions, FileUnit, LogicalUnit, MemoryUnit};
use ulp_srp::scsi::Identity;
use ulp_srp::target::{Target, TargetConfig};
use verbs_cm::Manager;
use verbs_core::sync::Arc;

use super::error::SrpError;
use super::notes::Notes;
use super::offload::Threads;
use crate::address::listening;
use crate::ending::{Ending, GOODBYE, within};
use crate::units;
use crate::wire::{Network, Wire, WireArgs, network};

pub(super) const ABOUT: &str = "\
Offer files, or memory, as disks to initiators that log in by the SCSI RDMA Protocol.

The first disk is logical unit 0, the next one 1. What was written to a file is in the system's page cache when \
a command ends, and outlives this process; it is on the medium after SYNCHRONIZE CACHE, or when it was written \
with FUA. A file has a serial number that stays with it, and a copy of it has another one; a disk in memory has one \
of its own in every life of the target. Logins, refusals, logouts, task management and failures are told on stderr. \
No privileges are needed. INT and TERM log all initiators out, within a second.";

pub(super) const EXAMPLES: &str = "\
Examples:
  verbs srp target --file disk.img --listen 192.0.2.1:5555
  verbs srp target --file disk.img --size 4g --listen 192.0.2.1:5555   make it, or make it as large
  verbs srp target --file disk.img --serial backup-7 --listen 192.0.2.1:5555
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
    /// Make the files this large, and create those that are not there; k, m, g and t stand for KiB to TiB. Larger
    /// ones are refused
    #[arg(long, value_name = "BYTES", value_parser = bytes, requires = "file")]
    size: Option<u64>,
    /// With --size, cut files that are larger: what is beyond is lost
    #[arg(long, requires = "size")]
    shrink: bool,
    /// The serial number of a file, by which initiators know the disk; may be repeated, in the order of the files.
    /// Default: one that is drawn, and kept with the file
    #[arg(long, value_name = "TEXT", value_parser = serial, requires = "file")]
    serial: Vec<String>,
    /// Nothing can be written to the files
    #[arg(long, conflicts_with = "size", requires = "file")]
    read_only: bool,
    /// Memory to offer, gone with the process; may be repeated
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    memory: Vec<u64>,
    /// Where initiators come
    #[arg(long, value_name = "ADDR:PORT", value_parser = listening)]
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

/// Runs the command, until the process is told to end.
pub(super) fn run(args: &TargetArgs, out: &mut dyn Write) -> Result<(), SrpError> {
    let ending = Ending::begin().map_err(SrpError::system("catch signals"))?;
    let notes = Notes::start("verbs srp target").map_err(SrpError::system("start a thread"))?;
    let units = units(args)?;
    let wire = wire(args, &*network(&args.wire))?;
    let opening = async {
        let device = wire.device().await;
        let device = Arc::new(device.map_err(SrpError::verb("open the device"))?);
        // Kept open until what initiators were told last has left.
        let manager = Manager::of(&device);
        manager.open().await.map_err(SrpError::connect)?;
        let target = Target::open(device, config(args)).await?;
        let told = notes.clone();
        target.on_event(move |event| told.say(event));
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
        Ok::<_, SrpError>((target, manager))
    };
    let (target, manager) = match block_on(ending.unless_told(opening)) {
        Ok(opened) => opened?,
        Err(signal) => signal.obey(),
    };
    let signal = block_on(ending.told());
    // Initiators are told, and what units are doing is waited for; those that hang are not.
    let deadline = Instant::now() + GOODBYE;
    let _late = within(deadline, Box::pin(target.close()));
    let _late = within(deadline, manager.drained());
    let captured = wire.finish_capture();
    notes.finish();
    captured?;
    signal.obey()
}

fn config(args: &TargetArgs) -> TargetConfig {
    let mut config = TargetConfig::new(args.name);
    config.request_limit = args.request_limit;
    config.allow = (!args.allow.is_empty()).then(|| args.allow.clone());
    config
}

fn units(args: &TargetArgs) -> Result<Vec<Arc<dyn LogicalUnit>>, SrpError> {
    let mut units: Vec<Arc<dyn LogicalUnit>> = Vec::new();
    if args.serial.len() > args.file.len() {
        return Err(SrpError::Arguments(
            "there are more serial numbers than files; --serial names those of --file, in their order",
        ));
    }
    if !args.file.is_empty() {
        let threads = Threads::start(args.threads);
        let threads = threads.map_err(SrpError::system("start threads"))?;
        for (number, path) in args.file.iter().enumerate() {
            let options = FileOptions {
                read_only: args.read_only,
                size: args.size,
                shrink: args.shrink,
                identity: args.serial.get(number).cloned().map(Identity::new),
            };
            let opened = FileUnit::with(path, &options, Arc::<Threads>::clone(&threads));
            let path = path.clone();
            units.push(Arc::new(opened.map_err(|error| match error.kind() {
                io::ErrorKind::InvalidInput if args.size.is_some() => {
                    SrpError::Shrinks { path, error }
                }
                _ => SrpError::File {
                    doing: "offer",
                    path,
                    error,
                },
            })?));
        }
    }
    // Another one in every life of the process: what was in the memory is gone with it.
    let drawn = Identity::drawn().map_err(SrpError::system("draw a serial number"))?;
    for (number, &bytes) in args.memory.iter().enumerate() {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let unit = MemoryUnit::new(bytes, 512).map_err(SrpError::verb("allocate the disk"))?;
        let serial = format!("{}-{}-{number}", args.name, drawn.serial);
        units.push(Arc::new(unit.identity(Identity::new(serial))));
    }
    Ok(units)
}

/// A serial number that fits the pages of a disk.
fn serial(text: &str) -> Result<String, &'static str> {
    let is_printable = text.bytes().all(|byte| byte.is_ascii_graphic());
    match text.len() {
        1..=64 if is_printable => Ok(text.into()),
        _ => Err("1 to 64 visible characters of ASCII would be right"),
    }
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

/// Bytes of a disk: a number with an optional suffix.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    match units::bytes(text, &["k", "m", "g", "t"])? {
        bytes @ 512.. => Ok(bytes),
        _ => Err("at least 512 bytes would be right, such as 64m".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_numbers_are_visible() {
        assert_eq!(serial("disk-7"), Ok("disk-7".into()));
        for wrong in ["", "a b", "\u{e4}", &"x".repeat(65)] {
            assert!(serial(wrong).is_err(), "{wrong:?}");
        }
    }

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
