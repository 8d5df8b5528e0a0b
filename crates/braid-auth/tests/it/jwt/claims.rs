//! Claims: times on virtual time, issuer, audience, values of CONNECT, and those that the broker uses.

use braid_auth::acl::Acl;
use braid_auth::claims::Claims;
use braid_auth::jwt::{
    ClaimCheck, ConnectNames, ConnectValue, JwtOptions, MAX_GROUPS, MAX_LEEWAY_SECS, OptionsError, Refusal,
    Verdict, Verifier,
};
use serde_json::{Value, json};

use super::{CONNECT, Issuer, NOW, accepted, claims, invalid, missing, with};

const TIME: &str = "a number of seconds from 1970 to 9999";
const TEXT: &str = "a text";
const TEXTS: &str = "a text or a list of texts";
const NAME: &str = "a text with at least one character, and without NUL";

fn verdict_at(options: &JwtOptions, claims: &Value, connect: &ConnectNames<'_>, now: u64) -> Verdict {
    let issuer = Issuer::hs256();
    let verifier = Verifier::new(issuer.keys(), options.clone()).expect("it is valid");
    verifier.verify(issuer.issue(claims).as_bytes(), connect, now)
}

fn verdict(options: &JwtOptions, claims: &Value) -> Verdict {
    verdict_at(options, claims, &CONNECT, NOW)
}

fn accepted_claims(options: &JwtOptions, claims: &Value) -> Claims {
    match verdict(options, claims) {
        Verdict::Accepted(claims) => claims,
        other => unreachable!("{other:?} for {claims}"),
    }
}

fn refused(refusal: Refusal) -> Verdict {
    Verdict::Refused(refusal)
}

fn without(mut claims: Value, name: &str) -> Value {
    claims.as_object_mut().expect("it is an object").remove(name);
    claims
}

/// The clock steps to and fro around the times of one token; the verdict is that of the second alone.
#[test]
fn times_are_compared_with_leeway() {
    let issuer = Issuer::hs256();
    let token = issuer.issue(&json!({"sub": "jane", "nbf": 1_000, "iat": 1_100, "exp": 2_000}));
    for leeway_secs in [0, 1, 30, MAX_LEEWAY_SECS] {
        let options = JwtOptions { leeway_secs, ..JwtOptions::default() };
        let verifier = Verifier::new(issuer.keys(), options).unwrap();
        let (from, issued, until) =
            (1_000u64.saturating_sub(leeway_secs), 1_100u64.saturating_sub(leeway_secs), 2_000 + leeway_secs);
        let mut seconds = vec![
            0,
            from.saturating_sub(1),
            from,
            issued.saturating_sub(1),
            issued,
            until - 1,
            until,
            until + 1,
            u64::MAX,
            0,
            1_999,
            2_000,
            until,
        ];
        seconds.extend(seconds.clone().into_iter().rev());
        for now in seconds {
            let expected = if now >= until {
                Some(Refusal::Expired)
            } else if now < from {
                Some(Refusal::NotYetValid)
            } else {
                (now < issued).then_some(Refusal::IssuedInFuture)
            };
            let verdict = verifier.verify(token.as_bytes(), &CONNECT, now);
            match (verdict, expected) {
                // The connection lives as long as the token would be accepted.
                (Verdict::Accepted(claims), None) => assert_eq!(claims.expires_at, Some(until)),
                (Verdict::Refused(refusal), Some(expected)) => assert_eq!(refusal, expected, "at {now}"),
                (verdict, _) => panic!("{verdict:?} at {now} with {leeway_secs} s"),
            }
        }
    }
}

#[test]
fn fractions_of_seconds_are_rounded_to_the_shorter_time() {
    let options = JwtOptions { leeway_secs: 0, ..JwtOptions::default() };
    let exp = |value: f64, now| verdict_at(&options, &with(claims(), "exp", value), &CONNECT, now);
    assert_eq!(exp(2_000.9, 2_000), refused(Refusal::Expired));
    assert!(matches!(exp(2_000.9, 1_999), Verdict::Accepted(Claims { expires_at: Some(2_000), .. })));
    assert!(matches!(exp(2e3, 1_999), Verdict::Accepted(_)));
    for (name, refusal) in [("nbf", Refusal::NotYetValid), ("iat", Refusal::IssuedInFuture)] {
        let claims = with(claims(), name, 2_000.1);
        assert_eq!(verdict_at(&options, &claims, &CONNECT, 2_000), refused(refusal));
        assert!(matches!(verdict_at(&options, &claims, &CONNECT, 2_001), Verdict::Accepted(_)));
    }
}

