//! Address handles.

use std::ffi::c_int;

use verbs_abi::{self as abi, AhAttr, av_of, shown_av};
use verbs_core::{Av, Gid, Lid, Wc, WcFlags};

use crate::call::live::{Ending, Held, Kind, Object, Users, end, look, publish, room};
use crate::call::{Errno, code, number, pointer};
use crate::device::Context;
use crate::memory::Pd;

/// An address handle.
#[repr(C)]
pub(crate) struct Ah {
    shown: abi::Ah,
    inner: verbs_core::Ah,
    /// As it was made; posting reads it.
    av: Av,
    _pd: Held<Pd>,
    users: Users,
}

// SAFETY: programs change nothing in the C structure.
unsafe impl Send for Ah {}
// SAFETY: as above.
unsafe impl Sync for Ah {}

// SAFETY: the C part is at the front.
unsafe impl Object for Ah {
    const KIND: Kind = Kind::Ah;

    fn users(&self) -> &Users {
        &self.users
    }
}

impl Ah {
    #[inline(always)]
    pub(crate) fn av(&self) -> Av {
        self.av
    }
}

/// # Safety
/// The program does not destroy the domain now.
unsafe fn create(pd: *mut abi::Pd, attr: &AhAttr) -> Result<*mut abi::Ah, Errno> {
    // SAFETY: guaranteed by the caller.
    let owner = unsafe { look::<Pd, _>(pd) }?;
    let av = av_of(attr);
    if owner.context.is_ethernet && av.global.is_none() {
        // There are no LIDs.
        return Err(Errno::INVAL);
    }
    let inner = owner.create_ah(av).wait()?;
    let shown = abi::Ah {
        context: owner.context.shown(),
        pd,
        handle: 0,
    };
    let ah = Ah {
        shown,
        inner,
        av,
        _pd: Held::new(owner),
        users: Users::default(),
    };
    Ok(publish(room(), ah))
}

/// `ibv_create_ah`.
pub(crate) unsafe extern "C" fn create_ah(pd: *mut abi::Pd, attr: *const AhAttr) -> *mut abi::Ah {
    // SAFETY: the program passes valid arguments, and destroys none of them now.
    pointer(|| unsafe { create(pd, attr.as_ref().ok_or(Errno::INVAL)?) })
}

/// `ibv_destroy_ah`.
pub(crate) unsafe extern "C" fn destroy_ah(ah: *mut abi::Ah) -> c_int {
    code(|| {
        // SAFETY: the program does not use it now.
        unsafe {
            end::<Ah, _>(ah, |Ah { inner, .. }| {
                // It is never in use, and a device that has been removed has no handles.
                let _ = inner.destroy().wait();
                Ending::Over
            })
        }
    })
}

/// The address for an answer to a datagram: `wc` is its completion, `grh` the header in front of its payload.
fn way_back(
    context: &Context,
    port: u8,
    wc: &abi::Wc,
    grh: Option<&[u8; 40]>,
) -> Result<AhAttr, Errno> {
    let arrived = Wc {
        flags: WcFlags::from_bits_truncate(wc.wc_flags as u16),
        slid: Lid(wc.slid),
        sl: if context.is_ethernet { 0 } else { wc.sl },
        dlid_path_bits: wc.dlid_path_bits,
        ..Wc::default()
    };
    if !arrived.flags.contains(WcFlags::GRH) {
        let back = Av::reverse(port, &arrived, &[0; 40], 0).ok_or(Errno::INVAL)?;
        return Ok(shown_av(&back));
    }
    let grh = grh.ok_or(Errno::INVAL)?;
    let index = context.index_of(sent_to(grh))?;
    // A datagram to a group is answered from the first address.
    let index = u16::from(index.unwrap_or(0));
    let back = Av::reverse(port, &arrived, grh, index).ok_or(Errno::INVAL)?;
    Ok(shown_av(&back))
}

/// The destination of a datagram, from its header. An IPv4 header occupies the last 20 bytes.
fn sent_to(grh: &[u8; 40]) -> Gid {
    let mut gid = [0; 16];
    match grh[0] >> 4 {
        6 => gid.copy_from_slice(&grh[24..]),
        _ => {
            gid[10..12].fill(0xff);
            gid[12..].copy_from_slice(&grh[36..]);
        }
    }
    Gid(gid)
}

/// `ibv_init_ah_from_wc`.
pub(crate) unsafe extern "C" fn init_ah_from_wc(
    context: *mut abi::Context,
    port: u8,
    wc: *const abi::Wc,
    grh: *const [u8; 40],
    attr: *mut AhAttr,
) -> c_int {
    number(|| {
        // SAFETY: the program passes valid arguments, and destroys none of them now.
        unsafe {
            let owner = look::<Context, _>(context)?;
            let wc = wc.as_ref().ok_or(Errno::INVAL)?;
            attr.write(way_back(owner, port, wc, grh.as_ref())?);
        }
        Ok(0)
    })
}

/// `ibv_create_ah_from_wc`.
pub(crate) unsafe extern "C" fn create_ah_from_wc(
    pd: *mut abi::Pd,
    wc: *const abi::Wc,
    grh: *const [u8; 40],
    port: u8,
) -> *mut abi::Ah {
    pointer(|| {
        // SAFETY: the program passes valid arguments, and destroys none of them now.
        unsafe {
            let owner = look::<Pd, _>(pd)?;
            let wc = wc.as_ref().ok_or(Errno::INVAL)?;
            create(pd, &way_back(&owner.context, port, wc, grh.as_ref())?)
        }
    })
}

/// `ibv_resolve_eth_l2_from_gid`: there are no link addresses to resolve.
pub(crate) unsafe extern "C" fn resolve_eth_l2_from_gid(
    _context: *mut abi::Context,
    _attr: *mut AhAttr,
    _mac: *mut [u8; 6],
    _vlan: *mut u16,
) -> c_int {
    code(|| Err(Errno::NOTSUP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_says_where_a_datagram_was_sent_to() {
        let mut grh = [0; 40];
        grh[20] = 0x45;
        grh[36..].copy_from_slice(&[127, 0, 0, 3]);
        assert_eq!(sent_to(&grh), std::net::Ipv4Addr::new(127, 0, 0, 3).into());
        grh[0] = 0x60;
        grh[24..].fill(7);
        assert_eq!(sent_to(&grh), Gid([7; 16]));
    }
}
