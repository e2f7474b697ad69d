//! Gives the library the name and the symbol versions that programs are linked against.

fn main() {
    println!("cargo::rerun-if-changed=ibumad.map");
    let is_linux = std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux");
    if !is_linux {
        return;
    }
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libibumad.so.3");
    // The linker that comes with Rust for this target accepts a version script beside rustc's own. Others refuse it;
    // without versions programs run too, and report at start that there is no version information.
    let has_lld = std::env::var("TARGET").is_ok_and(|target| target == "x86_64-unknown-linux-gnu");
    if has_lld {
        let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
        println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={folder}/ibumad.map");
    }
}
