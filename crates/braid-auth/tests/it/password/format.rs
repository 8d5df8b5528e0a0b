//! Errors of files that are no password file.

use braid_auth::password::{MAX_LINE_BYTES, MAX_USER_BYTES, PasswordFile, Verdict};

use super::{ARGON2ID, HASHES, PBKDF2, SCRAM, file, parse};

fn error(text: &[u8]) -> String {
    PasswordFile::parse(text, "passwords").expect_err(&text.escape_ascii().to_string()).to_string()
}

const HASH64: &str =
    "/XoWiKuyC8k39VBkc1FKteceeihAFXy2fbcVXSAMVakshj/kwqAqOlIVx02E4CV3atAIkyFCysSvfmmCzw6u4g==";

const FORM: &str = "user `a`: the hash is not of the form `$argon2id$v=19$m=KIB,t=PASSES,p=LANES$SALT$HASH`; set the \
                    password again with `braidmq passwd add`";
const COST: &str = "user `a`: the cost of argon2id is out of bounds: at most 1048576 KiB, at least 8 for each lane, 1 to 64 \
                    passes, 1 to 64 lanes; set the password again";
const SALT: &str = "user `a`: the salt is not Base64 of 8 to 64 bytes; set the password again";
const OUTPUT: &str =
    "user `a`: the hash is cut off or not Base64; set the password again with `braidmq passwd add`";
const ITERATIONS: &str = "user `a`: the iterations are out of bounds: 1 to 10000000; set the password again";
const UNKNOWN: &str =
    "user `a`: an unknown kind of hash; known are argon2id, SCRAM-SHA-256, and $7$ and $6$ of mosquitto";
const PLAIN: &str =
    "user `a`: a plain-text password, or an unknown kind of hash; set a password with `braidmq passwd add`";
const SCRAM_FORM: &str = "user `a`: a SCRAM credential is `SCRAM-SHA-256$ITERATIONS:SALT$STOREDKEY:SERVERKEY`; set the \
                          password again with `braidmq passwd add --scram`";
const SCRAM_COUNT: &str = "user `a`: the iterations of a SCRAM credential are 4096 to 1000000; set the password again with \
                           `braidmq passwd add --scram`";
const SCRAM_SALT: &str = "user `a`: the salt of a SCRAM credential is Base64 of 8 to 64 bytes; set the password again with \
                          `braidmq passwd add --scram`";
const SCRAM_KEYS: &str = "user `a`: the keys of a SCRAM credential are Base64 of 32 bytes; set the password again with \
                          `braidmq passwd add --scram`";

