//! Two TUN devices and nothing between them: what an interface over a subnet is measured beside.

use std::io;
use std::io::Write;

use rustix::event::{PollFd, PollFlags, poll};
use tun_rs::{DeviceBuilder, SyncDevice};

use super::args::ForwardArgs;
use super::error::IpoibError;
use super::say;

/// Packets that are carried in a row one way.
const LOT: usize = 64;

/// Makes both devices, says so, and carries packets until the program is ended. The program that started it may
/// move the devices to other namespaces.
pub(super) fn run(args: &ForwardArgs, out: &mut dyn Write) -> Result<(), IpoibError> {
    let make = |name: &str| {
        let device = DeviceBuilder::new().name(name).mtu(args.mtu).build_sync()?;
        device.set_nonblocking(true)?;
        Ok(device)
    };
    let mut devices: Vec<SyncDevice> = Vec::new();
    for name in &args.names {
        devices.push(make(name).map_err(|error| IpoibError::Tun {
            name: name.clone(),
            error,
        })?);
    }
    let [one, other] = devices.as_slice() else {
        unreachable!("there are two names, as the arguments say");
    };
    say(
        out,
        &format_args!("carrying packets between {}", args.names.join(" and ")),
    )?;
    let mut packet = vec![0; usize::from(u16::MAX)];
    loop {
        let mut waited = [one, other].map(|device| PollFd::new(device, PollFlags::IN));
        poll(&mut waited, None).map_err(|error| IpoibError::Wait(error.into()))?;
        for (from, to) in [(one, other), (other, one)] {
            carry(from, to, &mut packet).map_err(IpoibError::Wait)?;
        }
    }
}

fn carry(from: &SyncDevice, to: &SyncDevice, packet: &mut [u8]) -> io::Result<()> {
    for _ in 0..LOT {
        let len = match from.recv(packet) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        // A device that is down takes nothing: the packet is lost, as on any network.
        let _lost = to.send(packet.get(..len).unwrap_or_default());
    }
    Ok(())
}
