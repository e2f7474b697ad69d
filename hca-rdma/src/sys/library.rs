//! The system's libraries: loaded when first needed, never unloaded, their functions looked up by name and version.
//!
//! `dlsym` alone would be enough for newer programs, but libibverbs has 34 names twice, once with structures from
//! before 2007; `dlvsym` selects one. That is why `libc` is called here and not a crate for loading libraries: none of
//! them supports versions.

use std::ffi::{CStr, CString, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use verbs_abi as abi;
use verbs_abi::rdmacm as cm;
use verbs_core::sync::plain::Mutex;

use crate::error::OpenError;

pub(crate) mod table;

/// The loader's name for libibverbs.
const IBVERBS: &str = "libibverbs.so.1";

/// The loader's name for librdmacm.
const RDMACM: &str = "librdmacm.so.1";

/// A library that has been loaded, for good.
struct Loaded {
    handle: *mut c_void,
    path: PathBuf,
}

impl Loaded {
    /// # Safety
    /// The library's constructors and destructors are sound to run.
    unsafe fn open(path: &Path) -> Result<Self, OpenError> {
        let missing = |reason: String| OpenError::NoLibrary {
            library: path.into(),
            reason,
        };
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| missing("its name has a zero byte".into()))?;
        // SAFETY: the name ends with a zero byte. The library's constructors run, for which the caller vouches.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(missing(last_error()));
        }
        Ok(Self {
            handle,
            path: path.into(),
        })
    }

    /// The address of a function: of that version, or the default version if the library has no versions.
    fn find(&self, symbol: &CStr, version: &CStr) -> Option<*mut c_void> {
        // musl knows no versions.
        #[cfg(target_env = "musl")]
        let _ = version;
        #[cfg(not(target_env = "musl"))]
        {
            // SAFETY: the handle is that of a library that is never unloaded, the names end with zero bytes.
            let found = unsafe { libc::dlvsym(self.handle, symbol.as_ptr(), version.as_ptr()) };
            if !found.is_null() {
                return Some(found);
            }
        }
        // SAFETY: the handle is that of a library that is never unloaded, the name ends with a zero byte.
        let found = unsafe { libc::dlsym(self.handle, symbol.as_ptr()) };
        (!found.is_null()).then_some(found)
    }

    fn must(&self, symbol: &'static CStr, version: &CStr) -> Result<*mut c_void, OpenError> {
        self.find(symbol, version)
            .ok_or_else(|| OpenError::NoFunction {
                library: self.path.clone(),
                function: symbol.to_str().unwrap_or_default(),
            })
    }
}

/// The loader's message for its last failure on this thread.
fn last_error() -> String {
    // SAFETY: the text belongs to the loader, and stays valid until its next call on this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader does not say why".into();
    }
    // SAFETY: as above; it ends with a zero byte.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

