//! Signatures, algorithms and the choice of the key.

use std::collections::HashSet;

use braid_auth::jwt::{
    JwtOptions, KeyAlgorithm, Keys, MAX_TOKEN_BYTES, MAX_TRIED_KEYS, Refusal, Verdict, Verifier,
};
use serde_json::{Value, json};

use super::{CONNECT, Issuer, LEEWAY, NOW, RSA_JWK, SECRET, accepted, claims, decode, encode, key_set, with};

fn verify(verifier: &Verifier, token: &str) -> Verdict {
    verifier.verify(token.as_bytes(), &CONNECT, NOW)
}

/// A key is found again by its material, and by nothing else.
#[test]
fn the_key_of_a_signature_is_found_among_other_keys() {
    let issuers = Issuer::all();
    let key_of = |issuer: &Issuer| {
        let (verdict, key) =
            issuer.verifier().verify_keyed(issuer.issue(&claims()).as_bytes(), &CONNECT, NOW);
        assert_eq!(verdict, accepted());
        key.expect("it is valid")
    };
    let keys: Vec<_> = issuers.iter().map(key_of).collect();
    for (issuer, own) in issuers.iter().zip(&keys) {
        let named = key_set(&[with(issuer.jwk(), "kid", "renamed")]);
        let named = Verifier::new(named, JwtOptions::default()).unwrap();
        for key in &keys {
            assert_eq!(issuer.verifier().has_key(*key), key == own, "{}", issuer.algorithm());
            assert_eq!(named.has_key(*key), key == own, "{}", issuer.algorithm());
        }
        assert_eq!(format!("{own:?}"), "KeyFingerprint");
    }
    for other in [Issuer::Hs256(vec![7; 32]), Issuer::es256(), Issuer::eddsa()] {
        assert!(!keys.iter().any(|key| other.verifier().has_key(*key)), "{}", other.algorithm());
    }
    // The public key as a secret is another key.
    let eddsa = issuers.iter().find(|issuer| issuer.algorithm() == "EdDSA").expect("it is among all");
    let same_bytes = Issuer::Hs256(decode(&eddsa.jwk()["x"]));
    assert!(!keys.iter().any(|key| same_bytes.verifier().has_key(*key)));
    // An expired token has a key, one with a wrong signature and a password have none.
    let (issuer, verifier) = (Issuer::hs256(), Issuer::Hs256(vec![7; 32]).verifier());
    let expired = issuer.issue(&with(claims(), "exp", 1));
    assert!(issuer.verifier().verify_keyed(expired.as_bytes(), &CONNECT, NOW).1.is_some());
    for token in [expired.as_bytes(), b"password"] {
        assert_eq!(verifier.verify_keyed(token, &CONNECT, NOW).1, None);
    }
}

#[test]
fn each_algorithm_accepts_its_key_and_refuses_others() {
    for issuer in Issuer::all() {
        let verifier = issuer.verifier();
        assert_eq!(verify(&verifier, &issuer.issue(&claims())), accepted(), "{}", issuer.algorithm());
    }
    let pairs = [
        (Issuer::Hs256(vec![7; 32]), Issuer::hs256()),
        (Issuer::es256(), Issuer::es256()),
        (Issuer::eddsa(), Issuer::eddsa()),
    ];
    for (issuer, other) in pairs {
        assert_eq!(verify(&other.verifier(), &issuer.issue(&claims())), Verdict::Refused(Refusal::Signature));
    }
    let other = Keys::from_pem(include_bytes!("keys/rsa-other.pem"), "other").unwrap();
    let verifier = Verifier::new(other, JwtOptions::default()).unwrap();
    assert_eq!(verify(&verifier, &Issuer::rs256().issue(&claims())), Verdict::Refused(Refusal::Signature));
}

