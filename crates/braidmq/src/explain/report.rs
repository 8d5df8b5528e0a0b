//! The numbers as text and as JSON.

use std::fmt::Write as _;

use super::summary::{BurstNumbers, Share, Summary};
use super::view::list;

/// How many bursts the text lists; `--json` has all.
const MOST_BURSTS: usize = 20;

/// One JSON object and a line feed.
pub(super) fn json(summary: &Summary) -> String {
    // Every key is a string and every value a number: nothing that could not be written.
    let mut text = serde_json::to_string_pretty(summary).unwrap_or_default();
    text.push('\n');
    text
}

pub(super) fn text(summary: &Summary) -> String {
    let mut out = String::new();
    // Writing into a string cannot fail.
    let _ = heading(&mut out, summary)
        .and_then(|()| streams(&mut out, summary))
        .and_then(|()| measures(&mut out, summary))
        .and_then(|()| bursts(&mut out, summary))
        .and_then(|()| writeln!(out, "\npicture: {}", summary.picture));
    out
}

fn heading(out: &mut String, summary: &Summary) -> std::fmt::Result {
    let who = summary.vantage.as_deref().map_or(String::new(), |who| format!(" by the {who}"));
    let Summary { file, side, from_ms, to_ms, .. } = summary;
    writeln!(out, "{file}: packets {side}{who}, {from_ms:.3} to {to_ms:.3} ms")?;
    if summary.log_is_cut_off {
        writeln!(out, "the log ends in the middle of a record; what comes before is explained")?;
    }
    if summary.other_connections > 0 {
        writeln!(out, "other connections in the file, not explained: {}", summary.other_connections)?;
    }
    let connection = &summary.connection;
    write!(out, "{} packets", connection.packets)?;
    if let Some(rate) = connection.packets_per_second {
        write!(out, " ({rate:.1} a second)")?;
    }
    write!(out, ", {} bytes", connection.bytes)?;
    if let Some(lost) = connection.lost {
        write!(out, ", {lost} lost ({})", percent(super::number::float(lost), connection.packets))?;
    }
    if let Some(timeouts) = connection.probe_timeouts {
        write!(out, ", {timeouts} probe timeouts")?;
    }
    let urgent = list(summary.urgent.iter());
    let chosen = match (summary.urgent_is_chosen, summary.urgent.as_slice()) {
        (false, _) => "",
        (true, []) => " (there is a single data stream; name streams with --urgent)",
        (true, [0]) => " (the control stream; name others with --urgent)",
        (true, [_]) => " (the data stream with the fewest bytes; name others with --urgent)",
        (true, _) => {
            " (the control stream and the data stream with the fewest bytes; name others with --urgent)"
        }
    };
    writeln!(out, "\nurgent: {urgent}{chosen}")
}

fn percent(part: f64, whole: u64) -> String {
    format!("{:.1} %", 100.0 * part / super::number::float(whole.max(1)))
}

/// What --urgent may name, as a table.
fn streams(out: &mut String, summary: &Summary) -> std::fmt::Result {
    let again = if summary.side == "sent" { "sent again" } else { "came again" };
    writeln!(
        out,
        "\n{:>8}  {:12}  {:6}  {:>12}  {:>8}  {:>12}  {:>12}  {again:>10}",
        "stream", "opened by", "", "bytes", "packets", "first ms", "last ms"
    )?;
    for stream in &summary.streams {
        let class = if stream.urgent { "urgent" } else { "bulk" };
        writeln!(
            out,
            "{:>8}  {:12}  {class:6}  {:>12}  {:>8}  {:>12.3}  {:>12.3}  {:>10}",
            stream.stream,
            stream.kind,
            stream.bytes,
            stream.packets,
            stream.first_ms,
            stream.last_ms,
            stream.bytes_again,
        )?;
    }
    Ok(())
}

/// A share in percent, never rounded up to 100: that would say that nothing was ahead.
pub(super) fn shown(share: Share) -> Option<String> {
    let share = share.share?;
    let percent = if share < 1.0 { (share * 1000.0).floor() / 10.0 } else { 100.0 };
    Some(if percent < 100.0 { format!("{percent:.1} %") } else { "100 %".to_owned() })
}

fn measures(out: &mut String, summary: &Summary) -> std::fmt::Result {
    let first = summary.urgent_first;
    match shown(first) {
        Some(share) => writeln!(
            out,
            "\nurgent first: {share} ({} urgent bytes in {} bursts, {} of them of one packet; {} bulk bytes ahead)",
            first.urgent_bytes,
            summary.bursts.len(),
            summary.bursts.iter().filter(|burst| burst.packets == 1).count(),
            first.bulk_bytes_ahead,
        )?,
        None if first.urgent_bytes == 0 => writeln!(out, "\nurgent first: no urgent bytes to measure")?,
        None => writeln!(out, "\nurgent first: no bulk bytes to compare with")?,
    }
    if summary.repairs.is_empty() {
        return Ok(());
    }
    let loss = summary.after_a_loss;
    let mut waits: Vec<f64> = summary.repairs.iter().filter_map(|repair| repair.again_after_ms).collect();
    waits.sort_by(f64::total_cmp);
    let share = shown(loss).unwrap_or_else(|| "nothing was sent again".to_owned());
    write!(
        out,
        "after a loss: {share} (losses of urgent bytes: {}, sent again: {}; {} bulk bytes ahead",
        summary.repairs.len(),
        waits.len(),
        loss.bulk_bytes_ahead,
    )?;
    if let (Some(median), Some(longest)) = (waits.get(waits.len() / 2), waits.last()) {
        write!(out, "; median wait {median:.3} ms, longest {longest:.3} ms")?;
    }
    writeln!(out, ")")
}

fn bursts(out: &mut String, summary: &Summary) -> std::fmt::Result {
    if summary.bursts.is_empty() {
        return Ok(());
    }
    let mut listed: Vec<&BurstNumbers> = summary.bursts.iter().collect();
    if listed.len() > MOST_BURSTS {
        listed.sort_by(|a, b| {
            let rest = || b.left_after_ms.total_cmp(&a.left_after_ms).then(a.first_ms.total_cmp(&b.first_ms));
            b.bulk_bytes_ahead.cmp(&a.bulk_bytes_ahead).then_with(rest)
        });
        listed.truncate(MOST_BURSTS);
        writeln!(
            out,
            "\nthe {MOST_BURSTS} bursts of {} with the most bulk ahead, then the slowest (--json has all):",
            summary.bursts.len()
        )?;
    } else {
        writeln!(out, "\nbursts of urgent bytes:")?;
    }
    writeln!(
        out,
        "{:>12}  {:>10}  {:>8}  {:>15}  {:>16}",
        "first ms", "bytes", "packets", "all left after", "bulk bytes ahead"
    )?;
    for burst in listed {
        writeln!(
            out,
            "{:>12.3}  {:>10}  {:>8}  {:>12.3} ms  {:>16}",
            burst.first_ms, burst.bytes, burst.packets, burst.left_after_ms, burst.bulk_bytes_ahead
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_never_rounded_up_to_all() {
        let share = |share| shown(Share { share, ..Share::default() });
        assert_eq!(share(Some(1.0)).as_deref(), Some("100 %"));
        assert_eq!(share(Some(0.99999)).as_deref(), Some("99.9 %"));
        assert_eq!(share(Some(0.5)).as_deref(), Some("50.0 %"));
        assert_eq!(share(None), None);
    }
}
