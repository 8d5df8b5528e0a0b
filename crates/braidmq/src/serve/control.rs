//! Configuration, users, rules and reload of the process, for the REST API.

use std::path::Path;

use braid_access::{AclFormat, read_file};
use braid_auth::acl::{self, Acl, Action, Decision, Subject};
use braid_auth::password::PasswordFile;
use braid_http::{
    Control, ControlError, ControlErrorKind, Priority, RulesAction, RulesAnswer, RulesQuestion, RulesText,
    User,
};
use braid_proto::topic::{TopicFilter, TopicName};
use tokio::sync::{mpsc, oneshot};

use crate::config::{AuthenticatorConfig, Config};
use crate::passwd::file::{self, LockedFile};
use crate::passwd::{Failure, Removal, remove_from, set_password};

/// Names of what a reload reads.
const RELOADED: [&str; 6] = ["users", "keys", "rules", "bans", "certificates", "log level"];

/// Request for a reload, with the channel for its outcome.
pub(super) type Reload = oneshot::Sender<Result<(), String>>;

/// Control of the process that serves.
pub(super) struct ProcessControl {
    config: Config,
    reloads: mpsc::Sender<Reload>,
}

fn refused(kind: ControlErrorKind, detail: impl Into<String>) -> ControlError {
    ControlError { kind, detail: detail.into() }
}

fn invalid(Failure(detail): Failure) -> ControlError {
    refused(ControlErrorKind::Invalid, detail)
}

impl ProcessControl {
    pub(super) fn new(config: Config, reloads: mpsc::Sender<Reload>) -> Self {
        Self { config, reloads }
    }

    fn password_file(&self) -> Result<&Path, ControlError> {
        let file = self.config.authenticator.iter().find_map(|one| match one {
            AuthenticatorConfig::Password(password) => Some(&*password.file),
            _ => None,
        });
        let detail = "there is no password file: add an [[authenticator]] with kind = \"password\"";
        file.ok_or_else(|| refused(ControlErrorKind::NotFound, detail))
    }

    fn acl_file(&self) -> Result<(&Path, AclFormat), ControlError> {
        let detail = "there is no access control list: set acl.file";
        let file = self.config.acl.file.as_deref();
        file.map(|file| (file, self.config.acl.format))
            .ok_or_else(|| refused(ControlErrorKind::NotFound, detail))
    }

    /// Text of the access control list, as it is in the file now.
    fn acl_text(&self) -> Result<String, ControlError> {
        let (path, _) = self.acl_file()?;
        let text = read_file(path, acl::MAX_FILE_BYTES)
            .map_err(|error| refused(ControlErrorKind::Failed, error.to_string()))?;
        String::from_utf8(text)
            .map_err(|_| refused(ControlErrorKind::Invalid, format!("{} is not UTF-8", path.display())))
    }

    /// Puts a file that was written in force.
    fn apply(&self, path: &Path) -> Result<(), ControlError> {
        self.reload().map(drop).map_err(|ControlError { kind, detail }| {
            let written = path.display();
            refused(
                kind,
                format!("{written} is written, and not in force, because the reload failed: {detail}"),
            )
        })
    }
}

impl Control for ProcessControl {
    fn config(&self) -> Result<serde_json::Value, ControlError> {
        // URLs are serialized without their secrets; others are in files that the configuration only names.
        serde_json::to_value(&self.config)
            .map_err(|error| refused(ControlErrorKind::Failed, error.to_string()))
    }

    fn priorities(&self) -> Vec<Priority> {
        let rules = self.config.priority.iter();
        rules
            .map(|rule| Priority { filter: rule.filter.as_str().to_owned(), priority: rule.priority.value() })
            .collect()
    }

    fn users(&self) -> Result<Vec<User>, ControlError> {
        let path = self.password_file()?;
        let text = file::read(path).map_err(|Failure(detail)| refused(ControlErrorKind::Failed, detail))?;
        let users = PasswordFile::parse(&text, &path.display().to_string())
            .map_err(|error| refused(ControlErrorKind::Invalid, error.to_string()))?;
        let user = |(name, kind): (&str, _)| User { name: name.to_owned(), hash_kind: format!("{kind}") };
        Ok(users.users().map(user).collect())
    }

