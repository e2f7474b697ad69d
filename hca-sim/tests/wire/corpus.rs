//! Goal: what fuzzing has found, and what it starts from, keeps its promises on any toolchain.
//! Method: the targets of [`hca_sim::wire::fuzz`] over every file in `fuzz/corpus`.

use std::path::PathBuf;

use hca_sim::wire::fuzz::{self, Outcome};

/// Replays one target's files. Those named `bad-...` are to be refused, all others accepted; at least
/// a third must be of either kind, otherwise the corpus has lost its use.
fn replay(target: &str, run: fn(&[u8]) -> Outcome) {
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
        let outcome = run(&bytes);
        assert_eq!(
            outcome.is_accepted(),
            !name.starts_with("bad-"),
            "{outcome:?}"
        );
        accepted += u32::from(outcome.is_accepted());
        refused += u32::from(!outcome.is_accepted());
        // Every shorter version of it, too, may be refused but not break anything.
        for len in 0..bytes.len() {
            run(&bytes[..len]);
        }
    }
    let files = accepted + refused;
    assert!(files >= 24, "{target}: only {files} files");
    assert!(
        accepted * 3 >= files && refused * 3 >= files,
        "{target}: {accepted} accepted, {refused} refused"
    );
}

#[test]
fn packets() {
    replay("packet", fuzz::packet);
}

#[test]
fn datagrams() {
    replay("datagram", fuzz::datagram);
}

#[test]
fn headers() {
    replay("header", fuzz::header);
}

#[test]
fn frames() {
    replay("frame", fuzz::frame);
}
