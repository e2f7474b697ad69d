//! Pairs of adapters: the one for datagrams of subnet management (SMI) and the one for those of the general services
//! (GSI). Some hardware shows them as two devices. An adapter of a subnet has both, so it is its own pair.

use std::ffi::{c_char, c_int, c_uint};

use hca_sim::link::fabric::message::{Adapter, AdapterPort};

use crate::abi::{CaPair, NAME_LEN, fail, put_text};
use crate::device::{ACTIVE, adapters, name, text};

/// State of a port that has no link.
const DOWN: u8 = 1;

/// Which port of an adapter to use: the one of that number, or for 0 any, if it has a link; an active one before others.
fn preferred(adapter: &Adapter, number: u8) -> Option<&AdapterPort> {
    let fits = |port: &&AdapterPort| port.state > DOWN && (number == 0 || port.number == number);
    let with_link = || adapter.ports.iter().filter(fits);
    with_link()
        .find(|port| port.state == ACTIVE)
        .or_else(|| with_link().next())
}

fn pair(index: usize, port: u8) -> CaPair {
    let mut text = [0; NAME_LEN];
    put_text(&mut text, &name(index));
    CaPair {
        smi_name: text,
        smi_preferred_port: port.into(),
        gsi_name: text,
        gsi_preferred_port: port.into(),
    }
}

/// Writes the pairs of this host, each with the port to use (0 if no port has a link), and returns how many there are.
///
/// # Safety
/// `cas` has room for `max` pairs.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_get_smi_gsi_pairs(cas: *mut CaPair, max: usize) -> c_int {
    if cas.is_null() {
        return -1;
    }
    let Ok(adapters) = adapters() else { return -1 };
    let count = adapters.len().min(max);
    for (index, adapter) in adapters.iter().enumerate().take(count) {
        let port = preferred(adapter, 0).map_or(0, |port| port.number);
        // SAFETY: the index is below the number of pairs that there is room for.
        unsafe { cas.add(index).write(pair(index, port)) };
    }
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

/// Finds the pair of an adapter, or of any for null, and the port to use: the one that is asked for, if it has a link, or
/// for 0 the one that fits best. The last argument asks for an adapter with subnet management; each has it.
///
/// # Safety
/// `devname` is null or a text; `ca` has room for a pair.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_get_smi_gsi_pair_by_ca_name(
    devname: *const c_char,
    portnum: u8,
    ca: *mut CaPair,
    _enforce_smi: c_uint,
) -> c_int {
    if ca.is_null() {
        return -1;
    }
    // SAFETY: the name is null or a text.
    let wanted = unsafe { text(devname) };
    let adapters = match adapters() {
        Ok(adapters) => adapters,
        Err(error) => return fail(error.raw_os_error()),
    };
    for (index, adapter) in adapters.iter().enumerate() {
        if wanted.as_ref().is_some_and(|wanted| *wanted != name(index)) {
            continue;
        }
        if let Some(port) = preferred(adapter, portnum) {
            // SAFETY: there is room for one.
            unsafe { ca.write(pair(index, port.number)) };
            return 0;
        }
    }
    fail(libc::ENODEV)
}
