//! Rules about manifests: which crates may depend on which, and what every member sets.

use std::path::Path;

use toml::{Table, Value};

use crate::Violation;
use crate::tree::root;

/// A member of the workspace.
pub(crate) struct Member {
    /// Its folder, from the root.
    pub(crate) folder: String,
    pub(crate) name: String,
    pub(crate) manifest: Table,
    /// Text of the manifest, for line numbers.
    text: String,
}

impl Member {
    pub(crate) fn new(folder: &str, text: &str) -> Self {
        let manifest: Table = text.parse().expect("a manifest that cargo reads");
        let name = manifest["package"]["name"].as_str().expect("a name").into();
        Self {
            folder: folder.into(),
            name,
            manifest,
            text: text.into(),
        }
    }

    /// The roots of its library and its binaries, from the root of the workspace.
    pub(crate) fn crate_roots(&self) -> Vec<String> {
        let mut roots = Vec::new();
        let path_of = |table: Option<&Value>| Some(table?.get("path")?.as_str()?.to_owned());
        roots.push(path_of(self.manifest.get("lib")).unwrap_or_else(|| "src/lib.rs".into()));
        roots.push("src/main.rs".into());
        for bin in self.binaries() {
            roots.extend(path_of(Some(bin)));
        }
        roots.sort();
        roots.dedup();
        roots
            .iter()
            .map(|path| format!("{}/{path}", self.folder))
            .collect()
    }

    /// Whether it has loom models: they are built with loom alone.
    pub(crate) fn has_models(&self) -> bool {
        let is_loom = |(table, package): &(String, String)| {
            package == "loom" && table.contains("cfg(verbs_loom)")
        };
        self.dependencies().iter().any(is_loom)
    }

    fn binaries(&self) -> &[Value] {
        let binaries = self.manifest.get("bin").and_then(Value::as_array);
        binaries.map_or(&[], Vec::as_slice)
    }

    /// Every dependency of every kind: the table's name, the package's name.
    fn dependencies(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        dependencies_in("", &self.manifest, &mut found);
        if let Some(targets) = self.manifest.get("target").and_then(Value::as_table) {
            for (target, table) in targets {
                if let Some(table) = table.as_table() {
                    dependencies_in(&format!("target.{target}."), table, &mut found);
                }
            }
        }
        found
    }

    fn violation(&self, needle: &str, what: String) -> Violation {
        let line = self.text.lines().position(|line| line.contains(needle));
        Violation {
            path: format!("{}/Cargo.toml", self.folder),
            line: line.map_or(1, |line| line + 1),
            what,
        }
    }
}

fn dependencies_in(prefix: &str, table: &Table, found: &mut Vec<(String, String)>) {
    for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
        let Some(entries) = table.get(kind).and_then(Value::as_table) else {
            continue;
        };
        for (key, value) in entries {
            let package = value.get("package").and_then(Value::as_str);
            found.push((format!("{prefix}{kind}"), package.unwrap_or(key).into()));
        }
    }
}

/// Every member of the workspace; a pattern such as `shims/*` stands for its folders.
pub(crate) fn members() -> Vec<Member> {
    let text = std::fs::read_to_string(root().join("Cargo.toml")).expect("the root's manifest");
    let workspace: Table = text.parse().expect("a manifest that cargo reads");
    let patterns = workspace["workspace"]["members"].as_array();
    let mut folders = Vec::new();
    for pattern in patterns.expect("a list of members") {
        let pattern = pattern.as_str().expect("a folder's name");
        match pattern.strip_suffix("/*") {
            Some(parent) => folders.extend(folders_in(parent)),
            None => folders.push(pattern.to_owned()),
        }
    }
    folders
        .iter()
        .map(|folder| {
            let manifest = root().join(folder).join("Cargo.toml");
            let text = std::fs::read_to_string(manifest).expect("a member's manifest");
            Member::new(folder, &text)
        })
        .collect()
}

fn folders_in(parent: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(root().join(parent)) else {
        return Vec::new();
    };
    entries
        .map(|entry| entry.expect("an entry of a readable folder").path())
        .filter(|path| path.join("Cargo.toml").exists())
        .filter_map(|path| Some(format!("{parent}/{}", path.file_name()?.to_str()?)))
        .collect()
}

/// The place of a member in the house plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// verbs-core.
    Core,
    /// verbs-abi.
    Abi,
    /// verbs-wire.
    Wire,
    /// verbs-link.
    Link,
    /// verbs-subnet.
    Subnet,
    /// hca-sim.
    Provider,
    /// verbs-simulator.
    Simulator,
    /// hca-rdma.
    Rdma,
    /// verbs-cm.
    Cm,
    /// verbs-io.
    Io,
    /// verbs-sm.
    Sm,
    /// The ULPs.
    Ulp,
    /// verbs-host.
    Host,
    /// Shims, the command line and the crate for users: they choose the provider.
    Top,
    /// Tests, benches and fuzz targets.
    Proof,
}

impl Place {
    fn of(member: &Member) -> Option<Self> {
        Some(match member.name.as_str() {
            "verbs-core" => Self::Core,
            "verbs-abi" => Self::Abi,
            "verbs-wire" => Self::Wire,
            "verbs-link" => Self::Link,
            "verbs-subnet" => Self::Subnet,
            "hca-sim" => Self::Provider,
            "verbs-simulator" => Self::Simulator,
            "hca-rdma" => Self::Rdma,
            "verbs-cm" => Self::Cm,
            "verbs-io" => Self::Io,
            "verbs-sm" => Self::Sm,
            "verbs-host" => Self::Host,
            "verbs-cli" | "verbs-rdma" => Self::Top,
            "verbs-tests" | "verbs-benches" | "verbs-fuzz" => Self::Proof,
            name if name.starts_with("ulp-") => Self::Ulp,
            _ if Path::new(&member.folder).starts_with("shims") => Self::Top,
            _ => return None,
        })
    }

