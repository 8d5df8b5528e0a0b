//! Parser of the service's answers.

use braid_auth::claims::Claims;
use braid_auth::rules_json::rules_from_json;
use braid_proto::topic::Mountpoint;
use serde::Deserialize;
use serde_json::Value;

use super::HookAnswer;
use crate::http::{HttpProblem, HttpResponse, not_json};

/// Rules of a superuser: all topics, those included that begin with `$`, which `#` does not match. No rule permits
/// PUBLISH to topics of the broker.
const SUPERUSER_RULES: &str = "allow all any-topic\n";

/// Maximum length of a name in MQTT, in bytes.
const MAX_NAME: usize = 65_535;

/// Body of an answer. Values are checked one by one, because the errors of the library repeat values; keys that are
/// unknown here are ignored, such as `client_attrs`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Body {
    result: Option<Value>,
    is_superuser: Option<Value>,
    acl: Option<Value>,
    expire_at: Option<Value>,
    groups: Option<Value>,
    username: Option<Value>,
    clientid: Option<Value>,
    mountpoint: Option<Value>,
}

/// Parses the response of the service: 200 with a JSON object, or 204 for `allow`.
pub(super) fn parse(response: &HttpResponse) -> Result<HookAnswer, HttpProblem> {
    match response.status {
        200 => {}
        204 => return Ok(HookAnswer::Allow(Claims::default())),
        status => return Err(HttpProblem::Status { status }),
    }
    let body: Body =
        serde_json::from_slice(&response.body).map_err(|error| not_json(&response.body, &error))?;
    match body.result.as_ref().and_then(Value::as_str) {
        Some("allow") => claims(body).map(HookAnswer::Allow).map_err(HttpProblem::Content),
        Some("deny") => Ok(HookAnswer::Deny),
        Some("ignore") => Ok(HookAnswer::Ignore),
        _ => Err(HttpProblem::Content("`result` is not \"allow\", \"deny\" or \"ignore\"".to_owned())),
    }
}

fn claims(body: Body) -> Result<Claims, String> {
    let mut rules = match body.is_superuser {
        None | Some(Value::Bool(false)) => String::new(),
        Some(Value::Bool(true)) => SUPERUSER_RULES.to_owned(),
        Some(_) => return Err("`is_superuser` is neither true nor false".to_owned()),
    };
    if let Some(acl) = body.acl {
        rules.push_str(&rules_from_json(&acl).map_err(|error| format!("`acl`: {error}"))?);
    }
    let expires_at = match body.expire_at {
        None => None,
        Some(value) => Some(value.as_u64().ok_or("`expire_at` is not a number of whole seconds since 1970")?),
    };
    let groups = match body.groups {
        None => Vec::new(),
        Some(Value::Array(names)) => {
            names.into_iter().map(|group| name(group, "groups")).collect::<Result<_, _>>()?
        }
        Some(_) => return Err("`groups` is not a list of names".to_owned()),
    };
    Ok(Claims {
        user: body.username.map(|value| name(value, "username")).transpose()?,
        client_id: body.clientid.map(|value| name(value, "clientid")).transpose()?,
        groups,
        rules: (!rules.is_empty()).then(|| rules.into()),
        mountpoint: body.mountpoint.as_ref().map(mountpoint).transpose()?,
        expires_at,
    })
}

fn mountpoint(value: &Value) -> Result<Box<str>, String> {
    let text = value.as_str().ok_or("`mountpoint` is not a string")?;
    Mountpoint::parse(text).map_err(|error| format!("`mountpoint`: {error}"))?;
    Ok(text.into())
}

fn name(value: Value, key: &str) -> Result<Box<str>, String> {
    match value {
        Value::String(text) if !text.is_empty() && text.len() <= MAX_NAME && !text.contains('\0') => {
            Ok(text.into())
        }
        Value::String(_) => Err(format!("a name in `{key}` is empty, too long or has a NUL character")),
        _ => Err(format!("a name in `{key}` is not a string")),
    }
}

#[cfg(test)]
mod tests {
    use braid_auth::acl::Acl;

    use super::*;

    fn parsed(status: u16, body: &str) -> Result<HookAnswer, String> {
        let response = HttpResponse { status, body: body.to_owned().into() };
        parse(&response).map_err(|problem| problem.to_string())
    }

    fn allow(change: impl FnOnce(&mut Claims)) -> HookAnswer {
        let mut claims = Claims::default();
        change(&mut claims);
        HookAnswer::Allow(claims)
    }