/// Makes a table of functions: field, name, version, type. Those in brackets are missing in some supported versions of
/// the library.
macro_rules! functions {
    ($(#[$doc:meta])* $Table:ident {
        $($field:ident = $symbol:literal $version:literal $F:ty;)*
        $([$maybe:ident = $maybe_symbol:literal $maybe_version:literal $Maybe:ty];)*
    }) => {
        $(#[$doc])*
        pub(super) struct $Table {
            $(pub(super) $field: $F,)*
            $(pub(super) $maybe: Option<$Maybe>,)*
        }

        impl $Table {
            fn of(library: &Loaded) -> Result<Self, OpenError> {
                Ok(Self {
                    $($field: {
                        let at = library.must($symbol, $version)?;
                        // SAFETY: that function of that version has this type: `verbs.h`, `rdma_cma.h`.
                        unsafe { std::mem::transmute::<*mut c_void, $F>(at) }
                    },)*
                    $($maybe: library.find($maybe_symbol, $maybe_version).map(|at| {
                        // SAFETY: as above.
                        unsafe { std::mem::transmute::<*mut c_void, $Maybe>(at) }
                    }),)*
                })
            }
        }
    };
}

functions! {
    /// The functions of libibverbs that are called.
    Verbs {
        get_device_list = c"ibv_get_device_list" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut c_int) -> *mut *mut abi::Device;
        free_device_list = c"ibv_free_device_list" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut *mut abi::Device);
        open_device = c"ibv_open_device" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut abi::Device) -> *mut abi::Context;
        close_device = c"ibv_close_device" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut abi::Context) -> c_int;
        query_device = c"ibv_query_device" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut abi::Context, *mut abi::DeviceAttr) -> c_int;
        query_port = c"ibv_query_port" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut abi::Context, u8, *mut abi::PortAttr) -> c_int;
        query_gid = c"ibv_query_gid" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut abi::Context, u8, c_int, *mut [u8; 16]) -> c_int;
        query_pkey = c"ibv_query_pkey" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut abi::Context, u8, c_int, *mut u16) -> c_int;
        get_async_event = c"ibv_get_async_event" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut abi::Context, *mut abi::AsyncEvent) -> c_int;
        ack_async_event = c"ibv_ack_async_event" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut abi::AsyncEvent);
        alloc_pd = c"ibv_alloc_pd" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut abi::Context) -> *mut abi::Pd;
        dealloc_pd = c"ibv_dealloc_pd" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut abi::Pd) -> c_int;
        reg_mr = c"ibv_reg_mr" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut abi::Pd, *mut c_void, usize, c_int) -> *mut abi::Mr;
        dereg_mr = c"ibv_dereg_mr" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut abi::Mr) -> c_int;
        create_comp_channel = c"ibv_create_comp_channel" c"IBVERBS_1.0"
            unsafe extern "C" fn(*mut abi::Context) -> *mut abi::CompChannel;
        destroy_comp_channel = c"ibv_destroy_comp_channel" c"IBVERBS_1.0"
            unsafe extern "C" fn(*mut abi::CompChannel) -> c_int;
        create_cq = c"ibv_create_cq" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut abi::Context, c_int, *mut c_void, *mut abi::CompChannel, c_int) -> *mut abi::Cq;
        resize_cq = c"ibv_resize_cq" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut abi::Cq, c_int) -> c_int;
        destroy_cq = c"ibv_destroy_cq" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut abi::Cq) -> c_int;
        get_cq_event = c"ibv_get_cq_event" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut abi::CompChannel, *mut *mut abi::Cq, *mut *mut c_void) -> c_int;
        ack_cq_events = c"ibv_ack_cq_events" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut abi::Cq, c_uint);
        create_srq = c"ibv_create_srq" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut abi::Pd, *mut abi::SrqInitAttr) -> *mut abi::Srq;
        modify_srq = c"ibv_modify_srq" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut abi::Srq, *mut abi::SrqAttr, c_int) -> c_int;
        query_srq = c"ibv_query_srq" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut abi::Srq, *mut abi::SrqAttr) -> c_int;
        destroy_srq = c"ibv_destroy_srq" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut abi::Srq) -> c_int;
        create_qp = c"ibv_create_qp" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut abi::Pd, *mut abi::QpInitAttr) -> *mut abi::Qp;
        modify_qp = c"ibv_modify_qp" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut abi::Qp, *mut abi::QpAttr, c_int) -> c_int;
        query_qp = c"ibv_query_qp" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut abi::Qp, *mut abi::QpAttr, c_int, *mut abi::QpInitAttr) -> c_int;
        destroy_qp = c"ibv_destroy_qp" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut abi::Qp) -> c_int;
        create_ah = c"ibv_create_ah" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut abi::Pd, *mut abi::AhAttr) -> *mut abi::Ah;
        destroy_ah = c"ibv_destroy_ah" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut abi::Ah) -> c_int;
        attach_mcast = c"ibv_attach_mcast" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut abi::Qp, *const [u8; 16], u16) -> c_int;
        detach_mcast = c"ibv_detach_mcast" c"IBVERBS_1.1"
            unsafe extern "C" fn(*mut abi::Qp, *const [u8; 16], u16) -> c_int;
        [query_gid_ex = c"_ibv_query_gid_ex" c"IBVERBS_1.11"
            unsafe extern "C" fn(*mut abi::Context, u32, u32, *mut abi::GidEntry, u32, usize) -> c_int];
        [reg_mr_iova2 = c"ibv_reg_mr_iova2" c"IBVERBS_1.8"
            unsafe extern "C" fn(*mut abi::Pd, *mut c_void, usize, u64, c_uint) -> *mut abi::Mr];
    }
}

