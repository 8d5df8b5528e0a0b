//! Layers of a configuration: defaults, then the file, the environment, `--set`, and flags.

use std::path::PathBuf;

use super::parse::{read_file, read_setting};
use super::{Config, ConfigError};

/// The prefix of environment variables; `__` separates section and key: `BRAIDMQ_LOG__LEVEL=debug`.
const PREFIX: &str = "BRAIDMQ_";

/// Variables with the prefix that are not configuration keys.
const NOT_KEYS: [&str; 2] = ["BRAIDMQ_CONFIG", "BRAIDMQ_PASSWORD"];

/// The sources of a configuration, weakest first.
#[derive(Debug, Default)]
pub(crate) struct Layers {
    pub(crate) file: Option<PathBuf>,
    /// Environment variables; those without the prefix are ignored.
    pub(crate) environment: Vec<(String, String)>,
    /// Settings, each `KEY=VALUE`.
    pub(crate) settings: Vec<String>,
}

/// Merges all layers into one validated configuration.
pub(crate) fn merge(layers: &Layers) -> Result<Config, ConfigError> {
    let mut merged = toml::Table::new();
    if let Some(path) = &layers.file {
        overlay(&mut merged, read_file::<Config>(path)?);
    }
    for (name, value) in &layers.environment {
        if let Some(key) = name.strip_prefix(PREFIX)
            && !NOT_KEYS.contains(&name.as_str())
        {
            let key = key.to_ascii_lowercase().replace("__", ".");
            overlay(&mut merged, read_setting::<Config>(name, &key, value)?);
        }
    }
    for setting in &layers.settings {
        let place = format!("--set {setting}");
        let (key, value) = setting.split_once('=').ok_or_else(|| ConfigError::Refused {
            place: place.clone(),
            problem: "write it as KEY=VALUE, for example log.level=debug".to_owned(),
        })?;
        overlay(&mut merged, read_setting::<Config>(&place, key.trim(), value.trim())?);
    }
    merged.try_into().map_err(|error: toml::de::Error| ConfigError::Refused {
        place: "configuration".to_owned(),
        problem: error.message().to_owned(),
    })
}

/// Environment variables with the prefix `BRAIDMQ_`.
///
/// # Errors
/// The value of one is not UTF-8.
pub(crate) fn environment() -> Result<Vec<(String, String)>, ConfigError> {
    let mut variables = Vec::new();
    for (name, value) in std::env::vars_os() {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        let value = value.into_string().map_err(|_| ConfigError::Refused {
            place: name.to_owned(),
            problem: "its value is not UTF-8".to_owned(),
        })?;
        variables.push((name.to_owned(), value));
    }
    Ok(variables)
}

fn overlay(under: &mut toml::Table, over: toml::Table) {
    for (key, value) in over {
        match (under.get_mut(&key), value) {
            (Some(toml::Value::Table(under)), toml::Value::Table(over)) => overlay(under, over),
            (_, value) => {
                under.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_layers_win_key_by_key() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "[mqtt]\nreceive_maximum = 1\nmaximum_inflight = 1\n").unwrap();
        let config = merge(&Layers {
            file: Some(file.path().to_owned()),
            environment: vec![
                ("BRAIDMQ_MQTT__RECEIVE_MAXIMUM".to_owned(), "2".to_owned()),
                ("BRAIDMQ_LIMITS__CONNECTIONS".to_owned(), "2".to_owned()),
                ("PATH".to_owned(), "not ours".to_owned()),
            ],
            settings: vec!["limits.connections=3".to_owned()],
        })
        .unwrap();
        assert_eq!(config.mqtt.maximum_inflight, 1);
        assert_eq!(config.mqtt.receive_maximum, 2);
        assert_eq!(config.limits.connections, 3);
    }

    #[test]
    fn a_variable_with_an_unknown_key_is_named() {
        let environment = vec![("BRAIDMQ_LIMITS__CONECTIONS".to_owned(), "2".to_owned())];
        let error = merge(&Layers { environment, ..Layers::default() }).unwrap_err();
        assert_eq!(
            error.to_string(),
            "BRAIDMQ_LIMITS__CONECTIONS: unknown key `conections`; did you mean `connections`?"
        );
    }
}
