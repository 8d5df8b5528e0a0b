//! Parsers of option values.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use braid_client::ProtocolVersion;
use jiff::SignedDuration;

/// The words that emqtt_bench takes for true and false.
pub(in crate::bench) fn switch(word: &str) -> Result<bool, String> {
    match word.to_ascii_lowercase().as_str() {
        "true" | "t" | "yes" | "y" | "on" | "enabled" | "1" => Ok(true),
        "false" | "f" | "no" | "n" | "off" | "disabled" | "0" => Ok(false),
        _ => Err("write true or false".to_owned()),
    }
}

pub(super) fn quic_switch(word: &str) -> Result<bool, String> {
    if word.ends_with(".eterm") {
        return Err("files of msquic's settings are not read: write true, and use --quic-cc".to_owned());
    }
    switch(word)
}

pub(super) fn qoe_switch(word: &str) -> Result<bool, String> {
    if word == "dump" {
        return Err("there is no log to dump: write true, and use --json FILE for the figures".to_owned());
    }
    switch(word)
}

pub(super) fn version(word: &str) -> Result<ProtocolVersion, String> {
    match word {
        "3" => Ok(ProtocolVersion::V31),
        "4" => Ok(ProtocolVersion::V311),
        "5" => Ok(ProtocolVersion::V5),
        _ => Err("write 3 (MQTT 3.1), 4 (3.1.1) or 5".to_owned()),
    }
}

pub(super) fn tls_version(word: &str) -> Result<(), String> {
    match word {
        "tlsv1.3" | "tlsv1.3_nocompat" => Ok(()),
        "tlsv1.2" => {
            Err("an old version cannot be forced, the newest that the server has is used: leave it out"
                .to_owned())
        }
        _ => Err("write tlsv1.3, or leave it out: versions before 1.2 are not safe".to_owned()),
    }
}

/// Address of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Endpoint {
    Disabled,
    At(SocketAddr),
}

/// A port of this machine, or an address and port, or emqtt_bench's `disabled`.
pub(super) fn endpoint(word: &str) -> Result<Endpoint, String> {
    if word == "disabled" {
        return Ok(Endpoint::Disabled);
    }
    let address = word.parse().ok();
    let port = || word.parse().ok().map(|port| SocketAddr::from(([0, 0, 0, 0], port)));
    address.or_else(port).map(Endpoint::At).ok_or_else(|| {
        "write a port, such as 8081, or an address and port, such as 127.0.0.1:8081".to_owned()
    })
}

/// Longest time of an option, 100 years: a clock holds the sum of its time and this.
const LONGEST: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// `6.2ms`, `30s`, `1m30s`; a number alone is seconds. At most 100 years.
pub(in crate::bench) fn time(word: &str) -> Result<Duration, String> {
    timed(word, "write a time, such as 6.2ms, 30s or 1h30m")
}

/// A duration above zero, at most 100 years.
pub(in crate::bench) fn duration(word: &str) -> Result<Duration, String> {
    let remedy = "write a time above 0, such as 30s, 2m or 1h30m";
    timed(word, remedy).and_then(|given| if given.is_zero() { Err(remedy.to_owned()) } else { Ok(given) })
}

fn timed(word: &str, remedy: &str) -> Result<Duration, String> {
    let seconds = word.parse().ok().map(Duration::from_secs);
    let friendly = || word.parse::<SignedDuration>().ok().and_then(|given| Duration::try_from(given).ok());
    match seconds.or_else(friendly) {
        Some(given) if given > LONGEST => Err("write a time of at most 100 years".to_owned()),
        given => given.ok_or_else(|| remedy.to_owned()),
    }
}

/// Addresses of this machine, separated by commas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::bench) struct Addresses(pub(in crate::bench) Vec<IpAddr>);

pub(super) fn addresses(words: &str) -> Result<Addresses, String> {
    let all: Result<_, _> = words.split(',').map(|word| word.trim().parse()).collect();
    all.map(Addresses).map_err(|_| "write addresses, such as 10.0.0.1 or 10.0.0.1,10.0.0.2".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_end_after_100_years() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration(&LONGEST.as_secs().to_string()), Ok(LONGEST));
        for (word, part) in [
            ("10000000000000000000", "100 years"),
            ("3162240001", "100 years"),
            ("0s", "above 0"),
            ("soon", "above 0"),
        ] {
            assert!(duration(word).unwrap_err().contains(part), "{word}");
        }
        assert_eq!(time("0"), Ok(Duration::ZERO));
        assert!(time("300000000000h").unwrap_err().contains("100 years"));
    }
}
