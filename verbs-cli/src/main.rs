//! The `verbs` command.

#![forbid(unsafe_code)]
// They panic when nobody reads; `report` has what does not.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod cli;
mod common;
mod copy;
mod daemons;
mod demo;
mod measure;
mod net;
mod observe;
mod protocols;

pub(crate) use cli::shell;
pub(crate) use common::{capture, ending, exit, file_id, logging, places, report, svg, units};
pub(crate) use daemons::{host, run, subnet};
pub(crate) use measure::{bench, connect_bench, perf, pingpong, rping, sim};
pub(crate) use net::{address, connecting, published, wire};
pub(crate) use observe::{connections, devinfo, programs, stats, top};
pub(crate) use protocols::{ipoib, rds, srp};

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use crate::cli::{BenchArgs, Cli, Command, CopyArgs, DevinfoArgs, Origin, PingpongArgs, ServeArgs};
use crate::connect_bench::ConnectBenchArgs;
use crate::connections::ConnectionsArgs;
use crate::demo::DemoArgs;
use crate::host::HostArgs;
use crate::ipoib::IpoibArgs;
use crate::perf::PerfArgs;
use crate::rds::RdsArgs;
use crate::rping::RpingArgs;
use crate::run::RunArgs;
use crate::shell::{CompletionsArgs, ManArgs};
use crate::sim::SimArgs;
use crate::srp::SrpArgs;
use crate::stats::StatsArgs;
use crate::subnet::SubnetArgs;
use crate::top::TopArgs;

