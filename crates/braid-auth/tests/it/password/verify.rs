//! Verification of passwords, and the cost of unknown users.

use std::collections::HashMap;

use braid_auth::password::{Argon2idParams, HashError, HashKind, MAX_PASSWORD_BYTES, PasswordHash, Verdict};
use braid_auth::scram::{CredentialError, ScramLookup};

use super::{ARGON2ID, HASHES, PBKDF2, SCRAM, file, parse};

#[test]
fn each_kind_of_hash_verifies_its_password_only() {
    let file = parse(&file(&HASHES, "\n"));
    let long = vec![b'x'; MAX_PASSWORD_BYTES + 1];
    for (number, text) in HASHES.iter().enumerate() {
        let user = format!("u{number}");
        assert_eq!(file.verify(&user, b"pencil"), Verdict::Right, "{text}");
        for wrong in [b"pencils", &b"penci"[..], b"Pencil", b"", b"pencil\x01", b"\xFF", &long] {
            assert_eq!(file.verify(&user, wrong), Verdict::Wrong, "{text}");
        }
        assert_eq!(PasswordHash::parse(text).expect(text).to_text(), *text);
    }
}

#[test]
fn kinds_and_costs_are_shown_without_secrets() {
    let file = parse(&file(&HASHES, "\n"));
    let kinds: Vec<_> = file.users().map(|(user, kind)| format!("{user} {kind}")).collect();
    let expected = [
        "u0 argon2id m=19456,t=2,p=1",
        "u1 argon2id m=47104,t=1,p=1",
        "u2 argon2id m=64,t=3,p=4",
        "u3 argon2id m=8,t=1,p=1",
        "u4 pbkdf2-sha512 i=101",
        "u5 sha512",
        "u6 scram-sha-256 i=4096",
    ];
    assert_eq!(kinds, expected);
    let shown = format!("{file:?} {:?} {:?}", file.scram("u6"), HASHES.map(PasswordHash::parse));
    assert!(file.contains("u0") && !file.contains("u") && !file.contains(""));
    assert!(shown.contains("iterations: 101") && shown.contains("memory_kib: 19456"), "{shown}");
    let parts = HASHES.iter().flat_map(|hash| hash.split(['$', ':']));
    for secret in parts.filter(|part| part.len() > 9 && !part.starts_with("m=") && !part.starts_with("SCRAM"))
    {
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[test]
fn a_new_argon2id_hash_has_the_cost_that_owasp_advises() {
    let hash =
        PasswordHash::argon2id(b"pencil", *b"0123456789abcdef", Argon2idParams::default()).expect("a hash");
    assert_eq!(hash.to_text(), ARGON2ID);
    assert!(hash.verify(b"pencil") && !hash.verify(b"pen"));
}

#[test]
fn a_new_scram_credential_is_that_of_postgresql() {
    let salt = [91, 109, 153, 104, 157, 18, 53, 142, 236, 160, 75, 20, 18, 54, 250, 129];
    assert_eq!(PasswordHash::scram_sha_256(b"pencil", salt, 4_096).expect("a hash").to_text(), SCRAM);
}

#[test]
fn what_cannot_be_hashed_is_refused() {
    let long = vec![b'x'; MAX_PASSWORD_BYTES + 1];
    let longest = &long[1..];
    let params = |memory_kib, passes, lanes| Argon2idParams { memory_kib, passes, lanes };
    let argon2id =
        |password: &[u8], params| PasswordHash::argon2id(password, [7; 16], params).map(|hash| hash.kind());
    let scram = |password: &[u8], count| {
        PasswordHash::scram_sha_256(password, [7; 16], count).map(|hash| hash.kind())
    };
    let small = params(8, 1, 1);
    assert_eq!(argon2id(longest, small), Ok(HashKind::Argon2id(small)));
    assert_eq!(argon2id(b"\xFF\0", small), Ok(HashKind::Argon2id(small)));
    assert_eq!(argon2id(b"", small), Err(HashError::EmptyPassword));
    assert_eq!(argon2id(&long, small), Err(HashError::PasswordTooLong));
    for bad in [(7, 1, 1), (8, 0, 1), (8, 1, 0), (15, 1, 2), (1 << 20 | 1, 1, 1), (64, 65, 1), (4096, 1, 65)]
    {
        assert_eq!(argon2id(b"x", params(bad.0, bad.1, bad.2)), Err(HashError::Argon2Cost), "{bad:?}");
    }
    assert_eq!(scram(b"x", 4_096), Ok(HashKind::ScramSha256 { iterations: 4_096 }));
    assert_eq!(scram(b"", 4_096), Err(HashError::EmptyPassword));
    assert_eq!(scram("\u{AD}".as_bytes(), 4_096), Err(HashError::EmptyPassword), "nothing is left of it");
    assert_eq!(scram(&long, 4_096), Err(HashError::PasswordTooLong));
    for prohibited in [&b"a\nb"[..], b"\xFF", "\u{627}1".as_bytes(), "\u{E000}".as_bytes()] {
        assert_eq!(scram(prohibited, 4_096), Err(HashError::Unprepared), "{}", prohibited.escape_ascii());
    }
    for iterations in [0, 4_095, 1_000_001] {
        assert_eq!(scram(b"x", iterations), Err(HashError::Scram(CredentialError::Iterations)));
    }
}

/// The model's password does not let an unknown user in, and the cost is that of known users.
#[test]
fn an_unknown_user_costs_as_much_as_a_known_one() {
    let file = parse(&file(&HASHES, "\n"));
    let mut costs = HashMap::new();
    for number in 0..7_000 {
        let name = format!("unknown {number}");
        let cost = format!("{:?}", file.candidate(&name));
        assert_eq!(format!("{:?}", file.candidate(&name)), cost, "the same each time");
        *costs.entry(cost).or_insert(0_u32) += 1;
    }
    assert_eq!(costs.len(), HASHES.len(), "{costs:?}");
    for (cost, count) in costs {
        assert!(count.abs_diff(1_000) < 200, "{cost}: {count} of 7000");
    }
    for number in 0..30 {
        assert_eq!(file.verify(&format!("unknown {number}"), b"pencil"), Verdict::Unknown);
    }
    assert_eq!(file.verify("", b"pencil"), Verdict::Unknown);
}

#[test]
fn a_user_without_scram_credential_looks_like_one_who_has_it() {
    let other = "SCRAM-SHA-256$5000:c2FsdHNhbHQ=$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:\
                 wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";
    let parameters = |lookup| match lookup {
        ScramLookup::Known(credential) => (true, credential.iterations(), credential.salt_bytes()),
        ScramLookup::Unknown { iterations, salt_bytes } => (false, iterations, salt_bytes),
    };
    let with_scram = parse(&file(&[PBKDF2, SCRAM, other], "\n"));
    assert_eq!(parameters(with_scram.scram("u1")), (true, 4_096, 16));
    assert_eq!(parameters(with_scram.scram("u2")), (true, 5_000, 8));
    let mut seen: Vec<_> = (0..50).map(|number| parameters(with_scram.scram(&number.to_string()))).collect();
    seen.push(parameters(with_scram.scram("u0")));
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, [(false, 4_096, 16), (false, 5_000, 8)]);
    assert_eq!(parameters(parse(&file(&[PBKDF2], "\n")).scram("u0")), (false, 15_000, 16));
}
