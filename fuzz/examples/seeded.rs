//! Runs fuzz targets over inputs that are derived from a seed. `ci/fuzz` starts one of these for each target.
//!
//! ```text
//! seeded list                                      the targets
//! seeded corpus TARGET                             the folder of its stored inputs
//! seeded run TARGET [seconds=N] [steps=N] [inputs=N] [seed=N] [first=N]
//! seeded again TARGET FILE...                      inputs from files, as they are
//! ```

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use verbs_fuzz::{Kind, Plan, TARGETS, Target, corpus, drive, find};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["list"] => {
            for target in TARGETS {
                let kind = match target.kind {
                    Kind::Parser => "parser",
                    Kind::Live => "live",
                };
                println!("{} {kind}", target.name);
            }
            Ok(())
        }
        ["corpus", name] => target(name).map(|target| println!("{}", target.corpus().display())),
        ["run", name, options @ ..] => target(name).and_then(|target| run(target, options)),
        ["again", name, files @ ..] => target(name).and_then(|target| again(target, files)),
        _ => Err(
            "seeded list, seeded run TARGET [OPTION=N]... or seeded again TARGET FILE...".into(),
        ),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

fn target(name: &str) -> Result<&'static Target, String> {
    find(name).ok_or_else(|| format!("there is no target {name}; `seeded list` names them"))
}

fn run(target: &Target, options: &[&str]) -> Result<(), String> {
    let mut plan = Plan {
        seed: 1,
        first: 0,
        time: Duration::from_secs(10),
        inputs: u64::MAX,
        steps: u64::MAX,
        failures: PathBuf::from("target/fuzz-failures"),
    };
    for option in options {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let value: u64 = value
            .parse()
            .map_err(|_| format!("{key} must be a number, and is '{value}'"))?;
        match key {
            "seconds" => plan.time = Duration::from_secs(value),
            "steps" => plan.steps = value,
            "inputs" => plan.inputs = value,
            "seed" => plan.seed = value,
            "first" => plan.first = value,
            _ => return Err(format!("there is no option {key}")),
        }
    }
    let stored =
        corpus(target).map_err(|error| format!("{}: {error}", target.corpus().display()))?;
    let stored = stored.into_iter().map(|(_, input)| input).collect();
    let report = drive(target, stored, &plan).map_err(|file| {
        let (name, file) = (target.name, file.display());
        format!(
            "{name} fails, seed {}: again with `seeded again {name} {file}`",
            plan.seed
        )
    })?;
    let seconds = report.time.as_secs_f64().max(1e-9);
    println!(
        "{:<16} seed {}, inputs {}..{}: {} inputs, {} steps, {:.0} inputs/s, {:.0} steps/s, slowest {:.1?}",
        target.name,
        plan.seed,
        plan.first,
        plan.first + report.inputs,
        report.inputs,
        report.steps,
        report.inputs as f64 / seconds,
        report.steps as f64 / seconds,
        report.slowest,
    );
    if report.inputs == 0 || report.steps == 0 {
        return Err(format!("{} ran nothing", target.name));
    }
    Ok(())
}

fn again(target: &Target, files: &[&str]) -> Result<(), String> {
    for file in files {
        let input = std::fs::read(file).map_err(|error| format!("{file}: {error}"))?;
        let steps = (target.run)(&input);
        println!("{file}: {} bytes, {steps} steps", input.len());
    }
    Ok(())
}