/// Each row: a line behind a valid one, and the error. `{64}` is a valid hash of 64 bytes, `{32}` a valid key.
const BAD_LINES: &[(&[u8], &str)] = &[
    // Lines.
    (b"a\0:x\n", "the line contains a NUL byte; save the file as plain text"),
    (b"# a\rb\n", "the line contains a CR that is not before its LF; end lines with LF or CRLF"),
    (b"# a\r\r\n", "the line contains a CR that is not before its LF; end lines with LF or CRLF"),
    (b"# \xFF\n", "the line is not UTF-8; save the file as UTF-8"),
    (
        b"# cut",
        "the last line has no end, so that the file may be cut off; complete it and end it with a newline",
    ),
    (b"bob\n", "no `:`; write `USER:HASH`, or add the user with `braidmq passwd add`"),
    (b" # a comment\n", "no `:`; write `USER:HASH`, or add the user with `braidmq passwd add`"),
    // Names.
    (b":x\n", "the user name is empty; write at least one character"),
    (b"a\x1B[2Jb:x\n", "the user name `a\\u{1b}[2Jb` contains a control character; remove it"),
    (b"a\tb:x\n", "the user name `a\\tb` contains a control character; remove it"),
    (b" a:x\n", "the user name ` a` begins or ends with a blank; remove it"),
    (b"a :x\n", "the user name `a ` begins or ends with a blank; remove it"),
    (b"\xEF\xBB\xBFa:x\n", "the user name `\\u{feff}a` begins with a byte order mark; remove it"),
    (
        "a\u{AD}b:{scram}\n".as_bytes(),
        "the user `a\\u{ad}b` cannot use SCRAM, because SASLprep changes or prohibits the name; choose another one, or hash \
         the password by argon2id",
    ),
    (
        "a\u{E000}b:{scram}\n".as_bytes(),
        "the user `a\\u{e000}b` cannot use SCRAM, because SASLprep changes or prohibits the name; choose another one, or \
         hash the password by argon2id",
    ),
    (b"u0:{scram}\n", "the user `u0` is in line 1 too; remove one of both lines"),
    // Kinds of hash.
    (b"a:\n", "user `a`: no hash follows the user name; set a password with `braidmq passwd add`"),
    (b"a:hunter2\n", PLAIN),
    (b"a: {scram}\n", PLAIN),
    (b"a:b:{scram}\n", PLAIN),
    (b"a:$5$AAAAAAAAAAAAAAAA${64}\n", UNKNOWN),
    (b"a:$2b$12$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n", UNKNOWN),
    (b"a:$argon2i$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$jeHutNAspXQ+Qpnj83+s4w\n", UNKNOWN),
    (b"a:$argon2d$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$jeHutNAspXQ+Qpnj83+s4w\n", UNKNOWN),
    (b"a:SCRAM-SHA-1$4096:W22ZaJ0SNY7soEsUEjb6gQ==${32}:{32}\n", UNKNOWN),
    // argon2id.
    (b"a:$argon2id$m=8,t=1,p=1$c2FsdHNhbHQ$jeHutNAspXQ+Qpnj83+s4w\n", FORM),
    (b"a:$argon2id$v=16$m=8,t=1,p=1$c2FsdHNhbHQ$jeHutNAspXQ+Qpnj83+s4w\n", FORM),
    (b"a:$argon2id$v=19$m=8,t=1$c2FsdHNhbHQ$jeHutNAspXQ+Qpnj83+s4w\n", FORM),
    (b"a:$argon2id$v=19$t=1,m=8,p=1$c2FsdHNhbHQ$jeHutNAspXQ+Qpnj83+s4w\n", FORM),
    (b"a:$argon2id$v=19$m=8,t=1,p=1,keyid=AAAA$c2FsdHNhbHQ$jeHutNAspXQ+Qpnj83+s4w\n", FORM),
    (b"a:$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ\n", FORM),
    (b"a:$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$jeHutNAspXQ+Qpnj83+s4w$\n", FORM),
    (b"a:$argon2id$v=19$m=1048577,t=1,p=1$c2FsdHNhbHQ$jeHutNAspXQ+Qpnj83+s4w\n", COST),
    (b"a:$argon2id$v=19$m=4294967296,t=1,p=1$c2FsdHNhbHQ$jeHutNAspXQ+Qpnj83+s4w\n", COST),
    (b"a:$argon2id$v=19$m=7,t=1,p=1$c2FsdHNhbHQ$jeHutNAspXQ+Qpnj83+s4w\n", COST),
    (b"a:$argon2id$v=19$m=16,t=1,p=3$c2FsdHNhbHQ$jeHutNAspXQ+Qpnj83+s4w\n", COST),
    (b"a:$argon2id$v=19$m=8,t=0,p=1$c2FsdHNhbHQ$jeHutNAspXQ+Qpnj83+s4w\n", COST),
    (b"a:$argon2id$v=19$m=8,t=65,p=1$c2FsdHNhbHQ$jeHutNAspXQ+Qpnj83+s4w\n", COST),
    (b"a:$argon2id$v=19$m=8,t=1,p=0$c2FsdHNhbHQ$jeHutNAspXQ+Qpnj83+s4w\n", COST),
    (b"a:$argon2id$v=19$m=8000,t=1,p=65$c2FsdHNhbHQ$jeHutNAspXQ+Qpnj83+s4w\n", COST),
    (b"a:$argon2id$v=19$m=8,t=+1,p=1$c2FsdHNhbHQ$jeHutNAspXQ+Qpnj83+s4w\n", COST),
    (b"a:$argon2id$v=19$m=8,t=01,p=1$c2FsdHNhbHQ$jeHutNAspXQ+Qpnj83+s4w\n", COST),
    (b"a:$argon2id$v=19$m=,t=1,p=1$c2FsdHNhbHQ$jeHutNAspXQ+Qpnj83+s4w\n", COST),
    (b"a:$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbA$jeHutNAspXQ+Qpnj83+s4w\n", SALT),
    (b"a:$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ=$jeHutNAspXQ+Qpnj83+s4w\n", SALT),
    (b"a:$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHR$jeHutNAspXQ+Qpnj83+s4w\n", SALT),
    (b"a:$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$jeHutNAspXQ+Qpnj83+s\n", OUTPUT),
    (b"a:$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$\n", OUTPUT),
    (b"a:$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$jeHutNAspXQ+Qpnj83+s4w \n", OUTPUT),
    (b"a:$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$jeHutNAspXQ_Qpnj83_s4w\n", OUTPUT),
    // Hashes of mosquitto.
    (
        b"a:$7$101$JZgyKE10E0lOjZYe\n",
        "user `a`: the hash is not of the form `$7$ITERATIONS$SALT$HASH`; set the password again with `braidmq passwd add`",
    ),
    (
        b"a:$6$JZgyKE10E0lOjZYe\n",
        "user `a`: the hash is not of the form `$6$SALT$HASH`; set the password again with `braidmq passwd add`",
    ),
    (b"a:$7$0$JZgyKE10E0lOjZYe${64}\n", ITERATIONS),
    (b"a:$7$-1$JZgyKE10E0lOjZYe${64}\n", ITERATIONS),
    (b"a:$7$10000001$JZgyKE10E0lOjZYe${64}\n", ITERATIONS),
    (b"a:$7$99999999999999999999$JZgyKE10E0lOjZYe${64}\n", ITERATIONS),
    (b"a:$7$$JZgyKE10E0lOjZYe${64}\n", ITERATIONS),
    (b"a:$7$101$${64}\n", SALT),
    (b"a:$7$101$c2FsdHNhbA==${64}\n", SALT),
    (b"a:$6${64}AAAA${64}\n", SALT),
    (b"a:$6$JZgyKE10E0lOjZYe$\n", OUTPUT),
    (b"a:$7$101$JZgyKE10E0lOjZYe${32}\n", OUTPUT),
    (b"a:$6$JZgyKE10E0lOjZYe${64}AAAA\n", OUTPUT),
    // SCRAM.
    (b"a:SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==${32}\n", SCRAM_FORM),
    (b"a:SCRAM-SHA-256$W22ZaJ0SNY7soEsUEjb6gQ==${32}:{32}\n", SCRAM_FORM),
    (b"a:SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==\n", SCRAM_FORM),
    (b"a:SCRAM-SHA-256$4095:W22ZaJ0SNY7soEsUEjb6gQ==${32}:{32}\n", SCRAM_COUNT),
    (b"a:SCRAM-SHA-256$1000001:W22ZaJ0SNY7soEsUEjb6gQ==${32}:{32}\n", SCRAM_COUNT),
    (b"a:SCRAM-SHA-256$x:W22ZaJ0SNY7soEsUEjb6gQ==${32}:{32}\n", SCRAM_COUNT),
    (b"a:SCRAM-SHA-256$4096:c2FsdA==${32}:{32}\n", SCRAM_SALT),
    (b"a:SCRAM-SHA-256$4096:?${32}:{32}\n", SCRAM_SALT),
    (b"a:SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==${32}:{64}\n", SCRAM_KEYS),
    (b"a:SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$:{32}\n", SCRAM_KEYS),
    (b"a:SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==${32}:{32}:\n", SCRAM_KEYS),
];

