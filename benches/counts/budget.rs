//! The budget of a counted operation: what makes the run fail.

use gungraun::{Callgrind, EntryPoint, EventKind, LibraryBenchmarkConfig};

/// Repetitions of an operation in one measured call.
pub(crate) const TIMES: u64 = 1000;

/// How far above its budget a count may be, in thousandths.
///
/// The same source built in another directory gets other symbol hashes and another order of its code and data; for that
/// reason counts of one commit differ by up to 5 thousandths.
const TOLERANCE: u64 = 10;

/// Fails above `instructions` for each operation, plus the tolerance.
///
/// Budgets are lowered when the code gets better, and raised only together with the toolchain, or with a reason in the commit.
pub(crate) fn budget(instructions: u64) -> LibraryBenchmarkConfig {
    limited(Callgrind::default(), instructions)
}

/// As [`budget`], for what functions of that path do.
pub(crate) fn budget_of(instructions: u64, function: &str) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    callgrind.entry_point(EntryPoint::Custom(function.to_owned()));
    limited(callgrind, instructions)
}

fn limited(mut callgrind: Callgrind, instructions: u64) -> LibraryBenchmarkConfig {
    // Code that runs once per call, such as the loop and the frame, is less than an instruction for each operation.
    let most = (instructions + 1) * TIMES - 1;
    callgrind.hard_limits([(EventKind::Ir, most + most * TOLERANCE / 1000)]);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}
