//! Gate log: a line of JSON for each connection, five times a second.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::sleep;

use crate::quic::congestion::path_model::{GateState, Level};

/// Time between two lines of a connection.
const INTERVAL: Duration = Duration::from_millis(200);

/// Writes the states of a gate until there is none. An error ends the log, with a warning.
pub(super) fn follow(state: impl Fn() -> Option<GateState> + Send + 'static, path: &Path, peer: SocketAddr) {
    let opened = OpenOptions::new().create(true).append(true).open(path);
    let opened =
        opened.inspect_err(|error| tracing::warn!(path = %path.display(), %error, "no log of the gate"));
    let Ok(mut file) = opened else { return };
    tokio::spawn(async move {
        while let Some(state) = state() {
            let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            // One write per line: other connections write to the same file.
            if let Err(error) = file.write_all(line(&state, unix, peer).as_bytes()) {
                tracing::warn!(%error, "the log of the gate ends here");
                return;
            }
            sleep(INTERVAL).await;
        }
    });
}

/// Formats a state. `unix`: time since the Unix epoch.
fn line(state: &GateState, unix: Duration, peer: SocketAddr) -> String {
    let mut line = format!(
        r#"{{"unix_us":{},"peer":"{peer}","class":"{}","reason":"{:?}""#,
        unix.as_micros(),
        state.class.name(),
        state.reason
    );
    let millis = |time: Duration| time.as_secs_f64() * 1000.0;
    let level = state.level.map(|level| match level {
        Level::Tokens { left, reserve } => [("tokens", left), ("reserve_tokens", reserve)],
        Level::Queue { wait, aim } => [("wait_ms", millis(wait)), ("aim_ms", millis(aim))],
    });
    let rates =
        [("packets_per_second", state.packets_per_second), ("bytes_per_second", state.bytes_per_second)];
    let rates = rates.into_iter().filter_map(|(name, rate)| Some((name, rate?)));
    for (name, value) in rates.chain(level.into_iter().flatten()) {
        // Writing to a string never fails.
        let _ = write!(line, r#","{name}":{value:.3}"#);
    }
    let _ = writeln!(line, r#","on_the_way":{},"packets":{}}}"#, state.on_the_way, state.packets);
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quic::congestion::path_model::{Class, Reason};

    fn written(state: &GateState) -> String {
        line(state, Duration::from_micros(1_500_000), ([192, 168, 200, 1], 14567).into())
    }

    #[test]
    fn a_line_has_the_known_fields_only() {
        let open = GateState {
            class: Class::Passthrough,
            reason: Reason::FastQueue,
            packets_per_second: None,
            bytes_per_second: None,
            level: None,
            on_the_way: 7,
            packets: 9,
        };
        let begin = r#"{"unix_us":1500000,"peer":"192.168.200.1:14567","class":"#;
        assert_eq!(
            written(&open),
            format!("{begin}\"open\",\"reason\":\"FastQueue\",\"on_the_way\":7,\"packets\":9}}\n")
        );
        let limited = GateState {
            class: Class::Policed,
            reason: Reason::DropsAboveRate,
            packets_per_second: Some(28.420_4),
            bytes_per_second: Some(34_104.48),
            ..open
        };
        let rates = r#","packets_per_second":28.420,"bytes_per_second":34104.480"#;
        let end = r#","on_the_way":7,"packets":9}"#;
        let policed = GateState { level: Some(Level::Tokens { left: -1.25, reserve: 1.0 }), ..limited };
        let expected = format!(
            "{begin}\"policed\",\"reason\":\"DropsAboveRate\"{rates},\"tokens\":-1.250,\"reserve_tokens\":1.000{end}\n"
        );
        assert_eq!(written(&policed), expected);
        let (wait, aim) = (Duration::from_micros(34_500), Duration::from_micros(3448));
        let queued = GateState {
            class: Class::Queued,
            reason: Reason::WaitsGrow,
            level: Some(Level::Queue { wait, aim }),
            ..limited
        };
        let expected = format!(
            "{begin}\"queued\",\"reason\":\"WaitsGrow\"{rates},\"wait_ms\":34.500,\"aim_ms\":3.448{end}\n"
        );
        assert_eq!(written(&queued), expected);
    }
}
