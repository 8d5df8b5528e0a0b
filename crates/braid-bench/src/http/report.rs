use std::fmt;

use super::summary::{HttpSummary, Moments};

/// Lines of h2load about a run, and a line of percentiles.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// The run.
    pub summary: &'a HttpSummary,
    /// True if there was an expected body.
    pub has_expectation: bool,
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HttpSummary { requests, traffic, .. } = self.summary;
        writeln!(
            f,
            "finished in {}, {:.2} req/s, {}B/s",
            duration(self.summary.seconds * 1e6),
            self.summary.requests_per_second,
            bytes(whole(self.summary.bytes_per_second)),
        )?;
        writeln!(
            f,
            "requests: {} total, {} started, {} done, {} succeeded, {} failed, {} errored, {} timeout",
            requests.total,
            requests.started,
            requests.done,
            requests.succeeded,
            requests.failed,
            requests.errored,
            requests.timed_out,
        )?;
        let [ok, redirected, refused, broken] = requests.status;
        writeln!(f, "status codes: {ok} 2xx, {redirected} 3xx, {refused} 4xx, {broken} 5xx")?;
        writeln!(
            f,
            "traffic: {}B ({}) total, {}B ({}) headers (space savings {:.2}%), {}B ({}) data",
            bytes(traffic.bytes),
            traffic.bytes,
            bytes(traffic.header_bytes),
            traffic.header_bytes,
            traffic.space_savings(),
            bytes(traffic.body_bytes),
            traffic.body_bytes,
        )?;
        writeln!(f, "                     min         max         mean         sd        +/- sd")?;
        let times = [
            ("time for request: ", &self.summary.request_us),
            ("time for connect: ", &self.summary.connect_us),
            ("time to 1st byte: ", &self.summary.first_byte_us),
        ];
        for (name, moments) in times {
            row(f, name, moments, duration)?;
        }
        row(f, "req/s           : ", &self.summary.client_requests_per_second, |rate| format!("{rate:.2}"))?;
        if let Some(quantiles) = &self.summary.request_quantiles_us {
            let of = [("p50", quantiles.p50), ("p90", quantiles.p90), ("p99", quantiles.p99)];
            let of = of.into_iter().chain([("p99.9", quantiles.p999), ("max", quantiles.max)]);
            // A value of the histogram stands for its bucket; none is above the exact maximum.
            let of = of.map(|(name, value)| (name, value.min(self.summary.request_us.max)));
            let of: Vec<_> = of.map(|(name, value)| format!("{name} {}", duration(value))).collect();
            writeln!(f, "request latency : {}", of.join(", "))?;
        }
        if self.has_expectation {
            let [responses, wrong] = [requests.succeeded, requests.wrong_bodies];
            writeln!(f, "wrong bodies    : {wrong} of {responses}")?;
        }
        Ok(())
    }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, of: &Moments, unit: fn(f64) -> String) -> fmt::Result {
    let [min, max, mean, sd] = [of.min, of.max, of.mean, of.sd].map(unit);
    writeln!(f, "{name}{min:>10}  {max:>10}  {mean:>10}  {sd:>10}{:>9.2}%", of.within_sd)
}

/// Microseconds as h2load writes them: `191us`, `141.28ms`, `3.00s`.
fn duration(micros: f64) -> String {
    match whole(micros) {
        whole @ ..1_000 => format!("{whole}us"),
        1_000..1_000_000 => format!("{:.2}ms", micros / 1e3),
        _ => format!("{:.2}s", micros / 1e6),
    }
}

