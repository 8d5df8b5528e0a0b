//! Reload of users, keys and rules: whole or not at all.

use std::fs;
use std::sync::Arc;

use braid_access::{
    AccessControl, AclFile, AclFormat, Chain, HashPool, KeyFileKind, Link, SCRAM_SHA_256, Tokens,
};
use braid_auth::identity::{Attributes, Identity};
use braid_auth::jwt::JwtOptions;
use braid_auth::scram::{Nonce, ScramClient};
use braid_broker::{Action, Authorize, Outcome};
use braid_proto::packet::ClientId;
use braid_proto::reason::ReasonCode;
use braid_proto::topic::TopicName;
use tempfile::TempDir;

use crate::chain::scram;
use crate::login::{Login, SECRET, line, token, tokens, users, write};
use crate::tokens::{key, key_sets, signed};

const OTHER_SECRET: &[u8] = b"another secret of at least thirty-two bytes";
const CLAIMS: &str = r#"{"sub":"joe","exp":9999999999}"#;

/// Access control with two password files, a secret and a list.
struct Files {
    folder: TempDir,
    control: AccessControl,
}

impl Files {
    fn new() -> Self {
        let folder = TempDir::new().expect("folder");
        let pool = HashPool::default();
        let first = write(&folder, "first", line("jane", "one") + &line("carl", "two"));
        let second = write(&folder, "second", line("ann", "three"));
        let secret = write(&folder, "secret", SECRET);
        let links: Vec<Link> = vec![users(&first, &pool), tokens(&secret), users(&second, &pool)];
        let list = AclFile { path: write(&folder, "acl", "allow all topic a\n"), format: AclFormat::Braidmq };
        let control = AccessControl::open(Chain::new(links, false), Some(list)).expect("rules");
        Self { folder, control }
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        write(&self.folder, name, content);
    }

    fn may_publish(&self, identity: &Identity, topic: &str) -> bool {
        let topic = TopicName::parse(topic).expect("a topic");
        self.control.authorizer().decide(identity, &ClientId::from("c1"), Action::Publish(&topic)).allowed
    }

    /// Everything that the files decide, as text.
    async fn state(&self) -> String {
        let chain = self.control.authenticator();
        let mut said = Vec::new();
        for (user, password) in [("jane", "one"), ("carl", "two"), ("ann", "three"), ("new", "four")] {
            said.push(Login::with(user, password).answer(&chain).await);
        }
        for secret in [SECRET, OTHER_SECRET] {
            said.push(Login::with("joe", token(secret, CLAIMS)).answer(&chain).await);
        }
        let rules = self.control.authorizer();
        for topic in ["a", "b"] {
            said.push(format!("{topic} {}", self.may_publish(&Identity::named("jane"), topic)));
        }
        for user in ["jane", "carl", "ann", "new"] {
            said.push(format!("{user} revoked: {}", rules.is_revoked(&known(user, Some("password")))));
        }
        said.push(format!("generation {}", rules.generation()));
        said.join("\n")
    }
}

fn known(user: &str, source: Option<&str>) -> Identity {
    let attributes =
        Attributes { user: Some(user.into()), source: source.map(Into::into), ..Attributes::default() };
    Identity::new(attributes).expect("no rules")
}

/// One bad file of four, with the others changed: nothing changes, and the error names the file and the line.
#[tokio::test]
async fn one_bad_file_leaves_everything_as_it_is() {
    let good = line("new", "four");
    let cut = &good[..good.len() - 9];
    let long = "x".repeat(1 << 20);
    for (name, content, parts) in [
        ("first", Some("".to_owned()), &["first", "there is no user"][..]),
        ("first", None, &["first", "cannot be read"]),
        ("first", Some(good.clone() + cut), &["first:2"]),
        ("first", Some(good.clone() + "jane\n"), &["first:2"]),
        ("first", Some(good.clone() + &good), &["first:2", "new"]),
        ("second", Some("\u{feff}".to_owned() + &good), &["second"]),
        ("second", Some(good.clone() + "x:$9$unknown$hash\n"), &["second:2"]),
        ("secret", Some("short".to_owned()), &["secret"]),
        ("secret", Some("".to_owned()), &["secret"]),
        ("secret", None, &["secret", "cannot be read"]),
        ("secret", Some(long + " "), &["secret", "more than 1048576 bytes"]),
        ("acl", Some("".to_owned()), &["acl", "there is no rule"]),
        ("acl", None, &["acl", "cannot be read"]),
        ("acl", Some("allow all topic b\nallow all".to_owned()), &["acl:2"]),
        ("acl", Some("allow all topic b\ntopic read #\n".to_owned()), &["acl:2", "unknown word"]),
    ] {
        let files = Files::new();
        let before = files.state().await;
        files.write("first", &good);
        files.write("second", &good);
        files.write("secret", OTHER_SECRET);
        files.write("acl", "allow all topic b\n");
        match &content {
            Some(content) => files.write(name, content),
            None => fs::remove_file(files.folder.path().join(name)).expect("remove"),
        }
        let error = files.control.read().expect_err("a bad file").to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{name}: {error}");
        assert!(
            !error.contains('\n') && !error.contains("BwcHBwcH") && !error.contains("secret of"),
            "{error}"
        );
        assert_eq!(files.state().await, before, "{error}");
    }
}

