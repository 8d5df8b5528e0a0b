//! Files of keys: secrets, PEM and JSON Web Key Sets.

use braid_auth::jwt::{JwtOptions, Keys, MAX_KEY_FILE_BYTES, MAX_KEYS, Verifier};
use serde_json::{Value, json};

use super::{CONNECT, Issuer, NOW, RSA_JWK, SECRET, accepted, claims, encode, with};

const RSA_PEM: &str = include_str!("keys/rsa.pem");

fn accepts(keys: Keys, issuer: &Issuer) -> bool {
    let verifier = Verifier::new(keys, JwtOptions::default()).expect("they are valid");
    verifier.verify(issuer.issue(&claims()).as_bytes(), &CONNECT, NOW) == accepted()
}

/// Error without the name of the file in front.
fn error(keys: Result<Keys, braid_auth::jwt::KeysError>) -> String {
    let error = keys.expect_err("an error").to_string();
    assert!(!error.contains('\n') && error.len() < 250, "{error}");
    error.strip_prefix("keys.txt: ").expect("the name is in front").to_owned()
}

fn secret_error(secret: &[u8]) -> String {
    error(Keys::from_secret(secret, "keys.txt"))
}

fn pem_error(text: &[u8]) -> String {
    error(Keys::from_pem(text, "keys.txt"))
}

fn set_error(text: &[u8]) -> String {
    error(Keys::from_jwks(text, "keys.txt"))
}

#[test]
fn a_secret_is_the_whole_file() {
    assert!(accepts(Keys::from_secret(SECRET, "secret").unwrap(), &Issuer::hs256()));
    let binary = [&[0xFF; 31], &b"\n"[..]].concat();
    assert!(accepts(Keys::from_secret(&binary, "secret").unwrap(), &Issuer::Hs256(binary)));
    let short =
        |length| format!("the secret has {length} bytes; write at least 32, as from `openssl rand -hex 32`");
    assert_eq!(secret_error(b""), short(0));
    assert_eq!(secret_error(&SECRET[1..]), short(31));
    let newline =
        "the secret is text that ends with a newline; remove it, as in `openssl rand -hex 32 | tr -d '\\n'`";
    assert_eq!(secret_error(&[SECRET, b"\n"].concat()), newline);
    assert_eq!(secret_error(&[SECRET, b"\r\n"].concat()), newline);
    assert_eq!(
        secret_error(RSA_PEM.as_bytes()),
        "the secret is a PEM file; use it as a public key, a secret of HS256 is random and known to the issuer and the broker only"
    );
    assert_eq!(
        secret_error(RSA_JWK.as_bytes()),
        "the secret is a JSON object; use it as a key set, a secret of HS256 is random"
    );
    let too_large = "the file is larger than 1048576 bytes; give a file of keys";
    let large = vec![b'a'; MAX_KEY_FILE_BYTES + 1];
    assert_eq!(secret_error(&large), too_large);
    assert_eq!(pem_error(&large), too_large);
    assert_eq!(set_error(&large), too_large);
    assert!(Keys::from_secret(&large[1..], "secret").is_ok());
}

#[test]
fn public_keys_and_certificates_are_read_from_pem() {
    let certificate = |key: &rcgen::KeyPair| {
        rcgen::CertificateParams::new(vec!["issuer".into()]).unwrap().self_signed(key).unwrap().pem()
    };
    let mut rows = vec![
        (RSA_PEM.to_owned(), Issuer::rs256()),
        (include_str!("keys/rsa-certificate.pem").into(), Issuer::rs256()),
    ];
    for issuer in [Issuer::es256, Issuer::eddsa, Issuer::es256, Issuer::eddsa].map(|issuer| issuer()) {
        let (Issuer::Es256(_, key) | Issuer::EdDsa(_, key)) = &issuer else { unreachable!() };
        let pem = if rows.len() < 4 { key.public_key_pem() } else { certificate(key) };
        rows.push((pem, issuer));
    }
    let all: String = rows.iter().map(|(pem, _)| format!("a comment\n{pem}")).collect();
    let all = Keys::from_pem(all.as_bytes(), "all").unwrap();
    assert_eq!(all.len(), 6);
    for (pem, issuer) in &rows {
        let keys = Keys::from_pem(pem.as_bytes(), "pem").unwrap();
        assert_eq!((keys.len(), keys.skipped()), (1, 0));
        assert!(accepts(keys, issuer), "{pem}");
        assert!(accepts(Keys::from_pem(pem.replace('\n', "\r\n").as_bytes(), "pem").unwrap(), issuer));
        assert!(accepts(all.clone(), issuer));
    }
    assert!(!accepts(all, &Issuer::eddsa()));
}