/// A number of bytes as h2load writes it, without the B: `612`, `6.02K`, `8.11M`, `1.00G`.
fn bytes(count: u64) -> String {
    const UNITS: [(u32, &str); 3] = [(30, "G"), (20, "M"), (10, "K")];
    let unit = UNITS.into_iter().find(|(bits, _)| count >> bits > 0);
    unit.map_or_else(
        || count.to_string(),
        |(bits, name)| format!("{:.2}{name}", count as f64 / f64::from(1_u32 << bits)),
    )
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates, and is never negative"
)]
fn whole(value: f64) -> u64 {
    value as u64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::http::tally::{ClientSample, RunTimes, Tally};
    use crate::http::{Counts, Traffic};

    #[test]
    fn numbers_have_the_units_of_h2load() {
        let durations = [0.0, 999.9, 1000.0, 141_280.0, 999_999.0, 3_000_000.0, 90e6];
        let expected = ["0us", "999us", "1.00ms", "141.28ms", "1000.00ms", "3.00s", "90.00s"];
        assert_eq!(durations.map(duration), expected);
        assert_eq!(
            [0, 1023, 1024, 6160, 8_500_000, 1 << 30].map(bytes),
            ["0", "1023", "1.00K", "6.02K", "8.11M", "1.00G"]
        );
    }

    /// The lines are those that h2load 1.52 printed for these figures.
    #[test]
    fn lines_are_those_of_h2load() {
        let mut tally = Tally {
            counts: Counts {
                started: 10_000,
                done: 10_000,
                succeeded: 10_000,
                status: [10_000, 0, 0, 0],
                ..Counts::default()
            },
            traffic: Traffic {
                bytes: 7_380_490,
                header_bytes: 1_080_000,
                plain_header_bytes: 1_770_000,
                body_bytes: 6_120_000,
            },
            main: Duration::from_micros(241_505),
            ..Tally::default()
        };
        for micros in [53, 116_580] {
            tally.request.record(Duration::from_micros(micros));
        }
        let client = |connect, first_byte, requests_per_second| {
            let [connect, first_byte] =
                [connect, first_byte].map(|micros| Some(Duration::from_micros(micros)));
            ClientSample { connect, first_byte, requests_per_second }
        };
        tally.clients = vec![client(93, 3_020, 4168.736), client(1_390, 113_820, 7075.22)];
        let (elapsed, cpu) = (Duration::from_micros(241_505), Duration::ZERO);
        let mut summary = tally.summary(Some(10_000), "h2c", RunTimes { started_unix_us: 0, elapsed, cpu });
        let report = Report { summary: &summary, has_expectation: false }.to_string();
        let expected = "\
finished in 241.50ms, 41407.01 req/s, 29.14MB/s
requests: 10000 total, 10000 started, 10000 done, 10000 succeeded, 0 failed, 0 errored, 0 timeout
status codes: 10000 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 7.04MB (7380490) total, 1.03MB (1080000) headers (space savings 38.98%), 5.84MB (6120000) data
                     min         max         mean         sd        +/- sd
time for request:       53us    116.58ms     58.32ms     82.40ms   100.00%
time for connect:       93us      1.39ms       741us       917us   100.00%
time to 1st byte:     3.02ms    113.82ms     58.42ms     78.35ms   100.00%
req/s           :    4168.74     7075.22     5621.98     2055.19   100.00%
request latency : p50 53us, p90 116.58ms, p99 116.58ms, p99.9 116.58ms, max 116.58ms
";
        assert_eq!(report, expected);
        summary.requests.wrong_bodies = 3;
        let report = Report { summary: &summary, has_expectation: true }.to_string();
        assert_eq!(report, format!("{expected}wrong bodies    : 3 of 10000\n"));
    }

    #[test]
    fn a_run_without_a_response_has_zeros() {
        let summary = Tally::default().summary(
            Some(1),
            "h2c",
            RunTimes { started_unix_us: 0, elapsed: Duration::from_micros(314), cpu: Duration::ZERO },
        );
        let report = Report { summary: &summary, has_expectation: false }.to_string();
        assert!(
            report.starts_with("finished in 314us, 0.00 req/s, 0B/s\nrequests: 1 total, 0 started, "),
            "{report}"
        );
        assert!(
            report.contains("traffic: 0B (0) total, 0B (0) headers (space savings 0.00%), 0B (0) data\n")
        );
        assert!(
            report.ends_with("req/s           :       0.00        0.00        0.00        0.00     0.00%\n")
        );
    }
}