#[tokio::test]
async fn a_reload_changes_users_keys_and_rules_together() {
    let files = Files::new();
    let before = files.state().await;
    for expected in [
        "jane by password",
        "carl by password",
        "ann by password",
        "0x86 no authenticator knows",
        "joe by jwt",
        "a true",
        "b false",
        "jane revoked: false",
        "new revoked: true",
    ] {
        assert!(before.contains(expected), "{expected} is not in\n{before}");
    }
    files.write("first", line("carl", "changed"));
    files.write("second", line("new", "four") + &line("jane", "elsewhere"));
    files.write("secret", OTHER_SECRET);
    files.write("acl", "allow all topic b\n");
    let read = files.control.read().expect("good files");
    assert_eq!(files.state().await, before, "reading changes nothing");
    files.control.apply(read);
    let after: Vec<String> = files.state().await.lines().map(str::to_owned).collect();
    let expected = [
        "0x86 wrong password", // jane, whose password is another one now
        "0x86 wrong password",
        "0x86 no authenticator knows the credentials",
        "new by password",
        "0x87",
        "joe by jwt",
        "a false",
        "b true",
        "jane revoked: false",
        "carl revoked: false",
        "ann revoked: true",
        "new revoked: false",
        "generation 1",
    ];
    assert_eq!(after.len(), expected.len());
    for (after, expected) in after.iter().zip(expected) {
        assert!(after.starts_with(expected), "{after} instead of {expected}");
    }
    // Users of other authenticators are not looked for in password files.
    let rules = files.control.authorizer();
    assert!(
        files.may_publish(&known("ann", Some("jwt")), "b")
            && !files.may_publish(&known("ann", Some("password")), "b")
    );
    for identity in [known("ann", Some("jwt")), known("ann", None), Identity::anonymous()] {
        assert!(!rules.is_revoked(&identity));
    }
}

/// Without rules and password files nothing is asked; with either, a change may come.
#[tokio::test]
async fn what_can_change_is_asked_about() {
    let folder = TempDir::new().expect("folder");
    let file = users(&write(&folder, "users", line("jane", "one")), &HashPool::default());
    let secret = tokens(&write(&folder, "secret", SECRET));
    let list = || AclFile { path: write(&folder, "acl", "allow all topic a\n"), format: AclFormat::Braidmq };
    for (links, has_list, permits_everything) in [
        (vec![], false, true),
        (vec![], true, false),
        (vec![file], false, false),
        (vec![secret], false, false),
    ] {
        let control = AccessControl::open(Chain::new(links, false), has_list.then(list)).expect("rules");
        assert_eq!(control.authorizer().permits_everything(), permits_everything);
        let topic = TopicName::parse("b").expect("a topic");
        let decision = control.authorizer().decide(
            &Identity::anonymous(),
            &ClientId::from("c"),
            Action::Publish(&topic),
        );
        assert_eq!(
            decision.allowed, !has_list,
            "without a list only clients with rules of their own are restricted"
        );
    }
    // Those are restricted by their rules alone.
    let control = AccessControl::open(Chain::new(Vec::new(), false), None).expect("no rules");
    let attributes = Attributes { rules: Some("allow publish topic b".into()), ..Attributes::default() };
    let identity = Identity::new(attributes).expect("rules");
    for (topic, allowed) in [("b", true), ("c", false)] {
        let topic = TopicName::parse(topic).expect("a topic");
        let action = Action::Publish(&topic);
        let decision = control.authorizer().decide(&identity, &ClientId::from("c"), action);
        assert_eq!(decision.allowed, allowed);
    }
}

