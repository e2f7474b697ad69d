//! The file that is sent.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use blake3::Hash;

use crate::demo::error::DemoError;

/// What is sent, in memory.
pub(crate) struct Payload {
    name: String,
    bytes: Vec<u8>,
    digest: Hash,
}

impl Payload {
    /// Reads a file, this program's own if none is named, up to so many bytes.
    pub(crate) fn read(path: Option<&Path>, most: u64) -> Result<Self, DemoError> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => std::env::current_exe().map_err(|error| DemoError::Read {
                path: PathBuf::from("this program"),
                error,
            })?,
        };
        let mut bytes = Vec::new();
        let read = File::open(&path).and_then(|file| file.take(most).read_to_end(&mut bytes));
        if let Err(error) = read {
            return Err(DemoError::Read { path, error });
        }
        if bytes.is_empty() {
            return Err(DemoError::Empty(path));
        }
        let name = path.file_name().unwrap_or(path.as_os_str());
        Ok(Self {
            name: name.to_string_lossy().into_owned(),
            digest: blake3::hash(&bytes),
            bytes,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn digest(&self) -> Hash {
        self.digest
    }

    /// Whether what has arrived is what was sent.
    pub(crate) fn check(&self, arrived: &[u8], how: &'static str) -> Result<(), DemoError> {
        match blake3::hash(arrived) == self.digest {
            true => Ok(()),
            false => Err(DemoError::Digest(how)),
        }
    }
}