/// The header says which algorithm the token has, and an attacker writes it.
#[test]
fn a_key_verifies_its_own_algorithm_only() {
    let rsa_jwk: Value = serde_json::from_str(RSA_JWK).unwrap();
    let rsa_pem = include_bytes!("keys/rsa.pem");
    for issuer in Issuer::all() {
        for other in Issuer::all().iter().filter(|other| other.algorithm() != issuer.algorithm()) {
            let header = json!({"alg": other.algorithm()});
            let verdict = verify(&issuer.verifier(), &issuer.token(&header, claims().to_string()));
            let algorithm = match other {
                Issuer::Hs256(_) => KeyAlgorithm::Hs256,
                Issuer::Rs256(_) => KeyAlgorithm::Rs256,
                Issuer::Es256(..) => KeyAlgorithm::Es256,
                Issuer::EdDsa(..) => KeyAlgorithm::EdDsa,
            };
            assert_eq!(verdict, Verdict::Refused(Refusal::NoKey(algorithm)));
            let all = key_set(&[issuer.jwk(), other.jwk()]);
            let verifier = Verifier::new(all, JwtOptions::default()).unwrap();
            let verdict = verify(&verifier, &issuer.token(&header, claims().to_string()));
            assert_eq!(verdict, Verdict::Refused(Refusal::Signature), "{header}");
        }
    }
    // A public key as the secret of an HMAC, in every form that a library might take it.
    let verifiers = [
        Keys::from_pem(rsa_pem, "pem").unwrap(),
        Issuer::rs256().keys(),
        key_set(&[Issuer::rs256().jwk(), Issuer::Hs256(vec![1; 32]).jwk()]),
    ]
    .map(|keys| Verifier::new(keys, JwtOptions::default()).unwrap());
    for secret in [rsa_pem.to_vec(), decode(&rsa_jwk["n"]), rsa_jwk["n"].as_str().unwrap().into()] {
        let token = Issuer::Hs256(secret).issue(&claims());
        for verifier in &verifiers {
            assert!(matches!(
                verify(verifier, &token),
                Verdict::Refused(Refusal::NoKey(_) | Refusal::Signature)
            ));
        }
    }
}

#[test]
fn unsigned_tokens_and_other_algorithms_are_refused() {
    let issuer = Issuer::hs256();
    let verifier = issuer.verifier();
    let unsigned = |algorithm: &str| {
        let header = encode(json!({"alg": algorithm}).to_string());
        format!("{header}.{}.", encode(claims().to_string()))
    };
    for algorithm in
        ["none", "None", "NONE", "", "hs256", "HS384", "HS512", "RS512", "PS256", "ES384", "ES256K", "Ed448"]
    {
        let header = json!({"alg": algorithm});
        for token in [unsigned(algorithm), issuer.token(&header, claims().to_string())] {
            assert_eq!(verify(&verifier, &token), Verdict::Refused(Refusal::Algorithm), "{algorithm}");
        }
    }
    assert_eq!(verify(&verifier, &unsigned("HS256")), Verdict::Refused(Refusal::Signature));
}

/// RFC 7515, A.1 to A.3, and RFC 8037, A.4.
#[test]
fn tokens_of_the_standards_have_valid_signatures() {
    const PAYLOAD: &str =
        "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
    const RSA_SIGNATURE: &str = "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
    let options = JwtOptions { user_claim: Some("iss".into()), ..JwtOptions::default() };
    let rows = [
        (
            json!({"kty": "oct", "k": "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow"}),
            "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9",
            "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
        ),
        (Issuer::rs256().jwk(), "eyJhbGciOiJSUzI1NiJ9", RSA_SIGNATURE),
        (
            json!({
                "kty": "EC",
                "crv": "P-256",
                "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
                "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
            }),
            "eyJhbGciOiJFUzI1NiJ9",
            "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
        ),
    ];
    for (jwk, header, signature) in rows {
        let verifier = Verifier::new(key_set(&[jwk]), options.clone()).unwrap();
        let token = format!("{header}.{PAYLOAD}.{signature}");
        let Verdict::Accepted(claims) = verifier.verify(token.as_bytes(), &CONNECT, 1_300_819_379) else {
            panic!("{token}")
        };
        assert_eq!((claims.user.as_deref(), claims.expires_at), (Some("joe"), Some(1_300_819_380 + LEEWAY)));
        assert_eq!(verify(&verifier, &token), Verdict::Refused(Refusal::Expired));
    }
    // Its payload is a sentence: a valid signature comes as far as that.
    let jwk = json!({"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"});
    let verifier = Verifier::new(key_set(&[jwk]), options).unwrap();
    let token = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";
    assert_eq!(verify(&verifier, token), Verdict::Refused(Refusal::Malformed));
    let changed = token.replace(".hgyY", ".hgyZ");
    assert_eq!(verify(&verifier, &changed), Verdict::Refused(Refusal::Signature));
}