#[test]
fn each_malformed_pem_has_its_error() {
    let boundary = |line| {
        format!(
            "line {line}: a BEGIN or END that is malformed, missing or of another block; the file may be cut off"
        )
    };
    let block =
        |label: &str, content: &str| format!("-----BEGIN {label}-----\n{content}\n-----END {label}-----\n");
    let private = "key 1 at line 1: a private key; write the public one, as `openssl pkey -pubout` does, and leave this one at the issuer";
    let label = |label: &str| {
        format!(
            "key 1 at line 1: a PEM block `{label}`; write PUBLIC KEY or CERTIFICATE, as `openssl pkey -pubout` does"
        )
    };
    let kind = "key 1 at line 1: an unsupported kind of key; use RSA, EC P-256 or Ed25519";
    let der = "key 1 at line 1: no public key or certificate in its PEM block; the file may be damaged";
    let Issuer::Es256(_, key) = Issuer::es256() else { unreachable!() };
    let key_der = |offset: usize, byte: u8, more: &[u8]| {
        let mut der = rcgen::PublicKeyData::subject_public_key_info(&key);
        der[offset] = byte;
        block("PUBLIC KEY", &base64(&[&der, more].concat()))
    };
    let rows = [
        (
            String::new(),
            "no PEM block; write a public key, as `openssl pkey -pubout` does, or a certificate".into(),
        ),
        (
            "a key\n".into(),
            "no PEM block; write a public key, as `openssl pkey -pubout` does, or a certificate".into(),
        ),
        (
            block("PUBLIC KEY", "!!!!"),
            "key 1 at line 1: no Base64 in its PEM block; the file may be damaged".into(),
        ),
        (block("PUBLIC KEY", "AAAA"), der.into()),
        (block("PUBLIC KEY", ""), der.into()),
        (block("CERTIFICATE", "AAAA"), der.into()),
        (key_der(0, 0x30, b"\0"), der.into()),
        (RSA_PEM.replace("PUBLIC KEY", "CERTIFICATE"), der.into()),
        (key.serialize_pem(), private.into()),
        (block("RSA PRIVATE KEY", "AAAA"), private.into()),
        (block("ENCRYPTED PRIVATE KEY", "AAAA"), private.into()),
        (include_str!("keys/rsa-pkcs1.pem").into(), label("RSA PUBLIC KEY")),
        (block("CERTIFICATE REQUEST", "AAAA"), label("CERTIFICATE REQUEST")),
        (include_str!("keys/p384.pem").into(), kind.into()),
        (include_str!("keys/ed448.pem").into(), kind.into()),
        (include_str!("keys/x25519.pem").into(), kind.into()),
        (
            include_str!("keys/rsa-1024.pem").into(),
            "key 1 at line 1: the RSA modulus has 1024 bits; use 2048 to 8192".into(),
        ),
        (
            key_der(26, 3, b""),
            "key 1 at line 1: no point of P-256, uncompressed, with coordinates of 32 bytes".into(),
        ),
        (
            format!("{RSA_PEM}{}", block("PUBLIC KEY", "AAAA")),
            der.replace("key 1 at line 1", "key 2 at line 10"),
        ),
        (format!("\n# the issuer\n{}", block("PUBLIC KEY", "AAAA")), der.replace("line 1", "line 3")),
        (RSA_PEM.replacen("END PUBLIC", "END", 1), boundary(9)),
        (RSA_PEM.replacen("BEGIN PUBLIC", "END PUBLIC", 1), boundary(1)),
        (RSA_PEM.replacen("BEGIN PUBLIC KEY-----", "BEGIN PUBLIC KEY", 1), boundary(1)),
        (format!("-----BEGIN PUBLIC KEY-----\n{RSA_PEM}"), boundary(2)),
        (
            RSA_PEM.repeat(MAX_KEYS + 1),
            "there are more than 100 keys; remove those that are out of use".into(),
        ),
    ];
    for (text, expected) in rows {
        assert_eq!(pem_error(text.as_bytes()), expected, "{text:.300}");
    }
    assert_eq!(pem_error(b"\xFF"), "no text; write public keys or certificates as PEM");
    assert_eq!(Keys::from_pem(RSA_PEM.repeat(MAX_KEYS).as_bytes(), "pem").unwrap().len(), MAX_KEYS);
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[test]
fn a_file_cut_at_any_byte_is_an_error() {
    let set = set_of(&[with(Issuer::rs256().jwk(), "kid", "a"), Issuer::eddsa().jwk(), json!({"kty": "x"})]);
    for length in 0..set.len() {
        set_error(&set.as_bytes()[..length]);
    }
    let pem = RSA_PEM.repeat(2);
    for length in 0..pem.len() - 1 {
        // Between the blocks it is a whole file; so it is at the end, without the last newline.
        if ![RSA_PEM.len() - 1, RSA_PEM.len()].contains(&length) {
            pem_error(&pem.as_bytes()[..length]);
        }
    }
}

fn set_of(keys: &[Value]) -> String {
    json!({"keys": keys}).to_string()
}

#[test]
fn keys_of_other_kinds_and_uses_are_skipped() {
    let verify = |issuer: &Issuer| with(issuer.jwk(), "key_ops", json!(["verify", "sign"]));
    for issuer in Issuer::all() {
        let named = with(with(issuer.jwk(), "alg", issuer.algorithm()), "use", "sig");
        for jwk in [issuer.jwk(), named, verify(&issuer)] {
            let keys = Keys::from_jwks(format!(" \n{}\n", set_of(&[jwk])).as_bytes(), "set").unwrap();
            assert_eq!((keys.len(), keys.skipped()), (1, 0));
            assert!(accepts(keys, &issuer));
        }
        // Unusable: each of them is skipped although its other members are right.
        let unusable = [
            with(issuer.jwk(), "alg", "PS256"),
            with(issuer.jwk(), "alg", "none"),
            with(issuer.jwk(), "use", "enc"),
            with(issuer.jwk(), "key_ops", json!(["encrypt"])),
            with(issuer.jwk(), "key_ops", json!([])),
            with(issuer.jwk(), "kty", "AKP"),
            json!({"kty": "EC", "crv": "P-521", "x": "AA", "y": "AA"}),
            json!({"kty": "OKP", "crv": "X25519", "x": "AA"}),
        ];
        let text = set_of(&unusable);
        assert_eq!(
            set_error(text.as_bytes()),
            "no usable key among 8; write a key of RSA, EC P-256, OKP Ed25519 or oct for signatures"
        );
        let keys =
            Keys::from_jwks(set_of(&[&unusable[..], &[issuer.jwk()]].concat()).as_bytes(), "set").unwrap();
        assert_eq!((keys.len(), keys.skipped()), (1, 8));
        assert!(accepts(keys, &issuer));
    }
    let other_name = with(Issuer::eddsa().jwk(), "alg", "Ed25519");
    assert!(Keys::from_jwks(set_of(&[other_name]).as_bytes(), "set").is_ok());
    let same = [
        with(Issuer::rs256().jwk(), "kid", "a"),
        with(with(Issuer::eddsa().jwk(), "use", "enc"), "kid", "a"),
    ];
    assert!(
        Keys::from_jwks(set_of(&same).as_bytes(), "set").is_ok(),
        "an unused key may have the same `kid`"
    );
}

#[test]
fn each_malformed_key_set_has_its_error() {
    const NO_SET: &str = "no JSON object with the list `keys`; write a JSON Web Key Set (RFC 7517)";
    const HTML: &str = "HTML or XML instead of a JSON Web Key Set; check where the key set comes from";
    let none = |count| {
        format!(
            "no usable key among {count}; write a key of RSA, EC P-256, OKP Ed25519 or oct for signatures"
        )
    };
    let texts = [
        ("", "no JSON at line 1, column 0; the key set may be cut off".into()),
        ("{\"keys\":\n[}", "no JSON at line 2, column 2; the key set may be cut off".into()),
        ("\u{feff}{}", "no JSON at line 1, column 1; the key set may be cut off".into()),
        ("{\"keys\":[]} x", "no JSON at line 1, column 13; the key set may be cut off".into()),
        ("<!DOCTYPE html><html><body>502 Bad Gateway</body></html>", HTML.to_owned()),
        (" \n<html>", HTML.into()),
        ("{}", NO_SET.into()),
        ("[]", NO_SET.into()),
        ("null", NO_SET.into()),
        ("{\"keys\":{}}", NO_SET.into()),
        (RSA_JWK, NO_SET.into()),
        ("{\"keys\":[]}", none(0)),
        ("{\"keys\":[1]}", "key 1: not a JSON object".into()),
    ];
    for (text, expected) in texts {
        assert_eq!(set_error(text.as_bytes()), expected, "{text}");
    }
    let [oct, rsa, ec, ed] = Issuer::all().map(|issuer| issuer.jwk());
    let without = |jwk: &Value, name: &str| {
        let mut jwk = jwk.clone();
        jwk.as_object_mut().unwrap().remove(name);
        jwk
    };
    let member = |name| format!("key 2: `{name}` is missing or malformed");
    let mut rows = vec![
        (serde_json::from_str(RSA_JWK).unwrap(), "key 2: a private key; write the public one, as `openssl pkey -pubout` does, and leave this one at the issuer".into()),
        (with(oct.clone(), "k", encode([1; 31])), "key 2: the secret has 31 bytes; write at least 32, as from `openssl rand -hex 32`".into()),
        (with(rsa.clone(), "n", encode([0xFF; 255])), "key 2: the RSA modulus has 2040 bits; use 2048 to 8192".into()),
        (with(rsa.clone(), "n", encode([0xFF; 1025])), "key 2: the RSA modulus has 8200 bits; use 2048 to 8192".into()),
        (with(rsa.clone(), "n", ""), "key 2: the RSA modulus has 0 bits; use 2048 to 8192".into()),
        (with(ec.clone(), "x", encode([1; 31])), "key 2: no point of P-256, uncompressed, with coordinates of 32 bytes".into()),
        (with(ed.clone(), "x", encode([1; 33])), "key 2: an Ed25519 key of 33 bytes; it has 32".into()),
        (with(rsa.clone(), "kid", json!("b")), "two keys have the `kid` `b`; give each key its own".into()),
    ];
    for exponent in [&[][..], &[1], &[2], &[1, 0, 0], &[3, 0, 0, 0, 1], &[1; 9]] {
        let text = "key 2: the RSA exponent is not an odd number from 3 to 2^33; use 65537";
        rows.push((with(rsa.clone(), "e", encode(exponent)), text.into()));
    }
    for (jwk, name) in [
        (&oct, "k"),
        (&rsa, "n"),
        (&rsa, "e"),
        (&ec, "x"),
        (&ec, "y"),
        (&ec, "crv"),
        (&ed, "x"),
        (&ed, "crv"),
        (&ed, "kty"),
    ] {
        rows.push((without(jwk, name), member(name)));
        rows.push((with(jwk.clone(), name, 1), member(name)));
        if !["crv", "kty"].contains(&name) {
            rows.push((with(jwk.clone(), name, "+/=="), member(name)));
        }
    }
    for (name, value) in [
        ("kid", json!(1)),
        ("use", json!(["sig"])),
        ("alg", json!(null)),
        ("key_ops", json!("verify")),
        ("key_ops", json!([1])),
    ] {
        rows.push((with(ed.clone(), name, value), member(name)));
    }
    for (jwk, expected) in rows {
        let text = set_of(&[with(Issuer::es256().jwk(), "kid", "b"), jwk]);
        assert_eq!(set_error(text.as_bytes()), expected, "{text}");
    }
    let many = vec![json!({"kty": "x"}); MAX_KEYS + 1];
    assert_eq!(
        set_error(set_of(&many).as_bytes()),
        "there are more than 100 keys; remove those that are out of use"
    );
    assert_eq!(set_error(set_of(&many[1..]).as_bytes()), none(100));
}
