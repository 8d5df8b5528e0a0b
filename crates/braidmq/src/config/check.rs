//! Validation of values that parse.

use braid_proto::packet::QuicHint;

use super::{Config, ConfigError};

/// Log levels. A filter takes any other bare word for the name of a module, and nothing would be logged.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

impl Config {
    /// Checks the ranges of values.
    ///
    /// # Errors
    /// The first key whose value is out of its range, with the range.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let (mqtt, limits) = (&self.mqtt, &self.limits);
        range("mqtt.maximum_packet_size", mqtt.maximum_packet_size.into(), 1024, 268_435_455)?;
        range("mqtt.receive_maximum", mqtt.receive_maximum.into(), 1, 65_535)?;
        range("mqtt.maximum_inflight", mqtt.maximum_inflight.into(), 1, 65_535)?;
        if !mqtt.alt_svc.is_empty() {
            QuicHint::parse(&mqtt.alt_svc).map_err(|reason| {
                let example = "mqtt-quic=\":14567\"; ma=3600 or clear";
                refused("mqtt.alt_svc", format!("{:?} is no hint: {reason}; write {example}", mqtt.alt_svc))
            })?;
        }
        range("limits.connections", limits.connections as u64, 1, u64::MAX)?;
        range("limits.flapping_window_secs", limits.flapping_window_secs, 1, 86_400)?;
        range("limits.flapping_ban_secs", limits.flapping_ban_secs, 1, 31_536_000)?;
        range("limits.connect_timeout_secs", limits.connect_timeout_secs, 1, 3600)?;
        range("limits.connect_size", limits.connect_size as u64, 64, 268_435_455)?;
        range("limits.queued_messages", limits.queued_messages as u64, 1, u64::MAX)?;
        range("limits.queued_bytes", limits.queued_bytes as u64, 1024, u64::MAX)?;
        range("limits.queued_secs", limits.queued_secs, 0, u32::MAX.into())?;
        range("limits.sessions", limits.sessions as u64, 1, u64::MAX)?;
        range("limits.subscriptions", limits.subscriptions as u64, 1, u64::MAX)?;
        range("limits.subscription_bytes", limits.subscription_bytes as u64, 1024, u64::MAX)?;
        range("limits.streams", limits.streams.into(), 100, 65_535)?; // [BQ-5]
        range("limits.streams_per_second", limits.streams_per_second.into(), 1, u64::MAX)?;
        range("limits.partial_bytes", limits.partial_bytes as u64, 1024, u64::MAX)?;
        range("limits.stalled_packet_secs", limits.stalled_packet_secs, 1, 3600)?;
        range("limits.partial_idle_secs", limits.partial_idle_secs, 1, 31_536_000)?;
        range("limits.memory_low", limits.memory_low as u64, 1 << 20, u64::MAX)?;
        if limits.memory_high < limits.memory_low {
            let (low, high) = (limits.memory_low, limits.memory_high);
            return Err(refused(
                "limits.memory_high",
                format!("{high} is below limits.memory_low, which is {low}"),
            ));
        }
        if let Some(link_rate) = self.quic.link_rate {
            range("quic.link_rate", link_rate, 1000, u64::MAX)?;
        }
        range("quic.gate_reserve", self.quic.gate_reserve.into(), 1, 3)?;
        range("quic.stream_window", self.quic.stream_window.into(), 16_384, 16_777_216)?;
        range("quic.receive_budget", self.quic.receive_budget, 1_048_576, u64::MAX)?;
        range("quic.tickets", self.quic.tickets as u64, 0, 100_000_000)?;
        range("store.async_window_ms", self.store.async_window_ms, 1, 60_000)?;
        range("store.cache_bytes", self.store.cache_bytes as u64, 1 << 20, 1 << 40)?;
        // Smaller packets are never spooled.
        range("spool.threshold", self.spool.threshold as u64, 65_536, 268_435_455)?;
        self.listener.iter().try_for_each(super::ListenerConfig::check)?;
        self.check_access()?;
        self.check_cluster()?;
        self.http.check()?;
        self.check_front_mountpoint()?;
        let has_roles = !self.http.operators.is_empty() || !self.http.viewers.is_empty();
        if has_roles && self.authenticator.is_empty() {
            let problem = "without an [[authenticator]] there are no users: add one, or leave operators and viewers out";
            return Err(refused("http.operators", problem.to_owned()));
        }
        let level = self.log.level.as_str();
        let is_bare_word = level.bytes().all(|byte| byte.is_ascii_alphabetic());
        if is_bare_word && !LEVELS.contains(&level.to_ascii_lowercase().as_str()) {
            return Err(refused("log.level", format!("{level:?} is none of {}", LEVELS.join(", "))));
        }
        Ok(())
    }
}

