//! Arguments of `verbs copy`.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};

use super::WINDOW_MAX;
use crate::address::{ServedUrl, UrlError};
use crate::connecting::ConnectArgs;
use crate::units::chunk;
use crate::wire::WireArgs;

pub(super) const EXAMPLES: &str = "\
Examples:
  verbs copy A B                         copy A to B
  verbs copy --chunk 64k --window 4 A B  four WRITEs of 64 KiB outstanding at most
  verbs copy roce://192.0.2.1/A B        fetch A from a `verbs serve` there; IPv6 in brackets
  verbs copy iwarp://192.0.2.1/A B       the same from a `verbs serve --transport iwarp`
  verbs copy --json A B | jq .digest     the report for programs
  tar c DIR | verbs copy - DIR.tar       from stdin, which is read to its end first
  verbs copy roce://192.0.2.1/A - | tar x
                                         to stdout: all of it, or nothing
  verbs copy --fault flip:0 A B          damage the first chunk on its way: exit code 3, no B
  verbs copy --fault remove:2 A B        lose the destination device after two chunks: exit code 5";

#[derive(Args, Debug)]
pub(crate) struct CopyArgs {
    /// The file to copy: a regular file, - for stdin, or roce://HOST/PATH, rdma://HOST/PATH or iwarp://HOST/PATH, with
    /// :PORT behind the host if it is not 7174
    #[arg(value_parser = OsStringValueParser::new().try_map(Origin::parse))]
    pub(crate) src: Origin,
    /// Where to: a new name, a regular file that is replaced, or - for stdout, which gets all of it, when its digest is
    /// right, or nothing; then the report goes to stderr
    #[arg(value_parser = OsStringValueParser::new().try_map(destination))]
    pub(crate) dst: PathBuf,
    /// Bytes of one WRITE, at most 2g; k, m and g stand for KiB, MiB and GiB
    #[arg(long, value_name = "N", default_value = "1m", value_parser = chunk)]
    pub(crate) chunk: u32,
    /// WRITEs outstanding at most
    #[arg(long, value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u32).range(1..=WINDOW_MAX))]
    pub(crate) window: u32,
    /// Report in JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Break something on purpose: flip:N inverts one bit of chunk N in flight (the first chunk is
    /// 0), remove:N removes the destination device when N chunks have arrived
    #[arg(long, value_name = "SPEC")]
    pub(crate) fault: Option<Fault>,
    /// No progress bar and no report
    #[arg(long, conflicts_with = "json")]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
    #[command(flatten)]
    pub(crate) wire: WireArgs,
}

/// Where a copy comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    File(PathBuf),
    Stdin,
    Served(ServedUrl),
}

impl Origin {
    fn parse(text: OsString) -> Result<Self, String> {
        if text == STREAM {
            return Ok(Self::Stdin);
        }
        match ServedUrl::is_meant(text.as_bytes()) {
            true => ServedUrl::parse(text.as_bytes())
                .map(Self::Served)
                .map_err(|error: UrlError| error.to_string()),
            false => Ok(Self::File(text.into())),
        }
    }
}

/// Stdin as a source, and stdout as a target. A file of that name is `./-`.
pub(crate) const STREAM: &str = "-";

fn destination(text: OsString) -> Result<PathBuf, &'static str> {
    match ServedUrl::is_meant(text.as_bytes()) {
        true => Err("files can be fetched from a server, but not sent to one"),
        false => Ok(text.into()),
    }
}

/// What to break while copying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// One bit of this chunk, counted from 0, is inverted in flight.
    Flip(u64),
    /// The destination device is removed when so many chunks have arrived.
    Remove(u64),
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(spec: &str) -> Result<Self, String> {
        let (kind, number) = spec.split_once(':').unwrap_or((spec, ""));
        let fault = match kind {
            "flip" => Self::Flip,
            "remove" => Self::Remove,
            _ => return Err(format!("`{kind}` is no fault; flip:N and remove:N are")),
        };
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        match number.parse() {
            Ok(number) if is_number => Ok(fault(number)),
            _ => Err(format!(
                "`{number}` is no chunk number; {kind}:3 would be right"
            )),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flip(chunk) => write!(f, "flip:{chunk}"),
            Self::Remove(chunks) => write!(f, "remove:{chunks}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_no_files() {
        assert_eq!(Origin::parse("-".into()), Ok(Origin::Stdin));
        assert_eq!(destination("-".into()), Ok(STREAM.into()));
        assert_eq!(Origin::parse("./-".into()), Ok(Origin::File("./-".into())));
        assert_eq!(destination("./-".into()), Ok("./-".into()));
    }

    #[test]
    fn faults_are_named() {
        assert_eq!("flip:0".parse(), Ok(Fault::Flip(0)));
        assert_eq!("remove:17".parse(), Ok(Fault::Remove(17)));
        for text in [
            "",
            "flip",
            "flip:",
            "flip:x",
            "flip:-1",
            "flip:+1",
            "remove:1:2",
            "drop:1",
            ":",
            "flip:1 ",
        ] {
            assert!(text.parse::<Fault>().is_err(), "{text}");
        }
    }
}
