//! The files of the workspace, as the rules see them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::scan;

/// Folders at the root that contain nothing of the project.
const SKIPPED: [&str; 2] = [".git", "target"];

/// Endings of files for readers; files of `ci/` and `.ci/` count whatever their name.
const READABLE: [&str; 10] = [
    "rs", "md", "supp", "toml", "txt", "sh", "yml", "c", "h", "svg",
];

/// A file for readers.
pub(crate) struct Text {
    /// Path from the root of the workspace.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// A Rust file.
pub(crate) struct RustFile {
    /// Path from the root of the workspace.
    pub(crate) path: String,
    /// The file with comments, strings and characters blanked out; offsets and lines are kept.
    pub(crate) code: String,
    /// Inline modules that exist only in tests, as ranges of `code`.
    pub(crate) test_modules: Vec<Range<usize>>,
    /// Those of them that are loom models.
    pub(crate) models: Vec<Range<usize>>,
    /// Whether the whole file exists only in tests.
    pub(crate) is_test: bool,
    /// Whether the whole file is loom models.
    pub(crate) is_model: bool,
}

impl RustFile {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let code = scan::code_only(text);
        let modules = scan::test_modules(&code);
        let bodies = |models_only: bool| {
            let wanted = modules.iter().filter(|m| m.is_model || !models_only);
            wanted.filter_map(|module| module.body.clone()).collect()
        };
        let (test_modules, models) = (bodies(false), bodies(true));
        let name = path.rsplit('/').next().unwrap_or(path);
        Self {
            path: path.into(),
            is_test: name == "tests.rs",
            is_model: false,
            test_modules,
            models,
            code,
        }
    }

    /// The files that a `#[cfg(test)] mod name;` in this one may refer to, and whether they are models.
    fn test_files(&self) -> Vec<(String, bool)> {
        let path = Path::new(&self.path);
        let parent = path.parent().unwrap_or(Path::new(""));
        let stem = path.file_stem().unwrap_or_default();
        let folder = match stem.to_str() {
            Some("mod" | "lib" | "main") => parent.to_path_buf(),
            _ => parent.join(stem),
        };
        scan::test_modules(&self.code)
            .into_iter()
            .filter(|module| module.body.is_none())
            .flat_map(|module| {
                let file = folder.join(format!("{}.rs", module.name));
                let nested = folder.join(module.name).join("mod.rs");
                [(file, module.is_model), (nested, module.is_model)]
            })
            .map(|(path, is_model)| (path.to_string_lossy().into_owned(), is_model))
            .collect()
    }
}

/// Everything that the rules look at.
pub(crate) struct Tree {
    pub(crate) rust: Vec<RustFile>,
    pub(crate) texts: Vec<Text>,
}

impl Tree {
    /// Reads the workspace that this test belongs to.
    pub(crate) fn of_workspace() -> Self {
        let root = root();
        let mut paths = Vec::new();
        walk(&root, Path::new(""), &mut paths);
        paths.sort();
        let texts: Vec<Text> = paths
            .iter()
            .filter_map(|path| {
                let text = std::fs::read_to_string(root.join(path)).ok()?;
                Some(Text {
                    path: path.to_string_lossy().into_owned(),
                    text,
                })
            })
            .collect();
        let rust = texts
            .iter()
            .filter(|text| text.path.ends_with(".rs"))
            .map(|text| RustFile::new(&text.path, &text.text))
            .collect();
        Self {
            rust: mark_test_files(rust),
            texts,
        }
    }
}

/// Marks the files that are reached only through `#[cfg(test)] mod name;`.
pub(crate) fn mark_test_files(mut files: Vec<RustFile>) -> Vec<RustFile> {
    let marked: BTreeMap<String, bool> = files.iter().flat_map(RustFile::test_files).collect();
    for file in &mut files {
        if let Some(is_model) = marked.get(&file.path) {
            file.is_test = true;
            file.is_model = *is_model;
        }
    }
    files
}

/// The root of the workspace. Determined when the test runs: worktrees that share a target folder share the compiled
/// test too, and each must see its own tree.
pub(crate) fn root() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    manifest
        .parent()
        .expect("the package is a folder of the workspace")
        .into()
}

/// Collects the files below `folder` that are for readers, as paths from `root`.
fn walk(root: &Path, folder: &Path, found: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(root.join(folder)).expect("a folder of the workspace");
    for entry in entries {
        let entry = entry.expect("an entry of a readable folder");
        let name = entry.file_name();
        let path = folder.join(&name);
        if entry.path().is_dir() {
            let name = name.to_string_lossy();
            // Only at the root: a module may be called target.
            let is_skipped = folder.as_os_str().is_empty()
                && SKIPPED
                    .iter()
                    .any(|skipped| name == *skipped || name.starts_with(&format!("{skipped}-")));
            if !is_skipped {
                walk(root, &path, found);
            }
        } else if is_readable(&path) {
            found.push(path);
        }
    }
}

fn is_readable(path: &Path) -> bool {
    let ending = path.extension().unwrap_or_default();
    path.starts_with("ci")
        || path.starts_with(".ci")
        || READABLE.iter().any(|readable| ending == *readable)
}
