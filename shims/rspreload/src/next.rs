//! The original functions: the C library's, and librdmacm's.

use std::ffi::{CStr, c_void};
use std::sync::OnceLock;

/// The C library's function of that name, which this library's function replaces.
pub(crate) fn of_libc(name: &CStr) -> *mut c_void {
    // SAFETY: a C string.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// librdmacm's function of that name; NULL if there is no such library.
pub(crate) fn of_rdmacm(name: &CStr) -> *mut c_void {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    let library = *LIBRARY.get_or_init(|| {
        // SAFETY: a C string. It stays loaded.
        unsafe {
            libc::dlopen(
                c"librdmacm.so.1".as_ptr(),
                libc::RTLD_NOW | libc::RTLD_GLOBAL,
            )
        }
        .expose_provenance()
    });
    if library == 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: a library that is loaded; a C string.
    unsafe {
        libc::dlsym(
            std::ptr::with_exposed_provenance_mut(library),
            name.as_ptr(),
        )
    }
}

/// A function by its name, looked up once: `next!(of_libc "read": fn(c_int) -> isize)`.
macro_rules! next {
    ($from:ident $name:literal: fn($($kind:ty),*) -> $result:ty) => {{
        static PLACE: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
        let place = *PLACE.get_or_init(|| {
            let name = const {
                match std::ffi::CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name has no zero in it"),
                }
            };
            $crate::next::$from(name).expose_provenance()
        });
        let place = std::ptr::with_exposed_provenance::<std::ffi::c_void>(place);
        // SAFETY: NULL, or the function of that name, which is of that type.
        unsafe {
            std::mem::transmute::<*const std::ffi::c_void, Option<unsafe extern "C" fn($($kind),*) -> $result>>(place)
        }
    }};
}
#[cfg_attr(
    test,
    allow(
        unused_imports,
        reason = "the functions that use it are left out of tests"
    )
)]
pub(crate) use next;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_by_name() {
        assert!(!of_libc(c"read").is_null());
        assert!(of_libc(c"no_such_function_anywhere").is_null());
        assert!(of_rdmacm(c"no_such_function_anywhere").is_null());
        let length = next!(of_libc "strlen": fn(*const std::ffi::c_char) -> usize);
        let length = length.expect("it is there");
        // SAFETY: a C string.
        assert_eq!(unsafe { length(c"four".as_ptr()) }, 4);
    }
}
