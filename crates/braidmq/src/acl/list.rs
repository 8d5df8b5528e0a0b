//! Access control lists in files.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use braid_access::AclFormat;
use braid_auth::acl::{Acl, AclError, MAX_FILE_BYTES};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use crate::config::{Layers, environment, merge};

/// Parser of the option `--format`.
pub(super) fn formats() -> impl TypedValueParser<Value = AclFormat> {
    let names = [
        PossibleValue::new("braidmq").help("Format of docs/permissions.md"),
        PossibleValue::new("mosquitto").help("An acl_file of mosquitto"),
    ];
    PossibleValuesParser::new(names).map(|name| match &*name {
        "mosquitto" => AclFormat::Mosquitto,
        _ => AclFormat::Braidmq,
    })
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
    pub(super) fn read(path: &Path, format: AclFormat) -> Result<Self, String> {
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

/// File and format that a broker would use with this configuration file and the environment; `None` for none.
pub(super) fn configured(file: Option<&Path>) -> Result<Option<(PathBuf, AclFormat)>, String> {
    let layers =
        || Ok(Layers { file: file.map(Path::to_owned), environment: environment()?, ..Layers::default() });
    let config = layers().and_then(|layers| merge(&layers)).map_err(|error| error.to_string())?;
    Ok(config.acl.file.map(|path| (path, config.acl.format)))
}