    fn set_user(&self, name: &str, password: &str) -> Result<bool, ControlError> {
        let path = self.password_file()?;
        if password.is_empty() {
            return Err(refused(ControlErrorKind::Invalid, "the password is empty"));
        }
        let is_replaced = set_password(path, name, password).map_err(invalid)?;
        self.apply(path)?;
        Ok(is_replaced)
    }

    fn remove_user(&self, name: &str) -> Result<(), ControlError> {
        let path = self.password_file()?;
        match remove_from(path, name).map_err(invalid)? {
            Removal::Removed => self.apply(path),
            Removal::Unknown => Err(refused(ControlErrorKind::NotFound, "there is no such user")),
            Removal::Last => {
                let detail =
                    "it is the only user, and the broker refuses a file without users: add another one first";
                Err(refused(ControlErrorKind::Conflict, detail))
            }
        }
    }

    fn rules(&self) -> Result<RulesText, ControlError> {
        let (path, format) = self.acl_file()?;
        let format = match format {
            AclFormat::Braidmq => "braidmq",
            AclFormat::Mosquitto => "mosquitto",
        };
        Ok(RulesText { file: path.display().to_string(), format: format.to_owned(), text: self.acl_text()? })
    }

    fn replace_rules(&self, text: &str) -> Result<(), ControlError> {
        let (path, format) = self.acl_file()?;
        let parsed = format.parse(text.as_bytes(), &path.display().to_string());
        parsed.map_err(|error| refused(ControlErrorKind::Invalid, error.to_string()))?;
        let failed = |Failure(detail)| refused(ControlErrorKind::Failed, detail);
        LockedFile::open(path).map_err(failed)?.replace(text.as_bytes()).map_err(failed)?;
        self.apply(path)
    }

    fn test_rules(&self, question: &RulesQuestion) -> Result<RulesAnswer, ControlError> {
        let (path, format) = self.acl_file()?;
        let text = self.acl_text()?;
        let list = format
            .parse(text.as_bytes(), &path.display().to_string())
            .map_err(|error| refused(ControlErrorKind::Invalid, error.to_string()))?;
        let decision = decide(&list, question)?;
        let line = decision.line.map(std::num::NonZero::get);
        let rule = line.and_then(|line| text.lines().nth(line.saturating_sub(1)));
        Ok(RulesAnswer { allowed: decision.allowed, line, rule: rule.map(|rule| rule.trim().to_owned()) })
    }

    fn reload(&self) -> Result<Vec<String>, ControlError> {
        let gone = || refused(ControlErrorKind::Unavailable, "the broker starts or stops; ask again");
        let (answer, answered) = oneshot::channel();
        self.reloads.blocking_send(answer).map_err(|_| gone())?;
        match answered.blocking_recv() {
            Ok(Ok(())) => Ok(RELOADED.map(str::to_owned).to_vec()),
            Ok(Err(detail)) => Err(refused(ControlErrorKind::Invalid, detail)),
            Err(_) => Err(gone()),
        }
    }
}

/// Decision of a list.
fn decide(list: &Acl, question: &RulesQuestion) -> Result<Decision, ControlError> {
    let groups: Vec<_> = question.groups.iter().map(String::as_str).collect();
    let subject = Subject {
        user: question.user.as_deref(),
        client_id: &question.client,
        groups: &groups,
        listener: question.listener.as_deref(),
        address: question.address,
    };
    let not_valid =
        |error: &dyn std::fmt::Display| refused(ControlErrorKind::Invalid, format!("topic: {error}"));
    let of_topic = |action| {
        let topic = TopicName::parse(&question.topic).map_err(|error| not_valid(&error))?;
        if action == Action::Publish && acl::is_broker_topic(topic.as_str()) {
            return Ok(Decision { allowed: false, line: None, list: 0 });
        }
        Ok(acl::decide(&[list], &subject, action, &topic))
    };
    let of_filter = |action| {
        let filter = TopicFilter::parse(&question.topic).map_err(|error| not_valid(&error))?;
        Ok(acl::decide_filter(&[list], &subject, action, &filter))
    };
    match question.action {
        RulesAction::Publish => of_topic(Action::Publish),
        RulesAction::Receive => of_topic(Action::Receive),
        RulesAction::Subscribe => of_filter(Action::Subscribe),
        RulesAction::Prioritize => of_filter(Action::Prioritize),
    }
}