fn main() -> ExitCode {
    let Cli { log, command } = cli::parse();
    if let Some(filter) = &log {
        logging::start(filter);
    }
    // Others see its connections while it runs.
    let _published = command
        .has_connections()
        .then(connections::publish)
        .flatten();
    let done = match command {
        Command::Copy(args) => run_copy(&args),
        Command::Bench(args) => run_bench(&args),
        Command::Completions(args) => run_completions(&args),
        Command::Demo(args) => run_demo(&args),
        Command::Devinfo(args) => run_devinfo(&args),
        Command::Man(args) => run_man(&args),
        Command::Perf(args) => run_perf(&args),
        Command::Pingpong(args) => run_pingpong(&args),
        Command::ConnectBench(args) => run_connect_bench(&args),
        Command::Connections(args) => run_connections(&args),
        Command::Host(args) => run_host(&args),
        Command::Ipoib(args) => run_ipoib(&args),
        Command::Rds(args) => run_rds(&args),
        Command::Rping(args) => run_rping(&args),
        Command::Run(args) => run_program(&args, log.as_deref()),
        Command::Serve(args) => run_serve(&args),
        Command::Sim(args) => run_sim(&args),
        Command::Srp(args) => run_srp(&args),
        Command::Stats(args) => run_stats(&args),
        Command::Subnet(args) => run_subnet(&args),
        Command::Top(args) => run_top(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(code) => ExitCode::from(code),
    }
}

fn run_copy(args: &CopyArgs) -> Result<(), u8> {
    let network = match &args.src {
        Origin::Served(url) => wire::network_of(url.scheme, &args.wire),
        Origin::File(_) | Origin::Stdin => wire::network(&args.wire),
    };
    let report = copy::run(args, &*network)
        .map_err(|failure| complain("copy", &failure, failure.exit_code()))?;
    // Stdout has the file.
    let mut out: Box<dyn Write> = match args.dst.as_os_str() == cli::STREAM {
        true => Box::new(io::stderr()),
        false => Box::new(io::stdout()),
    };
    if args.json {
        show_json_on(&mut *out, "copy", &report)
    } else if args.quiet {
        Ok(())
    } else {
        show_on(&mut *out, "copy", &report)
    }
}

fn run_demo(args: &DemoArgs) -> Result<(), u8> {
    demo::run(args, &mut io::stdout()).map_err(|error| complain("demo", &error, error.exit_code()))
}

fn run_devinfo(args: &DevinfoArgs) -> Result<(), u8> {
    let nic = wire::NicName::wanted(args.device.as_ref());
    let info =
        devinfo::query(nic.as_ref()).map_err(|error| complain("devinfo", &error, exit::DEVICE))?;
    if args.json {
        show_json("devinfo", &info)
    } else {
        show("devinfo", &info.text(args.verbose))
    }
}

fn run_host(args: &HostArgs) -> Result<(), u8> {
    match host::run(args, &mut io::stdout()) {
        Ok(0) => Ok(()),
        Ok(code) => Err(code),
        Err(error) => Err(complain("host", &error, error.exit_code())),
    }
}

fn run_pingpong(args: &PingpongArgs) -> Result<(), u8> {
    pingpong::run(args, &*wire::any_network(&args.wire), &mut io::stdout())
        .map_err(|error| complain("pingpong", &error, error.exit_code()))
}

fn run_completions(args: &CompletionsArgs) -> Result<(), u8> {
    shell::completions(args, &mut io::stdout())
        .map_err(|error| complain("completions", &error, error.exit_code()))
}

fn run_man(args: &ManArgs) -> Result<(), u8> {
    shell::man(args, &mut io::stdout()).map_err(|error| complain("man", &error, error.exit_code()))
}

fn run_perf(args: &PerfArgs) -> Result<(), u8> {
    perf::run(args, &*wire::any_network(&args.wire), &mut io::stdout())
        .map_err(|error| complain("perf", &error, error.exit_code()))
}

fn run_connect_bench(args: &ConnectBenchArgs) -> Result<(), u8> {
    connect_bench::run(args, &mut io::stdout())
        .map_err(|error| complain("connect-bench", &error, error.exit_code()))
}

fn run_connections(args: &ConnectionsArgs) -> Result<(), u8> {
    if args.host {
        return run_programs(args.json);
    }
    let listing = connections::list().map_err(|error| {
        let what = format!("cannot ask running programs: {error}");
        complain("connections", &what, exit::FILES)
    })?;
    if args.json {
        show_json("connections", &listing)
    } else {
        show("connections", &listing)
    }
}

fn run_programs(json: bool) -> Result<(), u8> {
    let failed = |what: String| complain("connections", &what, exit::FILES);
    let programs = programs::list().map_err(|error| failed(error.to_string()))?;
    let none = "no daemon shares this host; `verbs host` starts one";
    let programs = programs.ok_or_else(|| failed(none.to_owned()))?;
    if json {
        show_json("connections", &programs)
    } else {
        show("connections", &programs)
    }
}

fn run_rds(args: &RdsArgs) -> Result<(), u8> {
    rds::run(args, &mut io::stdout()).map_err(|error| complain("rds", &error, error.exit_code()))
}

fn run_rping(args: &RpingArgs) -> Result<(), u8> {
    rping::run(args, &*wire::any_network(&args.wire), &mut io::stdout())
        .map_err(|error| complain("rping", &error, error.exit_code()))
}

fn run_program(args: &RunArgs, log: Option<&str>) -> Result<(), u8> {
    run::run(args, log).map_err(|error| complain("run", &error, error.exit_code()))
}

fn run_serve(args: &ServeArgs) -> Result<(), u8> {
    copy::remote::serve(args, &*wire::any_network(&args.wire))
        .map_err(|error| complain("serve", &error, error.exit_code()))
}

fn run_sim(args: &SimArgs) -> Result<(), u8> {
    sim::run_seeds(args, &mut io::stdout())
        .map_err(|error| complain("sim", &error, error.exit_code()))
}

fn run_srp(args: &SrpArgs) -> Result<(), u8> {
    srp::run(args, &mut io::stdout()).map_err(|error| complain("srp", &error, error.exit_code()))
}

fn run_stats(args: &StatsArgs) -> Result<(), u8> {
    stats::run(args, &mut io::stdout()).map_err(|error| complain("stats", &error, exit::FILES))
}

fn run_subnet(args: &SubnetArgs) -> Result<(), u8> {
    subnet::run(args, &mut io::stdout())
        .map_err(|error| complain("subnet", &error, error.exit_code()))
}

fn run_top(args: &TopArgs) -> Result<(), u8> {
    match top::run(args) {
        // `head` has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done.map_err(|error| complain("top", &error, exit::FILES)),
    }
}

fn run_ipoib(args: &IpoibArgs) -> Result<(), u8> {
    ipoib::run(args, &mut io::stdout())
        .map_err(|error| complain("ipoib", &error, error.exit_code()))
}

fn run_bench(args: &BenchArgs) -> Result<(), u8> {
    let report = bench::run(args).map_err(|error| complain("bench", &error, exit::DEVICE))?;
    let shown = match args.json {
        true => show_json("bench", &report),
        false => show("bench", &report),
    };
    match report.signal {
        Some(signal) => signal.obey(),
        None => shown,
    }
}

fn show_json(command: &str, value: &impl serde::Serialize) -> Result<(), u8> {
    show_json_on(&mut io::stdout(), command, value)
}

fn show_json_on(
    out: &mut dyn Write,
    command: &str,
    value: &impl serde::Serialize,
) -> Result<(), u8> {
    report::json(out, value).map_err(|error| cannot_print(command, &error))
}

/// Prints a result; a reader that has gone away is an error like any other.
fn show(command: &str, value: &impl Display) -> Result<(), u8> {
    show_on(&mut io::stdout(), command, value)
}

fn show_on(out: &mut dyn Write, command: &str, value: &impl Display) -> Result<(), u8> {
    report::line(out, value).map_err(|error| cannot_print(command, &error))
}

fn cannot_print(command: &str, error: &io::Error) -> u8 {
    let said = format_args!("cannot write the result to stdout: {error}");
    complain(command, &said, exit::FILES)
}

/// Says in one sentence what is wrong; hands the exit code through.
fn complain(command: &str, error: &impl Display, code: u8) -> u8 {
    report::remark(format_args!("verbs {command}: {error}"));
    code
}
