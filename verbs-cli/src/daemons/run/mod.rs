//! `verbs run`: a program that is linked against libibverbs or librdmacm, on a software HCA.
//!
//! The program takes the place of this process, with the library path and the environment that `shims/ibverbs` reads.
//! A few programs look for device files before they ask the library; for those, `namespace` puts what they look for
//! into /dev and /sys where only they see it.

mod daemon;
mod device;
mod inside;
mod library;
mod namespace;

use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use hca_sim::link::{PerMille, host};

use self::device::Device;
use crate::exit;
use crate::report::remark;
use crate::units::time;

pub(crate) const ABOUT: &str = "\
Run a program that uses libibverbs or librdmacm on a software HCA, unmodified.

The program finds one device, roce0, which speaks RoCE v2 over UDP port 4791 on an address of this host. Without --device \
that is 127.0.0.1, which all such programs share: `verbs host` is started if it does not run, and ends 10 seconds after its last \
program. If it runs with other addresses, the device has these. A program that names another address of this host \
gets that one, and one whose peer is on another host the one from which that is reached. With --device the device can also be an RNIC over TCP, \
which is iWARP, or a node of a subnet that `verbs subnet` hosts. Its network can be broken on purpose, repeatably. docs/PROGRAMS.md lists the programs that were \
tried. No privileges are needed.";

pub(crate) const EXAMPLES: &str = "\
Examples, each in two terminals:
  verbs run -- ib_write_bw                          wait for a client
  verbs run -- ib_write_bw 127.0.0.1                be one, on the same host

  verbs run -- rping -s                             the same with connections by address
  verbs run -- rping -c -a 127.0.0.1 -v -C 10

  verbs run --rsocket -- iperf3 -s                  sockets over RDMA
  verbs run --rsocket -- iperf3 -c 127.0.0.1

  verbs run --host --device 192.0.2.1 -- rping -s   several programs on that address

  verbs run --device 192.0.2.1 -- ibv_rc_pingpong -g 0
  verbs run --device 192.0.2.2 -- ibv_rc_pingpong -g 0 192.0.2.1

  verbs run --device iwarp:192.0.2.1 -- rping -s    connections over TCP, which Linux's siw can make too
  verbs run --device subnet:HcaA -- ib_write_bw     a node of a subnet that `verbs subnet` hosts

  verbs run --loss 1% --seed 7 -- ib_send_lat       one packet of a hundred is lost, the same ones each time
  verbs run --pcap packets.pcap -- ib_read_bw       what was on the wire, for Wireshark

  export $(verbs run --environment)                 for all that this shell starts from now on

Exit codes are the program's, and
  1    the library was not found, or the program could not be started
  2    the arguments are wrong
  127  there is no such program";

/// Arguments of `verbs run`.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// Where the device is: ADDR, the address of this host that it has for RoCE; iwarp:ADDR, or iwarp for 127.0.0.1;
    /// subnet:NODE or subnet:NODE:PORT, a node of a hosted subnet. Default: 127.0.0.1, shared with other programs
    #[arg(long, value_name = "DEVICE")]
    device: Option<Device>,
    /// Lose that share of the packets that come: 2%, 0.2%, or a number of thousandths
    #[arg(long, value_name = "SHARE")]
    loss: Option<PerMille>,
    /// Which ones: the same number draws the same places
    #[arg(long, value_name = "N", requires = "loss")]
    seed: Option<u64>,
    /// Write all packets to a file for Wireshark (link type 101, raw IP)
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// End connections of librdmacm whose peer has been silent for so long, 1s to 24h: its host is gone. A peer that was
    /// killed is noticed in any case
    #[arg(long, value_name = "DURATION", value_parser = silence)]
    keepalive: Option<u64>,
    /// With an iwarp device: ask the port mapper of the peer's host before connecting, and answer those of peers, as RNICs with a
    /// TCP of their own have one (iwpmd)
    #[arg(long)]
    port_mapper: bool,
    /// Say on stderr why calls of the library are refused, why work requests end in error, and why requests of peers are refused
    #[arg(long)]
    explain: bool,
    /// The folder that has libibverbs.so.1 and librdmacm.so.1; default: beside this program
    #[arg(long, value_name = "FOLDER")]
    library: Option<PathBuf>,
    /// Make rsockets of the program's TCP sockets: streams over RDMA, where the other end has them too
    #[arg(long)]
    rsocket: bool,
    /// Share the address of --device with the other programs of this host: start `verbs host` there if it does not run, and
    /// run nothing if that fails. It ends 10 seconds after its last program
    #[arg(long)]
    host: bool,
    /// Leave /dev and /sys as they are. Otherwise the program sees /dev/infiniband/uverbs0 and
    /// /sys/class/infiniband/roce0, if the system lets an ordinary user have mounts of his own
    #[arg(long)]
    no_namespace: bool,
    /// Run nothing, and print what a program's environment has for all this, a line NAME=VALUE each: for jobs that start
    /// many programs, such as ctest or pytest. They share an address if `verbs host` runs
    #[arg(long, conflicts_with_all = ["program", "host"])]
    environment: bool,
    /// The program and its arguments
    #[arg(
        required_unless_present = "environment",
        trailing_var_arg = true,
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

