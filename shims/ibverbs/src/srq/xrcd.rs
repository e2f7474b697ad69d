//! Domains of extended reliable connections.

use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::fs::fstat;
use verbs_abi::{self as abi, XrcdInitAttr};
use verbs_core::xrcd::XrcdName;

use crate::call::live::{Ending, Held, Kind, Object, Users, end, look, publish, room};
use crate::call::{Errno, code, pointer};
use crate::device::Context;

/// A domain: handles that were opened with the same file are one domain, in all programs that share the device.
#[repr(C)]
pub(crate) struct Xrcd {
    shown: abi::Xrcd,
    domain: Arc<verbs_core::Xrcd>,
    _context: Held<Context>,
    users: Users,
}

// SAFETY: programs change nothing in the C structure.
unsafe impl Send for Xrcd {}
// SAFETY: as above.
unsafe impl Sync for Xrcd {}

// SAFETY: the C part is at the front.
unsafe impl Object for Xrcd {
    const KIND: Kind = Kind::Xrcd;

    fn users(&self) -> &Users {
        &self.users
    }
}

impl Xrcd {
    pub(crate) fn domain(&self) -> &verbs_core::Xrcd {
        &self.domain
    }
}

/// A context and a file: its device and inode.
type Name = (usize, u64, u64);

/// Domains that were opened with a file.
static NAMED: Mutex<Option<HashMap<Name, Weak<verbs_core::Xrcd>>>> = Mutex::new(None);

/// `open_xrcd`. Programs of one `verbs host`, at one address, share a domain. None knows what others have opened: without
/// `O_CREAT`, a domain that nobody has opened before is made nevertheless, and `O_EXCL` looks at this program alone.
pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut abi::Context,
    attr: *const XrcdInitAttr,
) -> *mut abi::Xrcd {
    /// A descriptor and flags are required.
    const NEEDED: u32 = 0b11;
    pointer(|| {
        // SAFETY: the program passes valid arguments, and destroys none of them now.
        let (owner, attr) = unsafe {
            let owner = look::<Context, _>(context)?;
            (owner, attr.as_ref().ok_or(Errno::INVAL)?)
        };
        if attr.comp_mask != NEEDED || attr.oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
            return Err(Errno::INVAL);
        }
        let domain = match attr.fd {
            -1 if attr.oflags & libc::O_CREAT == 0 => return Err(Errno::INVAL),
            -1 => Arc::new(owner.device.alloc_xrcd().wait()?),
            fd => named(context.addr(), owner, fd, attr.oflags)?,
        };
        let xrcd = Xrcd {
            shown: abi::Xrcd { context },
            domain,
            _context: Held::new(owner),
            users: Users::default(),
        };
        Ok(publish(room(), xrcd))
    })
}

/// Whether other programs may have opened domains of the device.
fn is_shared(context: &Context) -> bool {
    let provider = context.device.target().provider_of();
    provider.host_ports().is_some()
}

fn named(
    at: usize,
    context: &Context,
    fd: c_int,
    oflags: c_int,
) -> Result<Arc<verbs_core::Xrcd>, Errno> {
    if fd < 0 {
        return Err(Errno(libc::EBADF));
    }
    // SAFETY: the program keeps it open for this call.
    let file = fstat(unsafe { BorrowedFd::borrow_raw(fd) })?;
    let name = (at, file.st_dev, file.st_ino);
    let mut named = NAMED.lock();
    let named = named.get_or_insert_default();
    named.retain(|_, domain| domain.strong_count() > 0);
    match named.get(&name).and_then(Weak::upgrade) {
        Some(_) if oflags & libc::O_EXCL != 0 => Err(Errno::INVAL),
        Some(domain) => Ok(domain),
        None if oflags & libc::O_CREAT == 0 && !is_shared(context) => Err(Errno::INVAL),
        None => {
            let file = XrcdName {
                device: file.st_dev,
                inode: file.st_ino,
            };
            let domain = Arc::new(context.device.open_xrcd(file).wait()?);
            named.insert(name, Arc::downgrade(&domain));
            Ok(domain)
        }
    }
}

/// `close_xrcd`: `EBUSY` while queues are in it.
pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut abi::Xrcd) -> c_int {
    code(|| {
        // SAFETY: the program does not use it now.
        unsafe {
            end::<Xrcd, _>(xrcd, |xrcd| {
                // The last handle ends the domain.
                if let Some(domain) = Arc::into_inner(xrcd.domain) {
                    let _ = domain.dealloc().wait();
                }
                Ending::Over
            })
        }
    })
}