fn fill(line: &[u8]) -> Vec<u8> {
    let mut filled = line.to_vec();
    let key = "WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=";
    for (mark, text) in [("{64}", HASH64), ("{32}", key), ("{scram}", SCRAM)] {
        while let Some(at) = filled.windows(mark.len()).position(|window| window == mark.as_bytes()) {
            filled.splice(at..at + mark.len(), text.bytes());
        }
    }
    filled
}

#[test]
fn each_bad_line_has_its_error() {
    for (line, expected) in BAD_LINES {
        let text = [file(&[PBKDF2], "\n").as_bytes(), &fill(line)].concat();
        assert_eq!(error(&text), format!("passwords:2: {expected}"));
        let followed = [&text, &b"\n"[..], b"z:", PBKDF2.as_bytes(), b"\n"].concat();
        assert!(
            PasswordFile::parse(&followed, "passwords").is_err() || *line == b"# cut",
            "a valid line behind it saves nothing"
        );
    }
}

/// CVE-2018-12550: an empty file permitted everything.
#[test]
fn a_file_without_users_is_refused() {
    let expected = "passwords:1: there is no user; add one with `braidmq passwd add`";
    for text in ["", "\n", "\r\n", "# a:b\n", " \t\n\n#\n"] {
        assert_eq!(error(text.as_bytes()), expected, "{text:?}");
    }
}