    #[test]
    fn answers_are_those_of_emqx_and_our_additions() {
        let cases = [
            (204, "", allow(|_| {})),
            (204, "ignored", allow(|_| {})),
            (200, r#"{"result":"allow"}"#, allow(|_| {})),
            (200, " {\"result\":\"deny\", \"acl\": 3}\r\n", HookAnswer::Deny),
            (200, r#"{"result":"ignore"}"#, HookAnswer::Ignore),
            (
                200,
                r#"{"result":"allow","is_superuser":false,"acl":null,"expire_at":null,"client_attrs":{"a":"b"},"x":[1]}"#,
                allow(|_| {}),
            ),
            (
                200,
                r#"{"result":"allow","expire_at":1700000000}"#,
                allow(|claims| claims.expires_at = Some(1_700_000_000)),
            ),
            (
                200,
                r#"{"result":"allow","username":"bob","clientid":"c1","groups":["a","b c"]}"#,
                allow(|claims| {
                    claims.user = Some("bob".into());
                    claims.client_id = Some("c1".into());
                    claims.groups = vec!["a".into(), "b c".into()];
                }),
            ),
            (
                200,
                r#"{"result":"allow","mountpoint":"acme/lab/"}"#,
                allow(|claims| claims.mountpoint = Some("acme/lab/".into())),
            ),
            (
                200,
                r#"{"result":"allow","acl":[{"permission":"deny","action":"all","topic":"a/#"}]}"#,
                allow(|claims| claims.rules = Some("deny all topic \"a/#\"\n".into())),
            ),
            (
                200,
                r#"{"result":"allow","is_superuser":true,"acl":[{"permission":"deny","action":"all","topic":"a"}]}"#,
                allow(|claims| {
                    claims.rules = Some(format!("{SUPERUSER_RULES}deny all topic \"a\"\n").into())
                }),
            ),
        ];
        for (status, body, expected) in cases {
            assert_eq!(parsed(status, body), Ok(expected), "{status} {body}");
        }
        Acl::parse(SUPERUSER_RULES.as_bytes(), "superuser").expect("rules");
    }

    #[test]
    fn everything_else_is_an_error_that_repeats_no_value() {
        let cases = [
            (200, "", "the answer is empty instead of JSON"),
            (200, " \n", "the answer is empty instead of JSON"),
            (200, " <!doctype html>s3cret", "the answer is HTML or XML instead of JSON"),
            (200, "s3cret", "the answer is not the expected JSON (line 1, column 1)"),
            (200, r#""s3cret""#, "the answer is not the expected JSON (line 1, column 8)"),
            (200, r#"{"result":"allow""#, "the answer is not the expected JSON"),
            (200, r#"{"result":"allow"} {"#, "the answer is not the expected JSON"),
            (200, r#"{"result":"deny","result":"allow"}"#, "the answer is not the expected JSON"),
            (200, "\u{feff}{\"result\":\"allow\"}", "the answer is not the expected JSON"),
            (200, "{}", "`result` is not"),
            (200, r#"{"result":"s3cret"}"#, "`result` is not"),
            (200, r#"{"result":"Allow"}"#, "`result` is not"),
            (200, r#"{"result":true}"#, "`result` is not"),
            (
                200,
                r#"{"result":"allow","is_superuser":"s3cret"}"#,
                "`is_superuser` is neither true nor false",
            ),
            (200, r#"{"result":"allow","is_superuser":1}"#, "`is_superuser` is neither true nor false"),
            (200, r#"{"result":"allow","expire_at":"s3cret"}"#, "`expire_at` is not a number"),
            (200, r#"{"result":"allow","expire_at":-1}"#, "`expire_at` is not a number"),
            (200, r#"{"result":"allow","expire_at":1.5}"#, "`expire_at` is not a number"),
            (200, r#"{"result":"allow","groups":"s3cret"}"#, "`groups` is not a list of names"),
            (200, r#"{"result":"allow","groups":["a",1]}"#, "a name in `groups` is not a string"),
            (200, r#"{"result":"allow","username":""}"#, "a name in `username` is empty"),
            (200, r#"{"result":"allow","username":["s3cret"]}"#, "a name in `username` is not a string"),
            (
                200,
                r#"{"result":"allow","clientid":"s3cret\u0000"}"#,
                "a name in `clientid` is empty, too long or has",
            ),
            (200, r#"{"result":"allow","mountpoint":["s3cret/"]}"#, "`mountpoint` is not a string"),
            (
                200,
                r#"{"result":"allow","mountpoint":"s3cret"}"#,
                "`mountpoint`: a mountpoint must end with '/'",
            ),
            (
                200,
                r#"{"result":"allow","mountpoint":"+/"}"#,
                "`mountpoint`: a mountpoint must not contain the",
            ),
            (200, r#"{"result":"allow","acl":"allow all topic #"}"#, "`acl`: rules: "),
            (200, r#"{"result":"allow","acl":[{"permission":"allow","action":"all"}]}"#, "`acl`: rule:1: "),
            (200, r#"{"result":"allow","acl":[]}"#, "`acl`: "),
            (201, r#"{"result":"allow"}"#, "unexpected status 201"),
            (302, "", "unexpected status 302: redirects are not followed"),
            (401, "", "unexpected status 401: the service refuses this broker"),
            (404, "", "unexpected status 404: check the path"),
            (500, r#"{"result":"allow"}"#, "unexpected status 500"),
        ];
        for (status, body, expected) in cases {
            let error = parsed(status, body).expect_err(body);
            assert!(error.starts_with(expected), "{body}: {error}");
            assert!(!error.contains("s3cret") && !error.contains('\n'), "{body}: {error}");
        }
        let long = format!(r#"{{"result":"allow","username":"{}"}}"#, "x".repeat(MAX_NAME + 1));
        assert!(parsed(200, &long).is_err());
        let deep = format!("{}{}", r#"{"result":"allow","x":"#, "[".repeat(60_000));
        assert!(parsed(200, &deep).is_err());
    }
}
