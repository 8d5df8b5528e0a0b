//! Access control lists in files.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use braid_access::AclFormat;
use braid_auth::acl::{Acl, AclError, MAX_FILE_BYTES};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::config::read_file;

/// Format of an access control list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    /// Format of docs/permissions.md
    #[default]
    Braidmq,
    /// An acl_file of mosquitto
    Mosquitto,
}

impl From<Format> for AclFormat {
    fn from(format: Format) -> Self {
        match format {
            Format::Braidmq => Self::Braidmq,
            Format::Mosquitto => Self::Mosquitto,
        }
    }
}

impl Format {
    fn parse(self, text: &[u8], name: &str) -> Result<Acl, AclError> {
        match self {
            Self::Braidmq => Acl::parse(text, name),
            Self::Mosquitto => Acl::parse_mosquitto(text, name),
        }
    }
}

/// List with its text.
#[derive(Debug)]
pub(super) struct List {
    pub(super) acl: Acl,
    name: String,
    text: Vec<u8>,
}

impl List {
    /// Reads and parses a file.
    pub(super) fn read(path: &Path, format: Format) -> Result<Self, String> {
        Self::parse(path, |text, name| format.parse(text, name))
    }

    /// Reads and parses the rules of one client.
    pub(super) fn read_own(path: &Path) -> Result<Self, String> {
        Self::parse(path, Acl::parse_own)
    }

    fn parse(path: &Path, parse: impl Fn(&[u8], &str) -> Result<Acl, AclError>) -> Result<Self, String> {
        let (text, name) = (read(path)?, path.display().to_string());
        let acl = parse(&text, &name).map_err(|error| error.to_string())?;
        Ok(Self { acl, name, text })
    }

    /// File, number and text of a line, counted from 1.
    pub(super) fn quote(&self, line: usize) -> String {
        let text = self.text.split(|byte| *byte == b'\n').nth(line.saturating_sub(1)).unwrap_or_default();
        format!("{}:{line}: {}", self.name, String::from_utf8_lossy(text).trim())
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Level of a topic that the file does not mention.
    pub(super) fn unmentioned_level(&self) -> String {
        let text = String::from_utf8_lossy(&self.text);
        let mut level = "other".to_owned();
        while text.contains(&level) {
            level.push('-');
        }
        level
    }
}

/// Reads a file, but no more of it than the parser needs to refuse it.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut text))
        .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    Ok(text)
}

/// File and format that a configuration names, as keys `acl.file` and `acl.format`.
pub(super) fn configured(path: &Path) -> Result<(PathBuf, Format), String> {
    #[derive(Deserialize)]
    struct Document {
        acl: Option<Section>,
    }
    #[derive(Deserialize)]
    struct Section {
        file: Option<PathBuf>,
        #[serde(default)]
        format: Format,
    }
    let table = read_file::<Document>(path).map_err(|error| error.to_string())?;
    let document: Result<Document, _> = table.try_into();
    match document.ok().and_then(|document| document.acl) {
        Some(Section { file: Some(file), format }) => Ok((file, format)),
        _ => Err(format!("{} has no key `acl.file`: name the list with --acl FILE", path.display())),
    }
}
