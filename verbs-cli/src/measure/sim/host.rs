//! `verbs sim --mode host`: a host whose programs and daemons are killed.

use std::io::Write;

use serde_json::json;

use super::{SimArgs, SimError, Told};
use crate::report::{self, Steps};

/// Runs the seeds that were asked for, a line for each that is alone or fails, and one for all.
///
/// # Errors
/// [`SimError`]; [`SimError::Broken`] if a run breaks a rule.
pub(super) fn run(args: &SimArgs, out: &mut dyn Write) -> Result<(), SimError> {
    let seeds = args.seeds();
    let is_one = seeds.start() == seeds.end();
    let steps = Steps::new(seeds.end() - seeds.start() + 1);
    let (mut all, mut failed) = (0, 0);
    let (mut kills, mut daemons, mut connections, mut messages) = (0, 0, 0, 0);
    // The table so far is worth having, whenever it is ended.
    let told = Told::begin();
    let mut failures = Vec::new();
    for seed in seeds.clone() {
        let Some(host) = args.host(seed).filter(|_| told.signal().is_none()) else {
            break;
        };
        let report = host.run();
        steps.advance();
        all += 1;
        kills += report.kills;
        daemons += report.daemons;
        connections += report.connections;
        messages += report.messages;
        let is_clean = report.violation.is_none();
        failed += u64::from(!is_clean);
        if let Some((at, violation)) = &report.violation {
            let text = format!("{at}: {violation}");
            failures.push(json!({ "seed": seed, "violation": text }));
        }
        if !args.json && (is_one || !is_clean) {
            steps.hidden(|| writeln!(out, "seed {seed}: {report}"))?;
        }
    }
    steps.finish();
    if args.json {
        let result = json!({
            "from": seeds.start(),
            "to": seeds.end(),
            "runs": all,
            "programs_killed": kills,
            "daemons_killed": daemons,
            "connections": connections,
            "messages": messages,
            "failed": failed,
            "failures": failures,
        });
        report::json(out, &result)?;
    } else if !is_one {
        let (from, to) = (seeds.start(), seeds.end());
        writeln!(
            out,
            "seeds {from}..{to}: {all} runs, {kills} programs and {daemons} daemons killed, \
             {connections} connections, {messages} messages, {failed} failed"
        )?;
    }
    out.flush()?;
    if let Some(signal) = told.signal() {
        signal.obey();
    }
    match failed {
        0 => Ok(()),
        failed => Err(SimError::Broken { failed, all }),
    }
}
