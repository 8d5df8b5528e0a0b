//! Seam to the process around the broker: its configuration, users, rules and reload.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use utoipa::ToSchema;

/// Access to what is not the broker's. The functions may read and write files: they are called on threads for that.
pub trait Control: Send + Sync + 'static {
    /// Configuration in force, with secrets masked.
    ///
    /// # Errors
    /// As [`ControlError`] says.
    fn config(&self) -> Result<serde_json::Value, ControlError>;

    /// Priorities of topics, in their order.
    fn priorities(&self) -> Vec<Priority>;

    /// Users of the password file.
    ///
    /// # Errors
    /// There is no password file, or it cannot be read.
    fn users(&self) -> Result<Vec<User>, ControlError>;

    /// Adds a user or replaces its password, and puts that in force. True if there was such a user.
    ///
    /// # Errors
    /// There is no password file, it cannot be written, or name or password are not valid.
    fn set_user(&self, name: &str, password: &str) -> Result<bool, ControlError>;

    /// Removes a user and disconnects its clients.
    ///
    /// # Errors
    /// There is no such user, it is the only one, or the file cannot be written.
    fn remove_user(&self, name: &str) -> Result<(), ControlError>;

    /// Access control list.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    fn rules(&self) -> Result<RulesText, ControlError>;

    /// Replaces the access control list and puts it in force; a list with an error changes nothing.
    ///
    /// # Errors
    /// There is no file, it cannot be written, or the text is no list.
    fn replace_rules(&self, text: &str) -> Result<(), ControlError>;

    /// Answers whether the list that is in the file permits an action.
    ///
    /// # Errors
    /// There is none, it is malformed, or the topic is not valid.
    fn test_rules(&self, question: &RulesQuestion) -> Result<RulesAnswer, ControlError>;

    /// Reads all files again, or none of them if one is not valid. Returns the names of what was read.
    ///
    /// # Errors
    /// A file is not valid: its name and line are in the detail.
    fn reload(&self) -> Result<Vec<String>, ControlError>;
}

/// Failure of a [`Control`]: one line that clients see, without secrets.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{detail}")]
pub struct ControlError {
    /// Kind of failure.
    pub kind: ControlErrorKind,
    /// Cause and remedy.
    pub detail: String,
}

/// Kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlErrorKind {
    /// The thing that the request names is not there: 404.
    NotFound,
    /// The request is not possible in the present state: 409.
    Conflict,
    /// A file or a text is not valid: 422.
    Invalid,
    /// The system refused: 500.
    Failed,
    /// The broker starts or stops: 503.
    Unavailable,
}

/// Priority of the topics that a filter matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Priority {
    /// Topic Filter.
    pub filter: String,
    /// Priority, 0 to 65535; higher is sent sooner.
    pub priority: u16,
}

/// User of the password file, without its hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct User {
    /// User name.
    pub name: String,
    /// Kind of its hash, such as `argon2id m=19456,t=2,p=1`.
    pub hash_kind: String,
}

/// Access control list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct RulesText {
    /// Path of the file.
    pub file: String,
    /// Format: `braidmq` or `mosquitto`.
    pub format: String,
    /// Content of the file.
    pub text: String,
}

/// Question about an action of a client.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RulesQuestion {
    /// User name; none for an anonymous client.
    #[serde(default)]
    pub user: Option<String>,
    /// Client Identifier.
    pub client: String,
    /// Groups of the user, beside those of the list.
    #[serde(default)]
    pub groups: Vec<String>,
    /// Tag of the listener; none for one without.
    #[serde(default)]
    pub listener: Option<String>,
    /// IP address of the client; none for one that is not known.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub address: Option<IpAddr>,
    /// Action.
    pub action: RulesAction,
    /// Topic, or filter of subscribe and prioritize.
    pub topic: String,
}

/// Action that rules decide about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RulesAction {
    /// PUBLISH.
    Publish,
    /// SUBSCRIBE.
    Subscribe,
    /// Delivery of a message.
    Receive,
    /// Priority above the usual one.
    Prioritize,
}

/// Answer to a [`RulesQuestion`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct RulesAnswer {
    /// The action is permitted.
    pub allowed: bool,
    /// Line that decided; none if no rule matches.
    pub line: Option<usize>,
    /// Text of the line.
    pub rule: Option<String>,
}