pub(super) fn range(key: &str, value: u64, least: u64, most: u64) -> Result<(), ConfigError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    let bounds = if most == u64::MAX { format!("at least {least}") } else { format!("{least} to {most}") };
    Err(refused(key, format!("{value} is out of range; it may be {bounds}")))
}

pub(super) fn refused(key: &str, problem: String) -> ConfigError {
    ConfigError::Refused { place: key.to_owned(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_the_defaults_and_names_values_out_of_range() {
        assert!(Config::default().check().is_ok());
        let mut config = Config::default();
        config.mqtt.maximum_packet_size = 0;
        let error = config.check().unwrap_err().to_string();
        assert_eq!(error, "mqtt.maximum_packet_size: 0 is out of range; it may be 1024 to 268435455");
        let mut config = Config::default();
        config.limits.streams = 99;
        let error = config.check().unwrap_err().to_string();
        assert_eq!(error, "limits.streams: 99 is out of range; it may be 100 to 65535"); // [BQ-5]
        let mut config = Config::default();
        config.quic.link_rate = Some(0);
        let error = config.check().unwrap_err().to_string();
        assert_eq!(error, "quic.link_rate: 0 is out of range; it may be at least 1000");
        let mut config = Config::default();
        config.quic.gate_reserve = 4;
        let error = config.check().unwrap_err().to_string();
        assert_eq!(error, "quic.gate_reserve: 4 is out of range; it may be 1 to 3");
        config.quic.gate_reserve = 3;
        config.quic.receive_budget = 1_000_000;
        let error = config.check().unwrap_err().to_string();
        assert_eq!(error, "quic.receive_budget: 1000000 is out of range; it may be at least 1048576");
        let mut config = Config::default();
        config.store.async_window_ms = 0;
        let error = config.check().unwrap_err().to_string();
        assert_eq!(error, "store.async_window_ms: 0 is out of range; it may be 1 to 60000");
        let mut config = Config::default();
        config.log.level = "inof".to_owned();
        let error = config.check().unwrap_err().to_string();
        assert_eq!(error, "log.level: \"inof\" is none of off, error, warn, info, debug, trace");
        config.log.level = "warn,braid_broker=debug".to_owned();
        assert!(config.check().is_ok());
    }

    type Change = fn(&mut braid_broker::LimitsConfig);

    #[test]
    fn a_limit_of_0_is_refused_unless_it_has_a_meaning() {
        let refused: [(Change, &str); 7] = [
            (
                |limits| limits.memory_low = 0,
                "limits.memory_low: 0 is out of range; it may be at least 1048576",
            ),
            (
                |limits| limits.flapping_window_secs = 0,
                "limits.flapping_window_secs: 0 is out of range; it may be 1 to 86400",
            ),
            (
                |limits| limits.flapping_ban_secs = 0,
                "limits.flapping_ban_secs: 0 is out of range; it may be 1 to 31536000",
            ),
            (|limits| limits.sessions = 0, "limits.sessions: 0 is out of range; it may be at least 1"),
            (
                |limits| limits.queued_messages = 0,
                "limits.queued_messages: 0 is out of range; it may be at least 1",
            ),
            (
                |limits| limits.queued_bytes = 0,
                "limits.queued_bytes: 0 is out of range; it may be at least 1024",
            ),
            (
                |limits| limits.queued_secs = 1 << 32,
                "limits.queued_secs: 4294967296 is out of range; it may be 0 to 4294967295",
            ),
        ];
        for (set, expected) in refused {
            let mut config = Config::default();
            set(&mut config.limits);
            assert_eq!(config.check().unwrap_err().to_string(), expected);
        }
        let mut config = Config::default();
        config.limits.memory_high = config.limits.memory_low - 1;
        let expected = "limits.memory_high: 1073741823 is below limits.memory_low, which is 1073741824";
        assert_eq!(config.check().unwrap_err().to_string(), expected);
        let mut config = Config::default();
        config.limits.queued_secs = 0;
        assert!(config.check().is_ok(), "no limit of age");
        let limits = &mut config.limits;
        (limits.retained_messages, limits.retained_bytes, limits.inflight_bytes) = (0, 0, 0);
        config.spool.bytes = 0;
        assert!(config.check().is_ok(), "no retained message, one inflight message at a time, no large one");
    }
}