/// A program was not run. One sentence without its full stop.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error(transparent)]
    Library(#[from] library::LibraryError),
    #[error("cannot start `verbs host`: {0}")]
    Host(String),
    #[error("cannot print the environment: {0}")]
    Print(io::Error),
    #[error("cannot run {}: {error}", program.display())]
    Program { program: OsString, error: io::Error },
}

impl RunError {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Program { error, .. } if error.kind() == io::ErrorKind::NotFound => 127,
            _ => exit::FILES,
        }
    }
}

/// Becomes the program, and returns only if it cannot; or prints the environment that a program would have. The library tells on
/// stderr what that filter lets through.
pub(crate) fn run(args: &RunArgs, log: Option<&str>) -> Result<(), RunError> {
    let folder = library::folder(args.library.as_deref())?;
    let preload = args.rsocket.then(|| library::preload(&folder));
    let preload = preload.transpose()?.map(with_those_before);
    let mut environment = environment(args, folder);
    environment.extend(log.map(|filter| ("VERBS_LOG", filter.into())));
    environment.extend(preload.map(|preload| ("LD_PRELOAD", preload)));
    let Some((program, rest)) = args.program.split_first() else {
        return print(&environment).map_err(RunError::Print);
    };
    let is_shared = share(args).map_err(RunError::Host)?;
    let mut command = Command::new(program);
    command.args(rest).envs(environment);
    if !args.no_namespace {
        // Few programs need it, and some systems refuse it.
        let entered = namespace::enter(&Device::shown(args.device.as_ref(), is_shared));
        if let Ok(Some(folder)) = entered {
            command.env("VERBS_SYSFS", folder);
        }
    }
    let error = command.exec();
    let program = program.clone();
    Err(RunError::Program { program, error })
}

fn print(environment: &[(&str, OsString)]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for (name, value) in environment {
        let line = [name.as_bytes(), b"=", value.as_bytes(), b"\n"].concat();
        out.write_all(&line)?;
    }
    out.flush()
}

/// Sees to it that `verbs host` runs where the program is to share an address. Returns whether it does, or why it does not
/// although the user wants it.
fn share(args: &RunArgs) -> Result<bool, String> {
    if args.host {
        let address = match &args.device {
            None => None,
            Some(Device::Roce(address)) => Some(address.ip),
            Some(_) => return Err("it shares an address for RoCE only".into()),
        };
        return daemon::start(address).map(|()| true);
    }
    let is_named = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    // Who names a device has it alone, and who names a socket has a daemon there, or wants none.
    if args.device.is_some() || is_named("VERBS_DEVICE") || host::is_named() {
        return Ok(false);
    }
    let started = daemon::start(None);
    if let (Err(why), true) = (&started, args.explain) {
        remark(format_args!(
            "verbs run: the program shares no address, because `verbs host` cannot be started: {why}"
        ));
    }
    Ok(started.is_ok())
}