#[test]
fn a_byte_order_mark_is_refused() {
    let text = [&b"\xEF\xBB\xBF"[..], file(&HASHES, "\n").as_bytes()].concat();
    let expected = "passwords:1: the file begins with a byte order mark; save it as UTF-8 without one";
    assert_eq!(error(&text), expected);
    assert_eq!(error(b"\xFF\xFEa\0"), "passwords:1: the line is not UTF-8; save the file as UTF-8");
}

#[test]
fn comments_blank_lines_and_both_line_ends_are_accepted() {
    let text = format!("# users\r\n\r\n \t\na b:{ARGON2ID}\r\n#x:y\n\u{e9}=,:{PBKDF2}\n\n");
    let users: Vec<_> = parse(&text).users().map(|(user, _)| user.to_owned()).collect();
    assert_eq!(users, ["a b", "\u{e9}=,"]);
}

#[test]
fn long_lines_and_names_are_refused() {
    let line = |length: usize| format!("{}:{PBKDF2}\n", "x".repeat(length));
    assert!(parse(&line(MAX_USER_BYTES)).contains(&"x".repeat(MAX_USER_BYTES)));
    let expected =
        "passwords:1: the user name is longer than 65535 bytes, which MQTT cannot transport; shorten it";
    assert_eq!(error(line(MAX_USER_BYTES + 1).as_bytes()), expected);
    let expected = "passwords:1: the line is longer than 66560 bytes; shorten it";
    assert_eq!(error(line(MAX_LINE_BYTES).as_bytes()), expected);
    assert_eq!(error(&vec![0xFF; MAX_LINE_BYTES + 1]), expected);
    let shown = error(format!("{}:x\n", "y".repeat(41)).as_bytes());
    assert!(
        shown.starts_with(&format!("passwords:1: user `{}...`: a plain-text", "y".repeat(40))),
        "{shown}"
    );
}

/// A quadratic parser would take minutes.
#[test]
fn many_users_are_parsed() {
    let lines = (0..100_000).map(|number| format!("user-{number}:{ARGON2ID}\n"));
    let file = parse(&lines.collect::<String>());
    assert_eq!(file.users().len(), 100_000);
    assert!(file.contains("user-99999") && !file.contains("user-100000"));
}

/// CVE-2018-12551: malformed lines became users without password.
#[test]
fn a_file_that_was_cut_off_gains_nothing() {
    for end in ["\n", "\r\n"] {
        let whole = file(&HASHES, end);
        for length in 0..whole.len() {
            let cut = &whole.as_bytes()[..length];
            let is_between_lines = cut.ends_with(b"\n");
            match PasswordFile::parse(cut, "passwords") {
                Ok(left) => {
                    assert!(is_between_lines, "{length}");
                    let expected: Vec<_> = parse(&whole).users().map(owned).collect();
                    let left: Vec<_> = left.users().map(owned).collect();
                    assert_eq!(expected[..left.len()], left);
                }
                Err(error) => assert!(!is_between_lines, "{error}"),
            }
        }
    }
}

fn owned<T>((user, kind): (&str, T)) -> (String, T) {
    (user.to_owned(), kind)
}

/// Lines whose end was lost, while the newline was not.
#[test]
fn a_line_that_was_cut_off_is_refused_or_accepts_no_password() {
    let mut accepted = 0;
    for hash in &HASHES[2..] {
        for length in 0..hash.len() {
            let text = format!("u:{}\n", &hash[..length]);
            if let Ok(file) = PasswordFile::parse(text.as_bytes(), "passwords") {
                accepted += 1;
                assert_eq!(file.verify("u", b"pencil"), Verdict::Wrong, "{text}");
            }
        }
    }
    assert!(accepted < 2, "{accepted}");
}

/// Every error is one line without secrets, whatever bytes are in the file.
#[test]
fn files_with_damaged_bytes_never_panic() {
    let text = format!("# c\r\nu:{}\nv:{SCRAM}\nw:{PBKDF2}\n", HASHES[3]);
    let secrets = ["jeHutNAsp", "W22ZaJ0S", "WG5d8oPm", "wfPLwcE6", "JZgyKE10", "XoWiKuyC"];
    for position in 0..text.len() {
        for byte in 0..=u8::MAX {
            let mut damaged = text.clone().into_bytes();
            damaged[position] = byte;
            if let Err(error) = PasswordFile::parse(&damaged, "passwords") {
                let shown = format!("{error} {error:?}");
                assert!(shown.lines().count() == 1 && !shown.contains(char::is_control), "{shown:?}");
                assert!(secrets.iter().all(|secret| !shown.contains(secret)), "{shown}");
            }
        }
    }
}