functions! {
    /// The functions of librdmacm that are called.
    Cm {
        create_event_channel = c"rdma_create_event_channel" c"RDMACM_1.0"
            unsafe extern "C" fn() -> *mut cm::EventChannel;
        destroy_event_channel = c"rdma_destroy_event_channel" c"RDMACM_1.0"
            unsafe extern "C" fn(*mut cm::EventChannel);
        create_id = c"rdma_create_id" c"RDMACM_1.0"
            unsafe extern "C" fn(*mut cm::EventChannel, *mut *mut cm::CmId, *mut c_void, c_uint) -> c_int;
        destroy_id = c"rdma_destroy_id" c"RDMACM_1.0"
            unsafe extern "C" fn(*mut cm::CmId) -> c_int;
        bind_addr = c"rdma_bind_addr" c"RDMACM_1.0"
            unsafe extern "C" fn(*mut cm::CmId, *mut c_void) -> c_int;
        resolve_addr = c"rdma_resolve_addr" c"RDMACM_1.0"
            unsafe extern "C" fn(*mut cm::CmId, *mut c_void, *mut c_void, c_int) -> c_int;
        resolve_route = c"rdma_resolve_route" c"RDMACM_1.0"
            unsafe extern "C" fn(*mut cm::CmId, c_int) -> c_int;
        listen = c"rdma_listen" c"RDMACM_1.0"
            unsafe extern "C" fn(*mut cm::CmId, c_int) -> c_int;
        connect = c"rdma_connect" c"RDMACM_1.0"
            unsafe extern "C" fn(*mut cm::CmId, *mut cm::ConnParam) -> c_int;
        accept = c"rdma_accept" c"RDMACM_1.0"
            unsafe extern "C" fn(*mut cm::CmId, *mut cm::ConnParam) -> c_int;
        reject = c"rdma_reject" c"RDMACM_1.0"
            unsafe extern "C" fn(*mut cm::CmId, *const c_void, u8) -> c_int;
        establish = c"rdma_establish" c"RDMACM_1.2"
            unsafe extern "C" fn(*mut cm::CmId) -> c_int;
        disconnect = c"rdma_disconnect" c"RDMACM_1.0"
            unsafe extern "C" fn(*mut cm::CmId) -> c_int;
        notify = c"rdma_notify" c"RDMACM_1.0"
            unsafe extern "C" fn(*mut cm::CmId, c_uint) -> c_int;
        init_qp_attr = c"rdma_init_qp_attr" c"RDMACM_1.2"
            unsafe extern "C" fn(*mut cm::CmId, *mut abi::QpAttr, *mut c_int) -> c_int;
        set_option = c"rdma_set_option" c"RDMACM_1.0"
            unsafe extern "C" fn(*mut cm::CmId, c_int, c_int, *mut c_void, usize) -> c_int;
        get_cm_event = c"rdma_get_cm_event" c"RDMACM_1.0"
            unsafe extern "C" fn(*mut cm::EventChannel, *mut *mut cm::CmEvent) -> c_int;
        ack_cm_event = c"rdma_ack_cm_event" c"RDMACM_1.0"
            unsafe extern "C" fn(*mut cm::CmEvent) -> c_int;
    }
}

/// rdma-core, as the system provides it or the user has named it.
pub(crate) struct Library {
    folder: Option<PathBuf>,
    pub(super) verbs: Verbs,
    /// The error if there is no suitable librdmacm: only connections need it.
    pub(super) cm: Result<Cm, OpenError>,
}

/// Everything that was loaded, by its folder.
static LOADED: Mutex<Vec<&'static Library>> = Mutex::new(Vec::new());

impl Library {
    /// The libraries that the loader finds: those of the system, or of folders that the user who started the program named.
    pub(crate) fn load() -> Result<&'static Self, OpenError> {
        // SAFETY: the loader looks for them where it looked for the code of this program, and under the names that rdma-core
        // has kept for one ABI each.
        unsafe { Self::load_from(None) }
    }

    /// The libraries of that folder, or those that the loader finds.
    ///
    /// # Safety
    /// They are libibverbs and librdmacm: loading them does what these do, and their functions have the types that are
    /// declared here.
    unsafe fn load_from(folder: Option<&Path>) -> Result<&'static Self, OpenError> {
        let mut loaded = LOADED.lock();
        if let Some(found) = loaded.iter().find(|one| one.folder.as_deref() == folder) {
            return Ok(found);
        }
        let named = |name: &str| folder.map_or_else(|| name.into(), |folder| folder.join(name));
        // SAFETY: the caller vouches for it.
        let verbs = Verbs::of(&unsafe { Loaded::open(&named(IBVERBS)) }?)?;
        // SAFETY: as above. It loads the same libibverbs, which is loaded already.
        let cm = unsafe { Loaded::open(&named(RDMACM)) }.and_then(|library| Cm::of(&library));
        let folder = folder.map(Path::to_path_buf);
        let library: &'static Self = Box::leak(Box::new(Self { folder, verbs, cm }));
        loaded.push(library);
        Ok(library)
    }
}

impl crate::RdmaCore {
    /// As [`RdmaCore::load`](crate::RdmaCore::load), from that folder.
    ///
    /// # Safety
    /// `libibverbs.so.1` and `librdmacm.so.1` of the folder are rdma-core's, or others with the same ABI. Their code is run: on
    /// loading, at the calls of this crate, and on the end of the process; and whoever can write to the folder
    /// chooses that code.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Context
    /// As there.
    pub unsafe fn load_from(folder: impl AsRef<Path>) -> Result<Self, OpenError> {
        // SAFETY: the caller vouches for the libraries.
        let library = unsafe { Library::load_from(Some(folder.as_ref())) };
        library.map(Self)
    }
}