/// CVE-2026-25537 of jsonwebtoken: a time of a wrong type counted as absent.
#[test]
fn times_of_other_types_and_out_of_range_are_refused() {
    let times = [
        json!("1900000000"),
        json!(""),
        json!([1_900_000_000]),
        json!([]),
        json!({"seconds": 1_900_000_000}),
        json!({}),
        json!(null),
        json!(true),
        json!(-1),
        json!(-0.5),
        json!(i64::MIN),
        json!(253_402_300_800_u64),
        json!(NOW * 1_000),
        json!(u64::MAX),
        json!(1e19),
        json!(1e300),
    ];
    for require_expiry in [true, false] {
        let options = JwtOptions { require_expiry, ..JwtOptions::default() };
        for name in ["exp", "nbf", "iat"] {
            for time in &times {
                let claims = with(claims(), name, time.clone());
                // The library refuses a list or an object with content here as no JSON.
                let is_unread =
                    name != "iat" && matches!(time.to_string().as_bytes(), [b'[' | b'{', _, _, ..]);
                let expected = if is_unread { refused(Refusal::Malformed) } else { invalid(name, TIME) };
                assert_eq!(verdict(&options, &claims), expected, "{claims}");
            }
        }
    }
    let last = accepted_claims(&JwtOptions::default(), &with(claims(), "exp", 253_402_300_799_u64));
    assert_eq!(last.expires_at, Some(253_402_300_799 + JwtOptions::default().leeway_secs));
    assert_eq!(verdict(&JwtOptions::default(), &with(claims(), "exp", 0)), refused(Refusal::Expired));
}

#[test]
fn required_claims_have_to_be_there() {
    let options = JwtOptions::default();
    assert_eq!(verdict(&options, &without(claims(), "exp")), missing("exp"));
    assert_eq!(
        verdict(&options, &without(claims(), "sub")),
        missing("sub"),
        "CONNECT does not name the user"
    );
    let lenient = JwtOptions { require_expiry: false, user_claim: None, ..JwtOptions::default() };
    assert_eq!(accepted_claims(&lenient, &json!({})), Claims::default());
    assert_eq!(verdict(&lenient, &json!({"exp": 1})), refused(Refusal::Expired));

    let strict = JwtOptions { required: vec!["jti".into(), "nbf".into()], ..JwtOptions::default() };
    assert_eq!(verdict(&strict, &claims()), missing("jti"));
    assert_eq!(verdict(&strict, &with(claims(), "jti", 1)), missing("nbf"));
    assert_eq!(verdict(&strict, &with(with(claims(), "jti", "a"), "nbf", 1)), accepted());
}

#[test]
fn issuer_and_audience_have_to_match() {
    let options = JwtOptions { issuer: Some("https://issuer".into()), ..JwtOptions::default() };
    let issuer = |value: Value| verdict(&options, &with(claims(), "iss", value));
    assert_eq!(verdict(&options, &claims()), missing("iss"));
    assert_eq!(issuer(json!("https://issuer")), accepted());
    for other in ["", "https://issuer/", "https://issuer.example", "HTTPS://issuer"] {
        assert_eq!(issuer(json!(other)), refused(Refusal::Issuer));
    }
    for other in [json!(["https://issuer"]), json!(1), json!(null)] {
        assert_eq!(issuer(other), invalid("iss", TEXT));
    }
    assert_eq!(verdict(&JwtOptions::default(), &with(claims(), "iss", 1)), accepted(), "not compared");

    let options =
        JwtOptions { audience: Some(vec!["mqtt".into(), "broker".into()]), ..JwtOptions::default() };
    let audience = |value: Value| verdict(&options, &with(claims(), "aud", value));
    assert_eq!(verdict(&options, &claims()), missing("aud"));
    for own in [json!("mqtt"), json!("broker"), json!(["other", "broker"])] {
        assert_eq!(audience(own), accepted());
    }
    for other in [json!(""), json!("mqtt2"), json!("MQTT"), json!([]), json!(["other", "mqt"])] {
        assert_eq!(audience(other), refused(Refusal::Audience));
    }
    for other in [json!(1), json!(null), json!({"mqtt": true}), json!(["mqtt", 1])] {
        assert_eq!(audience(other), invalid("aud", TEXTS));
    }
    for other in [json!("mqtt"), json!([])] {
        let verdict = verdict(&JwtOptions::default(), &with(claims(), "aud", other));
        assert_eq!(verdict, refused(Refusal::UnknownAudience));
    }
}

