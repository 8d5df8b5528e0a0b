//! `braidmq serve` with authenticators and rules: clients, reloads and refusals.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStderr, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::api::ask;
use crate::broker::braidmq;
use crate::serve::{Running, refusal_of, signal, start_command};

const LISTENERS: &str =
    "[listeners]\ntcp = [\"127.0.0.1:0\"]\ntls = []\nws = []\nwss = []\nquic = [\"127.0.0.1:0\"]\n";

const RULES: &str = "\
allow all topic home/%u/#
allow subscribe,receive user jane topic news
allow publish user carl topic news
";

/// A broker with users and rules, in a directory of its own.
struct Broker {
    running: Running,
    log: BufReader<ChildStderr>,
    directory: TempDir,
    /// Over TCP and over QUIC.
    urls: [String; 2],
    /// Address of the HTTP front.
    front: Option<String>,
}

fn add_user(file: &Path, user: &str, password: &str) {
    add_user_with(&[], file, user, password);
}

fn add_user_with(options: &[&str], file: &Path, user: &str, password: &str) {
    let mut command = braidmq(&["passwd", "add"]);
    let mut child = command
        .args(options)
        .arg(file)
        .args([user, "--stdin"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(password.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

impl Broker {
    fn start() -> Self {
        Self::start_with("")
    }

    /// With these sections of the configuration too.
    fn start_with(more: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
        for (user, password) in [("jane", "jane's own"), ("carl", "carl's own")] {
            add_user(&directory.path().join("users"), user, password);
        }
        fs::write(path("acl"), RULES).unwrap();
        fs::write(path("bans"), "").unwrap();
        let access = format!(
            "[[authenticator]]\nkind = \"password\"\nfile = {:?}\n[acl]\nfile = {:?}\n[bans]\nfile = {:?}\n",
            path("users"),
            path("acl"),
            path("bans")
        );
        let data = format!("data_dir = {:?}\n", path("data"));
        fs::write(path("braidmq.toml"), data + LISTENERS + &access + more).unwrap();
        let (mut running, banner) =
            start_command(&mut braidmq(&["serve", "--config", &path("braidmq.toml")]));
        let log = BufReader::new(running.0.stderr.take().unwrap());
        let urls = ["mqtt://", "quic://"].map(|scheme| {
            let line = banner.iter().find(|line| line.contains(scheme)).expect("the banner names it");
            line.split_whitespace().last().unwrap().to_owned()
        });
        let front = banner.iter().find_map(|line| line.split_once("http://")?.1.split('/').next());
        let front = front.map(str::to_owned);
        Self { running, log, directory, urls, front }
    }

    /// Arguments of a client of this user.
    fn arguments(&self, command: &str, url: &str, user: Option<(&str, &str)>) -> Vec<String> {
        let mut arguments =
            vec![command, "-V", "5", "-L", url].into_iter().map(str::to_owned).collect::<Vec<_>>();
        if url.starts_with("quic") {
            arguments.extend([
                "--cafile".to_owned(),
                self.directory.path().join("data/cert.pem").display().to_string(),
            ]);
        }
        if let Some((name, password)) = user {
            arguments.extend(["-u", name, "-P", password].map(str::to_owned));
        }
        arguments
    }

    fn run(&self, command: &str, url: &str, user: Option<(&str, &str)>, more: &[&str]) -> Output {
        let arguments = self.arguments(command, url, user);
        braidmq(&[]).args(arguments).args(more).output().unwrap()
    }

    /// Subscriber, after its SUBACK.
    fn subscriber(&self, url: &str, user: (&str, &str), more: &[&str]) -> Child {
        let arguments = self.arguments("sub", url, Some(user));
        let mut command = braidmq(&[]);
        command.args(arguments).arg("-d").args(more);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(log.any(|line| line.unwrap().contains("received SUBACK")));
        std::thread::spawn(move || log.for_each(drop));
        child
    }

    /// Sends SIGHUP; returns the lines of the log up to its outcome.
    fn reload(&mut self) -> String {
        signal(&self.running, "-HUP");
        self.log_until(" reloaded")
    }

    fn log_until(&mut self, part: &str) -> String {
        let mut said = String::new();
        while !said.contains(part) {
            assert!(self.log.read_line(&mut said).unwrap() > 0, "the log ends with:\n{said}");
        }
        said
    }
}

const JANE: (&str, &str) = ("jane", "jane's own");
/// `JANE` in base64.
const JANE_LOGIN: &str = "Basic amFuZTpqYW5lJ3Mgb3du";
const CARL: (&str, &str) = ("carl", "carl's own");

#[test]
fn clients_do_what_their_rules_permit_and_nothing_else() {
    let broker = Broker::start();
    for url in broker.urls.clone() {
        let code = |user, more: &[&str]| broker.run("sub", &url, user, more).status.code();
        assert_eq!(code(Some(JANE), &["-t", "news", "-E"]), Some(0));
        assert_eq!(code(Some(("jane", "wrong")), &["-t", "news", "-E"]), Some(0x86));
        assert_eq!(code(Some(("zoe", "x")), &["-t", "news", "-E"]), Some(0x86));
        assert_eq!(code(None, &["-t", "news", "-E"]), Some(0x87));
        let denied = broker.run("sub", &url, Some(CARL), &["-t", "news", "-E"]);
        let said = String::from_utf8_lossy(&denied.stderr);
        assert!(!denied.status.success() && said.lines().count() == 1, "{said}");
        let news = broker.subscriber(&url, JANE, &["-t", "news", "-t", "home/jane/#", "-C", "2", "-q", "1"]);
        for (user, topic, is_permitted) in [
            (JANE, "news", false),
            (CARL, "home/jane/door", false),
            (CARL, "news", true),
            (JANE, "home/jane/door", true),
        ] {
            let published = broker.run("pub", &url, Some(user), &["-t", topic, "-m", user.0, "-q", "1"]);
            let said = String::from_utf8_lossy(&published.stderr);
            assert_eq!(said.is_empty(), is_permitted, "{said}");
        }
        let received = news.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&received.stdout), "carl\njane\n");
    }
}

/// The password comes from each of its sources, and goes to no server.
#[test]
fn clients_authenticate_by_scram() {
    let broker = Broker::start();
    let users = broker.directory.path().join("users");
    add_user_with(&["--scram"], &users, "sam", "sam's own");
    let mut broker = broker;
    broker.reload();
    for url in broker.urls.clone() {
        let run = |user: &str, password: &str, more: &[&str]| {
            let mut arguments = broker.arguments("sub", &url, None);
            // The method implies MQTT 5.
            arguments.drain(1..3);
            let mut command = braidmq(&[]);
            command.args(arguments).args(["--auth-method", "scram-sha-256", "-u", user]);
            command.args(["-t", "home/sam/#", "-E"]).args(more).env("BRAIDMQ_PASSWORD", password);
            command.output().unwrap()
        };
        let accepted = run("sam", "sam's own", &["-d"]);
        let said = String::from_utf8_lossy(&accepted.stderr);
        assert_eq!(accepted.status.code(), Some(0), "{said}");
        assert!(said.contains("received AUTH") && !said.contains("sam's own"), "{said}");
        assert_eq!(run("sam", "unused", &["-P", "sam's own"]).status.code(), Some(0));
        assert_eq!(run("sam", "wrong", &[]).status.code(), Some(0x87));
        // A hash of argon2id proves nothing by SCRAM, even with the right password: the user is unknown there.
        assert_eq!(run(JANE.0, JANE.1, &[]).status.code(), Some(0x87));
        assert_eq!(run("zoe", "x", &[]).status.code(), Some(0x87));
        let old = run("sam", "sam's own", &["-V", "311"]);
        let said = String::from_utf8_lossy(&old.stderr);
        assert_eq!((old.status.code(), said.lines().count()), (Some(1), 1));
        assert!(said.contains("--auth-method needs MQTT 5"), "{said}");
        let sam = ("sam", "sam's own");
        let published = broker.run(
            "pub",
            &url,
            Some(sam),
            &["--auth-method", "SCRAM-SHA-256", "-t", "home/sam/a", "-m", "m", "-q", "1"],
        );
        assert!(published.status.success() && published.stderr.is_empty(), "{published:?}");
    }
}

/// A broker without a password file refuses the method, not the user.
#[test]
fn a_broker_without_passwords_refuses_scram() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().display().to_string();
    let (_running, banner) =
        start_command(&mut braidmq(&["serve", "--tcp", "127.0.0.1:0", "--data-dir", &data]));
    let line = banner.iter().find(|line| line.contains("mqtt://")).unwrap();
    let url = line.split_whitespace().last().unwrap();
    let refused =
        braidmq(&["sub", "--auth-method", "SCRAM-SHA-256", "-L", url, "-u", "u", "-P", "p", "-t", "a", "-E"])
            .output();
    let refused = refused.unwrap();
    assert_eq!(refused.status.code(), Some(0x8C), "{refused:?}");
}

/// A reload with one bad file says which and where, and changes nothing; a good one ends what is no longer permitted.
#[test]
fn a_hang_up_reloads_users_and_rules_whole_or_not_at_all() {
    let mut broker = Broker::start();
    let [tcp, quic] = broker.urls.clone();
    let [users, acl] = ["users", "acl"].map(|name| broker.directory.path().join(name));
    let without_jane: String = fs::read_to_string(&users)
        .unwrap()
        .lines()
        .filter(|line| !line.starts_with("jane"))
        .map(|line| format!("{line}\n"))
        .collect();
    let whole = fs::read_to_string(&users).unwrap();
    let subscribers = [&tcp, &quic].map(|url| broker.subscriber(url, JANE, &["-t", "news", "-q", "1"]));
    for (bad_users, bad_rules, place) in [
        (without_jane.as_str(), "allow all topic #\nallow everything\n", "acl:2"),
        (without_jane.as_str(), "", "acl"),
        ("", "allow all topic #\n", "users"),
        ("carl:x\n", "allow all topic #\n", "users:1"),
    ] {
        fs::write(&users, bad_users).unwrap();
        fs::write(&acl, bad_rules).unwrap();
        let said = broker.reload();
        let line =
            said.lines().find(|line| line.contains("nothing reloaded")).unwrap_or_else(|| panic!("{said}"));
        assert!(line.contains(place) && line.contains("ERROR") && !line.contains("carl:"), "{line}");
        assert!(broker.run("sub", &tcp, Some(JANE), &["-t", "news", "-E"]).status.success(), "{line}");
        assert!(!broker.run("sub", &tcp, Some(CARL), &["-t", "news", "-E"]).status.success(), "{line}");
    }
    // Rules first: the subscription that is not permitted any more ends, and its client stays.
    fs::write(&users, &whole).unwrap();
    fs::write(&acl, "allow all user carl topic #\nallow all topic home/%u/#\n").unwrap();
    let said = broker.reload();
    assert!(said.contains("users, rules, bans, certificates and log level reloaded"), "{said}");
    assert!(!broker.run("sub", &tcp, Some(JANE), &["-t", "news", "-E"]).status.success());
    assert!(broker.run("sub", &tcp, Some(CARL), &["-t", "news", "-E"]).status.success());
    // Then the user: both connections end, and it does not come back.
    fs::write(&users, &without_jane).unwrap();
    let said = broker.reload();
    assert!(said.contains("users, rules, bans, certificates and log level reloaded"), "{said}");
    for subscriber in subscribers {
        let ended = subscriber.wait_with_output().unwrap();
        assert_eq!((ended.status.code(), &*ended.stdout), (Some(7), &b""[..]));
    }
    assert_eq!(broker.run("sub", &quic, Some(JANE), &["-t", "home/jane/a", "-E"]).status.code(), Some(0x86));
}

/// Bans come into force and end by a reload; one with a bad line changes nothing.
#[test]
fn a_hang_up_reloads_bans() {
    let mut broker = Broker::start();
    let [tcp, quic] = broker.urls.clone();
    let bans = broker.directory.path().join("bans");
    let code = |broker: &Broker, url: &str, user| {
        broker.run("sub", url, Some(user), &["-t", "home/carl/a", "-E"]).status.code()
    };
    let subscribers = [&tcp, &quic].map(|url| broker.subscriber(url, JANE, &["-t", "news", "-q", "1"]));
    fs::write(&bans, "user jane\naddress here\n").unwrap();
    let said = broker.reload();
    assert!(said.contains("nothing reloaded") && said.contains("bans:2: `here` is no network"), "{said}");
    assert_eq!(broker.run("sub", &tcp, Some(JANE), &["-t", "news", "-E"]).status.code(), Some(0));
    fs::write(&bans, "# Left in anger.\nuser jane\n").unwrap();
    broker.reload();
    for subscriber in subscribers {
        assert!(!subscriber.wait_with_output().unwrap().status.success());
    }
    for url in [&tcp, &quic] {
        assert_eq!((code(&broker, url, JANE), code(&broker, url, CARL)), (Some(0x8A), Some(0)));
    }
    fs::write(&bans, "address ::1\naddress 127.0.0.0/8\n").unwrap();
    broker.reload();
    assert_ne!(code(&broker, &tcp, CARL), Some(0), "its address is refused before the handshake");
    fs::write(&bans, "").unwrap();
    broker.reload();
    for url in [&tcp, &quic] {
        assert_eq!(broker.run("sub", url, Some(JANE), &["-t", "news", "-E"]).status.code(), Some(0));
    }
}

/// Bans of the file hold after a reload, whatever became of them meanwhile.
#[test]
fn a_reload_puts_all_bans_of_the_file_in_force() {
    let mut broker = Broker::start_with("[http]\nlisten = [\"127.0.0.1:0\"]\noperators = [\"jane\"]\n");
    let (front, bans) = (broker.front.clone().unwrap(), broker.directory.path().join("bans"));
    let ask =
        |method: &str, path: &str, body: Option<Value>| ask(&front, method, path, JANE_LOGIN, body.as_ref());
    let listed = || {
        let (status, body) = ask("GET", "bans", None);
        assert_eq!(status, 200, "{body}");
        let listed: Value = serde_json::from_str(&body).unwrap();
        let ban = |ban: &Value| {
            let target = ban["user"].as_str().or(ban["addresses"].as_str()).unwrap().to_owned();
            (target, ban["expires_at"].is_null())
        };
        let mut listed: Vec<_> = listed["items"].as_array().unwrap().iter().map(ban).collect();
        listed.sort();
        listed
    };
    let both = [("10.1.0.0/16".to_owned(), true), ("carl".to_owned(), true)];
    fs::write(&bans, "user carl\naddress 10.1.2.3/16\naddress 10.1.0.0/16\n").unwrap();
    broker.reload();
    assert_eq!(listed(), both);
    // Lifted by hand.
    assert_eq!(ask("DELETE", "bans?user=carl", None).0, 204);
    broker.reload();
    assert_eq!(listed(), both);
    // Replaced by one with an end.
    let (status, body) = ask("POST", "bans", Some(json!({ "user": "carl", "secs": 60 })));
    assert!((200..300).contains(&status), "{body}");
    assert!(!listed()[1].1);
    broker.reload();
    assert_eq!(listed(), both);
    // Another line means the same network.
    fs::write(&bans, "user carl\naddress 10.1.0.0/16\n").unwrap();
    broker.reload();
    assert_eq!(listed(), both);
    // As many as there may be, beside one that an operator set.
    let (status, body) = ask("POST", "bans", Some(json!({ "user": "eve" })));
    assert!((200..300).contains(&status), "{body}");
    let many: String = (0..10_000).map(|number| format!("user {number}\n")).collect();
    fs::write(&bans, many).unwrap();
    let said = broker.reload();
    assert!(said.contains("nothing reloaded") && said.contains("10000 bans are in force"), "{said}");
    let (status, body) = ask("POST", "reload", None);
    assert!(status == 422 && body.contains("10000 bans are in force"), "{body}");
    broker.log_until(" reloaded");
    assert_eq!(listed().len(), 3, "nothing has changed");
    fs::write(&bans, "").unwrap();
    broker.reload();
    assert_eq!(listed(), [("eve".to_owned(), true)], "the former bans of the file are lifted");
}

/// Clients of the HTTP front have the mountpoint that is configured for them, or cannot connect there.
#[test]
fn mqtt_of_the_front_has_a_name_space_of_its_own() {
    let front = "[http]\nlisten = [\"127.0.0.1:0\"]\n";
    let broker = Broker::start_with(&format!("{front}mqtt.mountpoint = \"users/%u/\"\n"));
    let url = format!("ws://{}/mqtt", broker.front.as_ref().unwrap());
    let all = ["-t", "news", "-t", "home/jane/a", "-q", "1", "-C", "1"];
    let jane = broker.subscriber(&url, JANE, &all);
    for (user, topic, payload) in [(CARL, "news", "of carl"), (JANE, "home/jane/a", "of jane")] {
        let output = broker.run("pub", &url, Some(user), &["-t", topic, "-m", payload, "-q", "1"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    let received = jane.wait_with_output().unwrap().stdout;
    assert_eq!(String::from_utf8_lossy(&received), "of jane\n");
    let broker = Broker::start_with(&format!("{front}mqtt.enabled = false\n"));
    let url = format!("ws://{}/mqtt", broker.front.as_ref().unwrap());
    let output = broker.run("sub", &url, Some(JANE), &["-t", "news", "-E"]);
    assert!(
        output.status.code() == Some(1) && String::from_utf8_lossy(&output.stderr).contains("404"),
        "{output:?}"
    );
}

/// Each bad configuration is one line and exit code 2, before anything listens.
#[test]
fn bad_access_control_is_one_line_and_exit_code_2() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    add_user(&directory.path().join("users"), "jane", "her own");
    for (name, content) in [
        ("empty", ""),
        ("acl", "allow all topic a\n"),
        ("bad-acl", "allow all topic a\nallow all topic a/#/b\n"),
        ("bad-users", "jane\n"),
        ("secret", "a secret of at least thirty-two bytes"),
        ("short", "secret"),
        ("bad-bans", "user jane\nclient\n"),
    ] {
        fs::write(path(name), content).unwrap();
    }
    let outside = LISTENERS.replacen("127.0.0.1", "0.0.0.0", 1);
    let password = |name: &str| format!("[[authenticator]]\nkind = \"password\"\nfile = {:?}\n", path(name));
    let acl = |name: &str| format!("[acl]\nfile = {:?}\n", path(name));
    let jwt = |keys: &str| format!("[[authenticator]]\nkind = \"jwt\"\n{keys}");
    let file = |key: &str, name: &str| format!("{key} = {:?}\n", path(name));
    let front = |key: &str| format!("[http]\ntls = true\n{key} = [\"0.0.0.0:0\"]\n");
    for (listeners, access, parts) in [
        (LISTENERS, password("missing"), vec!["missing", "cannot be read"]),
        (LISTENERS, password("empty"), vec!["empty", "there is no user"]),
        (LISTENERS, password("bad-users"), vec!["bad-users:1"]),
        (LISTENERS, password("users") + &acl("missing"), vec!["missing", "cannot be read"]),
        (LISTENERS, password("users") + &acl("empty"), vec!["empty", "there is no rule"]),
        (LISTENERS, password("users") + &acl("bad-acl"), vec!["bad-acl:2"]),
        (LISTENERS, password("users") + &acl("acl") + "permit_all = true\n", vec!["acl.permit_all", "remove one of both"]),
        (LISTENERS, format!("[bans]\nfile = {:?}\n", path("bad-bans")), vec!["bad-bans:2: the name is missing"]),
        (LISTENERS, format!("[bans]\nfile = {:?}\n", path("missing")), vec!["missing", "cannot be read"]),
        (LISTENERS, "[acl]\npermit_al = true\n".to_owned(), vec!["permit_al"]),
        (LISTENERS, "[[authenticator]]\nkind = \"ldap\"\n".to_owned(), vec!["ldap", "password"]),
        (LISTENERS, "[[authenticator]]\nkind = \"password\"\n".to_owned(), vec!["file"]),
        (LISTENERS, jwt(""), vec!["authenticator 1 (jwt)", "name one of"]),
        (LISTENERS, jwt(&(file("secret_file", "secret") + &file("jwks_file", "secret"))), vec!["authenticator 1 (jwt)", "name one of"]),
        (LISTENERS, jwt(&file("secret_file", "short")), vec!["authenticator 1 (jwt)", "short"]),
        (LISTENERS, jwt(&file("jwks_file", "secret")), vec!["authenticator 1 (jwt)", "secret"]),
        (LISTENERS, jwt(&file("public_key_file", "missing")), vec!["authenticator 1 (jwt)", "missing"]),
        (LISTENERS, jwt("jwks_url = \"http://192.0.2.1/keys\"\n"), vec!["authenticator 1 (jwt)"]),
        (LISTENERS, jwt("jwks_url = \"http://127.0.0.1:1/keys\"\n"), vec!["authenticator 1 (jwt)", "127.0.0.1:1"]),
        (LISTENERS, "[[authenticator]]\nkind = \"http\"\nurl = \"http://192.0.2.1/\"\n".to_owned(), vec!["authenticator 1 (http)"]),
        (LISTENERS, "[[authenticator]]\nkind = \"http\"\nurl = \"http://u:hidden@localhost/\"\n".to_owned(), vec!["authenticator 1 (http)", "remove them"]),
        (LISTENERS, "[[authenticator]]\nkind = \"http\"\nurl = \"http://localhost/\"\nheader_env = { Authorization = \"NOT_SET\" }\n".to_owned(), vec!["authenticator 1 (http)", "NOT_SET"]),
        (LISTENERS, "[[authenticator]]\nkind = \"x509\"\nuser = \"nickname\"\n".to_owned(), vec!["nickname"]),
        (&outside, password("users"), vec!["acl.file", "there are no rules", "acl.permit_all=true"]),
        (LISTENERS, password("users") + &front("listen"), vec!["acl.file", "there are no rules", "0.0.0.0:0"]),
        (LISTENERS, password("users") + &front("api.listen"), vec!["acl.file", "there are no rules", "0.0.0.0:0"]),
    ] {
        fs::write(path("braidmq.toml"), format!("data_dir = {:?}\n{listeners}{access}", path("data"))).unwrap();
        let (code, said) = refusal_of(&mut braidmq(&["serve", "--config", &path("braidmq.toml")]));
        assert_eq!(code, 2, "{access}\n{said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{access}\n{said}");
        assert!(!said.contains("hidden") && !said.contains("thirty-two"), "{said}");
    }
}

/// Clients of this machine need no rules, and an outside listener none if that is said.
#[test]
fn no_rules_are_needed_on_this_machine_or_where_that_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    add_user(&directory.path().join("users"), "jane", "her own");
    let users = format!("[[authenticator]]\nkind = \"password\"\nfile = {:?}\n", path("users"));
    for (host, more) in [
        ("127.0.0.1", ""),
        ("127.0.0.1", "[http]\nlisten = [\"127.0.0.1:0\"]\n"),
        ("127.0.0.1", "[http]\ntls = true\nlisten = [\"0.0.0.0:0\"]\nmqtt.enabled = false\n"),
        ("0.0.0.0", "[acl]\npermit_all = true\n"),
    ] {
        let listeners = LISTENERS.replace("127.0.0.1", host);
        fs::write(path("braidmq.toml"), format!("data_dir = {:?}\n{listeners}{users}{more}", path("data")))
            .unwrap();
        let printed =
            braidmq(&["serve", "--print-config", "--config", &path("braidmq.toml")]).output().unwrap();
        assert!(printed.status.success(), "{printed:?}");
    }
}

/// Files and variables with secrets are named, and not read.
#[test]
fn the_printed_configuration_has_no_secret() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    add_user(&directory.path().join("users"), "jane", "her own");
    fs::write(path("secret"), "top secret of at least thirty-two bytes").unwrap();
    let text = format!(
        "[[authenticator]]\nkind = \"password\"\nfile = {:?}\n[[authenticator]]\nkind = \"jwt\"\nsecret_file = {:?}\n\
         [[authenticator]]\nkind = \"jwt\"\njwks_url = \"https://id.example/keys?top secret\"\n\
         [[authenticator]]\nkind = \"http\"\nurl = \"https://jane:top secret@id.example/\"\n\
         [[authenticator]]\nkind = \"http\"\nurl = \"http://localhost:1/auth?key=top%20secret\"\nheader_files = {{ X-Key = {:?} }}\n\
         header_env = {{ Authorization = \"SERVICE_TOKEN\" }}\n[acl]\npermit_all = true\n",
        path("users"),
        path("secret"),
        path("secret"),
    );
    fs::write(path("braidmq.toml"), LISTENERS.to_owned() + &text).unwrap();
    let mut command = braidmq(&["serve", "--print-config", "--config", &path("braidmq.toml")]);
    let printed = command.env("SERVICE_TOKEN", "top secret").output().unwrap();
    let printed = String::from_utf8(printed.stdout).unwrap();
    for part in [
        "SERVICE_TOKEN",
        &path("secret"),
        &path("users"),
        "permit_all = true",
        "https://id.example/keys?hidden\"",
        "http://localhost:1/auth?hidden\"",
        "hidden: the URL has a user name or a password",
    ] {
        assert!(printed.contains(part), "{part} is not in\n{printed}");
    }
    assert!(
        !printed.contains("top secret")
            && !printed.contains("top%20secret")
            && !printed.contains("argon2id")
            && !printed.contains("jane"),
        "{printed}"
    );
}
