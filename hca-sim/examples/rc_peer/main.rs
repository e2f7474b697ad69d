//! One end of a test of a reliable connection over RoCEv2; the other may be a Linux RDMA device.
//!
//! ```text
//! rc_peer server ADDRESS PORT
//! rc_peer client ADDRESS HOST PORT TEST [KEY=VALUE]...
//! ```
//!
//! ADDRESS is the local IP address that packets come from. The server runs one test after the other at TCP port PORT,
//! each with a queue pair of its own. The client is the requester: it posts, checks its completions and what it has
//! read. The server is the responder: it checks its completions, what has arrived in its memory, and that nothing else
//! has. The client exits with 0 if both succeed.
//!
//! `ci/peers.d/rxe-peer/rc_peer.c` is the same program for the other side, and `ci/peers.d/rxe` runs
//! them against each other. The keys are those of [`plan::Plan`].

mod end;
mod memory;
mod plan;
mod requester;
mod responder;
mod talk;

use std::net::{IpAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hca_sim::{Hca, Udp};
use verbs_core::{Device, Gid, Psn};

use crate::end::{End, Role};
use crate::plan::{Fault, Plan, Test};
use crate::talk::{Talk, describe, pairs};

/// How long the destroys of a test's objects may take.
const GONE_MAX: Duration = Duration::from_secs(10);

/// Why a test has failed, in words.
type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args[..] {
        ["server", address, port] => serve(address, port),
        ["client", address, host, port, test, ref keys @ ..] => {
            ask(address, (host, port), test, keys)
        }
        _ => Err(
            "usage: rc_peer server ADDRESS PORT | client ADDRESS HOST PORT TEST [KEY=VALUE]..."
                .into(),
        ),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("rc_peer: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// A device with one GID, that of the address.
fn open(address: &str) -> Result<(Device, Gid), Failure> {
    let address: IpAddr = address.parse()?;
    let link = Udp::bind(&[address])?;
    let device = Hca::over(link).name("roce0").open().wait()?;
    let gid = device.query_gid(1, 0).wait()?;
    Ok((device, gid))
}

/// Serves tests until it is ended.
fn serve(address: &str, port: &str) -> Result<(), Failure> {
    let (device, gid) = open(address)?;
    let listener = TcpListener::bind(("0.0.0.0", port.parse()?))?;
    for stream in listener.incoming() {
        let mut talk = Talk::new(stream?)?;
        if let Err(failure) = respond(&device, gid, &mut talk) {
            eprintln!("  FAILED: {failure}");
            // The requester may have exited already, which does not affect the next one.
            let _ = talk.say(&format!("failed: {failure}"));
        }
    }
    Ok(())
}

/// One test, as responder.
fn respond(device: &Device, gid: Gid, talk: &mut Talk) -> Result<(), Failure> {
    let line = talk.hear()?;
    eprintln!("{line}");
    let name = pairs(&line)
        .find(|(key, _)| *key == "test")
        .map(|(_, value)| value);
    let mut plan = Plan::of(name.ok_or("no test named")?.parse()?);
    for (key, value) in pairs(&line) {
        plan.set(key, value)?;
    }
    let mut end = End::new(device, plan, Role::Responder)?;
    for (key, value) in pairs(&line) {
        end.peer.set(key, value)?;
    }
    responder::prepare(&mut end)?;
    let psn = any_psn();
    end.connect(psn)?;
    end.bind_window()?;
    let ours = describe(&end, psn, gid)?;
    talk.say(&format!("ready {ours}"))?;
    talk.expect("go")?;
    if plan.test == Test::Fails(Fault::Gone) {
        end.qp = None;
    }
    talk.say("go")?;
    responder::begin(&mut end)?;
    talk.expect("done")?;
    if end.qp.is_some() {
        responder::check(&mut end)?;
    }
    drop(end);
    all_gone(device)?;
    talk.say("ok")
}

/// Waits for the destroys of dropped handles, which may pend: on a machine with few processors, the engine's thread may
/// just be handling one of their packets.
fn all_gone(device: &Device) -> Result<(), Failure> {
    let deadline = Instant::now() + GONE_MAX;
    while device.objects() != 0 {
        if Instant::now() > deadline {
            return Err(format!("{} objects are left of the test", device.objects()).into());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// One test, as requester.
fn ask(
    address: &str,
    (host, port): (&str, &str),
    test: &str,
    keys: &[&str],
) -> Result<(), Failure> {
    let mut plan = Plan::of(test.parse()?);
    let keys = keys.join(" ");
    for (key, value) in pairs(&keys) {
        plan.set(key, value)?;
    }
    let (device, gid) = open(address)?;
    let mut talk = Talk::new(TcpStream::connect((host, port.parse()?))?)?;
    let mut end = End::new(&device, plan, Role::Requester)?;
    requester::prepare(&mut end)?;
    let psn = any_psn();
    let ours = describe(&end, psn, gid)?;
    talk.say(&format!("test test={test} {keys} {ours}"))?;
    let line = talk.hear()?;
    let theirs = line
        .strip_prefix("ready ")
        .ok_or_else(|| format!("the peer: {line}"))?;
    for (key, value) in pairs(theirs) {
        end.peer.set(key, value)?;
    }
    end.connect(psn)?;
    talk.say("go")?;
    talk.expect("go")?;
    if let Err(failure) = requester::run(&mut end) {
        talk.say("failed")?;
        eprintln!("  the peer: {}", talk.hear()?);
        return Err(failure);
    }
    talk.say("done")?;
    talk.expect("ok")
}

/// The first packet sequence number: close to the end of the range, or anywhere.
fn any_psn() -> Psn {
    let clock = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let nanos = clock.subsec_nanos();
    Psn::new(if nanos.is_multiple_of(2) {
        0xff_fff0
    } else {
        nanos
    })
}