#[test]
fn claims_can_have_to_equal_values_of_connect() {
    let check = |claim: &str, value: &str| {
        let value = ConnectValue::parse(value).unwrap();
        JwtOptions { checks: vec![ClaimCheck { claim: claim.into(), value }], ..JwtOptions::default() }
    };
    let anonymous = ConnectNames { user: None, client_id: "" };
    let rows = [
        ("username", "%u", json!("jane"), ConnectValue::User),
        ("clientid", "${clientid}", json!("sensor-1"), ConnectValue::ClientId),
        ("tenant", "acme", json!("acme"), ConnectValue::Text("acme".into())),
    ];
    for (claim, value, good, parsed) in rows {
        let options = check(claim, value);
        let failed = refused(Refusal::Check(claim.into(), parsed));
        assert_eq!(verdict(&options, &with(claims(), claim, good.clone())), accepted());
        for bad in ["", "Jane", "jan", "janet", "sensor-10", "acme2", "%u", "%c"] {
            assert_eq!(verdict(&options, &with(claims(), claim, bad)), failed, "{bad}");
        }
        assert_eq!(verdict(&options, &claims()), missing(claim));
        for bad in [json!([good.clone()]), json!(1), json!(null)] {
            assert_eq!(verdict(&options, &with(claims(), claim, bad)), invalid(claim, TEXT));
        }
        if value != "acme" {
            assert_eq!(verdict_at(&options, &with(claims(), claim, good), &anonymous, NOW), failed);
        }
    }
    for text in ["a%u", "%c/", "${username}x", "${client_attrs.x}"] {
        assert_eq!(ConnectValue::parse(text), Err(OptionsError::Placeholder), "{text}");
    }
}

#[test]
fn a_token_can_name_the_client_identifier() {
    let options = JwtOptions { client_id_claim: Some("cid".into()), ..JwtOptions::default() };
    assert_eq!(verdict(&options, &claims()), accepted(), "the client chooses");
    let named = with(claims(), "cid", "sensor-1");
    assert_eq!(accepted_claims(&options, &named).client_id.as_deref(), Some("sensor-1"));
    assert_eq!(accepted_claims(&JwtOptions::default(), &named).client_id, None);
    for client_id in ["", "sensor-2", "Sensor-1", "sensor-1\0"] {
        let connect = ConnectNames { client_id, ..CONNECT };
        assert_eq!(verdict_at(&options, &named, &connect, NOW), refused(Refusal::ClientId));
    }
    assert_eq!(verdict(&options, &with(claims(), "cid", "")), invalid("cid", NAME));
    assert_eq!(verdict(&options, &with(claims(), "cid", 1)), invalid("cid", TEXT));
}

#[test]
fn users_and_groups_are_taken_from_their_claims() {
    let options = JwtOptions { user_claim: Some("name".into()), ..JwtOptions::default() };
    let taken =
        accepted_claims(&options, &with(with(claims(), "name", "jo/+#"), "groups", json!(["a", "b c"])));
    assert_eq!((taken.user.as_deref(), &*taken.groups), (Some("jo/+#"), &["a".into(), "b c".into()][..]));
    for (user, text) in
        [(json!(""), NAME), (json!("a\0"), NAME), (json!(1), TEXT), (json!(["a"]), TEXT), (json!(null), TEXT)]
    {
        assert_eq!(verdict(&options, &with(claims(), "name", user)), invalid("name", text));
    }

    let options = JwtOptions::default();
    let groups = |value: Value| verdict(&options, &with(claims(), "groups", value));
    assert_eq!(accepted_claims(&options, &with(claims(), "groups", "admins")).groups, ["admins".into()]);
    assert_eq!(groups(json!([])), accepted());
    for bad in [json!(null), json!(1), json!({"a": true}), json!(["a", null]), json!([["a"]])] {
        assert_eq!(groups(bad), invalid("groups", TEXTS));
    }
    for bad in [json!(""), json!(["a", ""]), json!(["a\0"])] {
        assert_eq!(
            groups(bad),
            invalid("groups", "a list of texts with at least one character, and without NUL")
        );
    }
    assert!(matches!(groups(json!(vec!["g"; MAX_GROUPS])), Verdict::Accepted(_)));
    assert_eq!(groups(json!(vec!["g"; MAX_GROUPS + 1])), invalid("groups", "a list of at most 256 groups"));
    let ignored = JwtOptions { groups_claim: None, ..JwtOptions::default() };
    assert_eq!(verdict(&ignored, &with(claims(), "groups", 1)), accepted());
}

