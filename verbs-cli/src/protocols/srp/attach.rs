//! `verbs srp attach`: a disk of a target as an NBD export.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use futures::executor::block_on;
use ulp_srp::initiator::{self, Disk, Options, ScsiError};
use ulp_srp::iu::{Lun, PortId};
use verbs_core::sync::Arc;
use verbs_core::task;

use super::error::SrpError;
use super::nbd::{self, Errno, Export, Request, Shape};
use super::notes::Notes;
use super::session::{Outages, log_in, named};
use crate::connecting::ConnectArgs;
use crate::ending::Ending;
use crate::file_id::SocketFile;
use crate::units::{TIMES, time};
use crate::wire::WireArgs;

pub(super) const ABOUT: &str = "\
Log in to a target, and give programs one of its disks as an NBD export at a Unix socket.

Several programs may use it at the same time. Flush, FUA, trim and write zeroes are passed on to the disk; a disk \
without FUA is flushed instead. When the target is lost, requests wait, and go again when it is back: for ever, \
or as long as --reconnect-timeout says; then they fail, and the command ends with exit code 5. So it does when the \
target comes back with another disk, and when another initiator logs in under the same name. INT and TERM log out, \
and remove the socket.";

pub(super) const EXAMPLES: &str = "\
Examples:
  verbs srp attach 192.0.2.1:5555 --nbd unix:/tmp/disk &
  qemu-img convert -n -O raw debian.qcow2 nbd+unix:///?socket=/tmp/disk
  nbdcopy --progress 'nbd+unix:///?socket=/tmp/disk' copy.img
  verbs srp attach 192.0.2.1:5555 --nbd unix:/tmp/disk --reconnect-timeout 2m";

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
    /// The name to log in with: 32 hexadecimal digits. Default: one that no other program has
    #[arg(long, value_name = "PORTID")]
    initiator: Option<PortId>,
    /// How long a target that was lost is tried to be logged in to again: a number with ms, s, m or h. Default: for
    /// ever
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    reconnect_timeout: Option<Duration>,
    /// Programs that may use the disk at the same time; more are refused
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    clients: u32,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    wire: WireArgs,
}

fn socket(text: &str) -> Result<PathBuf, &'static str> {
    match text.strip_prefix("unix:") {
        Some(path) if !path.is_empty() => Ok(path.into()),
        _ => Err("unix:PATH would be right"),
    }
}

fn duration(text: &str) -> Result<Duration, &'static str> {
    time(text).ok_or(TIMES)
}

/// Runs the command, until the process is told to end, or the session is over.
pub(super) fn run(args: &AttachArgs, out: &mut dyn Write) -> Result<(), SrpError> {
    let ending = Ending::begin().map_err(SrpError::system("catch signals"))?;
    let notes = Notes::start("verbs srp attach").map_err(SrpError::system("start a thread"))?;
    let options = Options {
        channels: args.channels,
        reconnect_timeout: args.reconnect_timeout,
        ..named(args.initiator)
    };
    let outages = Outages::of(&args.target, &notes);
    let hear = move |event: initiator::Event<'_>| outages.hear(event);
    let logged_in = log_in(
        &args.target,
        &args.wire,
        args.connect,
        options,
        &ending,
        hear,
    )?;
    // The parser has looked at it.
    let lun = Lun::new(args.lun).unwrap_or_default();
    let ended = block_on(ending.unless_told(async {
        let disk = Disk::open(&logged_in.session, lun).await?;
        let _socket = begin(args, disk, &notes, out)?;
        // Until it cannot go on, for whatever reason.
        Err(SrpError::Over(logged_in.session.over().await))
    }));
    let logged_out = logged_in.log_out();
    notes.finish();
    match ended {
        Err(signal) => signal.obey(),
        Ok(Ok(())) => logged_out,
        Ok(over) => over,
    }
}

/// Serves the disk on threads of its own, and says so.
fn begin(
    args: &AttachArgs,
    disk: Disk,
    notes: &Notes,
    out: &mut dyn Write,
) -> Result<SocketFile, SrpError> {
    let failed = |error| SrpError::File {
        doing: "listen at",
        path: args.nbd.clone(),
        error,
    };
    let (listener, socket) = listen(&args.nbd).map_err(failed)?;
    let export = Exported(disk);
    let shape = export.shape();
    let export: Arc<dyn Export> = Arc::new(export);
    let (clients, notes) = (args.clients, notes.clone());
    nbd::start(listener, export, clients, move |line| notes.say(line))
        .map_err(SrpError::system("start a thread"))?;
    let said = writeln!(
        out,
        "{} bytes in blocks of {} at nbd+unix:///?socket={}",
        shape.size,
        shape.block,
        args.nbd.display()
    );
    said.and_then(|()| out.flush()).map_err(SrpError::Stdout)?;
    Ok(socket)
}

/// Takes the place of a socket without a listener.
fn listen(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err() {
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    Ok((listener, SocketFile::bound(path)?))
}

/// A disk for programs that speak NBD.
struct Exported(Disk);

impl Exported {
    async fn perform(disk: Disk, request: Request) -> Result<(), ScsiError> {
        match request {
            Request::Read { at, into } => disk.read(at, &into).await,
            Request::Write { at, from, fua } => disk.write(at, &from, fua).await,
            Request::Flush => disk.flush().await,
            Request::Trim { at, len } => disk.trim(at, len).await,
            Request::Zero {
                at,
                len,
                punch,
                fua,
            } => disk.zero(at, len, punch, fua).await,
        }
    }
}

impl Export for Exported {
    fn shape(&self) -> Shape {
        let capacity = self.0.capacity();
        Shape {
            size: capacity.blocks.saturating_mul(capacity.block_bytes.into()),
            block: capacity.block_bytes,
            preferred: 4096,
            max: nbd::REQUEST_BYTES_MAX,
            can_trim: self.0.can_trim(),
            read_only: self.0.is_read_only(),
        }
    }

    fn submit(&self, request: Request, done: Box<dyn FnOnce(Result<(), Errno>) + Send>) {
        let doing = Self::perform(self.0.clone(), request);
        task::detach(async move {
            done(doing.await.map_err(|error| match error {
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

    #[test]
    fn a_time_may_be_none_at_all() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        for wrong in ["", "s", "-1s", "1 s", "1d", "9999999999999999999h"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_socket_is_removed_unless_it_is_another_ones() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("disk");
        let (listener, first) = listen(&path).expect("nobody has it");
        assert!(listen(&path).is_err(), "somebody listens");
        // It is removed while the first one listens.
        fs::remove_file(&path).expect("a file");
        let (other, second) = listen(&path).expect("nobody listens there");
        drop((first, listener));
        assert!(path.exists(), "it is the second one's");
        drop(other);
        let (_listener, third) = listen(&path).expect("nobody listens any more");
        drop(third);
        assert!(!path.exists());
        drop(second);
    }
}