/// A library to preload, before those that the environment names.
fn with_those_before(preload: PathBuf) -> OsString {
    let mut all = preload.into_os_string();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        all.push(" ");
        all.push(others);
    }
    all
}

/// Seconds that the library can wait for.
fn silence(text: &str) -> Result<u64, String> {
    let whole = time(text).filter(|time| time.subsec_nanos() == 0);
    whole
        .map(|time| time.as_secs())
        .filter(|seconds| (1..=86_400).contains(seconds))
        .ok_or_else(|| "whole seconds from 1s to 24h would be right, such as 30s or 2m".into())
}

/// What the library finds in the environment of the program.
fn environment(args: &RunArgs, folder: PathBuf) -> Vec<(&'static str, OsString)> {
    let mut paths = vec![folder];
    if let Some(before) = env::var_os("LD_LIBRARY_PATH").filter(|paths| !paths.is_empty()) {
        paths.extend(env::split_paths(&before));
    }
    // None of them has a colon: they came out of such a list, or were checked.
    let paths = env::join_paths(paths).unwrap_or_default();
    let mut set = vec![("LD_LIBRARY_PATH", paths)];
    let mut add = |name, value: Option<String>| set.extend(value.map(|it| (name, it.into())));
    add("VERBS_DEVICE", args.device.as_ref().map(Device::variable));
    add("VERBS_LOSS", args.loss.map(|loss| loss.to_string()));
    add("VERBS_SEED", args.seed.map(|seed| seed.to_string()));
    let seconds = args.keepalive.map(|seconds| seconds.to_string());
    add("VERBS_KEEPALIVE", seconds);
    add("VERBS_LOG_LEVEL", args.explain.then(|| "3".into()));
    add("VERBS_PORT_MAPPER", args.port_mapper.then(|| "1".into()));
    add("VERBS_CONNECTIONS", Some("1".into()));
    if let Some(pcap) = &args.pcap {
        // The program may change its directory before it opens the device.
        let whole = std::path::absolute(pcap).unwrap_or_else(|_| pcap.clone());
        set.push(("VERBS_PCAP", whole.into_os_string()));
    }
    set
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        run: RunArgs,
    }

    #[test]
    fn options_become_the_librarys_environment() {
        let line = "run --device 127.0.0.9 --loss 10 --seed 7 --keepalive 9 --port-mapper --explain -- prog --loss x";
        let args = Line::parse_from(line.split(' ')).run;
        assert_eq!(args.program, ["prog", "--loss", "x"]);
        let environment = environment(&args, "/lib/verbs".into());
        let set: BTreeMap<_, _> = environment
            .iter()
            .filter_map(|(name, value)| Some((*name, value.to_str()?)))
            .collect();
        assert_eq!(set["VERBS_DEVICE"], "127.0.0.9");
        assert_eq!((set["VERBS_LOSS"], set["VERBS_SEED"]), ("10", "7"));
        assert_eq!(set["VERBS_KEEPALIVE"], "9");
        assert_eq!(set["VERBS_LOG_LEVEL"], "3");
        assert_eq!(set["VERBS_CONNECTIONS"], "1");
        assert_eq!(set["VERBS_PORT_MAPPER"], "1");
        assert!(set["LD_LIBRARY_PATH"].starts_with("/lib/verbs"));
        assert!(!set.contains_key("VERBS_PCAP"));
    }

    #[test]
    fn a_seed_without_loss_is_refused() {
        let line = "run --seed 7 -- prog";
        assert!(Line::try_parse_from(line.split(' ')).is_err());
        assert!(Line::try_parse_from(["run"]).is_err());
    }

    #[test]
    fn an_environment_is_for_no_program() {
        let parsed = |line: &str| Line::try_parse_from(line.split(' '));
        let args = parsed("run --environment --device iwarp").expect("an environment");
        assert!(args.run.program.is_empty());
        assert!(parsed("run --environment -- prog").is_err());
        assert!(parsed("run --environment --host").is_err());
    }
}
