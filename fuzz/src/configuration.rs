//! Body of the fuzz target for configuration files. It panics on a failure.

use std::path::Path;

use crate::config::Config;
use crate::config::parse::{ConfigError, parse_text};

/// A file is refused with one line, or its configuration is the same again when it was printed, unless it has URLs:
/// they are printed in their normal form, without their query.
pub fn configuration(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let read = |text: &str| -> Result<Config, ConfigError> {
        let table = parse_text::<Config>(text, Path::new("braidmq.toml"))?;
        let config: Config = table.try_into().expect("it was checked against the type");
        config.check().map(|()| config)
    };
    match read(text) {
        Ok(config) => {
            let printed = toml::to_string(&config).expect("a configuration is TOML");
            let again = read(&printed).unwrap_or_else(|error| panic!("{error}\n{printed}"));
            assert!(again == config || printed.contains("url = "), "{printed}");
        }
        Err(error) => {
            let said = error.to_string();
            assert!(!said.is_empty() && said.lines().count() == 1, "{said:?}");
        }
    }
}
