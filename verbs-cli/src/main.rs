//! The `verbs` command.

#![forbid(unsafe_code)]

mod address;
mod bench;
mod capture;
mod cli;
mod connect_bench;
mod connecting;
mod copy;
mod demo;
mod devinfo;
mod ending;
mod exit;
mod ipoib;
mod net;
mod pingpong;
mod places;
mod rds;
mod report;
mod rping;
mod run;
mod sim;
mod srp;
mod subnet;
mod wire;

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

use crate::cli::{BenchArgs, Cli, Command, CopyArgs, DevinfoArgs, PingpongArgs, ServeArgs};
use crate::connect_bench::ConnectBenchArgs;
use crate::demo::DemoArgs;
use crate::ipoib::IpoibArgs;
use crate::rds::RdsArgs;
use crate::rping::RpingArgs;
use crate::run::RunArgs;
use crate::sim::SimArgs;
use crate::srp::SrpArgs;
use crate::subnet::SubnetArgs;
use crate::wire::Roce;

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Copy(args) => run_copy(&args),
        Command::Bench(args) => run_bench(&args),
        Command::Demo(args) => run_demo(&args),
        Command::Devinfo(args) => run_devinfo(&args),
        Command::Pingpong(args) => run_pingpong(&args),
        Command::ConnectBench(args) => run_connect_bench(&args),
        Command::Ipoib(args) => run_ipoib(&args),
        Command::Rds(args) => run_rds(&args),
        Command::Rping(args) => run_rping(&args),
        Command::Run(args) => Err(run_program(&args)),
        Command::Serve(args) => run_serve(&args),
        Command::Sim(args) => run_sim(&args),
        Command::Srp(args) => run_srp(&args),
        Command::Subnet(args) => run_subnet(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(code) => ExitCode::from(code),
    }
}

fn run_copy(args: &CopyArgs) -> Result<(), u8> {
    let report = copy::run(args, &*wire::network(&args.wire))
        .map_err(|failure| complain("copy", &failure, failure.exit_code()))?;
    if args.json {
        show_json("copy", &report)
    } else if args.quiet {
        Ok(())
    } else {
        show("copy", &report)
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

fn run_pingpong(args: &PingpongArgs) -> Result<(), u8> {
    pingpong::run(args, &*wire::network(&args.wire), &mut io::stdout())
        .map_err(|error| complain("pingpong", &error, error.exit_code()))
}

fn run_connect_bench(args: &ConnectBenchArgs) -> Result<(), u8> {
    connect_bench::run(args, &mut io::stdout())
        .map_err(|error| complain("connect-bench", &error, error.exit_code()))
}

fn run_rds(args: &RdsArgs) -> Result<(), u8> {
    rds::run(args, &mut io::stdout()).map_err(|error| complain("rds", &error, error.exit_code()))
}

fn run_rping(args: &RpingArgs) -> Result<(), u8> {
    rping::run(args, &Roce::new(&args.wire), &mut io::stdout())
        .map_err(|error| complain("rping", &error, error.exit_code()))
}

fn run_program(args: &RunArgs) -> u8 {
    let error = run::run(args);
    complain("run", &error, error.exit_code())
}

fn run_serve(args: &ServeArgs) -> Result<(), u8> {
    copy::remote::serve(args, &*wire::network(&args.wire))
        .map_err(|error| complain("serve", &error, error.exit_code()))
}

fn run_sim(args: &SimArgs) -> Result<(), u8> {
    sim::run_seeds(args, &mut io::stdout())
        .map_err(|error| complain("sim", &error, error.exit_code()))
}

fn run_srp(args: &SrpArgs) -> Result<(), u8> {
    srp::run(args, &mut io::stdout()).map_err(|error| complain("srp", &error, error.exit_code()))
}

fn run_subnet(args: &SubnetArgs) -> Result<(), u8> {
    subnet::run(args, &mut io::stdout())
        .map_err(|error| complain("subnet", &error, error.exit_code()))
}

fn run_ipoib(args: &IpoibArgs) -> Result<(), u8> {
    ipoib::run(args, &mut io::stdout())
        .map_err(|error| complain("ipoib", &error, error.exit_code()))
}

fn run_bench(args: &BenchArgs) -> Result<(), u8> {
    let report = bench::run(args).map_err(|error| complain("bench", &error, exit::DEVICE))?;
    if args.json {
        show_json("bench", &report)
    } else {
        show("bench", &report)
    }
}

fn show_json(command: &str, value: &impl serde::Serialize) -> Result<(), u8> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| complain(command, &error, exit::FILES))?;
    show(command, &text)
}

/// Prints a result; a reader that has gone away is an error like any other.
fn show(command: &str, value: &impl Display) -> Result<(), u8> {
    let mut stdout = io::stdout().lock();
    report::line(&mut stdout, value).map_err(|error| {
        complain(
            command,
            &format_args!("cannot write the result to stdout: {error}"),
            exit::FILES,
        )
    })
}

/// Says in one sentence what is wrong; hands the exit code through.
fn complain(command: &str, error: &impl Display, code: u8) -> u8 {
    // Nobody can be told that stderr is closed.
    let _ = writeln!(io::stderr(), "verbs {command}: {error}");
    code
}
