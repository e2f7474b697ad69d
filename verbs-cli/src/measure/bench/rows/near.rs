//! Programs of one `verbs host` that share memory, beside the same over UDP on the loopback interface.
//!
//! The daemon is a process of its own. Each end has a port of it, as a program has; the ends are threads of this process, as
//! for `wire`, so that a repetition in which either was interrupted is dropped. They see each other's memory only through
//! the file that the daemon hands to both.

use std::env;
use std::fs::{self, DirBuilder};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{self, Child, Command, Stdio};

use hca_sim::Hca;
use hca_sim::link::Joined;
use hca_sim::link::fabric::socket::connect_to;

use super::Stage;
use super::bed::Bed;
use super::duel;
use super::error::BenchError;
use super::far::{End, MTU, SMALL, ends, sends, write};
use super::method::Subject;
use super::table::{Beside, Row};
use super::wire;

/// Regions that are written: one packet, one that second-level caches hold, and one that they do not.
const REGIONS: [usize; 3] = [MTU, 256 << 10, 4 << 20];

/// The address of the daemon's port, which nobody else on the machine has.
const ADDRESS: &str = "127.91.0.40";

/// Measures WRITE by region, and a small SEND one way.
pub(crate) fn run(stage: &Stage) -> Result<Vec<Row>, BenchError> {
    let method = stage.method.part_of(REGIONS.len() + 1);
    let host = Host::start()?;
    let mut rows = Vec::new();
    for (bytes, hosts) in REGIONS.into_iter().zip([[41, 42], [43, 44], [45, 46]]) {
        let (near, udp) = (host.ends(bytes)?, over_udp(hosts, bytes)?);
        let subjects = &mut [
            Subject::alone(1, write(udp, bytes)),
            Subject::alone(1, write(near, bytes)),
        ];
        let figures = method.measure(subjects)?;
        let row = Row::new(stage.bench, "RDMA WRITE between programs, CQE", figures[1]);
        let beside = Beside::new("over UDP", figures[0], figures[1]);
        rows.push(row.bytes(bytes).bandwidth().beside(beside));
    }
    let (near, udp) = (host.ends(2 * MTU)?, over_udp([47, 48], 2 * MTU)?);
    let figures = duel::measure(method, &stage.machine, vec![sends(udp)?, sends(near)?])?;
    let row = Row::new(stage.bench, "SEND between programs, one way", figures[1]);
    let beside = Beside::new("over UDP", figures[0], figures[1]);
    rows.push(row.bytes(SMALL).threads(2).beside(beside));
    Ok(rows)
}

fn over_udp([a, b]: [u8; 2], bytes: usize) -> Result<[End; 2], BenchError> {
    ends([wire::bed(a)?, wire::bed(b)?], bytes)
}

/// A daemon, for as long as the value is kept.
struct Host {
    daemon: Child,
    folder: PathBuf,
}

impl Host {
    fn start() -> Result<Self, BenchError> {
        let failed = |error: io::Error| BenchError::Host(error.to_string());
        let folder = env::temp_dir().join(format!("verbs-bench-{}", process::id()));
        DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .map_err(failed)?;
        let program = env::current_exe().map_err(failed)?;
        let daemon = Command::new(program)
            .args(["host", "--bind", ADDRESS, "--socket"])
            .arg(folder.join("host"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut host = Self { daemon, folder };
        let mut first = String::new();
        if let Some(stdout) = host.daemon.stdout.take() {
            BufReader::new(stdout)
                .read_line(&mut first)
                .map_err(failed)?;
        }
        if first.is_empty() {
            let mut why = String::new();
            if let Some(mut stderr) = host.daemon.stderr.take() {
                stderr.read_to_string(&mut why).map_err(failed)?;
            }
            return Err(BenchError::Host(why.trim_end().to_owned()));
        }
        Ok(host)
    }

    /// Two ports of it, and a connection between them.
    fn ends(&self, bytes: usize) -> Result<[End; 2], BenchError> {
        ends([self.bed()?, self.bed()?], bytes)
    }

    fn bed(&self) -> Result<Bed, BenchError> {
        let failed = |error: &dyn std::fmt::Display| BenchError::Host(error.to_string());
        let socket = connect_to(&self.folder.join("host")).map_err(|error| failed(&error))?;
        let link = Joined::join(socket, &[], "verbs bench").map_err(|error| failed(&error))?;
        Bed::on(Hca::over(link))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        // What cannot be removed is in the folder for temporary files.
        let _ = fs::remove_dir_all(&self.folder);
    }
}
