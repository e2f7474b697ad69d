//! Memory windows.

use verbs_core::mw::{AllocMw, MwCore};
use verbs_core::pd::PdCore;
use verbs_core::{Attr, DeviceCap, Error, Mw, RKey, Target, WindowType};

use super::limit::require;
use super::memory;
use crate::convert::error;
use crate::keys::type_number;
use crate::shared::Shared;
use crate::sys;

pub(super) fn check_alloc(nic: &Shared, args: &AllocMw) -> Result<(), Error> {
    let needed = match args.window_type {
        WindowType::One => DeviceCap::MEM_WINDOW,
        WindowType::TwoA => DeviceCap::MEM_WINDOW_TYPE_2A,
        WindowType::TwoB => DeviceCap::MEM_WINDOW_TYPE_2B,
    };
    require(nic, needed, Attr::MemoryWindow)
}

pub(super) fn alloc(nic: &Shared, args: AllocMw, pd: &PdCore) -> Result<Mw, Error> {
    let pd = memory::domain(pd)?.pd().get()?;
    let window_type = args.window_type;
    let (mw, key) = sys::Mw::alloc(&pd, type_number(window_type)).map_err(|errno| {
        let counts = &nic.counts.mws;
        counts.explain(error(errno), Attr::MaxMw, nic.attr.max_mw)
    })?;
    nic.counts.mws.up();
    let key = RKey::new(key);
    nic.keys.add_window(key, mw, window_type);
    Ok(args.build(key, Box::new(())))
}

pub(super) fn dealloc(nic: &Shared, core: &MwCore) {
    nic.keys.remove_window(RKey::new(core.base().id().number));
    nic.counts.mws.down();
}