/// A rule withdraws a message that rules of a token permitted if it names the user or Client Identifier.
#[tokio::test]
async fn a_message_is_withdrawn_by_name() {
    let files = Files::new();
    let identity = known("joe", Some("jwt"));
    for (rules, expected) in [
        ("allow all topic b\n", false),
        ("deny all topic #\n", false),
        ("deny publish user joe topic a\n", true),
        ("deny publish client c1 topic #\n", true),
        ("deny receive user joe topic a\nallow publish user joe topic a\n", false),
    ] {
        files.write("acl", rules);
        files.control.apply(files.control.read().expect("good files"));
        let topic = TopicName::parse("a").expect("a topic");
        let withdraws = files.control.authorizer().withdraws(&identity, &ClientId::from("c1"), &topic);
        assert_eq!(withdraws, expected, "{rules}");
    }
    let control = AccessControl::open(Chain::new(Vec::new(), false), None).expect("no rules");
    let topic = TopicName::parse("a").expect("a topic");
    assert!(!control.authorizer().withdraws(&identity, &ClientId::from("c1"), &topic));
}

/// Clients are told from others by the line of their user, in the clear and by SCRAM, also while the exchange waits for
/// their proof.
#[tokio::test]
async fn a_password_is_revoked_with_its_line() {
    let files = Files::new();
    let chain = files.control.authenticator();
    let credential =
        async |user, password| Login::with(user, password).grant(&chain).await.expect("a user").credential;
    let credentials = [
        credential("jane", "one").await.expect("a line"),
        credential("carl", "two").await.expect("a line"),
        credential("ann", "three").await.expect("a line"),
        scram(&chain, "carl", "two").await.expect("a user").credential.expect("a line"),
    ];
    let mut exchanges = Vec::new();
    for _ in 0..2 {
        let (first, client) = ScramClient::start("carl", b"two", Nonce::new([3; 18])).expect("a user");
        let login = Login { method: Some(SCRAM_SHA_256), data: Some(first.into()), ..Login::default() };
        let Ok(Outcome::Challenge(challenge)) = login.outcome(&chain).await else { panic!("a challenge") };
        let (last, _) = client.handle_first(&challenge.data).expect("a challenge");
        exchanges.push((challenge.exchange, last));
    }
    let mut answer = async || {
        let (exchange, last) = exchanges.pop().expect("an exchange");
        exchange.proceed(Some(last.into())).await.map(|_| ()).map_err(|refusal| refusal.reason)
    };
    let reload = |first: String, second: String| {
        files.write("first", first);
        files.write("second", second);
        files.control.apply(files.control.read().expect("good files"));
        credentials.iter().map(|credential| credential.is_revoked()).collect::<Vec<_>>()
    };
    // Another user, comments and another order change nothing.
    let first = format!("# users\n{}{}{}", line("new", "four"), line("carl", "two"), line("jane", "one"));
    assert_eq!(reload(first, line("ann", "three")), [false; 4]);
    assert_eq!(answer().await, Ok(()));
    let first = line("carl", "changed") + &line("jane", "one");
    assert_eq!(reload(first, line("new", "four")), [false, true, true, true]);
    assert_eq!(answer().await, Err(ReasonCode::NotAuthorized), "the challenge was of the former password");
}

/// Clients whose key is gone are told from those whose key stayed, whatever its `kid` and file.
#[tokio::test]
async fn a_token_is_revoked_with_its_key() {
    let folder = TempDir::new().expect("folder");
    let (old, new) = (key(1), key(2));
    let file = write(&folder, "set.json", key_sets(&[(&old, "old"), (&new, "new")]));
    let options = JwtOptions::default();
    let keys = Tokens::from_file(&file, KeyFileKind::Jwks, options).expect("keys");
    let control =
        AccessControl::open(Chain::new(vec![Link::Token(Arc::new(keys))], false), None).expect("no rules");
    let chain = control.authenticator();
    let credential = async |key, id| {
        let grant = Login::with("joe", signed(key, Some(id), CLAIMS)).grant(&chain).await.expect("a token");
        grant.credential.expect("a token has a key")
    };
    let (by_old, by_new) = (credential(&old, "old").await, credential(&new, "new").await);
    let reload = |sets: &str| {
        write(&folder, "set.json", sets);
        control.apply(control.read().expect("a good file"));
        [by_old.is_revoked(), by_new.is_revoked()]
    };
    assert_eq!([by_old.is_revoked(), by_new.is_revoked()], [false, false]);
    assert_eq!(reload(&key_sets(&[(&new, "renamed"), (&old, "old")])), [false, false]);
    assert_eq!(reload(&key_sets(&[(&new, "new")])), [true, false]);
    assert_eq!(reload(&key_sets(&[(&old, "new")])), [false, true], "the name does not matter");
    write(&folder, "set.json", "{");
    control.read().expect_err("a bad file");
    assert_eq!([by_old.is_revoked(), by_new.is_revoked()], [false, true]);
}
