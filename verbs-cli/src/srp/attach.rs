//! `verbs srp attach`: a disk of a target as an NBD export.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use clap::Args;
use futures::executor::block_on;
use ulp_srp::initiator::{self, Command, Data, Initiator, Options, ScsiError, Session};
use ulp_srp::iu::{Cdb, Lun, Status, TaskAttribute};
use ulp_srp::scsi::{self, BlockLimits, Blocks, Capacity, Extent as Range, Form, Sense, SenseKey};
use verbs_core::sync::Arc;
use verbs_core::{Extent, Memory, task};

use super::error::SrpError;
use super::nbd::{self, Errno, Export, Request, Shape};
use super::way::towards;
use crate::cli::WireArgs;

pub(super) const ABOUT: &str = "\
Log in to a target, and give programs one of its disks as an NBD export at a Unix socket.

Several programs may use it at the same time. Flush, FUA, trim and write zeroes are passed on to the disk. Ends \
when it is interrupted.";

pub(super) const EXAMPLES: &str = "\
Examples:
  verbs srp attach 192.0.2.1:5555 --nbd unix:/tmp/disk &
  qemu-img convert -n -O raw debian.qcow2 nbd+unix:///?socket=/tmp/disk
  nbdcopy --progress 'nbd+unix:///?socket=/tmp/disk' copy.img";

/// Bytes that one SCSI command moves at most, if the disk does not say less.
const COMMAND_BYTES_MAX: u32 = 1 << 20;

/// How often a command is sent again that was not taken, or whose unit had something to say first.
const ATTEMPTS: u32 = 100;

#[derive(Args, Debug)]
pub(super) struct AttachArgs {
    /// The target: ADDR:PORT, or the string that Linux logs in with
    target: initiator::Target,
    /// Where programs find the disk
    #[arg(long, value_name = "unix:PATH", value_parser = socket)]
    nbd: PathBuf,
    /// Which of the target's disks
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=0x3fff))]
    lun: u16,
    /// Connections to the target
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    channels: u8,
    #[command(flatten)]
    wire: WireArgs,
}

fn socket(text: &str) -> Result<PathBuf, &'static str> {
    match text.strip_prefix("unix:") {
        Some(path) if !path.is_empty() => Ok(path.into()),
        _ => Err("unix:PATH would be right"),
    }
}

/// Runs the command. Ends only when it cannot begin.
pub(super) fn run(args: &AttachArgs, out: &mut dyn Write) -> Result<(), SrpError> {
    let wire = towards(&args.target, &args.wire)?;
    let disk = block_on(async {
        let device = wire.device().await;
        let device = Arc::new(device.map_err(SrpError::verb("open the device"))?);
        let options = Options {
            channels: args.channels,
            ..Options::default()
        };
        let session = Initiator::new(&device, options)
            .login(args.target.clone())
            .await?;
        // The parser has looked at it.
        let lun = Lun::new(args.lun).unwrap_or_default();
        Disk::open(session, lun).await
    })?;
    let failed = |error| SrpError::File {
        doing: "listen at",
        path: args.nbd.clone(),
        error,
    };
    let listener = listen(&args.nbd).map_err(failed)?;
    let shape = disk.shape();
    let said = writeln!(
        out,
        "{} bytes in blocks of {} at nbd+unix:///?socket={}",
        shape.size,
        shape.block,
        args.nbd.display()
    );
    said.and_then(|()| out.flush()).map_err(SrpError::Stdout)?;
    let export: Arc<dyn Export> = Arc::new(disk);
    nbd::serve(&listener, &export).map_err(failed)
}

/// Takes the place of a socket that nobody listens at any more.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        fs::remove_file(path)?;
    }
    UnixListener::bind(path)
}

/// A logical unit that a session leads to. Clones are the same one.
#[derive(Clone)]
struct Disk {
    session: Session,
    lun: Lun,
    capacity: Capacity,
    limits: BlockLimits,
    /// A block of zeros, to be written to many places.
    zeros: Arc<Memory>,
}

impl Disk {
    async fn open(session: Session, lun: Lun) -> Result<Self, SrpError> {
        let allocated = |len| Memory::alloc(len).map_err(SrpError::verb("allocate a buffer"));
        let room = Arc::new(allocated(4096)?);
        let mut disk = Self {
            zeros: Arc::new(allocated(4096)?),
            session,
            lun,
            capacity: Capacity {
                blocks: 0,
                block_bytes: 512,
                physical_exponent: 0,
                thin: false,
                reads_zeros: false,
            },
            limits: BlockLimits::default(),
        };
        let list = |len| {
            [Extent {
                memory: &room,
                offset: 0,
                len,
            }]
        };
        let long = scsi::Command::ReadCapacity16 { allocation: 32 };
        disk.command(&long, Data::In(&list(32))).await?;
        let mut bytes = [0; 64];
        room.read(0, &mut bytes)
            .map_err(SrpError::verb("read the buffer"))?;
        disk.capacity = Capacity::parse16(&bytes).ok_or(SrpError::BlockSize(0))?;
        let size = disk.capacity.block_bytes;
        if !size.is_power_of_two() || !(512..=4096).contains(&size) {
            return Err(SrpError::BlockSize(size));
        }
        let page = scsi::Command::Inquiry {
            page: Some(0xb0),
            allocation: 64,
        };
        // Not every disk has the page; then nothing is known.
        if disk.command(&page, Data::In(&list(64))).await.is_ok() {
            room.read(0, &mut bytes)
                .map_err(SrpError::verb("read the buffer"))?;
            disk.limits = scsi::block_limits(&bytes).unwrap_or_default();
        }
        Ok(disk)
    }