/// Each character replaced by every other one of the alphabet, removed or doubled.
#[test]
fn a_token_changed_anywhere_is_not_accepted() {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.=+/ \n\0\xFF";
    for issuer in Issuer::all() {
        let token = issuer.issue(&claims()).into_bytes();
        let verifier = issuer.verifier();
        let refused = |changed: &[u8]| {
            let verdict = verifier.verify(changed, &CONNECT, NOW);
            assert!(!matches!(verdict, Verdict::Accepted(_)), "{}", changed.escape_ascii());
        };
        // Public keys take long: every character is changed, but not into every other one.
        let step = if matches!(issuer, Issuer::Hs256(_)) { 1 } else { 23 };
        for at in 0..token.len() {
            for byte in ALPHABET.iter().skip(at % step).step_by(step).filter(|byte| **byte != token[at]) {
                let mut changed = token.clone();
                changed[at] = *byte;
                refused(&changed);
            }
            refused(&[&token[..at], &token[at + 1..]].concat());
            refused(&[&token[..=at], &token[at..]].concat());
            refused(&token[..at]);
        }
        assert_eq!(verifier.verify(&token, &CONNECT, NOW), accepted());
    }
}

#[test]
fn what_has_not_the_form_of_a_token_is_left_to_others() {
    let verifier = Issuer::hs256().verifier();
    let header = encode(r#"{"alg":"HS256"}"#);
    let large = encode(json!({"alg": "HS256", "x": "a".repeat(MAX_TOKEN_BYTES)}).to_string());
    let texts = [
        String::new(),
        "hunter2".into(),
        "..".into(),
        "a.b.c".into(),
        format!("{header}.e30"),
        format!("{header}.e30.AA.AA"),
        format!("{header}.a.b.c.d"),
        format!("{header}=.e30.AA"),
        format!("{}.e30.AA", encode("[1]")),
        format!("{}.e30.AA", encode(r#"{"typ":"JWT"}"#)),
        format!("{}.e30.AA", encode(r#"{"alg":1}"#)),
        format!("{}.e30.AA", encode(r#"{"alg":"HS256""#)),
        format!("{large}.e30.AA"),
    ];
    for text in texts {
        assert_eq!(verify(&verifier, &text), Verdict::NotAJwt, "{text:.40}");
    }
    assert_eq!(verifier.verify(b"\xFF.\0.\xFF", &CONNECT, NOW), Verdict::NotAJwt);
}

#[test]
fn malformed_tokens_are_refused() {
    let issuer = Issuer::hs256();
    let verifier = issuer.verifier();
    let alg = json!({"alg": "HS256"});
    let deep = format!("{}1{}", "[".repeat(4_000), "]".repeat(4_000));
    for payload in [
        "",
        "null",
        "[]",
        "\"a\"",
        "1",
        "{",
        "{} {}",
        "{\"exp\":1,\"exp\":2}",
        "{\"exp\":1e999}",
        "\u{feff}{}",
        &deep,
    ] {
        assert_eq!(
            verify(&verifier, &issuer.token(&alg, payload)),
            Verdict::Refused(Refusal::Malformed),
            "{payload:.20}"
        );
    }
    assert_eq!(
        verify(&verifier, &issuer.token(&alg, b"{\"sub\":\"\xFF\"}")),
        Verdict::Refused(Refusal::Malformed)
    );
    let rows = [
        (json!({"kid": 1}), Refusal::Malformed),
        (json!({"kid": null}), Refusal::Malformed),
        (json!({"x5c": 1}), Refusal::Malformed),
        (json!({"crit": ["b64"], "b64": false}), Refusal::Critical),
        (json!({"crit": []}), Refusal::Critical),
        (json!({"crit": null}), Refusal::Critical),
    ];
    for (mut header, refusal) in rows {
        header["alg"] = "HS256".into();
        let token = issuer.token(&header, claims().to_string());
        assert_eq!(verify(&verifier, &token), Verdict::Refused(refusal), "{header}");
    }
    let longest = |excess: usize| {
        let empty = issuer.issue(&with(claims(), "x", "")).len();
        let unused = (MAX_TOKEN_BYTES - empty) / 4 * 3;
        issuer.issue(&with(claims(), "x", "a".repeat(unused + excess)))
    };
    assert_eq!(verify(&verifier, &longest(0)), accepted());
    assert!(longest(4).len() <= MAX_TOKEN_BYTES + 8);
    assert_eq!(verify(&verifier, &longest(4)), Verdict::Refused(Refusal::TooLong));
}

#[test]
fn kid_selects_the_key() {
    let issuers: Vec<_> =
        (0..=MAX_TRIED_KEYS).map(|index| Issuer::Hs256(format!("{index:032}").into_bytes())).collect();
    let jwk = |index: usize, kid: &str| with(issuers[index].jwk(), "kid", kid);
    let verdict = |keys: &[Value], index: usize, kid: Option<&str>| {
        let verifier = Verifier::new(key_set(keys), JwtOptions::default()).unwrap();
        let header = kid.map_or(json!({"alg": "HS256"}), |kid| json!({"alg": "HS256", "kid": kid}));
        verify(&verifier, &issuers[index].token(&header, claims().to_string()))
    };
    let two = [jwk(0, "a"), jwk(1, "b")];
    let refused = |refusal| Verdict::Refused(refusal);
    assert_eq!(verdict(&two, 0, Some("a")), accepted());
    assert_eq!(verdict(&two, 1, Some("b")), accepted());
    assert_eq!(verdict(&two, 1, Some("a")), refused(Refusal::Signature), "the other key is not tried");
    assert_eq!(verdict(&two, 0, Some("c")), refused(Refusal::UnknownKey));
    assert_eq!(verdict(&two, 0, Some("A")), refused(Refusal::UnknownKey));
    assert_eq!(verdict(&two, 0, None), accepted());
    assert_eq!(verdict(&two, 1, None), accepted());
    assert_eq!(verdict(&two, 2, None), refused(Refusal::Signature));
    assert_eq!(verdict(&[issuers[0].jwk(), jwk(1, "b")], 0, Some("c")), accepted(), "a key without `kid`");

    // A `kid` of another algorithm is no key of this one.
    let keys = [with(Issuer::rs256().jwk(), "kid", "a"), jwk(1, "b")];
    assert_eq!(verdict(&keys, 1, Some("a")), refused(Refusal::UnknownKey));

    let many: Vec<_> = (0..=MAX_TRIED_KEYS).map(|index| jwk(index, &index.to_string())).collect();
    assert_eq!(verdict(&many[1..], MAX_TRIED_KEYS, None), accepted());
    assert_eq!(verdict(&many, MAX_TRIED_KEYS, None), refused(Refusal::TooManyKeys));
    assert_eq!(verdict(&many, MAX_TRIED_KEYS, Some("10")), accepted());
}

#[test]
fn nothing_shows_a_token_or_a_secret() {
    let issuer = Issuer::hs256();
    let token = issuer.issue(&with(claims(), "exp", "secret-claim"));
    let verifier = issuer.verifier();
    let verdict = verify(&verifier, &token);
    let Verdict::Refused(refusal) = &verdict else { panic!("{verdict:?}") };
    let short = Keys::from_secret(b"hunter2-hunter2", "file").unwrap_err();
    let texts = [
        format!("{verifier:?}{verdict:?}{refusal}{short}{short:?}"),
        format!("{:?}", Issuer::rs256().verifier()),
    ];
    let secret_bytes = format!("{:?}", &SECRET[..4]);
    let modulus: Value = serde_json::from_str(RSA_JWK).unwrap();
    let modulus = format!("{:?}", &decode(&modulus["n"])[..4]);
    let mut hidden: HashSet<&str> = token.split('.').collect();
    hidden.extend(["a secret", "secret-claim", "hunter2"]);
    hidden.extend([secret_bytes.trim_end_matches(']'), modulus.trim_end_matches(']')]);
    for text in texts {
        assert!(hidden.iter().all(|hidden| !text.contains(hidden)), "{text}");
    }
}
