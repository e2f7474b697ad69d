//! Lines of text over TCP, by which the two ends of a test connect and agree on parameters.
//!
//! ```text
//! requester                                      responder
//! test test=NAME KEY=VALUE... qpn=.. psn=..  ->
//!                                            <-  ready qpn=.. psn=.. gid=.. addr=.. rkey=.. mw=..
//! go                                         ->
//!                                            <-  go
//! done  (or: failed)                         ->
//!                                            <-  ok  (or: failed: REASON)
//! ```

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use verbs_core::{Gid, Psn, Qpn, RKey};

use crate::Failure;
use crate::end::{End, Peer};

/// How long to wait for the next line.
const PATIENCE: Duration = Duration::from_secs(60);

/// The connection of one test.
pub(crate) struct Talk(BufReader<TcpStream>);

impl Talk {
    pub(crate) fn new(stream: TcpStream) -> Result<Self, Failure> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(BufReader::new(stream)))
    }

    pub(crate) fn say(&mut self, line: &str) -> Result<(), Failure> {
        Ok(self.0.get_mut().write_all(format!("{line}\n").as_bytes())?)
    }

    pub(crate) fn hear(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err("the peer has closed the connection".into());
        }
        Ok(line.trim_end().to_owned())
    }

    /// Checks that the next line is that one.
    pub(crate) fn expect(&mut self, want: &str) -> Result<(), Failure> {
        let line = self.hear()?;
        if line != want {
            return Err(format!("the peer: {line}").into());
        }
        Ok(())
    }
}

/// The words of a line that are keys with a value.
pub(crate) fn pairs(line: &str) -> impl Iterator<Item = (&str, &str)> {
    line.split_whitespace()
        .filter_map(|word| word.split_once('='))
}

/// The parameters of this end, for the end of a line.
pub(crate) fn describe(end: &End, psn: Psn, gid: Gid) -> Result<String, Failure> {
    let mut text = String::new();
    for byte in gid.0 {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    let mr = &end.slots.mr;
    let window = end.window_key().unwrap_or_default();
    Ok(format!(
        "qpn={} psn={} gid={text} addr={} rkey={} mw={}",
        end.qp()?.qpn().value(),
        psn.value(),
        mr.iova(),
        mr.rkey().value(),
        window.value()
    ))
}

impl Peer {
    /// Takes over the other end's parameters in a line; other keys are ignored.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<(), Failure> {
        match key {
            "qpn" => self.qpn = Qpn::new(value.parse()?),
            "psn" => self.psn = Psn::new(value.parse()?),
            "gid" => self.gid = Gid(u128::from_str_radix(value, 16)?.to_be_bytes()),
            "addr" => self.remote.addr = value.parse()?,
            "rkey" => self.remote.rkey = RKey::new(value.parse()?),
            "mw" => self.window = RKey::new(value.parse()?),
            _ => {}
        }
        Ok(())
    }
}
