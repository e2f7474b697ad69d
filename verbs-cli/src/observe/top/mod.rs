//! `verbs top`: what the software HCAs of this user's running programs do now, once a second.
//!
//! On a terminal it is a screen that renews itself, and the terminal is as it was whichever way the command ends; elsewhere,
//! a table for each sample.

mod screen;
mod table;

use std::io::{self, IsTerminal, Write, stdout};
use std::time::{Duration, Instant};

use clap::Args;

use crate::ending::{Ending, Signal, within};
use crate::report::line;
use crate::stats;
use crate::units;
use screen::Screen;
use table::Samples;

pub(crate) const ABOUT: &str = "\
Show what the software HCAs of running programs do, renewed all the time.

The programs are those of `verbs stats`, which has the totals. Rates are of the time since the sample before, so the first \
has none. On a terminal, q, Esc and Ctrl-C end it; if stdout is no terminal, or with --plain, each sample is a table of \
lines.";

pub(crate) const EXAMPLES: &str = "\
Examples:
  verbs top                      until q is pressed
  verbs top -d 0.5               twice a second
  verbs top -n 2 | tail -n +3    one table with rates, for a script

Columns:
  OUT/s IN/s   packets sent and received
  RESENT/s     attempts that were not acknowledged in time, and losses that the peer reported
  RNR/s        attempts that found no receive at the peer
  CNP/s        congestion notifications that arrived
  DROP/s       packets and datagrams dropped here, for whatever reason
  ERRORS       messages that failed, since the program has begun

Exit codes:
  0  done
  1  the programs cannot be looked for, or stdout not be written
  2  the arguments are wrong";

/// What is shown how often.
#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// Time from one sample to the next, 100ms to 1h
    #[arg(short, long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    delay: Duration,
    /// Samples until it ends; 0 for ever
    #[arg(short = 'n', long, value_name = "N", default_value_t = 0)]
    count: u64,
    /// Tables of lines, on a terminal too
    #[arg(long)]
    plain: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let sensible = Duration::from_millis(100)..=Duration::from_secs(3600);
    units::time_within(text, sensible, "from 100ms to 1h")
}

/// Why it ended, if nothing failed.
enum End {
    /// All samples were shown, or the user has seen enough.
    Done,
    Told(Signal),
}

/// Runs the command.
///
/// # Errors
/// Of the folder of the sockets, of the terminal and of stdout.
pub(crate) fn run(args: &TopArgs) -> io::Result<()> {
    let ending = Ending::begin()?;
    let is_screen = !args.plain && stdout().is_terminal();
    // Where there is no keyboard to quit it with, lines are what is left.
    let screen = if is_screen {
        Screen::enter().ok()
    } else {
        None
    };
    let end = match screen {
        Some(screen) => on_screen(args, &screen, &ending)?,
        None => as_lines(args, &ending)?,
    };
    match end {
        End::Done => Ok(()),
        // The screen is gone by now.
        End::Told(signal) => signal.obey(),
    }
}

/// The samples that are left after this one, if any is.
fn is_last(args: &TopArgs, shown: u64) -> bool {
    args.count != 0 && shown >= args.count
}

fn as_lines(args: &TopArgs, ending: &Ending) -> io::Result<End> {
    let mut samples = Samples::default();
    let mut out = stdout();
    let mut shown = 0;
    loop {
        let next = Instant::now() + args.delay;
        let rows = samples.rows(&stats::programs()?, Instant::now());
        if shown != 0 {
            line(&mut out, &"")?;
        }
        for text in table::lines(&rows) {
            line(&mut out, &text)?;
        }
        shown += 1;
        if is_last(args, shown) {
            return Ok(End::Done);
        }
        if let Some(signal) = within(next, Box::pin(ending.told())) {
            return Ok(End::Told(signal));
        }
    }
}

fn on_screen(args: &TopArgs, screen: &Screen, ending: &Ending) -> io::Result<End> {
    /// How long a signal may wait while the keyboard is listened to.
    const TURN: Duration = Duration::from_millis(100);
    let mut samples = Samples::default();
    let mut shown = 0;
    loop {
        let next = Instant::now() + args.delay;
        let rows = samples.rows(&stats::programs()?, Instant::now());
        let lines = table::lines(&rows);
        screen.show(&lines, args.delay)?;
        shown += 1;
        if is_last(args, shown) {
            return Ok(End::Done);
        }
        loop {
            let left = next.saturating_duration_since(Instant::now());
            match screen.key(left.min(TURN))? {
                screen::Key::Quit => return Ok(End::Done),
                screen::Key::Resized => screen.show(&lines, args.delay)?,
                screen::Key::Other => {}
            }
            if let Some(signal) = ending.signal() {
                return Ok(End::Told(signal));
            }
            if left.is_zero() {
                break;
            }
        }
    }
}

/// Writes all of it, or says why not.
fn put(out: &mut impl Write, text: &str) -> io::Result<()> {
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_sensible() {
        for right in ["0.5", "500ms"] {
            assert_eq!(interval(right), Ok(Duration::from_millis(500)), "{right}");
        }
        for wrong in ["0", "-1", "nan", "inf", "3601", "", "2h", "99ms"] {
            let error = interval(wrong).expect_err(wrong);
            assert!(error.contains("would be right"), "{error}");
        }
    }
}