    /// Sends a command until it was taken.
    async fn command(&self, command: &scsi::Command, data: Data<'_>) -> Result<(), ScsiError> {
        let cdb = command.emit();
        let command = Command {
            cdb: Cdb::new(&cdb).map_err(initiator::Error::Unit)?,
            lun: self.lun,
            attribute: TaskAttribute::SIMPLE,
            data,
        };
        let mut attempts = 0;
        loop {
            attempts += 1;
            let done = self.session.run(&command).await?;
            if done.is_good() {
                return Ok(());
            }
            let sense = done.sense.as_deref().and_then(Sense::parse);
            let is_news = sense.is_some_and(|sense| sense.key == SenseKey::UnitAttention);
            let is_full = [Status::BUSY, Status::TASK_SET_FULL].contains(&done.status);
            if attempts == ATTEMPTS || !(is_news || is_full) {
                return Err(ScsiError::Status(Box::new(done)));
            }
        }
    }

    /// Bytes that one command moves at most.
    fn command_bytes(&self) -> u32 {
        match self
            .limits
            .transfer
            .saturating_mul(self.capacity.block_bytes)
        {
            0 => COMMAND_BYTES_MAX,
            said => said.min(COMMAND_BYTES_MAX),
        }
    }

    fn blocks(&self, at: u64, len: u64) -> Blocks {
        let size = u64::from(self.capacity.block_bytes);
        // Callers have cut it into parts that a command can say.
        let count = u32::try_from(len / size).unwrap_or(u32::MAX);
        Blocks {
            form: Form::Sixteen,
            ..Blocks::new(at / size, count)
        }
    }

    /// Moves all of the memory, in parts.
    async fn transfer(
        &self,
        at: u64,
        memory: &Arc<Memory>,
        is_write: bool,
        fua: bool,
    ) -> Result<(), ScsiError> {
        let part = self.command_bytes() as usize;
        for offset in (0..memory.len()).step_by(part) {
            let len = part.min(memory.len() - offset) as u32;
            let list = [Extent {
                memory,
                offset,
                len,
            }];
            let mut blocks = self.blocks(at + offset as u64, len.into());
            blocks.fua = fua;
            let (command, data) = match is_write {
                true => (scsi::Command::Write(blocks), Data::Out(&list)),
                false => (scsi::Command::Read(blocks), Data::In(&list)),
            };
            self.command(&command, data).await?;
        }
        Ok(())
    }

    async fn zero(&self, at: u64, len: u64, unmap: bool, fua: bool) -> Result<(), ScsiError> {
        let size = self.capacity.block_bytes;
        let max = match self.limits.write_same {
            0 => 1 << 16,
            said => said.min(1 << 22),
        };
        let part = max * u64::from(size);
        let list = [Extent {
            memory: &self.zeros,
            offset: 0,
            len: size,
        }];
        let unmap = unmap && self.limits.unmap > 0;
        let mut done = 0;
        while done < len {
            let some = part.min(len - done);
            let blocks = self.blocks(at + done, some);
            let command = scsi::Command::WriteSame { blocks, unmap };
            self.command(&command, Data::Out(&list)).await?;
            done += some;
        }
        match fua {
            true => self.flush().await,
            false => Ok(()),
        }
    }

    async fn trim(&self, at: u64, len: u64) -> Result<(), ScsiError> {
        let size = u64::from(self.capacity.block_bytes);
        let (mut lba, mut left) = (at / size, len / size);
        while left > 0 {
            let count = left.min(self.limits.unmap.into()) as u32;
            if count == 0 {
                return Ok(());
            }
            let Some(list) = scsi::unmap_parameters(&[Range { lba, count }]) else {
                return Ok(());
            };
            let memory = Arc::new(Memory::alloc(list.len())?);
            memory.write(0, &list)?;
            // 24 bytes.
            let length = list.len() as u16;
            let extent = [Extent {
                memory: &memory,
                offset: 0,
                len: length.into(),
            }];
            self.command(&scsi::Command::Unmap { length }, Data::Out(&extent))
                .await?;
            (lba, left) = (lba + u64::from(count), left - u64::from(count));
        }
        Ok(())
    }

    async fn flush(&self) -> Result<(), ScsiError> {
        let command = scsi::Command::SynchronizeCache {
            blocks: Blocks::new(0, 0),
            immediate: false,
        };
        self.command(&command, Data::None).await
    }

    async fn perform(&self, request: Request) -> Result<(), ScsiError> {
        match request {
            Request::Read { at, into } => self.transfer(at, &into, false, false).await,
            Request::Write { at, from, fua } => self.transfer(at, &from, true, fua).await,
            Request::Flush => self.flush().await,
            Request::Trim { at, len } => self.trim(at, len).await,
            Request::Zero {
                at,
                len,
                punch,
                fua,
            } => self.zero(at, len, punch, fua).await,
        }
    }
}

impl Export for Disk {
    fn shape(&self) -> Shape {
        let size = self.capacity.block_bytes;
        Shape {
            size: self.capacity.blocks.saturating_mul(size.into()),
            block: size,
            preferred: 4096,
            max: nbd::REQUEST_BYTES_MAX,
            can_trim: self.limits.unmap > 0,
        }
    }

    fn submit(&self, request: Request, done: Box<dyn FnOnce(Result<(), Errno>) + Send>) {
        let disk = self.clone();
        task::detach(async move {
            done(disk.perform(request).await.map_err(|error| match error {
                ScsiError::Transport(initiator::Error::LoggedOut) => Errno::Shutdown,
                _ => Errno::Io,
            }));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_have_a_kind() {
        assert_eq!(socket("unix:/tmp/disk"), Ok("/tmp/disk".into()));
        assert!(socket("/tmp/disk").is_err());
        assert!(socket("unix:").is_err());
    }
}
