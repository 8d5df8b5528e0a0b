//! Ban file: clients, users and networks that are refused.
//!
//! One ban a line: `client ID`, `user NAME` or `address NETWORK`, where a network is an address or a CIDR block. The
//! rest of the line is the name, so that it may contain blanks. Lines that are empty or begin with `#` are ignored.

use std::net::IpAddr;

use ipnet::IpNet;
use thiserror::Error;

use crate::text_line::{LineProblem, check_beginning, read_line};

/// Longest line, in bytes: a Client Identifier has up to 65,535.
const MAX_LINE: usize = 66_000;

/// Bans of a file at most.
pub const MAX_BANS: usize = 10_000;

/// Target of a ban.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Banned {
    /// Client Identifier, whatever user or address has it.
    Client(Box<str>),
    /// User name.
    User(Box<str>),
    /// Addresses of a network.
    Addresses(IpNet),
}

/// Line of a ban file that is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{problem}")]
pub struct BanFileError {
    /// Number of the line, from 1.
    pub line: usize,
    problem: Problem,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
enum Problem {
    #[error(transparent)]
    Line(#[from] LineProblem),
    #[error("`{0}` is no ban; write `client ID`, `user NAME` or `address NETWORK`")]
    Unknown(String),
    #[error("the name is missing; write it behind `{0}`")]
    NoName(&'static str),
    #[error("`{0}` is no network; write an address or a block such as 203.0.113.0/24 or 2001:db8::/32")]
    Network(String),
    #[error("the file has more than {MAX_BANS} bans; ban ranges of addresses")]
    TooMany,
}

/// Parses a ban file. An empty one has no bans.
///
/// # Errors
/// The first line that is not valid. Nothing of the file is to be used then.
pub fn parse(text: &[u8]) -> Result<Vec<Banned>, BanFileError> {
    let mut bans = Vec::new();
    check_beginning(text).map_err(|problem| BanFileError { line: 1, problem: problem.into() })?;
    for (line, bytes) in (1..).zip(text.split_inclusive(|byte| *byte == b'\n')) {
        let refused = |problem| BanFileError { line, problem };
        let text = read_line(bytes, MAX_LINE, true).map_err(|problem| refused(problem.into()))?;
        bans.extend(ban(text).map_err(refused)?);
        if bans.len() > MAX_BANS {
            return Err(refused(Problem::TooMany));
        }
    }
    Ok(bans)
}

/// Ban of a line; `None` on one without.
fn ban(text: &str) -> Result<Option<Banned>, Problem> {
    let text = text.trim_matches([' ', '\t']);
    if text.is_empty() || text.starts_with('#') {
        return Ok(None);
    }
    let (kind, name) = text.split_once([' ', '\t']).unwrap_or((text, ""));
    let name = name.trim_start_matches([' ', '\t']);
    let named = |kind| if name.is_empty() { Err(Problem::NoName(kind)) } else { Ok(Box::from(name)) };
    Ok(Some(match kind {
        "client" => Banned::Client(named("client")?),
        "user" => Banned::User(named("user")?),
        "address" => {
            let name = named("address")?;
            let network = name.parse().or_else(|_| name.parse().map(IpAddr::into));
            Banned::Addresses(network.map_err(|_| Problem::Network(name.escape_debug().to_string()))?)
        }
        other => {
            return Err(Problem::Unknown(
                other.chars().take(40).collect::<String>().escape_debug().to_string(),
            ));
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &[u8]) -> String {
        let error = parse(text).unwrap_err();
        format!("line {}: {error}", error.line)
    }

    #[test]
    fn each_kind_of_line_is_read() {
        let text = b"# bans\r\n\n  client  a device\nuser\teve\r\naddress 203.0.113.0/24\naddress ::1\n";
        let expected = [
            Banned::Client("a device".into()),
            Banned::User("eve".into()),
            Banned::Addresses("203.0.113.0/24".parse().unwrap()),
            Banned::Addresses("::1/128".parse().unwrap()),
        ];
        assert_eq!(parse(text).unwrap(), expected);
        assert_eq!(parse(b""), Ok(Vec::new()));
    }

    #[test]
    fn each_bad_line_has_its_error() {
        for (text, expected) in [
            (&b"user eve"[..], "line 1: the last line has no end"),
            (b"\xEF\xBB\xBFuser eve\n", "line 1: the file begins with a byte order mark"),
            (b"user eve\nuser\n", "line 2: the name is missing; write it behind `user`"),
            (b"client \t\n", "line 1: the name is missing; write it behind `client`"),
            (b"address\n", "line 1: the name is missing; write it behind `address`"),
            (b"address 203.0.113.0/33\n", "line 1: `203.0.113.0/33` is no network; write an address"),
            (b"address host\n", "line 1: `host` is no network; write an address"),
            (b"User eve\n", "line 1: `User` is no ban; write `client ID`"),
            (b"user e\0e\n", "line 1: the line contains a NUL byte"),
            (b"user \xFF\n", "line 1: the line is not UTF-8"),
            (b"user a\rb\n", "line 1: the line contains a CR"),
        ] {
            let said = error(text);
            assert!(said.starts_with(expected) && said.lines().count() == 1, "{said}");
        }
        let many = "user a\n".repeat(MAX_BANS + 1);
        assert_eq!(
            error(many.as_bytes()),
            "line 10001: the file has more than 10000 bans; ban ranges of addresses"
        );
        assert_eq!(parse(&many.as_bytes()[7..]).unwrap().len(), MAX_BANS);
    }

    #[test]
    fn a_file_that_was_cut_bans_only_whole_lines_or_is_refused() {
        let text = b"user eve\naddress 203.0.113.0/24\n";
        for end in 0..text.len() {
            match parse(&text[..end]) {
                Ok(bans) => assert!(end == 0 || text[end - 1] == b'\n', "{end}: {bans:?}"),
                Err(error) => assert!(text[end - 1] != b'\n', "{end}: {error}"),
            }
        }
    }
}
