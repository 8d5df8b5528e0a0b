//! REST API of `braidmq serve --http`: users, rules, configuration and reload of the process.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::broker::braidmq;
use crate::serve::{refusal_of, signal, start_command};

/// `alice:secret`, `bob:other` in base64.
const ALICE: &str = "Basic YWxpY2U6c2VjcmV0";
const BOB: &str = "Basic Ym9iOm90aGVy";

/// Token of `alice` that ends in 2286, with the signature of the first key; and both keys, of Ed25519.
const TOKEN: &str = "Bearer eyJhbGciOiJFZERTQSJ9.\
                     eyJzdWIiOiJhbGljZSIsImV4cCI6OTk5OTk5OTk5OX0.\
                     MDSsOxqfmizl42fqudOSvDO8eZOWzKXlOP7b1NRQo0K8BtBzXdnwx1r_F1bm0QgExNP7NliqVgvoPQlWMD4mBw";
const KEYS: [&str; 2] =
    ["iojj3XQJ8ZX9UtstPLpdcspnCb8dlBIb83SIAbQPb1w", "gTl3Dqh9F19Wo1Rmw0x-zMuNipG07jeiXfYPW4_Js5Q"];

fn add_user(file: &Path, user: &str, password: &str) {
    let mut command = braidmq(&["passwd", "add", "--stdin"]);
    let mut child = command.arg(file).arg(user).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(password.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

/// Status and body of a response.
pub(crate) fn ask(
    address: &str,
    method: &str,
    path: &str,
    login: &str,
    body: Option<&Value>,
) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let body = body.map(Value::to_string).unwrap_or_default();
    write!(
        stream,
        "{method} /api/v1/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: {login}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn users_and_rules_are_changed_in_their_files_and_in_force_at_once() {
    let data = tempfile::tempdir().unwrap();
    let (users, rules, config) =
        (data.path().join("users"), data.path().join("rules"), data.path().join("config.toml"));
    add_user(&users, "alice", "secret");
    fs::write(&rules, "# first\nallow publish user alice topic a/#\n").unwrap();
    let text = format!(
        "[[authenticator]]\nkind = \"password\"\nfile = {users:?}\n\
         [acl]\nfile = {rules:?}\n[http]\noperators = [\"alice\"]\nviewers = [\"bob\"]\n\
         [[priority]]\nfilter = \"alarm/#\"\npriority = 200\n"
    );
    fs::write(&config, text).unwrap();
    let mut command = braidmq(&["serve", "--tcp", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
    command.arg("--config").arg(&config).arg("--data-dir").arg(data.path().join("data"));
    let (mut broker, banner) = start_command(&mut command);
    let line = banner.iter().find(|line| line.contains("http://")).unwrap();
    let address = line.split_once("http://").unwrap().1.split('/').next().unwrap().to_owned();
    let ask = |method: &str, path: &str, login: &str, body: Option<Value>| {
        ask(&address, method, path, login, body.as_ref())
    };
    let json = |(status, body): (u16, String)| -> Value {
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    };

    let listed = json(ask("GET", "users", ALICE, None));
    assert_eq!((&listed["total"], &listed["items"][0]["name"]), (&json!(1), &json!("alice")));
    let kind = listed["items"][0]["hash_kind"].as_str().unwrap();
    assert!(kind.starts_with("argon2id m=") && !kind.contains('$'), "{kind}");
    assert_eq!(ask("PUT", "users/bob", ALICE, Some(json!({ "password": "other" }))).0, 201);
    assert!(fs::read_to_string(&users).unwrap().contains("\nbob:$argon2id$"));
    // The viewer may read at once, and change nothing.
    assert_eq!(json(ask("GET", "overview", BOB, None))["status"], "serving");
    assert_eq!(ask("PUT", "users/eve", BOB, Some(json!({ "password": "x" }))).0, 403);
    for (name, password, detail) in [("a:b", "x", "user name"), ("eve", "", "the password is empty")] {
        let path = format!("users/{}", name.replace(':', "%3A"));
        let (status, body) = ask("PUT", &path, ALICE, Some(json!({ "password": password })));
        assert!(status == 422 && body.contains(detail), "{body}");
    }
    assert_eq!(ask("DELETE", "users/bob", ALICE, None).0, 204);
    assert_eq!(ask("GET", "overview", BOB, None).0, 401);
    let (status, body) = ask("DELETE", "users/alice", ALICE, None);
    assert!(status == 409 && body.contains("only user"), "{body}");

    let shown = json(ask("GET", "rules", ALICE, None));
    assert!(
        shown["format"] == "braidmq" && shown["text"].as_str().unwrap().starts_with("# first"),
        "{shown}"
    );
    let question =
        |topic: &str| json!({ "user": "alice", "client": "c", "action": "publish", "topic": topic });
    let answer = json(ask("POST", "rules/test", ALICE, Some(question("a/b"))));
    assert_eq!(answer, json!({ "allowed": true, "line": 2, "rule": "allow publish user alice topic a/#" }));
    let before = fs::read(&rules).unwrap();
    let (status, body) = ask("PUT", "rules", ALICE, Some(json!({ "text": "allow everything\n" })));
    assert!(status == 422 && body.contains("rules:1"), "{body}");
    assert_eq!(fs::read(&rules).unwrap(), before);
    assert_eq!(
        ask("PUT", "rules", ALICE, Some(json!({ "text": "allow publish user alice topic b\n" }))).0,
        204
    );
    assert_eq!(json(ask("POST", "rules/test", ALICE, Some(question("a/b"))))["allowed"], false);
    assert_eq!(json(ask("POST", "rules/test", ALICE, Some(question("$SYS/b"))))["allowed"], false);
    let rules = "allow publish listener inside address 192.0.2.0/24 topic b\n";
    assert_eq!(ask("PUT", "rules", ALICE, Some(json!({ "text": rules }))).0, 204);
    for (listener, address, allowed) in [
        (json!("inside"), json!("192.0.2.7"), true),
        (json!("outside"), json!("192.0.2.7"), false),
        (json!("inside"), json!("198.51.100.7"), false),
        (json!(null), json!(null), false),
    ] {
        let mut question = question("b");
        (question["listener"], question["address"]) = (listener, address);
        let answer = json(ask("POST", "rules/test", ALICE, Some(question.clone())));
        assert_eq!(answer["allowed"], allowed, "{question}");
    }
    let (status, body) = ask("POST", "rules/test", ALICE, Some(question("a/+")));
    assert!(status == 422 && body.contains("topic:"), "{body}");

    let (status, shown) = ask("GET", "config", ALICE, None);
    assert!(
        status == 200 && shown.contains("\"operators\":[\"alice\"]") && !shown.contains("secret"),
        "{shown}"
    );
    let priorities = json(ask("GET", "priorities", ALICE, None));
    assert_eq!(priorities["items"], json!([{ "filter": "alarm/#", "priority": 200 }]));
    let reloaded = json(ask("POST", "reload", ALICE, None));
    assert!(reloaded["reloaded"].as_array().unwrap().contains(&json!("rules")), "{reloaded}");
    fs::write(&users, "alice\n").unwrap();
    let (status, body) = ask("POST", "reload", ALICE, None);
    assert!(status == 422 && body.contains("users:1"), "{body}");
    assert_eq!(ask("GET", "overview", ALICE, None).0, 200, "nothing has changed");

    signal(&broker, "-TERM");
    assert_eq!(broker.0.wait().unwrap().code(), Some(0));
}

/// Right credentials are remembered for 30 s, unless keys change.
#[test]
fn a_token_whose_key_is_gone_is_refused_at_once() {
    let data = tempfile::tempdir().unwrap();
    let (keys, config) = (data.path().join("keys.json"), data.path().join("config.toml"));
    let write = |key: &str| {
        let set = json!({ "keys": [{ "kty": "OKP", "crv": "Ed25519", "x": key }] });
        fs::write(&keys, set.to_string()).unwrap();
    };
    write(KEYS[0]);
    let text =
        format!("[[authenticator]]\nkind = \"jwt\"\njwks_file = {keys:?}\n[http]\noperators = [\"alice\"]\n");
    fs::write(&config, text).unwrap();
    let mut command = braidmq(&["serve", "--tcp", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
    command.arg("--config").arg(&config).arg("--data-dir").arg(data.path().join("data"));
    let (mut broker, banner) = start_command(&mut command);
    let mut log = BufReader::new(broker.0.stderr.take().unwrap()).lines();
    let line = banner.iter().find(|line| line.contains("http://")).unwrap();
    let address = line.split_once("http://").unwrap().1.split('/').next().unwrap();
    let status = || ask(address, "GET", "overview", TOKEN, None).0;
    for (key, expected) in [(KEYS[0], 200), (KEYS[1], 401), (KEYS[0], 200)] {
        write(key);
        signal(&broker, "-HUP");
        assert!(log.any(|line| line.unwrap().contains("log level reloaded")));
        assert_eq!((status(), status()), (expected, expected), "{key}");
    }
}

#[test]
fn roles_without_users_are_refused() {
    let data = tempfile::tempdir().unwrap();
    let mut command = braidmq(&["serve", "--tcp", "127.0.0.1:0", "--set", "http.viewers=[\"bob\"]"]);
    let (code, said) = refusal_of(command.arg("--data-dir").arg(data.path()));
    assert!(code == 2 && said.contains("http.operators: without an [[authenticator]]"), "{said}");
}
