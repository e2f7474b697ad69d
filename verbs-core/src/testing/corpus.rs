//! Replaying a corpus that fuzzing has gathered, on any toolchain.

use std::fs;
use std::path::Path;

/// The files of one fuzz target, and what they have to be good for.
///
/// Files named `bad-...` are to be refused, all others accepted; some of either kind have to be there,
/// otherwise the corpus has lost its use.
#[derive(Clone, Copy, Debug)]
pub struct Corpus<'a> {
    /// Where they are.
    pub folder: &'a Path,
    /// Files that there are at least.
    pub files_min: u32,
    /// One in so many, at least, is to be accepted, and one in so many refused.
    pub one_in: u32,
}

impl Corpus<'_> {
    /// Runs a fuzz target of a crate of formats over its corpus: `fuzz/corpus/TARGET` in the crate's folder, which has
    /// eight files at least, one in four of either kind.
    ///
    /// # Panics
    /// As [`replay`](Self::replay).
    pub fn replay_of(manifest_dir: &str, target: &str, run: impl Fn(&[u8]) -> bool) {
        let corpus = Corpus {
            folder: &Path::new(manifest_dir).join("fuzz/corpus").join(target),
            files_min: 8,
            one_in: 4,
        };
        corpus.replay(run);
    }

    /// Runs the target over every file, and over every shorter version of it, which may be refused but not
    /// break anything. `run` says whether the bytes were accepted.
    ///
    /// # Panics
    /// Where a file is not what its name says, the corpus has lost its use or cannot be read, and where
    /// the target does; the file's name is printed before.
    pub fn replay(self, run: impl Fn(&[u8]) -> bool) {
        let (mut accepted, mut refused) = (0, 0);
        for entry in fs::read_dir(self.folder).expect("a folder that can be read") {
            let path = entry.expect("an entry that can be read").path();
            let bytes = fs::read(&path).expect("a file that can be read");
            println!("{}", path.display());
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let is_accepted = run(&bytes);
            assert_eq!(is_accepted, !name.starts_with("bad-"), "{name}");
            accepted += u32::from(is_accepted);
            refused += u32::from(!is_accepted);
            for len in 0..bytes.len() {
                run(&bytes[..len]);
            }
        }
        let files = accepted + refused;
        let folder = self.folder.display();
        assert!(files >= self.files_min, "{folder}: only {files} files");
        assert!(
            accepted * self.one_in >= files && refused * self.one_in >= files,
            "{folder}: {accepted} accepted, {refused} refused"
        );
    }
}
