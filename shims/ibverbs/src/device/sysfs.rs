//! Files under /sys that programs ask the library to read. A software HCA has no such folder, so the library itself
//! knows the files; other files are read from the file system.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use verbs_abi as abi;

use super::{is_ours, name};
use crate::call::{Errno, number};

/// Files of the device's folder.
pub(super) const FILES: &[(&str, &str)] = &[
    ("board_id", "verbs"),
    ("fw_ver", env!("CARGO_PKG_VERSION")),
    ("hca_type", "software"),
];

/// `ibv_get_sysfs_path`: `SYSFS_PATH`, as in libibverbs, unless the program has more rights than its user; otherwise the usual
/// path.
pub(crate) unsafe extern "C" fn get_sysfs_path() -> *const c_char {
    unsafe extern "C" {
        /// Of the C library.
        fn secure_getenv(name: *const c_char) -> *mut c_char;
    }
    // SAFETY: a C string; the answer is one of the environment, or NULL.
    let named = unsafe { secure_getenv(c"SYSFS_PATH".as_ptr()) };
    if named.is_null() {
        c"/sys".as_ptr()
    } else {
        named
    }
}

/// `ibv_read_sysfs_file`: the length of the content, without the newline at its end.
pub(crate) unsafe extern "C" fn read_sysfs_file(
    folder: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    number(|| {
        if folder.is_null() || file.is_null() || buffer.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the caller passes C strings.
        let (folder, file) = unsafe { (CStr::from_ptr(folder), CStr::from_ptr(file)) };
        let path = Path::new(OsStr::from_bytes(folder.to_bytes()))
            .join(OsStr::from_bytes(file.to_bytes()));
        let mut bytes = read(&path)?;
        bytes.truncate(size);
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
        }
        // SAFETY: `size` bytes are the program's buffer.
        unsafe { buffer.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len()) };
        if bytes.len() < size {
            // SAFETY: as above.
            unsafe { buffer.add(bytes.len()).write(0) };
        }
        Ok(bytes.len() as c_int)
    })
}

/// `ibv_read_ibdev_sysfs_file` with a file name that needs no formatting.
pub(crate) unsafe extern "C" fn read_ibdev_sysfs_file(
    buffer: *mut c_char,
    size: usize,
    device: *mut abi::Device,
    file: *const c_char,
) -> c_int {
    if !is_ours(device) {
        return number(|| Err(Errno::INVAL));
    }
    // SAFETY: the device that is shown stays, and its folder is a C string; the caller guarantees the rest.
    unsafe { read_sysfs_file((*device).ibdev_path.as_ptr(), file, buffer, size) }
}

fn read(path: &Path) -> Result<Vec<u8>, Errno> {
    let ours = Path::new("/sys/class/infiniband").join(name());
    let known = path.strip_prefix(ours).ok().and_then(Path::to_str);
    let known = known.and_then(|name| FILES.iter().find(|(file, _)| *file == name));
    match known {
        Some((_, says)) => Ok(says.as_bytes().to_vec()),
        None => {
            std::fs::read(path).map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))
        }
    }
}