#[test]
fn permissions_become_rules_and_malformed_ones_refuse_the_token() {
    let options = JwtOptions::default();
    let acl = json!([{"permission": "allow", "action": "publish", "topic": "${clientid}/#"}]);
    let rules = accepted_claims(&options, &with(claims(), "acl", acl.clone())).rules.unwrap();
    assert_eq!(&*rules, "allow publish topic \"%c/#\"\n");
    assert!(Acl::parse(rules.as_bytes(), "token").is_ok());

    let other = JwtOptions { permissions_claim: Some("rights".into()), ..JwtOptions::default() };
    assert_eq!(verdict(&other, &with(claims(), "acl", acl.clone())), accepted());
    assert!(accepted_claims(&other, &with(claims(), "rights", acl)).rules.is_some());
    let ignored = JwtOptions { permissions_claim: None, ..JwtOptions::default() };
    assert_eq!(verdict(&ignored, &with(claims(), "acl", 1)), accepted());

    for bad in [json!(null), json!([]), json!("allow all topic #"), json!(["allow all topic a/#", "permit"])]
    {
        let verdict = verdict(&options, &with(claims(), "acl", bad));
        assert!(matches!(verdict, Verdict::Refused(Refusal::Permissions(_))), "{verdict:?}");
    }
    let Verdict::Refused(refusal) =
        verdict(&options, &with(claims(), "acl", json!(["allow all user a topic #"])))
    else {
        panic!("selectors widen")
    };
    assert_eq!(
        refusal.to_string(),
        "the permissions of the token are refused: rule:1: `user` instead of `topic`; write no selectors, the rule is \
         about its client already, such as `allow publish topic a/b`"
    );
}

#[test]
fn a_mountpoint_is_taken_from_its_claim_and_an_invalid_one_refuses_the_token() {
    let options = JwtOptions { mountpoint_claim: Some("tenant".into()), ..JwtOptions::default() };
    assert_eq!(verdict(&options, &claims()), accepted(), "that of the listener");
    let named = with(claims(), "tenant", "acme/lab/");
    assert_eq!(accepted_claims(&options, &named).mountpoint.as_deref(), Some("acme/lab/"));
    assert_eq!(verdict(&JwtOptions::default(), &named), accepted(), "it is not asked for");
    let required = JwtOptions { required: vec!["tenant".into()], ..options.clone() };
    assert_eq!(verdict(&required, &claims()), missing("tenant"));
    let long = "a".repeat(2_000) + "/";
    for bad in ["", "acme", "/acme", "+/", "#/", "a/#/", "$SYS/", "$x/", "a\0/", &long] {
        let Verdict::Refused(refusal) = verdict(&options, &with(claims(), "tenant", bad)) else {
            panic!("{bad:?} is no mountpoint")
        };
        assert!(
            matches!(&refusal, Refusal::Mountpoint(claim, _) if &**claim == "tenant"),
            "{bad:?}: {refusal:?}"
        );
        let text = refusal.to_string();
        assert!(text.starts_with("the claim `tenant` is refused: ") && !text.contains('\n'), "{text}");
    }
    for bad in [json!(null), json!(1), json!(["acme/"]), json!({"a": "acme/"})] {
        assert_eq!(verdict(&options, &with(claims(), "tenant", bad)), invalid("tenant", TEXT));
    }
}

#[test]
fn options_that_cannot_be_met_are_refused() {
    let default = JwtOptions::default;
    let empty = || Some("".into());
    let check = |claim: &str, value: &str| {
        vec![ClaimCheck { claim: claim.into(), value: ConnectValue::Text(value.into()) }]
    };
    let rows = [
        (JwtOptions { leeway_secs: MAX_LEEWAY_SECS + 1, ..default() }, OptionsError::Leeway),
        (JwtOptions { audience: Some(Vec::new()), ..default() }, OptionsError::Audience),
        (JwtOptions { audience: Some(vec!["a".into(), "".into()]), ..default() }, OptionsError::Empty),
        (JwtOptions { issuer: empty(), ..default() }, OptionsError::Empty),
        (JwtOptions { required: vec!["".into()], ..default() }, OptionsError::Empty),
        (JwtOptions { checks: check("", "a"), ..default() }, OptionsError::Empty),
        (JwtOptions { checks: check("a", ""), ..default() }, OptionsError::Empty),
        (JwtOptions { user_claim: empty(), ..default() }, OptionsError::Empty),
        (JwtOptions { client_id_claim: empty(), ..default() }, OptionsError::Empty),
        (JwtOptions { groups_claim: empty(), ..default() }, OptionsError::Empty),
        (JwtOptions { permissions_claim: empty(), ..default() }, OptionsError::Empty),
        (JwtOptions { mountpoint_claim: empty(), ..default() }, OptionsError::Empty),
    ];
    for (options, expected) in rows {
        assert_eq!(Verifier::new(Issuer::hs256().keys(), options).map(|_| ()), Err(expected));
    }
}