    /// The house plan: the members that a member may name.
    fn may_name(self, other: Self) -> bool {
        match self {
            Self::Core => false,
            Self::Provider => {
                matches!(other, Self::Core | Self::Wire | Self::Link | Self::Subnet)
            }
            Self::Simulator => matches!(
                other,
                Self::Core | Self::Wire | Self::Link | Self::Provider | Self::Cm | Self::Host
            ),
            Self::Subnet => matches!(other, Self::Core | Self::Wire | Self::Link),
            Self::Link => matches!(other, Self::Core | Self::Wire),
            Self::Abi | Self::Wire | Self::Cm | Self::Sm => other == Self::Core,
            Self::Rdma => matches!(other, Self::Core | Self::Abi),
            Self::Io | Self::Host => matches!(other, Self::Core | Self::Cm),
            Self::Ulp => matches!(other, Self::Core | Self::Cm | Self::Io),
            Self::Top => !matches!(other, Self::Top | Self::Proof),
            Self::Proof => true,
        }
    }
}

/// The folders of the crates whose runs a seed determines: formats, links, the subnet, the provider, the simulator.
pub(crate) fn seeded(members: &[Member]) -> Vec<String> {
    let places = [
        Place::Wire,
        Place::Link,
        Place::Subnet,
        Place::Provider,
        Place::Simulator,
    ];
    let of = |member: &&Member| Place::of(member).is_some_and(|place| places.contains(&place));
    let folders = members.iter().filter(of);
    folders
        .map(|member| format!("{}/src/", member.folder))
        .collect()
}

/// Libraries that the tests of a crate load at run time: by a dev-dependency cargo builds them first. It links nothing,
/// as they are shared libraries for C programs alone, so that no name of theirs gets into the test's program.
const LOADED: [(&str, &str); 4] = [
    ("hca-rdma", "verbs-ibverbs"),
    ("verbs-benches", "verbs-ibverbs"),
    ("verbs-cli", "verbs-ibverbs"),
    ("verbs-rdma", "verbs-ibverbs"),
];

/// Libraries that a command has inside, by a dependency that links nothing either.
const INSIDE: [(&str, &str); 2] = [
    ("verbs-cli", "verbs-ibverbs"),
    ("verbs-cli", "verbs-rspreload"),
];

/// Whether a dependency is one of [`LOADED`] or [`INSIDE`].
fn is_loaded(member: &Member, table: &str, other: &Member) -> bool {
    let library = other.manifest.get("lib");
    let kinds = library.and_then(|library| library.get("crate-type")?.as_array());
    let is_for_c =
        kinds.is_some_and(|kinds| kinds.iter().all(|kind| kind.as_str() == Some("cdylib")));
    let edge = (member.name.as_str(), other.name.as_str());
    let is_listed = match table {
        "dependencies" => INSIDE.contains(&edge),
        "dev-dependencies" => LOADED.contains(&edge),
        _ => false,
    };
    is_listed && is_for_c
}

/// Every edge that the house plan does not have, of any kind of dependency.
pub(crate) fn edges(members: &[Member]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for member in members {
        let Some(place) = Place::of(member) else {
            let what = format!("{} has no place in the house plan", member.name);
            violations.push(member.violation("name", what));
            continue;
        };
        for (table, package) in member.dependencies() {
            let Some(other) = members.iter().find(|other| other.name == package) else {
                continue;
            };
            // A crate's tests may switch the crate's own features on.
            let itself = other.name == member.name && table.ends_with("dev-dependencies");
            let is_free = itself || is_loaded(member, &table, other);
            if !is_free && Place::of(other).is_some_and(|other| !place.may_name(other)) {
                let what = format!("{} must not name {package} (in {table})", member.name);
                violations.push(member.violation(&package, what));
            }
        }
    }
    violations
}

/// Runtimes that nothing below the shims may depend on; tests may.
const RUNTIMES: [&str; 4] = ["tokio", "async-std", "smol", "async-executor"];

/// What every member sets, and what the lower layers must not use.
pub(crate) fn habits(members: &[Member]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for member in members {
        let inherits = |table: &str, key: &str| {
            let value = member.manifest.get(table).and_then(|table| table.get(key));
            let value = match value {
                Some(Value::Table(table)) => table.get("workspace"),
                value => value,
            };
            value.and_then(Value::as_bool) == Some(true)
        };
        if !inherits("lints", "workspace") {
            let what = "[lints] workspace = true is missing".into();
            violations.push(member.violation("[lints", what));
        }
        for key in ["version", "edition", "rust-version", "license"] {
            if !inherits("package", key) {
                let what = format!("{key}.workspace = true is missing");
                violations.push(member.violation(key, what));
            }
        }
        let has_runtimes = matches!(Place::of(member), Some(Place::Top | Place::Proof));
        for (table, package) in member.dependencies() {
            let shipped = !table.ends_with("dev-dependencies");
            if shipped && !has_runtimes && RUNTIMES.contains(&package.as_str()) {
                let what = format!("{package} is an async runtime; below the shims there is none");
                violations.push(member.violation(&package, what));
            }
        }
        if member.name != "verbs-cli" && !member.binaries().is_empty() {
            let what = "verbs is the only binary, or cargo run at the root is ambiguous".into();
            violations.push(member.violation("[[bin]]", what));
        }
    }
    violations
}
