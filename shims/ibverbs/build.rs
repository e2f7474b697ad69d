//! Gives the library its name, and defines the versions that programs ask for.

fn main() {
    println!("cargo::rerun-if-changed=ibverbs.map");
    let is_linux = std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux");
    if !is_linux {
        return;
    }
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    // Programs load it with dlopen and close it again, while threads of the device are still running in it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // The linker that comes with Rust for this target accepts a version script beside rustc's own. The nodes are empty:
    // each function names its own version, see `export`.
    let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={folder}/ibverbs.map");
}
