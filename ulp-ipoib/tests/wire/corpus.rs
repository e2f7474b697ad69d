//! Goal: what fuzzing has found, and what it starts from, keeps its promises on any toolchain.
//! Method: the targets of [`ulp_ipoib::wire::fuzz`] over every file in `fuzz/corpus`.

use std::path::PathBuf;

use ulp_ipoib::wire::fuzz;

/// Replays one target's files. Those named `bad-...` are to be refused, all others accepted; at least
/// a quarter must be of either kind, otherwise the corpus has lost its use.
fn replay(target: &str, run: fn(&[u8]) -> bool) {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(target);
    let (mut accepted, mut refused) = (0, 0);
    for entry in std::fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy();
        let bytes = std::fs::read(&path).unwrap();
        // A panic should name its file.
        println!("{target}/{name}");
        let is_accepted = run(&bytes);
        assert_eq!(is_accepted, !name.starts_with("bad-"), "{name}");
        accepted += u32::from(is_accepted);
        refused += u32::from(!is_accepted);
        // Every shorter version of it, too, may be refused but not break anything.
        for len in 0..bytes.len() {
            run(&bytes[..len]);
        }
    }
    let files = accepted + refused;
    assert!(files >= 8, "{target}: only {files} files");
    assert!(
        accepted * 4 >= files && refused * 4 >= files,
        "{target}: {accepted} accepted, {refused} refused"
    );
}

#[test]
fn messages() {
    replay("message", fuzz::message);
}

#[test]
fn address_resolution() {
    replay("arp", fuzz::arp);
}

#[test]
fn neighbour_discovery() {
    replay("nd", fuzz::nd);
}
